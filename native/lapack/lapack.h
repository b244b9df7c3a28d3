// LAPACK by injected pointers: no BLAS is linked. NumPy's own OpenBLAS or SciPy's capsules supply the routines; another library
// of the process may lend faster ones.
#pragma once
#include <functional>

#include "frame.h"

namespace lapwing::lapack {

// herk stands for syrk too, the same product for real matrices; so do heevd and heevr for syevd and syevr, ungqr and unmqr for
// orgqr and ormqr
enum Name { POTRF, TRSM, HERK, GEMM, HEEVD, HEEVR, TRMM, GETRF, TRTRI, LAUUM, GEQRF, UNGQR, GESDD, GESVD, TRSV, POTRI, SYTRF, SYTRS, HETRF, HETRS, UNMQR, GEEV, GEES, STERF, STEDC, BDSDC, N_NAMES };
struct Routine {
  void* address = nullptr;
  int width = 0;  // size of its integers, 4 or 8
};
using Table = Routine[N_NAMES][N_DTYPES];
extern const char* const ROUTINES[N_NAMES * N_DTYPES];

// Routine "spotrf", "dpotrf", "strsm", ... at `address`, in the table of our own or in that of lent ones. false: not a name we
// use. Only before either table is in use.
bool bind(const char* name, void* address, int width, bool lent);

// Whether calls with the flag LENT use lent routines, from the next one on.
void use_lent(bool lent);

// The library at `path` may be loaded once more for side_by_side: its routines are named prefix + name + "_" + suffix.
void remember_library(const char* path, const char* prefix, const char* suffix, int width);
// The library's own function that limits the threads of the calling thread alone (MKL); it returns the limit before, 0 for none.
void limit_threads_by(int (*set)(int), bool lent);

// A call uses the same table until its end, even if another thread changes the choice.
class Use {
 public:
  explicit Use(const Frame& frame);
  ~Use();
  Use(const Use&) = delete;

 private:
  const Table* before_;
  const int threads_before_;
};
// How many threads our own routines of cpu/dense.h may use in this call for a matrix of order n; 0: the library's routines are used
// instead, because routines are lent or because of the size.
int dense_threads(int64_t n);
const Routine& routine(int name, int32_t dtype);
// Whether products, triangular solves and eigenproblems are available.
bool has_dense(int32_t dtype);
// Whether the library has the routine and its integers hold the order n: 0, or 1 with a message in the frame.
int check(Frame& frame, Name name, int64_t n);
// Our own while others are lent, as the threads of both would disturb each other.
bool foreign(int name, int32_t dtype);
// Whether this call uses the routines that torch lends
bool is_lent();

// Up to this many elements matrices go side by side. From times of two threads on Zen 4 (OpenBLAS 0.3.31, 2026-11-16, float64):
// eigh takes 1.04 ms a matrix of n = 128 with the threads of the library and 0.58 side by side, 5.2 and 3.5 at n = 300; svd 2.4
// and 1.05, 11.7 and 6.3.
constexpr int64_t SIDE_BY_SIDE = 512 * 512;

// Calls body(first, last) over the matrices of a batch. Small matrices go side by side, each with a routine `name` that uses one
// thread: the library's own threads gain little on them. That takes a library whose threads can be limited for the calling thread
// alone (MKL), or a private copy of one that has a limit for the whole process only (OpenBLAS). Others take one matrix after the
// other. false: interrupted.
bool side_by_side(const Frame& frame, Name name, const std::function<void(int64_t, int64_t)>& body);
// Whether it would, with such a library.
bool goes_side_by_side(const Frame& frame);

// Above this order a matrix is factored block by block, each at most so large.
void set_block(int64_t order);
int64_t block();

// The Cholesky factor of one row-major matrix in its own triangle; the other one is neither read nor written. 0, or the place
// of the first pivot that is not positive and finite.
template <class T>
int64_t cholesky_in_place(T* a, int64_t n, bool upper);

int cholesky(Frame& frame);
int eigh(Frame& frame);         // EIGH and EIGVALSH
int solve(Frame& frame);        // TRIANGULAR to SVDVALS

// Host memory that they will take, in bytes.
int64_t eigh_host_bytes(const Frame& frame);
int64_t solve_host_bytes(const Frame& frame);

}  // namespace lapwing::lapack
