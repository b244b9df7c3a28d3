// The inputs and outputs of each operation, from ops.def.
#pragma once
#include <algorithm>

#include "frame.h"

namespace lapwing {

enum class Type { MATRIX, REAL, INTEGER, COMPLEX };  // that of the matrix, its real counterpart, int32, its complex counterpart

struct Argument {
  const char* name = nullptr;
  Type type = Type::MATRIX;
  const char* axes = "";  // of one matrix, behind the batch
  int shares = -1;        // of an output: the input whose memory it may take
};

constexpr int MOST_INPUTS = 4, MOST_OUTPUTS = 4;
struct Operation {
  const char* name;
  int empty;
  Argument inputs[MOST_INPUTS], outputs[MOST_OUTPUTS];
};

namespace arguments {  // the short words of ops.def
constexpr Type T = Type::MATRIX, R = Type::REAL, I = Type::INTEGER, C = Type::COMPLEX;
constexpr Argument A = {"a", T, "nn"}, B = {"b", T, "nk"}, RECTANGULAR = {"a", T, "mn"}, INFO = {"info", I, ""};
constexpr Operation OPERATIONS[N_OPS] = {
#define OP(enumerator, name, empty, ...) {name, empty, __VA_ARGS__},
#include "ops.def"
#undef OP
};
}  // namespace arguments
using arguments::OPERATIONS;

constexpr int count_of(const Argument* arguments) {
  int i = 0;
  while (i < MOST_INPUTS && arguments[i].name) i++;
  return i;
}

// The buffer with a status for each matrix; -1 if there is none.
constexpr int status_place(int32_t op) {
  const Operation& operation = OPERATIONS[op];
  const int outputs = count_of(operation.outputs);
  const Argument& last = operation.outputs[outputs - 1];
  return last.type == Type::INTEGER && !last.axes[0] ? count_of(operation.inputs) + outputs - 1 : -1;
}

constexpr bool is_qr(int32_t op) { return op == QR || op == QR_R || op == QR_RAW; }
constexpr bool is_rectangular(int32_t op) { return OPERATIONS[op].inputs[0].axes[0] == 'm'; }

// The length of an axis: n and m of the matrix, k right-hand sides, p requested eigenvalues, s the smaller side, c and d
// the columns of the left factor and the rows of the right one.
inline int64_t length(const Frame& frame, char axis) {
  const int64_t rows = frame.size[1], columns = frame.size[is_rectangular(frame.op) ? 2 : 1];
  const bool full = frame.op == SVD && frame.size[3];
  switch (axis) {
    case 'm': return rows;
    case 'n': return columns;
    case 'k': return frame.size[frame.op == LSTSQ ? 3 : 2];
    case 'p': return frame.size[3];
    case 'c': return frame.op == QR ? frame.size[3] : full ? rows : std::min(rows, columns);
    case 'd': return full ? columns : std::min(rows, columns);
    default: return std::min(rows, columns);
  }
}

inline int64_t elements(const Frame& frame, const Argument& argument) {
  int64_t product = 1;
  for (const char* axis = argument.axes; *axis; axis++) product *= length(frame, *axis);
  return product;
}

inline size_t size_of(const Frame& frame, const Argument& argument) {
  if (argument.type == Type::INTEGER) return sizeof(int32_t);
  if (argument.type == Type::COMPLEX) return size_of(frame.dtype >= C64 ? frame.dtype : frame.dtype + C64);
  return size_of(argument.type == Type::REAL && frame.dtype >= C64 ? frame.dtype - C64 : frame.dtype);
}

}  // namespace lapwing
