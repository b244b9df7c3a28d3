#include "lapack/lapack.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>

#include "dtypes.h"
#include "operations.h"
#include "lapack/fortran.h"
#include "lapack/rows.h"
#include "cpu/dense.h"
#include "cpu/matrix.h"
#include "cpu/threads.h"

namespace lapwing::lapack {
namespace {

// OpenBLAS with threads crashes inside potrf for very large matrices: seen at n = 30000 in float32 and 18000 in float64, not
// at 22000 and 8192. Blocks of this order cost nothing.
std::atomic<int64_t> block_order{4096};

Table own, lent;
std::atomic<bool> lending{false};
thread_local const Table* used = &own;
// Threads that our own routines may use in this call; ASK_LATER: as many as the process allows, which small calls need not know.
constexpr int ASK_LATER = -1;
thread_local int dense = 0;
// 32-bit integers, which lent routines may have, cannot hold the workspaces of larger spectra.
constexpr int64_t LENT_LIMIT = 15000;

// What MKL calls mkl_set_num_threads_local.
int (*limit_own)(int) = nullptr;
int (*limit_lent)(int) = nullptr;

// The library once more, in memory of its own and with one thread. Its limit of threads is a global number, so that a limit set in
// the copy NumPy uses would slow down other threads of the program.
class PrivateCopy {
 public:
  std::string path, prefix, suffix;
  int width = 0;

  // The routines, or nullptr where no copy can be made.
  const Table* routines() {
    std::call_once(once_, [this] { load(); });
    return loaded_ ? &table_ : nullptr;
  }

 private:
  void load() {
#ifdef MFD_CLOEXEC
    if (path.empty()) return;
    // another file, or the loader would answer with the library that it has
    const int from = open(path.c_str(), O_RDONLY | O_CLOEXEC), to = memfd_create("lapwing-lapack", MFD_CLOEXEC);
    struct stat about;
    bool copied = from >= 0 && to >= 0 && fstat(from, &about) == 0;
    for (off_t at = 0; copied && at < about.st_size;) copied = sendfile(to, from, &at, size_t(about.st_size - at)) > 0;
    char name[32];
    std::snprintf(name, sizeof name, "/proc/self/fd/%d", to);
    void* handle = copied ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (from >= 0) close(from);
    if (to >= 0) close(to);
    if (!handle) return;
    auto* get = reinterpret_cast<int (*)()>(control(handle, "get"));
    auto* set = reinterpret_cast<void (*)(int)>(control(handle, "set"));
    if (!get || !set || !fill(handle)) return;
    set(1);
    // ends the threads that it started for itself
    if (auto* stop = reinterpret_cast<int (*)()>(dlsym(handle, "blas_thread_shutdown_"))) stop();
    loaded_ = get() == 1;
#endif
  }

  void* control(void* handle, const char* verb) const {
    std::string plain = suffix;
    if (!plain.empty() && plain.back() == '_') plain.pop_back();
    const std::string name = prefix + "openblas_" + verb + "_num_threads";
    void* found = dlsym(handle, (name + plain).c_str());
    return found ? found : dlsym(handle, (name + suffix).c_str());
  }

  bool fill(void* handle) {
    bool all = true;
    for (int i = 0; i < N_NAMES * N_DTYPES; i++) {
      void* address = dlsym(handle, (prefix + ROUTINES[i] + "_" + suffix).c_str());
      table_[i / N_DTYPES][i % N_DTYPES] = {address, width};
      all = all && address;
    }
    return all;
  }

  std::once_flag once_;
  bool loaded_ = false;
  Table table_;
};
PrivateCopy private_copy;

// Routines that use one thread for the calling thread while this lives.
class OneThread {
 public:
  OneThread(const Table* table, int (*limit)(int)) : before_(used), limit_(limit) {
    used = table;
    if (limit_) limit_before_ = limit_(1);
  }
  ~OneThread() {
    if (limit_) limit_(limit_before_);
    used = before_;
  }
  OneThread(const OneThread&) = delete;

 private:
  const Table* before_;
  int (*limit_)(int);
  int limit_before_ = 0;
};

// From this order on our own routines are faster than OpenBLAS and, but for a few sizes, MKL: two threads of a Xeon and of Zen 4. They
// were not measured with more threads than this.
constexpr int64_t DENSE_LEAST = 96;
constexpr int DENSE_THREADS = 8;

// The routines of one type, on column-major blocks of one matrix of order `ld`.
template <class T>
class Blas {
  using Real = RealOf<T>;

 public:
  explicit Blas(int64_t ld) : ld_(ld) {}

  int64_t factor(char triangle, T* a, int64_t n) const {
    int64_t info = 0;
    call<T>(POTRF, triangle, n, a, ld_, &info);
    return info;
  }
  // B <- L^-1 B from the left, or B L^-1 from the right, with L^H for L
  void solve(char side, char triangle, const T* l, T* b, int64_t rows, int64_t columns) const {
    call<T>(TRSM, side, triangle, 'C', 'N', rows, columns, T(1), l, ld_, b, ld_);
  }
  // C <- C - X X^H, or C - X^H X, in one triangle
  void square(char triangle, bool adjoint_first, const T* x, T* c, int64_t n, int64_t k) const {
    const char first = adjoint_first ? (is_complex<T> ? 'C' : 'T') : 'N';
    call<T>(HERK, triangle, first, n, k, Real(-1), x, ld_, Real(1), c, ld_);
  }
  // C <- C - X Y^H, or C - X^H Y
  void multiply(bool adjoint_first, const T* x, const T* y, T* c, int64_t rows, int64_t columns, int64_t k) const {
    const char first = adjoint_first ? 'C' : 'N', second = adjoint_first ? 'N' : 'C';
    gemm(first, second, rows, columns, k, T(-1), x, ld_, y, ld_, T(1), c, ld_);
  }

 private:
  int64_t ld_;
};

// Column-major view of a row-major matrix: its lower triangle is the upper one there, also for Hermitian matrices.
template <class T>
int64_t factor(T* a, int64_t n, bool upper) {
  if (const int threads = dense_threads(n)) return dense_cholesky(a, n, n, !upper, threads);
  const Blas<T> blas(n);
  const char triangle = upper ? 'L' : 'U';
  const int64_t block = block_order;
  constexpr Dtype dtype = dtype_of<T>();
  const bool have_blas = routine(TRSM, dtype).address && routine(HERK, dtype).address && routine(GEMM, dtype).address;
  if (n <= block || !have_blas) return blas.factor(triangle, a, n);
  // tile (i, j) of the factor, i >= j: below the diagonal for 'L', its mirror image for 'U'
  auto tile = [&](int64_t i, int64_t j) { return upper ? a + i + j * n : a + j + i * n; };
  for (int64_t k = 0; k < n; k += block) {
    const int64_t depth = std::min(block, n - k);
    // A11 <- L11
    if (int64_t info = blas.factor(triangle, tile(k, k), depth)) return k + info;
    // A21 <- A21 L11^-H
    for (int64_t i = k + depth; i < n; i += block) {
      const int64_t rows = std::min(block, n - i);
      if (upper)
        blas.solve('R', triangle, tile(k, k), tile(i, k), rows, depth);
      else
        blas.solve('L', triangle, tile(k, k), tile(i, k), depth, rows);
    }
    // A22 <- A22 - A21 A21^H
    for (int64_t i = k + depth; i < n; i += block) {
      const int64_t rows = std::min(block, n - i);
      for (int64_t j = k + depth; j < i; j += block) {
        const int64_t columns = std::min(block, n - j);
        if (upper)
          blas.multiply(false, tile(i, k), tile(j, k), tile(i, j), rows, columns, depth);
        else
          blas.multiply(true, tile(j, k), tile(i, k), tile(i, j), columns, rows, depth);
      }
      blas.square(triangle, !upper, tile(i, k), tile(i, i), rows, depth);
    }
  }
  return 0;
}

// Some LAPACKs let an Inf or NaN pivot pass: the first one is where the factorisation failed.
template <class T>
int64_t first_bad_pivot(const T* l, int64_t n, int64_t info) {
  int64_t last = info > 0 ? info - 1 : n;
  for (int64_t i = 0; i < last; i++)
    if (!std::isfinite(std::real(l[i * n + i]))) return i + 1;
  return info;
}

// out <- the named triangle of a, zeros elsewhere
template <class T>
void copy_triangle(const Frame& frame, const T* a, T* out, int64_t n, bool upper) {
  pass(frame, n, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const T* from = a + i * n;
      T* to = out + i * n;
      int64_t first = upper ? i : 0, last = upper ? n : i + 1;
      put(to + first, from + first, last - first);
      std::memset(static_cast<void*>(to), 0, sizeof(T) * first);
      std::memset(static_cast<void*>(to + last), 0, sizeof(T) * (n - last));
    }
  });
}

template <class T>
int cholesky_as(Frame& frame) {
  int64_t batch = frame.size[0], n = frame.size[1];
  bool upper = frame.flags & UPPER;
  auto* a = static_cast<const T*>(frame.buffer[0]);
  auto* out = static_cast<T*>(frame.buffer[1]);
  auto* info = static_cast<int32_t*>(frame.buffer[2]);
  // The library brings its own threads, so the matrices are taken one after the other.
  bool finished = parallel(1, batch, 1, [&](int64_t m, int64_t) {
    T* l = out + m * n * n;
    copy_triangle(frame, a + m * n * n, l, n, upper);
    const int64_t status = cholesky_in_place(l, n, upper);
    info[m] = int32_t(status);
    if (status) fill_nan(l, n * n);
  }, frame.interrupted);
  return finished ? 0 : 1;
}

}  // namespace

const char* const ROUTINES[N_NAMES * N_DTYPES] = {
    "spotrf", "dpotrf", "cpotrf", "zpotrf", "strsm",  "dtrsm",  "ctrsm",  "ztrsm",  "ssyrk",  "dsyrk",  "cherk",  "zherk",
    "sgemm",  "dgemm",  "cgemm",  "zgemm",  "ssyevd", "dsyevd", "cheevd", "zheevd", "ssyevr", "dsyevr", "cheevr", "zheevr",
    "strmm",  "dtrmm",  "ctrmm",  "ztrmm",  "sgetrf", "dgetrf", "cgetrf", "zgetrf", "strtri", "dtrtri", "ctrtri", "ztrtri",
    "slauum", "dlauum", "clauum", "zlauum", "sgeqrf", "dgeqrf", "cgeqrf", "zgeqrf", "sorgqr", "dorgqr", "cungqr", "zungqr",
    "sgesdd", "dgesdd", "cgesdd", "zgesdd", "sgesvd", "dgesvd", "cgesvd", "zgesvd", "strsv",  "dtrsv",  "ctrsv",  "ztrsv",
    "spotri", "dpotri", "cpotri", "zpotri", "ssytrf", "dsytrf", "csytrf", "zsytrf", "ssytrs", "dsytrs", "csytrs", "zsytrs",
    "ssytrf", "dsytrf", "chetrf", "zhetrf", "ssytrs", "dsytrs", "chetrs", "zhetrs", "sormqr", "dormqr", "cunmqr", "zunmqr",
    "sgeev",  "dgeev",  "cgeev",  "zgeev",  "sgees",  "dgees",  "cgees",  "zgees",
    "ssterf", "dsterf", "ssterf", "dsterf", "sstedc", "dstedc", "sstedc", "dstedc",
    "sbdsdc", "dbdsdc", "sbdsdc", "dbdsdc"};

bool bind(const char* name, void* address, int width, bool to_lent) {
  bool known = false;
  for (int i = 0; i < N_NAMES * N_DTYPES; i++)
    if (std::strcmp(name, ROUTINES[i]) == 0) {
      (to_lent ? lent : own)[i / N_DTYPES][i % N_DTYPES] = {address, width};
      known = true;
    }
  return known;
}

void use_lent(bool wanted) { lending = wanted; }

void remember_library(const char* path, const char* prefix, const char* suffix, int width) {
  private_copy.path = path, private_copy.prefix = prefix, private_copy.suffix = suffix, private_copy.width = width;
}

void limit_threads_by(int (*set)(int), bool to_lent) { (to_lent ? limit_lent : limit_own) = set; }

bool goes_side_by_side(const Frame& frame) {
  const int64_t batch = frame.size[0], elements = frame.size[1] * frame.size[is_rectangular(frame.op) ? 2 : 1];
  const int threads = threads_for(frame);
  // fewer matrices than half the threads leave too many of them idle
  return threads > 1 && batch > 1 && 2 * batch >= threads && elements <= SIDE_BY_SIDE;
}

bool side_by_side(const Frame& frame, Name name, const std::function<void(int64_t, int64_t)>& body) {
  const int64_t batch = frame.size[0];
  const int threads = threads_for(frame);
  const Table* table = goes_side_by_side(frame) ? used : nullptr;
  int (*limit)(int) = table == &lent ? limit_lent : limit_own;
  if (table && (!limit || !(*table)[name][frame.dtype].address)) table = private_copy.routines(), limit = nullptr;
  if (!table) return parallel(1, batch, 1, body, frame.interrupted);
  return parallel(threads, batch, 1, [&](int64_t first, int64_t last) {
    const OneThread routines(table, limit);
    body(first, last);
  }, frame.interrupted);
}

Use::Use(const Frame& frame) : before_(used), threads_before_(dense) {
  const bool spectrum = frame.op == EIGH || frame.op == EIGVALSH || frame.op == SVD || frame.op == SVDVALS ||
                        frame.op == SVD_PART || frame.op == EIG || frame.op == EIGVALS || frame.op == SCHUR;
  used = lending && (frame.flags & LENT) && !(spectrum && frame.size[1] > LENT_LIMIT) ? &lent : &own;
  dense = frame.device != CPU || used != &own ? 0 : frame.threads > 0 ? frame.threads : ASK_LATER;
}
Use::~Use() { used = before_, dense = threads_before_; }

int dense_threads(int64_t n) {
  if (!dense || n < DENSE_LEAST || n > block_order) return 0;
  const int threads = dense == ASK_LATER ? allowed_threads() : dense;
  return threads <= DENSE_THREADS ? threads : 0;
}

const Routine& routine(int name, int32_t dtype) {
  const Routine& lent = (*used)[name][dtype];
  return lent.address ? lent : own[name][dtype];
}

bool has_dense(int32_t dtype) {
  return routine(GEMM, dtype).address && routine(TRSM, dtype).address && routine(HEEVD, dtype).address;
}

int check(Frame& frame, Name name, int64_t n) {
  if (!routine(name, frame.dtype).address) return fail(frame, "no LAPACK library was found");
  if (n > std::numeric_limits<int32_t>::max() && routine(name, frame.dtype).width == 4)
    return fail(frame, "this LAPACK has 32-bit integers and cannot take a size of %lld", (long long)n);
  return 0;
}

bool is_lent() { return used == &lent; }

bool foreign(int name, int32_t dtype) { return used == &lent && !lent[name][dtype].address; }

void set_block(int64_t order) { block_order = order; }
int64_t block() { return block_order; }

template <class T>
int64_t cholesky_in_place(T* a, int64_t n, bool upper) {
  return first_bad_pivot(a, n, factor(a, n, upper));
}
#define LAPWING_INSTANTIATE(T) template int64_t cholesky_in_place(T*, int64_t, bool);
LAPWING_EACH_TYPE(LAPWING_INSTANTIATE)

int cholesky(Frame& frame) {
  if (check(frame, POTRF, frame.size[1])) return 1;
  return by_dtype(frame.dtype, [&](auto zero) { return cholesky_as<decltype(zero)>(frame); });
}

}  // namespace lapwing::lapack
