#include "plan.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <utility>

#include "cpu/blocked.h"
#include "cpu/cholesky.h"
#include "cpu/cpu.h"
#include "cpu/eig.h"
#include "cpu/eigh.h"
#include "cpu/solve.h"
#include "cpu/threads.h"
#include "cpu/triangle.h"
#include "cusolver/cusolver.h"
#include "gpu/blocked_qr.h"
#include "gpu/cholesky.h"
#include "gpu/eig.h"
#include "gpu/eigh.h"
#include "gpu/kernel_pack.h"
#include "gpu/lstsq.h"
#include "gpu/lstsq_gram.h"
#include "gpu/on_host.h"
#include "gpu/solve.h"
#include "gpu/spectrum.h"
#include "gpu/svd.h"
#include "gpu/svd_gram.h"
#include "gpu/two_stage.h"
#include "gpu/vendor.h"
#include "lapack/eig.h"
#include "lapack/lapack.h"
#include "lapack/lstsq.h"
#include "methods/krylov.h"
#include "methods/krylov_svd.h"
#include "methods/lstsq.h"
#include "methods/mixed.h"
#include "methods/tall.h"
#include "operations.h"

namespace lapwing {
namespace {

std::atomic<int32_t> preferred{AUTO};

std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string text(const char* format, ...) {
  char buffer[400];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

bool is_complex(const Frame& frame) { return frame.dtype >= C64; }

// ---- what each engine can take -------------------------------------------------------------------------------------

std::string from(const char* reason) { return reason ? reason : ""; }

std::string missing(const Place& place, vendor::Library library) {
  return from(place.here ? vendor::missing(library) : nullptr);
}

std::string nothing(const Frame&, const Place&) { return ""; }

std::string too_large(const Frame& frame, int64_t largest) {
  return text("batched takes n up to %lld on this device, not %lld", (long long)largest, (long long)frame.size[1]);
}

std::string too_large_for(const Frame& frame, int64_t largest) {
  if (frame.size[1] > largest) return too_large(frame, largest);
  return text("n = %lld is too large for this GPU's shared memory", (long long)frame.size[1]);
}

// Our own kernels.
std::string needs_compiler(const Place& place) {
  if (place.here && kernel_pack::any_for(place.gpu->compute_capability)) return "";
  const std::string reason = missing(place, vendor::compiler);
  return reason.empty() ? reason : "own GPU kernels need the run-time compiler: " + reason;
}

// Our own kernels around a library.
std::string needs_kernels_and(const Place& place, vendor::Library library) {
  const std::string compiler = needs_compiler(place);
  return compiler.empty() ? missing(place, library) : compiler;
}

std::string needs_lapack(const Frame& frame, const Place&) {
  const lapack::Routine& potrf = lapack::routine(lapack::POTRF, frame.dtype);
  if (!potrf.address) return "no LAPACK library was found";
  if (potrf.width == 4 && frame.size[1] > INT32_MAX)
    return text("this LAPACK has 32-bit integers and cannot take n = %lld", (long long)frame.size[1]);
  return "";
}

// Kernels of ours turn and clean the triangles.
std::string needs_cusolver(const Frame&, const Place& place) { return needs_kernels_and(place, vendor::solver); }

std::string needs_eig_solver(const Frame&, const Place& place) { return needs_kernels_and(place, vendor::eig_solver); }

std::string eigh_batched_refuses(const Frame& frame, const Place&) {
  return frame.size[1] <= EIGH_LARGEST ? "" : too_large(frame, EIGH_LARGEST);
}

std::string eig_batched_refuses(const Frame& frame, const Place&) {
  return frame.size[1] <= EIG_LARGEST ? "" : too_large(frame, EIG_LARGEST);
}

// QR, SVD and SVDVALS: the shape decides
std::string shape_refused(const Frame& frame, int64_t longest, int64_t shortest) {
  if (frame.op == SVD && frame.size[3] && frame.size[1] != frame.size[2])
    return "batched gives full matrices for square matrices alone";
  return text("batched takes sides up to %lld and %lld on this device, not %lld x %lld", (long long)longest,
              (long long)shortest, (long long)frame.size[1], (long long)frame.size[2]);
}

std::string solve_batched_refuses(const Frame& frame, const Place&) {
  if (solve_fits(frame)) return "";
  if (frame.op == LSTSQ)
    return text("batched takes up to %lld elements with a side of up to %lld and %lld right-hand sides on this device, not"
                " %lld x %lld with %lld", (long long)(SOLVE_LARGEST * SOLVE_LARGEST), (long long)SVD_JACOBI_LARGEST,
                (long long)SOLVE_COLUMNS, (long long)frame.size[1], (long long)frame.size[2], (long long)frame.size[3]);
  if (is_qr(frame.op)) return shape_refused(frame, BLOCKED_LARGEST, BLOCKED_LARGEST);
  return is_rectangular(frame.op) ? shape_refused(frame, SVD_LONGEST, SVD_LARGEST) : too_large(frame, BLOCKED_LARGEST);
}

std::string gpu_cholesky_batched_refuses(const Frame& frame, const Place& place) {
  return cuda::cholesky_batched_fits(frame, *place.gpu) ? needs_compiler(place) : too_large_for(frame, 128);
}

std::string gpu_tiled_refuses(const Frame& frame, const Place& place) {
  if (cuda::cholesky_tiled_fits(frame, *place.gpu)) return needs_compiler(place);
  return text("tiled needs more shared memory than the %d bytes that this GPU allows a block", place.gpu->shared_per_block);
}

// Kernels between products of whole batches.
std::string needs_products(const Place& place) {
  const std::string kernels = needs_kernels_and(place, vendor::blas);
  return kernels.empty() ? missing(place, vendor::dense_blas) : kernels;
}

std::string gpu_eigh_batched_refuses(const Frame& frame, const Place& place) {
  if (!cuda::eigh_fits(frame, *place.gpu)) return too_large_for(frame, cuda::EIGH_LARGEST);
  return cuda::eigh_needs_products(frame, *place.gpu) ? needs_products(place) : needs_compiler(place);
}

std::string gpu_two_stage_refuses(const Frame& frame, const Place& place) {
  const std::string reason = cuda::two_stage_refuses(frame, *place.gpu);
  return reason.empty() ? needs_products(place) : reason;
}

std::string gpu_eig_batched_refuses(const Frame& frame, const Place& place) {
  return cuda::eig_fits(frame, *place.gpu) ? needs_compiler(place) : too_large_for(frame, cuda::EIG_LARGEST);
}

std::string gpu_svd_refused(const Frame& frame) {
  const long long m = frame.size[1], n = frame.size[2];
  if (frame.op == SVD && frame.size[3] && m != n) return "batched gives full matrices for square matrices alone";
  if (std::min(m, n) > cuda::SVD_BLOCKS_LARGEST)
    return text("batched takes a smaller side up to %lld on this device, not %lld x %lld", (long long)cuda::SVD_BLOCKS_LARGEST, m, n);
  return text("%lld x %lld is too long for panels in this GPU's shared memory", m, n);
}

std::string gpu_solve_batched_refuses(const Frame& frame, const Place& place) {
  if (cuda::solve_fits(frame, *place.gpu))
    return cuda::solve_is_blocked(frame, *place.gpu) ? needs_products(place) : needs_compiler(place);
  if (is_rectangular(frame.op)) return gpu_svd_refused(frame);
  return too_large(frame, cuda::solve_largest(frame, *place.gpu));
}

std::string too_wide_lstsq(const Frame& frame, const Place& place) {
  if (cuda::triangles_shared(frame) <= place.gpu->shared_per_block) return "";
  return text("%lld columns are too many for the %d bytes of shared memory that this GPU allows a block",
              (long long)std::min(frame.size[1], frame.size[2]), place.gpu->shared_per_block);
}

std::string gpu_qr_refuses(const Frame& frame, const Place& place) {
  if (frame.op == LSTSQ)
    if (const std::string reason = too_wide_lstsq(frame, place); !reason.empty()) return reason;
  if (!cuda::solve_fits(frame, *place.gpu))
    return text("%lld rows are too many for panels in the %d bytes of shared memory that this GPU allows a block",
                (long long)(frame.op == LSTSQ ? std::max(frame.size[1], frame.size[2]) : frame.size[1]), place.gpu->shared_per_block);
  return cuda::qr_is_blocked(frame, *place.gpu) ? needs_products(place) : needs_compiler(place);
}

std::string krylov_refuses(const Frame& frame, const Place& place) {
  if (!krylov::at_an_end(frame))
    return "krylov finds the smallest or the largest eigenvalues: give subset=slice(k) or subset=slice(-k, None)";
  if (!lapack::has_dense(frame.dtype)) return "no LAPACK library was found";
  return place.gpu ? needs_kernels_and(place, vendor::blas) : "";
}

std::string svd_part_refuses(const Frame& frame, const Place& place) {
  if (const char* reason = krylov::svd_refuses(frame)) return reason;
  if (!lapack::has_dense(is_complex(frame) ? C128 : F64)) return "no LAPACK library was found";
  return place.gpu ? needs_products(place) : "";
}

// The direct routine stands behind these engines on a GPU, and its workspace is a part of theirs.
std::string needs_direct(const Place& place) {
  for (const vendor::Library library : {vendor::blas, vendor::dense_blas, vendor::solver, vendor::dense_solver})
    if (const std::string reason = missing(place, library); !reason.empty()) return reason;
  return "";
}

std::string mixed_refuses(const Frame& frame, const Place& place) {
  if (const char* reason = mixed::refuses(frame)) return reason;
  if (place.gpu) return needs_direct(place);
  return lapack::has_dense(is_complex(frame) ? C64 : F32) ? "" : "no LAPACK library was found";
}

std::string tall_refused(const Frame& frame, const Place& place) {
  if (const char* reason = tall_refuses(frame)) return reason;
  if (place.gpu && tall_shared(frame) > place.gpu->shared_per_block)
    return text("tall needs %lld bytes of shared memory in a block, and this GPU allows %d", (long long)tall_shared(frame),
                place.gpu->shared_per_block);
  if (!lapack::routine(lapack::GESDD, is_complex(frame) ? C128 : F64).address) return "no LAPACK library was found";
  if (!place.gpu) return "";
  const std::string compiler = needs_compiler(place);
  return compiler.empty() ? needs_direct(place) : compiler;
}

std::string gpu_lstsq_refuses(const Frame& frame, const Place& place) {
  const std::string reason = too_wide_lstsq(frame, place);
  return reason.empty() ? needs_cusolver(frame, place) : reason;
}

// ---- which of them is fastest, where nothing was measured ----------------------------------------------------------

bool always(const Frame&, const Place&) { return true; }

// On the CPU our kernel gives a matrix one thread, LAPACK all of them: with two threads ours wins a little further
// (records/cholesky-cpu-*.json), with many LAPACK may win earlier.
bool cholesky_batched_pays(const Frame& frame, const Place&) {
  constexpr int64_t limit[] = {768, 512, 512, 384};
  return frame.size[1] <= limit[frame.dtype];
}

// The limits of the H200 (records/cholesky-cuda-nvidia-h200.json).
bool gpu_cholesky_batched_pays(const Frame& frame, const Place&) { return frame.size[1] <= 128; }
bool gpu_tiled_pays(const Frame& frame, const Place&) { return frame.size[1] <= 4096; }

// Fewer matrices than this are as fast one by one in LAPACK, for a vector of matrices takes the same time full or nearly
// empty. With full vectors of eight a matrix takes 1 / 2.7 of LAPACK's time on one thread at n = 100, 1 / 1.8 at 128, 1 / 1.3 at 192;
// without vectors 1 / 5.0, 1 / 3.7, 1 / 3.0 (Sapphire Rapids, AVX-512, float64, 2026-11-16). On Zen 4 1 / 2.2, 1 / 1.4, 1 / 1.05 with
// vectors; without them 1 / 2.4 at n = 192, 1 / 2.0 at 300, 1 / 1.7 at 400.
bool eigh_batched_pays(const Frame& frame, const Place&) {
  const int64_t n = frame.size[1], lanes = lanes_of(frame.dtype);
  const int64_t largest = frame.op == EIGH ? EIGH_LARGEST_WITH_VECTORS : EIGH_LARGEST;
  if (n > largest || frame.size[0] < (n <= 16 ? 1 : n <= 32 ? 4 : n <= 64 ? 8 : 16)) return false;
  const double gain = frame.op == EIGH ? 225 / double(n) : 500 / double(n);
  return n <= 32 || lanes_pay(frame, lanes, double(lanes) / 8 * std::min(4.4, gain));
}

// One matrix is LAPACK's. From times of one thread on Zen 4 (AVX-512, 2026-11-16, float64): a vector of eight matrices takes as long
// as LAPACK takes for 1.3 at n = 8 and 16, 1.8 at n = 32 and 2.7 at n = 64.
bool eig_batched_pays(const Frame& frame, const Place&) {
  const int64_t n = frame.size[1];
  return n <= EIG_LARGEST && frame.size[0] >= (n <= 32 ? 2 : 4);
}

// Even one matrix. With vectors on an H200, in ms, the kernel and the host: n = 64 float64 2.2 and 2.0, complex128 3.7 and 5.4.
// A hundred matrices in the kernel and one on the host: n = 128 float32 5.9 and 16, float64 10 and 15, complex128 29 and 43. The
// host also waits for the GPU.
bool gpu_eig_batched_pays(const Frame& frame, const Place&) { return frame.size[1] <= cuda::EIG_LARGEST; }

// Below these orders the library's routine mostly waits, and the host is faster. One matrix with vectors on an H200, in ms,
// cuSOLVER and the host: n = 128 float64 27 and 15; n = 256 float32 57 and 37, float64 48 and 54, complex64 75 and 88,
// complex128 77 and 102; n = 512 float32 134 and 213, float64 137 and 366.
constexpr int64_t CUSOLVER_EIG_FROM = 256, CUSOLVER_EIG_FROM_F32 = 384;
bool gpu_cusolver_eig_pays(const Frame& frame, const Place&) {
  return frame.size[1] >= (frame.dtype == F32 ? CUSOLVER_EIG_FROM_F32 : CUSOLVER_EIG_FROM);
}

// Where it also runs. H200, 2026-11-19, ms, in two stages and batched: float64 n = 4096 92 and 60, 8192 244 and 324, 16384 1224 and
// 2273; float32 8192 257 and 197, 16384 1038 and 1329. Values alone: float64 2048 26 and 16, 4096 59 and 65, 8192 140 and 292; float32
// 4096 49 and 34, 8192 121 and 165.
bool gpu_two_stage_pays(const Frame& frame, const Place& place) {
  constexpr int64_t FROM[] = {11776, 6144}, VALUES_FROM[] = {6144, 4096};
  return frame.dtype <= F64 && frame.size[1] >= (frame.op == EIGH ? FROM : VALUES_FROM)[frame.dtype] &&
         gpu_two_stage_refuses(frame, place).empty();
}

// A GPU wants to be filled: rotations need many matrices, teams of blocks take one.
bool gpu_eigh_batched_pays(const Frame& frame, const Place& place) {
  const int64_t n = frame.size[1], batch = frame.size[0];
  if (!cuda::eigh_is_reduced(frame, *place.gpu)) return batch >= (n <= 32 ? 1 : n <= 64 ? 2 : 16);
  return n <= cuda::eigh_chosen(frame) && !gpu_two_stage_pays(frame, place);
}

bool solve_batched_pays(const Frame& frame, const Place&) { return solve_fits(frame) && solve_pays(frame); }
bool gpu_solve_batched_pays(const Frame& frame, const Place& place) {
  return cuda::solve_fits(frame, *place.gpu) && cuda::solve_pays(frame, *place.gpu);
}

// The tall engine's few passes are faster where they pay.
bool gpu_svd_batched_pays(const Frame& frame, const Place& place) {
  return gpu_solve_batched_pays(frame, place) && !(tall_pays(frame) && tall_refused(frame, place).empty());
}

// How many values at an end of the spectrum the iteration finds sooner than the direct routine, from which order on. A spectrum
// on which it is slow costs a fifth more than the direct routine (methods/krylov.cc). Two threads of an AVX-512 machine, 16
// largest, float64, times over LAPACK's (2026-11-16): kernel matrix n = 1000 0.75, 2000 0.3; Wishart 2000 1.1, so that it is given
// up; at n = 500 and 1000 a Wishart matrix takes 3 times as long.
bool krylov_pays(const Frame& frame, const Place&) {
  const int64_t n = frame.size[1], count = frame.size[3];
  return n >= 1500 && count <= (n >= 4000 ? 128 : n >= 2000 ? 64 : 16);
}
// H200, ms (2026-11-16), 16 largest of a Wishart, a kernel and an evenly spaced matrix against all of them by the faster direct
// routine: float64 n = 1536 7.7, 5.5, 12 / 11, 2048 9.5, 5.8, 14 / 19, 4096 16, 7.0, 31 / 104; float32 1024 5.4, 3.4, 11 / 3.4, 2048 7.9,
// 5.3, 10 / 11, 4096 15, 4.7, 24 / 61, 8192 20, 4.7, - / 469; complex64 1536 8.2, 6.0, 12 / 12; complex128 2048 18, 11, 27 / 35. The 100
// largest of a Wishart matrix n = 8192, float64 134 / 511; 1000 of 20000 0.7 s. A spectrum that it gives up costs about 6 ms.
bool gpu_krylov_pays(const Frame& frame, const Place&) {
  const int64_t n = frame.size[1], count = frame.size[3];
  return n >= 2000 && count <= (n >= 16000 ? 1024 : n >= 8000 ? 256 : n >= 4000 ? 64 : 24);
}
// The Gram matrix and its largest eigenvalues against the full decomposition, ms (2026-11-16). Two threads of an AVX-512 machine,
// 16 values: float64 256 x 256 4.4 / 11.7, 1000 x 1000 63 / 232, 20000 x 400 67 / 202, float32 3.3 / 5.6, 58 / 121, 65 / 144; H200,
// float64: 1024 x 1024 12 / 31, 8192 x 8192 64 / 1249, 100000 x 2000 36 / 209.
bool svd_part_pays(const Frame& frame, const Place&) {
  const int64_t lesser = std::min(frame.size[1], frame.size[2]), count = frame.size[3];
  return lesser >= 256 && 8 * count <= lesser;
}

// Small systems go to the batched kernels in full precision, whatever was allowed.
bool mixed_pays(const Frame& frame, const Place&) { return (frame.flags & ALLOW_MIXED) && mixed::pays(frame); }
bool tall_is_faster(const Frame& frame, const Place&) { return tall_pays(frame); }

// ---- how much memory each of them takes ----------------------------------------------------------------------------

// Each thread keeps a copy of the matrices in its lanes, 64 bytes for a real number, or one matrix.
int64_t lanes_bytes(Frame& frame) {
  const int64_t n = frame.size[1], parts = is_complex(frame) ? 2 : 1;
  const int64_t threads = std::min<int64_t>(threads_for(frame), frame.size[0]);
  if (frame.op == CHOLESKY && n > CHOLESKY_LANES) return threads * n * n * int64_t(size_of(frame.dtype));
  const bool svd = frame.op == SVD || frame.op == SVDVALS, eig = frame.op == EIG || frame.op == EIGVALS || frame.op == SCHUR;
  const int64_t elements = frame.op == CHOLESKY         ? n * (n + 1) / 2
                           : eig                        ? 6 * n * (n + 3)
                           : svd                        ? 4 * n * frame.size[2]
                           : is_rectangular(frame.op) ? 2 * n * (frame.size[2] + 3)
                                                        : n * (n + 3);
  return threads * 64 * parts * elements;
}

int64_t tiled_bytes(Frame& frame) { return int64_t(cuda::cholesky_tiled_scratch(frame)); }
int64_t gpu_qr_bytes(Frame& frame) {
  return cuda::qr_is_blocked(frame, *cuda::properties(frame)) ? cuda::blocked_qr_scratch(frame) : 0;
}
int64_t gpu_eigh_bytes(Frame& frame) { return int64_t(cuda::eigh_batched_scratch(frame, *cuda::properties(frame))); }
int64_t gpu_eig_bytes(Frame& frame) { return int64_t(cuda::eig_batched_scratch(frame, *cuda::properties(frame))); }
int64_t gpu_solve_bytes(Frame& frame) { return cuda::solve_bytes(frame, *cuda::properties(frame)); }
int64_t lapack_eigh_host(Frame& frame) { return lapack::eigh_host_bytes(frame); }
int64_t lapack_eig_host(Frame& frame) { return lapack::eig_host_bytes(frame); }
int64_t lapack_solve_host(Frame& frame) { return lapack::solve_host_bytes(frame); }
// the direct routine asks for its own, should it take over
int64_t krylov_bytes(Frame& frame) { return int64_t(krylov::scratch_bytes(frame)); }
int64_t krylov_host(Frame& frame) { return int64_t(krylov::host_bytes(frame)); }
int64_t with_direct(int64_t direct, int64_t more) { return direct < 0 ? direct : direct + more; }
int64_t mixed_bytes(Frame& frame) {
  return frame.device == CPU ? 0 : with_direct(cusolver::solve_scratch(frame), mixed::scratch_bytes(frame));
}
int64_t mixed_host(Frame& frame) {
  return frame.device == CPU ? lapack::solve_host_bytes(frame) + mixed::host_bytes(frame) : 0;
}
int64_t tall_bytes(Frame& frame) {
  return frame.device == CPU ? 0 : with_direct(cusolver::solve_scratch(frame), tall_scratch(frame));
}
int64_t tall_host(Frame& frame) {
  return frame.device == CPU ? std::max(lapack::solve_host_bytes(frame), tall_host_bytes(frame)) : 0;
}

// ---- what does the work --------------------------------------------------------------------------------------------

constexpr Direct LAPACK_EIGH = {LAPACK, lapack::eigh}, LAPACK_SOLVE = {LAPACK, lapack::solve};
constexpr Direct BATCHED_EIGH = {BATCHED, cuda::eigh_batched}, TWO_STAGE_EIGH = {TWO_STAGE, cuda::eigh_two_stage};
// The library's own routines. AMD's is called through the same table, by another name.
constexpr Direct CUSOLVER_EIGH = {CUSOLVER, cusolver::eigh}, CUSOLVER_SOLVE = {CUSOLVER, cusolver::solve};
constexpr Direct ROCSOLVER_EIGH = {ROCSOLVER, cusolver::eigh}, ROCSOLVER_SOLVE = {ROCSOLVER, cusolver::solve};
const Direct& solver_eigh(Frame& frame) {
  const cuda::Properties* gpu = cuda::properties(frame);
  return gpu && gpu->is_amd() ? ROCSOLVER_EIGH : CUSOLVER_EIGH;
}
const Direct& solver_solve(Frame& frame) {
  const cuda::Properties* gpu = cuda::properties(frame);
  return gpu && gpu->is_amd() ? ROCSOLVER_SOLVE : CUSOLVER_SOLVE;
}

// What the iteration falls back on: the direct routine that is the faster one of a single large matrix.
const Direct& direct_eigh(Frame& frame) {
  if (frame.device == CPU) return LAPACK_EIGH;
  const cuda::Properties* gpu = cuda::properties(frame);
  if (!gpu || !cuda::eigh_is_reduced(frame, *gpu)) return solver_eigh(frame);
  if (gpu_two_stage_pays(frame, {gpu})) return TWO_STAGE_EIGH;
  return gpu_eigh_batched_pays(frame, {gpu}) && cuda::eigh_fits(frame, *gpu) ? BATCHED_EIGH : solver_eigh(frame);
}
int run_krylov(Frame& frame) { return krylov::eigh(frame, direct_eigh(frame)); }
int run_mixed(Frame& frame) { return mixed::solve(frame, frame.device == CPU ? LAPACK_SOLVE : solver_solve(frame)); }
int run_tall(Frame& frame) { return tall(frame, frame.device == CPU ? LAPACK_SOLVE : solver_solve(frame)); }
// The engine that run() would choose.
Choice chosen(Frame& frame) { return frame.device == CPU ? decide(frame, {}) : decide(frame, {cuda::properties(frame), true}); }
int run_chosen(Frame& frame) {
  const Choice choice = chosen(frame);
  if (!choice.method) return fail(frame, "no engine can take a matrix of this size");
  const auto requested = std::exchange(frame.engine, choice.engine());
  const int status = choice.method->run(frame);
  frame.engine = requested;
  return status;
}
int64_t chosen_bytes(Frame& frame) {
  const Choice choice = chosen(frame);
  if (!choice.method) return 0;
  const auto bytes = frame.device == CPU ? choice.method->host_bytes : choice.method->device_bytes;
  const auto requested = std::exchange(frame.engine, choice.engine());
  const int64_t needed = bytes ? bytes(frame) : 0;
  frame.engine = requested;
  return needed;
}
constexpr cuda::ChosenEngine CHOSEN = {run_chosen, chosen_bytes};
int eig_on_host(Frame& frame) { return cuda::on_host(frame, run_chosen); }
int64_t eig_on_host_bytes(Frame& frame) { return cuda::on_host_bytes(frame) + lapack::eig_host_bytes(frame); }
int lstsq_batched(Frame& frame) { return lstsq(frame, solve_batched, run_chosen); }
int lstsq_lapack(Frame& frame) { return lstsq(frame, lapack::lstsq, run_chosen); }
int lstsq_tall(Frame& frame) {
  return lstsq(frame, [](Frame& whole) { return lstsq_by_factors(whole, run_tall); }, run_chosen);
}
// Whether the tall engine decomposes a matrix with few columns inside another call: also below the sizes from which it is chosen
// for a call of its own, as the host waits here anyway. H200: 20000 x 64 0.46 ms, by cuSOLVER 1.5.
bool thin_svd_by_tall(Frame& frame) {
  constexpr int64_t LEAST_ROWS = 1024;
  const cuda::Properties* gpu = frame.device == CPU ? nullptr : cuda::properties(frame);
  if (gpu && tall_shared(frame) > gpu->shared_per_block) return false;
  return !tall_refuses(frame) && (tall_pays(frame) || frame.size[1] >= LEAST_ROWS);
}
int run_thin_svd(Frame& frame) { return thin_svd_by_tall(frame) ? run_tall(frame) : run_chosen(frame); }
int64_t thin_svd_bytes(Frame& frame) {
  if (!thin_svd_by_tall(frame)) return chosen_bytes(frame);
  return frame.device == CPU ? tall_host(frame) : tall_bytes(frame);
}
constexpr krylov::SvdEngines SVD_ENGINES = {run_chosen, run_thin_svd, run_chosen, chosen_bytes, thin_svd_bytes, chosen_bytes};
int run_svd_part(Frame& frame) { return krylov::svd(frame, SVD_ENGINES); }
int run_svd_by_full(Frame& frame) { return krylov::svd_by_full(frame, SVD_ENGINES); }
int64_t svd_part_bytes(Frame& frame) { return krylov::svd_bytes(frame, SVD_ENGINES); }
int64_t svd_by_full_bytes(Frame& frame) { return krylov::svd_by_full_bytes(frame, SVD_ENGINES); }
// By A^H A first where it fits: matrices whose condition forbids it go to the engine itself.
bool gpu_lstsq_by_gram(Frame& frame) {
  const cuda::Properties* gpu = cuda::properties(frame);
  return gpu && cuda::lstsq_gram_fits(frame) && !cuda::lstsq_is_one_kernel(frame, *gpu);
}
int gpu_lstsq(Frame& frame, int (*other)(Frame&)) {
  return gpu_lstsq_by_gram(frame) ? cuda::lstsq_by_gram(frame, CHOSEN, other) : other(frame);
}
int64_t gpu_lstsq_bytes(Frame& frame, int64_t other) {
  const int64_t gram = other >= 0 && gpu_lstsq_by_gram(frame) ? cuda::lstsq_gram_scratch(frame, CHOSEN) : 0;
  return other < 0 || gram < 0 ? -1 : other + gram;
}
int gpu_lstsq_blocked(Frame& frame) { return cuda::blocked_lstsq(frame, CHOSEN); }
int gpu_lstsq_vendor(Frame& frame) {
  const int64_t bytes = cuda::lstsq_svd_bytes(frame, CHOSEN);
  char* block = bytes < 0 ? nullptr : cuda::scratch(frame, size_t(bytes));
  return !block || cusolver::solve(frame) || cuda::lstsq_by_svd(frame, CHOSEN, block);
}
int gpu_lstsq_batched(Frame& frame) { return gpu_lstsq(frame, gpu_lstsq_blocked); }
int64_t gpu_lstsq_batched_bytes(Frame& frame) { return gpu_lstsq_bytes(frame, cuda::blocked_lstsq_scratch(frame, CHOSEN)); }
int gpu_lstsq_cusolver(Frame& frame) { return gpu_lstsq(frame, gpu_lstsq_vendor); }
int64_t gpu_lstsq_cusolver_bytes(Frame& frame) {
  const int64_t bytes = cuda::lstsq_svd_bytes(frame, CHOSEN);
  return bytes < 0 ? bytes : gpu_lstsq_bytes(frame, with_direct(cusolver::solve_scratch(frame), bytes));
}
int64_t lstsq_host(Frame& frame) { return lapack::lstsq_host_bytes(frame); }
// Large matrices, and batches in single precision, go by the eigenvectors of A^H A in double precision, where the condition allows it.
bool svd_by_rotations_fits(Frame& frame) {
  constexpr int64_t LARGEST = 512;
  const cuda::Properties* gpu = cuda::properties(frame);
  return gpu && cuda::svd_fits(frame, *gpu) && std::min(frame.size[1], frame.size[2]) <= LARGEST;
}
int other_svd(Frame& frame) { return svd_by_rotations_fits(frame) ? cuda::svd_by_rotations(frame) : cusolver::solve(frame); }
int64_t other_svd_bytes(Frame& frame) {
  return svd_by_rotations_fits(frame) ? cuda::svd_scratch(frame) : cusolver::solve_scratch(frame);
}
constexpr cuda::ChosenEngine OTHER_SVD = {other_svd, other_svd_bytes};
int gpu_svd_cusolver(Frame& frame) {
  return cuda::svd_gram_fits(frame) ? cuda::svd_by_gram(frame, CHOSEN, OTHER_SVD) : cusolver::solve(frame);
}
int64_t gpu_svd_cusolver_bytes(Frame& frame) {
  return cuda::svd_gram_fits(frame) ? cuda::svd_gram_scratch(frame, CHOSEN, OTHER_SVD) : cusolver::solve_scratch(frame);
}
int run_gpu_finite(Frame& frame) { return cuda::finite(frame); }
int run_gpu_hermitian(Frame& frame) {
  return cuda::hermitian(frame, frame.buffer[0], frame.buffer[1], nullptr, frame.size[0]);
}

// ---- the table: [device][operation] -> engines, the first one that pays first --------------------------------------

struct Methods {
  const Method* first = nullptr;
  size_t count = 0;
  const Method* begin() const { return first; }
  const Method* end() const { return first + count; }
  const Method* find(int32_t engine) const {
    for (const Method& method : *this)
      if (method.engine == engine) return &method;
    return nullptr;
  }
};

Methods cpu_methods_of(int32_t op) {
  static constexpr Method cholesky[] = {
      {BATCHED, cholesky_batched, nothing, cholesky_batched_pays, nullptr, lanes_bytes},
      {LAPACK, lapack::cholesky, needs_lapack, always, nullptr, nullptr}};
  static constexpr Method eigh[] = {{BATCHED, eigh_batched, eigh_batched_refuses, eigh_batched_pays, nullptr, lanes_bytes},
                                {KRYLOV, run_krylov, krylov_refuses, krylov_pays, nullptr, krylov_host},
                                {LAPACK, lapack::eigh, needs_lapack, always, nullptr, lapack_eigh_host}};
  static constexpr Method solve[] = {{BATCHED, solve_batched, solve_batched_refuses, solve_batched_pays, nullptr, lanes_bytes},
                                 {LAPACK, lapack::solve, needs_lapack, always, nullptr, lapack_solve_host},
                                 {MIXED, run_mixed, mixed_refuses, mixed_pays, nullptr, mixed_host}};
  static constexpr Method tall[] = {solve[0], solve[1], {TALL, run_tall, tall_refused, tall_is_faster, nullptr, tall_host}};
  static constexpr Method lstsq[] = {{BATCHED, lstsq_batched, solve_batched_refuses, solve_batched_pays, nullptr, lanes_bytes},
                                     {LAPACK, lstsq_lapack, needs_lapack, always, nullptr, lstsq_host},
                                     {TALL, lstsq_tall, tall_refused, tall_is_faster, nullptr, tall_host}};
  static constexpr Method svd_part[] = {{KRYLOV, run_svd_part, svd_part_refuses, svd_part_pays, nullptr, svd_part_bytes},
                                        {LAPACK, run_svd_by_full, needs_lapack, always, nullptr, svd_by_full_bytes}};
  static constexpr Method eig[] = {{BATCHED, eig_batched, eig_batched_refuses, eig_batched_pays, nullptr, lanes_bytes},
                                   {LAPACK, lapack::eig, needs_lapack, always, nullptr, lapack_eig_host}};
  static constexpr Method finite[] = {{BATCHED, lapwing::finite, nothing, always, nullptr, nullptr}};
  static constexpr Method hermitian[] = {{BATCHED, lapwing::hermitian, nothing, always, nullptr, nullptr}};

  switch (op) {
    case CHOLESKY: return {cholesky, 2};
    case EIGH: case EIGVALSH: return {eigh, 3};
    case SOLVE: return {solve, 3};
    case QR: case SVD: case SVDVALS: return {tall, 3};
    case SVD_PART: return {svd_part, 2};
    case LSTSQ: return {lstsq, 3};
    case EIG: case EIGVALS: case SCHUR: return {eig, 2};
    case FINITE: return {finite, 1};
    case HERMITIAN: return {hermitian, 1};
    default: return {solve, 2};  // mixed solves whole systems alone
  }
}

// SOLVER: CUSOLVER or ROCSOLVER
template <int32_t SOLVER>
Methods gpu_methods_of(int32_t op) {
  static constexpr Method gpu_cholesky[] = {
      {BATCHED, cuda::cholesky_batched, gpu_cholesky_batched_refuses, gpu_cholesky_batched_pays, nullptr, nullptr},
      {TILED, cuda::cholesky_tiled, gpu_tiled_refuses, gpu_tiled_pays, tiled_bytes, nullptr},
      {SOLVER, cusolver::cholesky, needs_cusolver, always, cusolver::cholesky_scratch, nullptr}};
  static constexpr Method gpu_eigh[] = {
      {BATCHED, cuda::eigh_batched, gpu_eigh_batched_refuses, gpu_eigh_batched_pays, gpu_eigh_bytes, nullptr},
      {KRYLOV, run_krylov, krylov_refuses, gpu_krylov_pays, krylov_bytes, krylov_host},
      {TWO_STAGE, cuda::eigh_two_stage, gpu_two_stage_refuses, gpu_two_stage_pays, cuda::two_stage_bytes, nullptr},
      {SOLVER, cusolver::eigh, needs_cusolver, always, cusolver::eigh_scratch, cusolver::eigh_host_bytes}};
  static constexpr Method gpu_eig[] = {
      {BATCHED, cuda::eig_batched, gpu_eig_batched_refuses, gpu_eig_batched_pays, gpu_eig_bytes, nullptr},
      {SOLVER, cusolver::eig, needs_eig_solver, gpu_cusolver_eig_pays, cusolver::eig_scratch, cusolver::eig_host_bytes},
      {LAPACK, eig_on_host, needs_lapack, always, nullptr, eig_on_host_bytes}};
  static constexpr Method gpu_schur[] = {gpu_eig[0], gpu_eig[2]};
  static constexpr Method gpu_solve[] = {
      {BATCHED, cuda::solve_batched, gpu_solve_batched_refuses, gpu_solve_batched_pays, gpu_solve_bytes, nullptr},
      {SOLVER, cusolver::solve, needs_cusolver, always, cusolver::solve_scratch, nullptr},
      {MIXED, run_mixed, mixed_refuses, mixed_pays, mixed_bytes, mixed_host}};
  static constexpr Method gpu_tall[] = {{BATCHED, cuda::solve_batched, gpu_solve_batched_refuses, gpu_svd_batched_pays, gpu_solve_bytes, nullptr},
                                    {SOLVER, gpu_svd_cusolver, needs_cusolver, always, gpu_svd_cusolver_bytes, nullptr},
                                    {TALL, run_tall, tall_refused, tall_is_faster, tall_bytes, tall_host}};
  static constexpr Method gpu_qr[] = {
      {BATCHED, cuda::solve_batched, gpu_qr_refuses, gpu_solve_batched_pays, gpu_qr_bytes, nullptr}, gpu_solve[1], gpu_tall[2]};
  static constexpr Method gpu_lstsq[] = {
      {BATCHED, gpu_lstsq_batched, gpu_qr_refuses, gpu_solve_batched_pays, gpu_lstsq_batched_bytes, nullptr},
      {SOLVER, gpu_lstsq_cusolver, gpu_lstsq_refuses, always, gpu_lstsq_cusolver_bytes, nullptr}};
  static constexpr Method gpu_svd_part[] = {
      {KRYLOV, run_svd_part, svd_part_refuses, svd_part_pays, svd_part_bytes, nullptr},
      {SOLVER, run_svd_by_full, needs_cusolver, always, svd_by_full_bytes, nullptr}};
  static constexpr Method gpu_finite[] = {{BATCHED, run_gpu_finite, nothing, always, nullptr, nullptr}};
  static constexpr Method gpu_hermitian[] = {{BATCHED, run_gpu_hermitian, nothing, always, nullptr, nullptr}};

  switch (op) {
    case CHOLESKY: return {gpu_cholesky, 3};
    case EIGH: case EIGVALSH: return {gpu_eigh, 4};
    case SOLVE: return {gpu_solve, 3};
    case QR: return {gpu_qr, 3};
    case SVD: case SVDVALS: return {gpu_tall, 3};
    case SVD_PART: return {gpu_svd_part, 2};
    case LSTSQ: return {gpu_lstsq, 2};
    case QR_R: case QR_RAW: return {gpu_qr, 2};
    case EIG: case EIGVALS: return {gpu_eig, 3};
    case SCHUR: return {gpu_schur, 2};
    case FINITE: return {gpu_finite, 1};
    case HERMITIAN: return {gpu_hermitian, 1};
    default: return {gpu_solve, 2};  // mixed solves whole systems alone
  }
}

Methods methods_of(int32_t op, int32_t device, bool is_amd) {
  if (device == CPU) return cpu_methods_of(op);
  return is_amd ? gpu_methods_of<ROCSOLVER>(op) : gpu_methods_of<CUSOLVER>(op);
}

// Methods for special cases, which are asked once the small kernels have declined.
bool is_special(const Method& method) {
  return method.engine == KRYLOV || method.engine == MIXED || method.engine == TALL;
}

// The first measured rule whose engine can take the frame.
const Rule* measured(const Frame& frame, const Place& place, const Methods& methods, int32_t op, int64_t batch) {
  for (const Rule& rule : rules_of(place.hardware())) {
    if (!fits(rule, frame, op, batch)) continue;
    if (rule.newest && (!place.here || vendor::missing(vendor::newest_solver))) continue;
    const Method* method = methods.find(rule.engine);
    if (!method || !method->refuses(frame, place).empty()) continue;
    return &rule;
  }
  return nullptr;
}

Choice choose_direct(const Frame& frame, const Place& place, const Methods& methods) {
  const Rule* rule = measured(frame, place, methods, rule_op(frame), frame.size[0]);
  // values alone go where the vectors go, unless they were measured
  if (!rule && frame.op == EIGVALSH) rule = measured(frame, place, methods, EIGH, frame.size[0]);
  if (rule) return {methods.find(rule->engine), Choice::MEASURED, rule};
  const Method* first = nullptr;
  for (const Method& method : methods) {
    if (is_special(method) || !method.pays(frame, place)) continue;
    if (method.refuses(frame, place).empty())
      return {&method, first ? Choice::LEFT_OVER : Choice::LIMITS, nullptr, first};
    if (!first) first = &method;
  }
  for (const Method& method : methods)
    if (!is_special(method) && method.refuses(frame, place).empty()) return {&method, Choice::LEFT_OVER, nullptr, first};
  return {first, Choice::LIMITS};
}

// The tolerance of a part of a spectrum, where the caller asked for one.
std::string tolerance_text(const Frame& frame) {
  const bool spectrum = frame.op == EIGH || frame.op == EIGVALSH;
  const double tolerance = spectrum ? krylov::tolerance_of(frame) : 0;
  return tolerance > 0 ? text("; the iteration stops at residuals of %.1e of the norm", tolerance) : "";
}

const char* source_of(const Rule* rule) {
  return rule ? rule->source.c_str() : "the built-in limits, as there is no record of this operation on this hardware";
}

std::string reason_of(const Frame& frame, const Place& place, const Choice& choice) {
  const long long batch = frame.size[0], n = frame.size[1], k = frame.size[2], count = frame.size[3];
  std::string reason;
  switch (choice.why) {
    case Choice::NAMED: return "you asked for it" + (choice.engine() == KRYLOV ? tolerance_text(frame) : "");
    case Choice::PREFERRED: return "LAPWING_ENGINE asks for it";
    case Choice::EMPTY: return "there is nothing to compute";
    case Choice::LEFT_OVER:
      reason = text("%s would be first, but ", ENGINE_NAMES[choice.first->engine]) + choice.first->refuses(frame, place);
      break;
    case Choice::SPECIAL:
      if (frame.op == SVD_PART)
        return text("%lld of %lld singular values, from the eigenvalues of the Gram matrix: fastest by %s", count, std::min(n, k),
                    source_of(choice.rule));
      if (choice.engine() == KRYLOV)
        return text("%lld of %lld eigenvalues: fastest by %s", count, n, source_of(choice.rule)) + tolerance_text(frame);
      if (choice.engine() == MIXED)
        return text("lower precision is allowed, and pays for n = %lld with %lld right-hand side%s", n, k, k == 1 ? "" : "s");
      return text("%lld x %lld is tall: a few passes over the rows are faster than Householder reflections", n, k);
    default: reason = text("n = %lld in a batch of %lld: fastest by %s", n, batch, source_of(choice.rule));
  }
  if (frame.op == SOLVE && (frame.flags & ALLOW_MIXED)) {
    const std::string why = mixed_refuses(frame, place);
    reason += "; lower precision is allowed, but " + (why.empty() ? "does not pay for this size" : why);
  }
  return reason;
}

// With the wish that could not be met.
std::string full_reason(const Frame& frame, const Place& place, const Choice& choice) {
  const std::string reason = reason_of(frame, place, choice);
  const int32_t wanted = preferred.load(std::memory_order_relaxed);
  if (wanted == AUTO || choice.why == Choice::NAMED || choice.why == Choice::PREFERRED || choice.why == Choice::EMPTY)
    return reason;
  return reason + text("; LAPWING_ENGINE=%s cannot take this call", ENGINE_NAMES[wanted]);
}

// GPUs whose records are shipped, for plans on machines without one.
const cuda::Properties* gpu_named(const char* name) {
  static const cuda::Properties h200 = {132, 232448, 90, "NVIDIA H200"};
  return std::strcmp(name, h200.name) == 0 ? &h200 : nullptr;
}

int fill_plan(Frame& frame, const Place& place, Plan* plan) {
  const Choice choice = decide(frame, place);
  plan->engine = choice.engine();
  if (!choice.method && choice.why != Choice::EMPTY) {
    plan->engine = frame.engine;
    plan->refusal = no_method(frame, place);
    return 0;
  }
  plan->reason = full_reason(frame, place, choice);
  if (!choice.method) return 0;
  plan->refusal = choice.method->refuses(frame, place);
  if (!plan->refusal.empty() || !place.here) return 0;
  frame.engine = choice.engine();
  plan->device_bytes = choice.method->device_bytes ? choice.method->device_bytes(frame) : 0;
  plan->host_bytes = choice.method->host_bytes ? choice.method->host_bytes(frame) : 0;
  return plan->device_bytes < 0 || plan->host_bytes < 0;
}

}  // namespace

std::string no_method(const Frame& frame, const Place& place) {
  const bool is_amd = place.gpu && place.gpu->is_amd();
  if (place.gpu && frame.engine == (is_amd ? CUSOLVER : ROCSOLVER))
    return text("%s is for GPUs of %s, and this is %s, a GPU of %s\nhint: engine=\"%s\"", ENGINE_NAMES[frame.engine],
                is_amd ? "NVIDIA" : "AMD", place.gpu->name, is_amd ? "AMD" : "NVIDIA", ENGINE_NAMES[is_amd ? ROCSOLVER : CUSOLVER]);
  const char* name = frame.engine > 0 && frame.engine < N_ENGINES ? ENGINE_NAMES[frame.engine] : "of an unknown number";
  return text("%s does not have this operation on %s", name, frame.device == CPU ? "the CPU" : "a GPU");
}

std::vector<int32_t> engines_of(int32_t op, int32_t device) {
  std::vector<int32_t> engines;
  for (const Method& method : methods_of(op, device, false)) {
    engines.push_back(method.engine);
    if (method.engine == CUSOLVER && op != EIG && op != EIGVALS) engines.push_back(ROCSOLVER);
  }
  return engines;
}

bool is_empty(const Frame& frame) {
  const int last = OPERATIONS[frame.op].empty;
  return frame.size[0] == 0 || frame.size[1] == 0 || (last && frame.size[last] == 0);
}

bool settle_part(Frame& frame) {
  if (frame.op == SVD_PART) return frame.size[3] >= 0 && frame.size[3] <= std::min(frame.size[1], frame.size[2]);
  if (frame.op != EIGH && frame.op != EIGVALSH) return true;
  const int64_t n = frame.size[1];
  if (frame.size[3] < 0) frame.size[2] = 0, frame.size[3] = n;
  if (const int64_t tolerance = frame.size[3] >> 32) frame.size[4] = tolerance, frame.size[3] &= UINT32_MAX;
  if (frame.size[2] < 0) frame.size[2] += n;
  return frame.size[2] >= 0 && frame.size[2] + frame.size[3] <= n;
}

Choice decide(const Frame& frame, const Place& place) {
  const Methods methods = methods_of(frame.op, frame.device, place.gpu && place.gpu->is_amd());
  const Method* named = methods.find(frame.engine);
  // where there is nothing to compute, nobody has asked yet whose GPU it is
  const bool is_library = frame.device != CPU && !place.gpu && frame.engine == ROCSOLVER;
  if (frame.engine != AUTO && !named && !is_library) return {};
  if (is_empty(frame)) return {nullptr, Choice::EMPTY};
  if (named) return {named, Choice::NAMED};
  const Method* wanted = methods.find(preferred.load(std::memory_order_relaxed));
  if (wanted && wanted->refuses(frame, place).empty()) return {wanted, Choice::PREFERRED};
  const Choice direct = choose_direct(frame, place, methods);
  // a few values at an end of a large spectrum may be the iteration's all the same
  const bool whole = (frame.op != EIGH && frame.op != EIGVALSH) || !krylov::at_an_end(frame);
  if (whole && (direct.engine() == BATCHED || direct.engine() == TWO_STAGE) && direct.why != Choice::LEFT_OVER) return direct;
  for (const Method& method : methods) {
    if (!is_special(method)) continue;
    const Rule* rule = nullptr;
    bool pays = method.pays(frame, place);
    if (method.engine == KRYLOV && frame.op != SVD_PART && krylov::at_an_end(frame)) {
      rule = measured(frame, place, methods, EIGH_PART, frame.size[3]);
      pays = rule ? rule->engine == KRYLOV : pays;
    }
    if (pays && method.refuses(frame, place).empty()) return {&method, Choice::SPECIAL, rule};
  }
  return direct;
}

void prefer(int32_t engine) { preferred = engine; }

int plan(Frame& frame, const char* hardware, Plan* plan) {
  if (frame.op < 0 || frame.op >= N_OPS || frame.dtype < 0 || frame.dtype >= N_DTYPES)
    return fail(frame, "no operation %d for dtype %d", frame.op, frame.dtype);
  if (!settle_part(frame)) return fail(frame, "the part of the spectrum is larger than the matrix");
  const lapack::Use library(frame);
  if (frame.device == CPU || is_empty(frame)) return fill_plan(frame, {}, plan);
  if (*hardware) {
    const cuda::Properties* gpu = gpu_named(hardware);
    if (!gpu) return fail(frame, "the properties of %s are not known", hardware);
    return fill_plan(frame, {gpu, false}, plan);
  }
  cuda::Guard guard(frame);
  const cuda::Properties* gpu = guard.ok() ? cuda::properties(frame) : nullptr;
  return gpu ? fill_plan(frame, {gpu, true}, plan) : 1;
}

}  // namespace lapwing
