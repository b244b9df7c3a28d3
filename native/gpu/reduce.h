// Hermitian matrices by reduction to real tridiagonal ones: A = Q T Q^H, the spectrum of T, and Q times its vectors. All of it only queues
// work on the frame's stream; 0, or 1 with a message in the frame.
#pragma once
#include <optional>
#include <vector>

#include "frame.h"
#include "gpu/cublas_dense.h"
#include "gpu/cuda.h"

namespace lapwing::cuda {

// How tridiagonal.cu spreads a matrix over blocks, threads and memory; its compile-time choices have the same names.
struct TeamShape {
  int team, rw, cw, q, c, sets;  // sets: in registers
  int shared_sets, all_sets;
  int teams;  // that run at once
  int threads() const { return 32 * rw * cw; }
  int64_t shared_bytes(int32_t dtype, int64_t n) const;
  int64_t rest_bytes() const;  // of columns that do not fit on the chip
  int64_t mail_bytes(int32_t dtype, int64_t n) const;
};

// A part of a reduction by teams: `until` columns of what is left of the matrices, of order n. The last part has all of them.
struct TeamPart {
  TeamShape shape;
  int64_t n, until;
};

// Tridiagonal matrices T, and the part of their spectra that is asked for: n diagonal elements of each, and n of which the last is not
// used; up: what the values are multiplied by; reduced: 1 where there is no answer.
struct Spectrum {
  int64_t batch, n, first, count;
  void *d, *e, *up;
  int32_t* reduced;
  bool positive = false;  // values below zero are rounding errors
};
// The values by bisection
int tridiagonal_values(Frame& frame, const Properties& gpu, const Spectrum& of, void* w, int32_t* info);
// w and v <- the part of all values and of their vectors, each a row of z, with NaN where `reduced` or `divided` is set. width: of the
// blocks of reflections, for which the kernel's source is compiled
int tridiagonal_vectors(Frame& frame, const Spectrum& of, const void* values, const void* z, const int32_t* divided, void* w, void* v,
                        int32_t* info, int64_t width);

class Tridiagonal {
 public:
  // by_team: reduce() is called, not take(). by_panels: it reduces panels of columns before the rest; a batch of one, by team
  Tridiagonal(Frame& frame, const Properties& gpu, int64_t batch, int64_t n, bool vectors, bool by_team, bool by_panels);
  // Whether the kernels can do this on this GPU
  static bool fits(int32_t dtype, int64_t n, bool vectors, const Properties& gpu);
  // Whether panels are the faster way
  static bool by_panels(int32_t dtype, int64_t batch, int64_t n, const Properties& gpu);
  // Microseconds of a reduction by teams, about
  static double team_time(int32_t dtype, int64_t batch, int64_t n, const Properties& gpu);

  size_t bytes() const { return total_ + 256; }  // to align the start
  int place(char* block);  // memory of that many bytes

  int reduce(const void* a);
  // Another kernel may do that instead, and write to these places: h has n rows of pitch() elements, tau n factors of each matrix
  struct Places {
    void *h, *tau, *d, *e, *up;
    int32_t* info;
  };
  Places places() const { return {at(y_), at(block_tau_), at(d_), at(e_), at(up_), at<int32_t>(reduced_)}; }
  int64_t pitch() const { return pitch_; }
  int take();
  // Values `first` to `first + count` of T
  int values(void* w, int32_t* info, int64_t first, int64_t count);
  // The spectrum of T with vectors Z, Z <- Q Z, and the requested part
  int vectors(void* w, void* v, int32_t* info, int64_t first, int64_t count);

 private:
  using Operand = cublas::Dense::Operand;
  template <class T = void>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(block_ + offset);
  }
  int back();
  Spectrum spectrum(int64_t first, int64_t count) const {
    return {batch_, n_, first, count, at(d_), at(e_), at(up_), at<int32_t>(reduced_)};
  }
  int reduce_rest(const void* a, int64_t size, const int32_t* state, void* up, int64_t first, bool upper, bool flip);
  int reduce_panels(const void* a);

  Frame& frame_;
  const Properties& gpu_;
  const int64_t batch_, n_, element_, real_, panels_, pitch_, width_, blocks_;  // panels_: columns that are reduced in panels
  const int32_t real_dtype_;
  const std::vector<TeamPart> parts_;  // by teams
  size_t state_ = 0, reduced_ = 0, divided_ = 0, mail_ = 0, rest_ = 0, d_ = 0, e_ = 0, up_ = 0, tau_ = 0, block_tau_ = 0, v_ = 0, y_ = 0, gram_ = 0,
         factor_ = 0, gate_ = 0, scaled_ = 0, next_ = 0, sides_ = 0, sums_ = 0, w_ = 0, z_ = 0, wide_ = 0, product_ = 0, divide_ = 0, total_ = 0;
  char* block_ = nullptr;
  std::optional<cublas::Dense> blas_;
};

}  // namespace lapwing::cuda
