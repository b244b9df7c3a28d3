// Householder QR of batches, panel by panel: qr_panel.cu makes the reflections of a panel in shared memory, batched products of
// the vendor's BLAS apply them to the rest. All of it only queues work on the frame's stream; 0, or 1 with a message in the frame.
#pragma once
#include <optional>

#include "frame.h"
#include "gpu/cublas_dense.h"
#include "gpu/cuda.h"

namespace lapwing::cuda {

// How many of `batch` matrices to take at a time, in parts of equal size, if each needs `bytes` of working memory
int64_t matrices_per_part(int64_t batch, int64_t bytes);

// state <- for each of `batch` matrices (qr_state.cuh) the exponent of its largest element, or that it is not finite
// `apart`: for each of their columns
int measure(Frame& frame, const void* a, int32_t* state, int64_t batch, int64_t rows, int64_t columns, bool apart);

// Where scaled copies go: rows of `ld` elements, matrices `stride` elements apart, with zeros from `columns` up to column `end`.
struct Copies {
  void* to;
  int64_t ld, stride, end;
};
// Copies (rows x columns) of a, or with `turned` of its adjoint, near 1 by a power of two. `spoils`: a matrix that is not
// finite becomes NaN. `apart`: each column has its own state.
int take_scaled(Frame& frame, const void* a, const int32_t* state, int64_t batch, int64_t rows, int64_t columns, Copies copies,
                bool turned, bool spoils, bool apart);

// The working copies of some matrices, row-major with rows of ld() elements, and their reflections. All reflections of a block
// of columns together are I - Y V^H; V and Y are kept for the whole matrix.
class BlockedQr {
 public:
  // rows x columns matrices, of which the first `reflections` columns get reflections; rows of the working copies have room for
  // `room` more elements. apply() may be called for up to `q_columns` columns.
  BlockedQr(Frame& frame, const Properties& gpu, int64_t batch, int64_t rows, int64_t columns, int64_t reflections, int64_t room,
            int64_t q_columns);
  static bool fits(int32_t dtype, int64_t rows, const Properties& gpu);

  size_t bytes() const { return total_; }
  int place(char* block);  // memory of that many bytes

  char* work() const { return block_ + work_; }
  // An exponent, or what is wrong (qr_moves.cu): 0 for each matrix, 1 for each column without a reflection
  int32_t* state(int which) const { return reinterpret_cast<int32_t*>(block_ + state_) + which * batch_; }
  int64_t ld() const { return ld_; }
  int64_t stride() const { return rows_ * ld_; }

  // The working copies from column `first` on <- a (rows x columns), or its adjoint, scaled by a power of two whose exponent
  // goes to state(which), 1: each column by its own; zeros in the columns from there up to `end`. `spoils`: a matrix that is not finite becomes NaN.
  int take(const void* a, int64_t rows, int64_t first, int64_t columns, int64_t end, int which, bool turned, bool spoils);
  // The working copies <- R, and with `keeps` the vectors below it; tau may be null, the numbers of a matrix are `reflections`
  int factor(void* tau, bool keeps);
  // x (rows x columns, one behind the other) <- Q x. `unit`: x is an identity, of which no column j is touched above row j
  int apply(void* x, int64_t columns, bool unit);

  int give_r(void* r, int64_t rows);
  int give_raw(void* h);
  int identity(void* q, int64_t columns);

 private:
  using Operand = cublas::Dense::Operand;
  struct Product {  // C2 <- C2 - second (first^H C); row-major; C and C2 may be the same
    Operand first, second;
    int64_t width;
    Operand c;
    int64_t rows;
    Operand c2;
    int64_t rows2, columns;
  };

  int factor_block(int64_t first, int64_t end, int64_t follow, bool keeps_vectors, void* tau, bool keeps);
  int panel(int64_t j, int64_t width, int64_t columns, int64_t above, bool vectors, void* tau, bool keeps);
  int apply(const Product& product);
  Operand at(size_t place, int64_t ld, int64_t row, int64_t column) const;
  Operand work(int64_t row, int64_t column) const { return at(work_, ld_, row, column); }
  Operand v(int64_t row, int64_t column) const { return at(v_, v_ld_, row, column); }
  Operand y(int64_t row, int64_t column) const { return at(y_, v_ld_, row, column); }
  Frame& frame_;
  const Properties& gpu_;
  const int64_t batch_, rows_, columns_, reflections_, q_columns_, element_, block_columns_, ld_, v_ld_, w_ld_;
  size_t work_ = 0, v_ = 0, y_ = 0, w_ = 0, state_ = 0, total_ = 0;
  char* block_ = nullptr;
  std::optional<cublas::Dense> blas_;
};

// QR, QR_R and QR_RAW frames.
bool blocked_qr_fits(const Frame& frame, const Properties& gpu);
int64_t blocked_qr_scratch(Frame& frame);
int blocked_qr(Frame& frame);

}  // namespace lapwing::cuda
