// A stand-in for the CUDA runtime, cuBLAS and cuSOLVERMg with several GPUs: device memory is host memory. Work on a stream is
// done when somebody waits for that stream or its device, so that a missing wait shows. Each solver reads the tiles of all
// places, works on the whole matrix in complex<double>, and writes the tiles back. Triangles that the library does not read are
// filled with NaN first. Every argument that a wrong binding would garble is checked. MOCK_DEVICES: how many GPUs.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "mock.h"

namespace {

int devices() {
  const char* count = std::getenv("MOCK_DEVICES");
  return count ? std::atoi(count) : 8;
}
int current = 0;

struct Stream {
  int device;
  std::vector<std::function<void()>> work;
  void flush() {
    std::vector<std::function<void()>> now;
    now.swap(work);
    for (auto& each : now) each();
  }
};
std::set<Stream*> streams;
void flush(int device) {
  for (auto s : streams)
    if (s->device == device) s->flush();
}
void idle() {
  for (auto s : streams) expect(s->work.empty(), "the library is called while there are copies");
}
struct Blas {
  int device;
  Stream* stream = nullptr;
};

struct Handle {
  std::vector<int> devices;
};
struct Grid {
  std::vector<int> devices;
};
struct Desc {
  int64_t m, n, nb;
  int type;
  Grid* grid;
};
int64_t open_descriptors = 0, asked = 0;

struct Whole {
  Desc* d;
  void** parts;
  std::vector<Z> a;
  Whole(void** pointers, int i, int j, Desc* desc) : d(desc), parts(pointers), a(desc->m * desc->n) {
    expect(i == 1 && j == 1, "offsets are counted from 1");
    each([&](Z& x, void* p, int64_t at) { x = read(p, at, d->type); });
  }
  Z& operator()(int64_t i, int64_t j) { return a[i + j * d->m]; }
  template <class F>
  void each(F f) {
    int64_t k = int64_t(d->grid->devices.size());
    for (int64_t j = 0; j < d->n; j++) {
      int64_t tile = j / d->nb, local = tile / k * d->nb + j % d->nb;
      for (int64_t i = 0; i < d->m; i++) f((*this)(i, j), parts[tile % k], i + local * d->m);
    }
  }
  void lower_only() {
    for (int64_t j = 0; j < d->n; j++)
      for (int64_t i = 0; i < j; i++) (*this)(i, j) = NAN;
  }
  void put() {
    each([&](Z& x, void* p, int64_t at) { write(p, at, d->type, x); });
  }
};

int ask(int64_t* count, int type, Desc* d, Handle* h) {
  expect(type == d->type && h->devices == d->grid->devices, "the matrix has another type, or other devices");
  return *count = asked = 10 + d->nb, 0;
}
void begin(Handle* h, int type, Desc* d, void** work, int64_t count) {
  idle();
  expect(type == d->type && count == asked, "the workspace is not what was asked for");
  for (size_t i = 0; i < h->devices.size(); i++) std::memset(work[i], 0x5a, size_t(count) * item(type));
}

}  // namespace

// ---- CUDA runtime and cuBLAS ----
API int cudaSetDevice(int d) { return d >= 0 && d < devices() ? (current = d, 0) : 101; }
API int cudaGetDevice(int* d) { return *d = current, 0; }
API int cudaGetDeviceCount(int* d) { return *d = devices(), 0; }
API int cudaGetLastError() { return 0; }
API const char* cudaGetErrorString(int) { return "an error"; }
API int cudaPointerGetAttributes(int* told, const void*) { return told[0] = 2, told[1] = 0; }
API int cudaDeviceCanAccessPeer(int* can, int a, int b) { return *can = a != b, 0; }
API int cudaDeviceEnablePeerAccess(int other, unsigned flags) { return other == current || flags ? 1 : 0; }
API int cudaMalloc(void** p, size_t n) { return *p = std::malloc(n), std::memset(*p, 0xff, n), 0; }
API int cudaFree(void* p) { return flush(current), std::free(p), 0; }
API int cudaMemcpyAsync(void* to, const void* from, size_t n, int, Stream* s) {
  if (!s) return std::memcpy(to, from, n), 0;
  return s->work.push_back([=] { std::memcpy(to, from, n); }), s->device != current;
}
API int cudaMemsetAsync(void* p, int v, size_t n, Stream* s) {
  return s->work.push_back([=] { std::memset(p, v, n); }), s->device != current;
}
API int cudaMemcpy2DAsync(void* to, size_t pitch, const void* from, size_t from_pitch, size_t width, size_t height, int kind, Stream* s) {
  expect(kind == 4 || kind == 1 || kind == 2, "the kind of a copy");
  if (width > pitch || width > from_pitch || s->device != current) return 12;
  s->work.push_back([=] {
    for (size_t i = 0; i < height; i++) std::memcpy((char*)to + i * pitch, (const char*)from + i * from_pitch, width);
  });
  return 0;
}
API int cudaStreamCreateWithFlags(Stream** s, unsigned flags) {
  return streams.insert(*s = new Stream{current, {}}), flags != 1;
}
API int cudaStreamDestroy(Stream* s) { return streams.erase(s), 0; }
API int cudaStreamSynchronize(Stream* s) { return s ? s->flush() : flush(current), 0; }
API int cudaDeviceSynchronize() { return flush(current), 0; }
API int cublasCreate_v2(Blas** h) { return *h = new Blas{current}, 0; }
API int cublasDestroy_v2(Blas*) { return 0; }
API int cublasSetStream_v2(Blas* h, Stream* s) { return h->stream = s, h->device != s->device; }
#define GEAM(letter, type)                                                                                                \
  API int cublas##letter##geam(Blas* h, int ta, int tb, int m, int n, const void* one, const void* a, int lda,             \
                               const void* zero, const void*, int, void* c, int ldc) {                                    \
    expect(read(one, 0, type) == 1.0 && read(zero, 0, type) == 0.0 && tb == 0, "a transpose has wrong weights");           \
    expect((ta == 1 || ta == 2) && lda >= n && ldc >= m && h->device == current, "a transpose has wrong arguments");       \
    h->stream->work.push_back([=] {                                                                                       \
      for (int j = 0; j < n; j++)                                                                                         \
        for (int i = 0; i < m; i++) {                                                                                     \
          Z x = read(a, j + int64_t(i) * lda, type);                                                                      \
          write(c, i + int64_t(j) * ldc, type, ta == 2 ? std::conj(x) : x);                                               \
        }                                                                                                                 \
    });                                                                                                                   \
    return 0;                                                                                                             \
  }
GEAM(S, 0) GEAM(D, 1) GEAM(C, 4) GEAM(Z, 5)
#define HEMM(name, type)                                                                                                  \
  API int cublas##name##_v2(Blas* h, int side, int uplo, int m, int n, const void* one, const void* a, int lda,            \
                            const void* b, int ldb, const void* zero, void* c, int ldc) {                                 \
    expect(side == 0 && uplo == 0 && m == n && lda >= m && ldb >= m && ldc >= m, "a product has wrong arguments");         \
    expect(read(one, 0, type) == 1.0 && read(zero, 0, type) == 0.0 && h->device == current, "a product: weights");         \
    h->stream->work.push_back([=] {                                                                                       \
      for (int j = 0; j < n; j++)                                                                                         \
        for (int i = 0; i < m; i++) {                                                                                     \
          Z sum = 0;                                                                                                      \
          for (int k = 0; k < m; k++) {                                                                                   \
            Z x = read(a, std::max(i, k) + int64_t(std::min(i, k)) * lda, type);                                            \
            x = i == k ? x.real() : i > k ? x : std::conj(x);                                                             \
            sum += x * read(b, k + int64_t(j) * ldb, type);                                                               \
          }                                                                                                               \
          write(c, i + int64_t(j) * ldc, type, sum);                                                                      \
        }                                                                                                                 \
    });                                                                                                                   \
    return 0;                                                                                                             \
  }
HEMM(Ssymm, 0) HEMM(Dsymm, 1) HEMM(Chemm, 4) HEMM(Zhemm, 5)

// ---- cuSOLVERMg ----
API int cusolverMgCreate(Handle** h) { return *h = new Handle, 0; }
API int cusolverMgDestroy(Handle* h) { return delete h, 0; }
API int cusolverMgDeviceSelect(Handle* h, int n, int* list) { return h->devices.assign(list, list + n), 0; }
API int cusolverMgCreateDeviceGrid(Grid** g, int p, int q, const int* list, int mapping) {
  return *g = new Grid{std::vector<int>(list, list + q)}, p == 1 && mapping == 0 ? 0 : 3;
}
API int cusolverMgDestroyGrid(Grid* g) { return delete g, 0; }
API int cusolverMgCreateMatrixDesc(Desc** d, int64_t m, int64_t n, int64_t mb, int64_t nb, int type, Grid* g) {
  return *d = new Desc{m, n, nb, type, g}, open_descriptors++, mb == m && nb > 0 ? 0 : 3;
}
API int cusolverMgDestroyMatrixDesc(Desc* d) { return open_descriptors--, delete d, 0; }
API int64_t stand_in_descriptors() { return open_descriptors; }

#define MATRIX(x) void **x, int i##x, int j##x, Desc *d##x
#define WORK int type, void **work, int64_t count, int *info
#define ASK int type, int64_t *count
#define BEGIN begin(h, type, da, work, count); (void)a

API int cusolverMgPotrf_bufferSize(Handle* h, int uplo, int n, MATRIX(a), ASK) { return a && ia == 1 && ja == 1 && uplo == 0 && n == da->n ? ask(count, type, da, h) : 3; }
API int cusolverMgPotrf(Handle* h, int uplo, int n, MATRIX(a), WORK) {
  BEGIN;
  expect(uplo == 0 && n == da->m && n == da->n, "potrf: arguments");
  Whole w(a, ia, ja, da);
  w.lower_only();
  *info = 0;
  for (int64_t j = 0; j < n && !*info; j++) {
    Z s = w(j, j).real();
    for (int64_t k = 0; k < j; k++) s -= std::norm(w(j, k));
    if (!(s.real() > 0)) *info = int(j) + 1;
    w(j, j) = std::sqrt(s.real());
    for (int64_t i = j + 1; i < n; i++) {
      Z t = w(i, j);
      for (int64_t k = 0; k < j; k++) t -= w(i, k) * std::conj(w(j, k));
      w(i, j) = t / w(j, j);
    }
  }
  return w.put(), 0;
}
API int cusolverMgPotrs_bufferSize(Handle* h, int, int, int, MATRIX(a), MATRIX(b), ASK) { return a && ia && ja && b && ib && jb && db ? ask(count, type, da, h) : 3; }
API int cusolverMgPotrs(Handle* h, int uplo, int n, int k, MATRIX(a), MATRIX(b), WORK) {
  BEGIN;
  expect(uplo == 0 && n == da->m && db->m == n && db->n == k && db->type == type, "potrs: arguments");
  Whole l(a, ia, ja, da), x(b, ib, jb, db);
  solve(l, x, n, k);
  return x.put(), *info = 0;
}
API int cusolverMgGetrf_bufferSize(Handle* h, int m, int n, MATRIX(a), int** ipiv, ASK) { return a && ia && ja && ipiv && m == n ? ask(count, type, da, h) : 3; }
API int cusolverMgGetrf(Handle* h, int m, int n, MATRIX(a), int** ipiv, WORK) {
  BEGIN;
  expect(m == n && m == da->m && n == da->n, "getrf: arguments");
  Whole w(a, ia, ja, da);
  *info = 0;
  int64_t k = int64_t(da->grid->devices.size());
  for (int64_t j = 0; j < n; j++) {
    int64_t best = j;
    for (int64_t i = j; i < n; i++)
      if (std::abs(w(i, j)) > std::abs(w(best, j))) best = i;
    ipiv[j / da->nb % k][j / da->nb / k * da->nb + j % da->nb] = int(best) + 1;
    for (int64_t c = 0; c < n; c++) std::swap(w(j, c), w(best, c));
    if (w(j, j) == 0.0 && !*info) *info = int(j) + 1;
    for (int64_t i = j + 1; i < n; i++) {
      w(i, j) /= w(j, j);
      for (int64_t c = j + 1; c < n; c++) w(i, c) -= w(i, j) * w(j, c);
    }
  }
  return w.put(), 0;
}
API int cusolverMgGetrs_bufferSize(Handle* h, int, int, int, MATRIX(a), int** ipiv, MATRIX(b), ASK) { return a && ia && ja && ipiv && b && ib && jb && db ? ask(count, type, da, h) : 3; }
API int cusolverMgGetrs(Handle* h, int trans, int n, int k, MATRIX(a), int** ipiv, MATRIX(b), WORK) {
  BEGIN;
  expect(trans == 0 && db->m == n && db->n == k && db->type == type, "getrs: arguments");
  Whole w(a, ia, ja, da), x(b, ib, jb, db);
  int64_t places = int64_t(da->grid->devices.size());
  for (int64_t c = 0; c < k; c++) {
    for (int64_t i = 0; i < n; i++)
      std::swap(x(i, c), x(ipiv[i / da->nb % places][i / da->nb / places * da->nb + i % da->nb] - 1, c));
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < i; j++) x(i, c) -= w(i, j) * x(j, c);
    for (int64_t i = n; i-- > 0;) {
      for (int64_t j = i + 1; j < n; j++) x(i, c) -= w(i, j) * x(j, c);
      x(i, c) /= w(i, i);
    }
  }
  return x.put(), *info = 0;
}
API int cusolverMgSyevd_bufferSize(Handle* h, int, int, int, MATRIX(a), void* values, int, ASK) { return a && ia && ja && values ? ask(count, type, da, h) : 3; }
API int cusolverMgSyevd(Handle* h, int job, int uplo, int n, MATRIX(a), void* values, int real, WORK) {
  BEGIN;
  expect((job == 0 || job == 1) && uplo == 0 && n == da->m && real == (type >= 4 ? type - 4 : type), "syevd: arguments");
  Whole w(a, ia, ja, da);
  w.lower_only();
  std::vector<Z> m(n * n), v(n * n);  // cyclic Jacobi
  for (int64_t j = 0; j < n; j++)
    for (int64_t i = 0; i < n; i++) v[i + j * n] = i == j, m[i + j * n] = i == j ? w(i, i).real() : i > j ? w(i, j) : std::conj(w(j, i));
  for (int sweep = 0; sweep < 40; sweep++) {
    double off = 0, all = 0;
    for (int64_t p = 0; p < n; p++)
      for (int64_t q = 0; q < n; q++) (p == q ? all : off) += std::norm(m[p + q * n]);
    if (off <= 1e-32 * (off + all)) break;
    for (int64_t p = 0; p < n; p++)
      for (int64_t q = p + 1; q < n; q++) {
        Z x = m[p + q * n];
        double size = std::abs(x);
        if (size == 0) continue;
        double t = (m[q + q * n].real() - m[p + p * n].real()) / (2 * size);
        double tan = (t >= 0 ? 1 : -1) / (std::abs(t) + std::sqrt(1 + t * t)), c = 1 / std::sqrt(1 + tan * tan), s = c * tan;
        Z phase = x / size;
        for (auto* y : {&m, &v})
          for (int64_t i = 0; i < n; i++) {
            Z left = (*y)[i + p * n], right = (*y)[i + q * n] * std::conj(phase);
            (*y)[i + p * n] = c * left - s * right, (*y)[i + q * n] = s * left + c * right;
          }
        for (int64_t i = 0; i < n; i++) {
          Z left = m[p + i * n], right = m[q + i * n] * phase;
          m[p + i * n] = c * left - s * right, m[q + i * n] = s * left + c * right;
        }
      }
  }
  std::vector<int64_t> order(n);
  for (int64_t j = 0; j < n; j++) order[j] = j;
  std::sort(order.begin(), order.end(), [&](int64_t i, int64_t j) { return m[i + i * n].real() < m[j + j * n].real(); });
  for (int64_t j = 0; j < n; j++) {
    write(values, j, real, m[order[j] + order[j] * n].real());
    for (int64_t i = 0; i < n; i++) w(i, j) = job ? v[i + order[j] * n] : Z(NAN);
  }
  return w.put(), *info = 0;
}
