// AMD's matrix instructions for emulator.h, and what else concerns all 64 lanes of a wave at once. Each lane has the elements that
// AMD's documents of the instruction sets give it (CDNA 2 and 3); amd_matrix_instruction_calculator says the same.
// A lane that does not come leaves the others waiting for ever, which is reported.
#pragma once

#if LW_WAVE == 64
namespace emulator {

struct Operands {
  double a, b;
};
// of each lane of each wave
inline Operands operands[MOST_TOGETHER][MOST_THREADS];

// f(the operands of all lanes of the wave) after every lane has brought its own
template <class F>
EMULATOR auto together(Operands own, F f) {
  Gate& gate = block->waves[own_thread() / 64].gate;
  Operands* all = operands[block - state->blocks] + own_thread() / 64 * 64;
  wait(gate);  // everyone has read what came before
  all[own_thread() % 64] = own;
  wait(gate);
  return f(all);
}

// C + A B for 16 x 4 times 4 x 16; row(l, v): the row of C of which lane l has element v
template <class Four, class Real, class F>
EMULATOR Four multiply(Real a, Real b, const Four& before, F row) {
  Four c = before;
  return together({a, b}, [&](const Operands* of) {
    const int lane = own_thread() % 64;
    for (int v = 0; v < 4; v++)
      for (int k = 0; k < 4; k++) c[v] = Real(fma(of[16 * k + row(lane, v)].a, of[16 * k + lane % 16].b, double(c[v])));
    return c;
  });
}

}  // namespace emulator

#define __builtin_amdgcn_mfma_f64_16x16x4f64(a, b, c, ...) \
  emulator::multiply(a, b, c, [](int lane, int v) { return lane / 16 + 4 * v; })
#define __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, c, ...) \
  emulator::multiply(a, b, c, [](int lane, int v) { return 4 * (lane / 16) + v; })

EMULATOR int __builtin_amdgcn_readlane(int x, int lane) {
  return emulator::together({double(x), 0}, [=](const emulator::Operands* of) { return int(of[lane].a); });
}
EMULATOR int __builtin_amdgcn_ds_bpermute(int place, int x) {
  return emulator::together({double(x), 0}, [=](const emulator::Operands* of) { return int(of[place / 4 % 64].a); });
}
#endif
