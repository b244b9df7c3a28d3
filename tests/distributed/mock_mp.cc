// A stand-in for the CUDA runtime, cuBLAS, NCCL and cuSOLVERMp: device memory is host memory, ranks are processes that talk
// through files, and each solver gathers the tiles, works on the whole matrix in complex<double>, and keeps its own tiles.
// Every argument that a wrong binding would garble is checked. Work on the stream is done as late as a GPU might do it: when
// somebody waits. Memory that was freed before, or that is too small, is refused then; so is anything freed twice, used after
// that, or closed before what was made of it. VERSION is that of cuSOLVERMp: 800 or 901.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mock.h"

namespace {

// Memory that was allocated here, by its start: bytes; negative once it was freed. Other pointers are the tests' own memory.
std::map<uintptr_t, int64_t> memory;
// What is open, by kind: "comm", "grid", "handle", "desc", "stream", "blas", "svd".
std::map<std::string, std::set<const void*>> open_things;

void within(const void* p, size_t bytes) {
  auto at = memory.upper_bound(uintptr_t(p));
  if (at == memory.begin() || !bytes) return;
  --at;
  size_t size = std::llabs(at->second), offset = uintptr_t(p) - at->first;
  if (offset >= size) return;
  expect(at->second > 0, "memory is used after it was freed");
  expect(offset + bytes <= size, "more is used than was allocated");
}
template <class T>
T* opened(const char* kind, T* x) {
  return open_things[kind].insert(x), x;
}
void known(const char* kind, const void* x) {
  if (!open_things[kind].count(x)) refuse((std::string("this is no open ") + kind).c_str());
}
void closed(const char* kind, const void* x) {
  known(kind, x);
  open_things[kind].erase(x);
}
void none_open(std::initializer_list<const char*> kinds, const char* what) {
  for (auto kind : kinds) expect(open_things[kind].empty(), what);
}

std::vector<std::function<void()>> pending;
void flush() {
  std::vector<std::function<void()>> now;
  now.swap(pending);
  for (auto& work : now) work();
}

std::string folder() { return std::getenv("MOCK_FOLDER"); }

struct Comm {
  std::string name;
  int rank, size;
  std::vector<int> sent, received;
};

void post(Comm& comm, int to, const void* data, size_t bytes) {
  std::string path = folder() + "/" + comm.name + "_" + std::to_string(comm.rank) + "_" + std::to_string(to) + "_" +
                     std::to_string(comm.sent[to]++);
  std::ofstream(path + ".part", std::ios::binary).write(static_cast<const char*>(data), bytes);
  std::rename((path + ".part").c_str(), path.c_str());
}
void fetch(Comm& comm, int from, void* data, size_t bytes) {
  std::string path = folder() + "/" + comm.name + "_" + std::to_string(from) + "_" + std::to_string(comm.rank) + "_" +
                     std::to_string(comm.received[from]++);
  for (int i = 0; access(path.c_str(), R_OK); i++) {
    expect(i < 100000, "a message did not come");
    usleep(200);
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  expect(static_cast<size_t>(file.tellg()) == bytes, "a message has another length than the receiver thinks");
  file.seekg(0).read(static_cast<char*>(data), bytes);
  std::remove(path.c_str());
}

struct Queued {
  Comm* comm;
  int peer;
  void* data;
  size_t bytes;
  bool send;
};
std::vector<Queued> queue;
int depth = 0;

bool complex_type(int type) { return type >= 4; }

struct Grid {
  Comm* comm;
  int p, q;
};
struct Desc {
  Grid* grid;
  int type;
  int64_t m, n, mb, nb, lld;
};
int64_t numroc(int64_t n, int64_t nb, int i, int p) {
  int64_t count = 0;
  for (int64_t tile = i; tile * nb < n; tile += p) count += std::min(nb, n - tile * nb);
  return count;
}

// The whole matrix, gathered; put() keeps this rank's tiles.
struct Whole {
  Desc* d;
  void* mine;
  std::vector<Z> a;
  Z& operator()(int64_t i, int64_t j) { return a[i + j * d->m]; }
  Whole(void* local, int64_t i, int64_t j, Desc* desc) : d(desc), mine(local), a(desc->m * desc->n) {
    expect(i == 1 && j == 1, "offsets are counted from 1");
    known("desc", desc);
    Grid& here = *d->grid;
    int64_t held = numroc(d->n, d->nb, here.comm->rank % here.q, here.q), tall = numroc(d->m, d->mb, here.comm->rank / here.q, here.p);
    if (held && tall) within(mine, ((held - 1) * d->lld + tall) * item(desc->type));
    Grid& g = *d->grid;
    Comm& c = *g.comm;
    std::vector<Z> out(local_size(c.rank)), in;
    each(c.rank, [&](int64_t, int64_t, int64_t at, int64_t place) { out[place] = read(mine, at, d->type); });
    for (int r = 0; r < c.size; r++)
      if (r != c.rank) post(c, r, out.data(), out.size() * sizeof(Z));
    for (int r = 0; r < c.size; r++) {
      in.assign(local_size(r), 0);
      if (r == c.rank) in = out;
      else fetch(c, r, in.data(), in.size() * sizeof(Z));
      each(r, [&](int64_t row, int64_t col, int64_t, int64_t place) { (*this)(row, col) = in[place]; });
    }
  }
  int64_t local_size(int r) {
    Grid& g = *d->grid;
    return numroc(d->m, d->mb, r / g.q, g.p) * numroc(d->n, d->nb, r % g.q, g.q);
  }
  template <class F>
  void each(int r, F f) {
    Grid& g = *d->grid;
    int64_t place = 0, rows = numroc(d->m, d->mb, r / g.q, g.p), cols = numroc(d->n, d->nb, r % g.q, g.q);
    for (int64_t j = 0; j < cols; j++)
      for (int64_t i = 0; i < rows; i++)
        f((i / d->mb * g.p + r / g.q) * d->mb + i % d->mb, (j / d->nb * g.q + r % g.q) * d->nb + j % d->nb, i + j * d->lld,
          place++);
  }
  void put() {
    each(d->grid->comm->rank,
         [&](int64_t row, int64_t col, int64_t at, int64_t) { write(mine, at, d->type, (*this)(row, col)); });
  }
};

int potrf(Whole& a, int64_t n) {
  for (int64_t j = 0; j < n; j++) {
    Z s = a(j, j).real();
    for (int64_t k = 0; k < j; k++) s -= std::norm(a(j, k));
    if (!(s.real() > 0)) return int(j) + 1;
    a(j, j) = std::sqrt(s.real());
    for (int64_t i = j + 1; i < n; i++) {
      Z t = a(i, j);
      for (int64_t k = 0; k < j; k++) t -= a(i, k) * std::conj(a(j, k));
      a(i, j) = t / a(j, j);
    }
  }
  return 0;
}

// Householder vectors below the diagonal, R above; tau as LAPACK has it: H = I - tau v v^H, Q = H1 H2 ...
void geqrf(Whole& a, int64_t m, int64_t n, std::vector<Z>& tau) {
  for (int64_t j = 0; j < std::min(m, n); j++) {
    double norm = 0;
    for (int64_t i = j; i < m; i++) norm += std::norm(a(i, j));
    norm = std::sqrt(norm);
    double beta = a(j, j).real() > 0 ? -norm : norm;
    tau[j] = norm == 0 ? 0 : (beta - a(j, j)) / beta;
    Z scale = norm == 0 ? 0 : 1.0 / (a(j, j) - beta);
    for (int64_t i = j + 1; i < m; i++) a(i, j) *= scale;
    a(j, j) = norm == 0 ? a(j, j) : beta;
    for (int64_t c = j + 1; c < n; c++) {
      Z s = a(j, c);
      for (int64_t i = j + 1; i < m; i++) s += std::conj(a(i, j)) * a(i, c);
      s *= std::conj(tau[j]);
      a(j, c) -= s;
      for (int64_t i = j + 1; i < m; i++) a(i, c) -= a(i, j) * s;
    }
  }
}

// one-sided Jacobi: the columns of a become orthogonal; v collects the rotations (columns x columns)
void jacobi(std::vector<std::vector<Z>>& a, std::vector<std::vector<Z>>& v) {
  size_t n = a.size();
  for (int sweep = 0; sweep < 40; sweep++) {
    double off = 0;
    for (size_t p = 0; p < n; p++)
      for (size_t q = p + 1; q < n; q++) {
        double pp = 0, qq = 0;
        Z pq = 0;
        for (size_t i = 0; i < a[p].size(); i++) pp += std::norm(a[p][i]), qq += std::norm(a[q][i]), pq += std::conj(a[p][i]) * a[q][i];
        double size = std::abs(pq);
        if (size <= 1e-17 * std::sqrt(pp * qq) || size == 0) continue;
        off = std::max(off, size / std::sqrt(pp * qq));
        Z phase = pq / size;
        double t = (qq - pp) / (2 * size), tan = (t >= 0 ? 1 : -1) / (std::abs(t) + std::sqrt(1 + t * t));
        double c = 1 / std::sqrt(1 + tan * tan), s = c * tan;
        for (auto* x : {&a, &v})
          for (size_t i = 0; i < (*x)[p].size(); i++) {
            Z left = (*x)[p][i], right = (*x)[q][i] * std::conj(phase);
            (*x)[p][i] = c * left - s * right;
            (*x)[q][i] = s * left + c * right;
          }
      }
    if (off < 1e-15) return;
  }
}

size_t asked_device = 0, asked_host = 0;
void check_work(size_t device, size_t host, void* d, void* h) {
  flush();
  within(d, device);
  expect(device == asked_device && host == asked_host && d && h, "the workspace is not what was asked for");
  std::memset(d, 0x5a, device);
  std::memset(h, 0x5a, host);
}
int ask(size_t* device, size_t* host, int type, Desc* d) {
  expect(type == d->type, "the compute type differs from the matrix");
  *device = asked_device = 100 + 8 * d->mb;
  *host = asked_host = 40;
  return 0;
}

// With the rows, as in ScaLAPACK; or with the columns.
bool holds_pivot(const Desc& d, int64_t i) {
  const char* where = std::getenv("MOCK_PIVOTS");
  const Grid& g = *d.grid;
  if (where && std::string(where) == "columns") return i / d.mb % g.q == g.comm->rank % g.q;
  return i / d.mb % g.p == g.comm->rank / g.q;
}

}  // namespace

// What a framework's allocator does: memory is freed at once, nobody waits for the stream. For the tests.
API void* stand_in_allocate(size_t n) {
  void* p = std::malloc(std::max<size_t>(n, 1));
  std::memset(p, 0xff, n);  // NaN
  // what lay there was freed and is gone
  memory[uintptr_t(p)] = int64_t(std::max<size_t>(n, 1));
  return p;
}
API void stand_in_free(void* p) {
  auto at = memory.find(uintptr_t(p));
  expect(at != memory.end() && at->second > 0, "memory is freed that was not allocated, or a second time");
  at->second = -at->second;  // the address is not used again: what still reads it is found
}
// How many of a kind are open; "memory" and "bytes" too.
API int64_t stand_in_open(const char* kind) {
  if (std::string(kind) != "memory") return int64_t(open_things[kind].size());
  int64_t count = 0;
  for (auto& [start, bytes] : memory) count += bytes > 0;
  return count;
}

// ---- CUDA runtime and cuBLAS ----
API int cudaSetDevice(int d) { return d == 0 ? 0 : 101; }
API int cudaGetDevice(int* d) { return *d = 0; }
API int cudaGetDeviceCount(int* d) { return *d = 1, 0; }
API int cudaGetLastError() { return 0; }
API const char* cudaGetErrorString(int) { return "an error"; }
API int cudaPointerGetAttributes(int* told, const void*) { return told[0] = 2, told[1] = 0; }
API int cudaMalloc(void** p, size_t n) {
  const char* limit = std::getenv("MOCK_LIMIT");
  if (limit && n > std::strtoull(limit, nullptr, 10)) return 2;
  return *p = stand_in_allocate(n), 0;
}
API int cudaFree(void* p) { return flush(), stand_in_free(p), 0; }  // it waits for the device
API int cudaMemcpyAsync(void* to, const void* from, size_t n, int kind, void* stream) {
  if (stream) known("stream", stream);
  // of the host's own memory the driver has a copy when it returns
  std::vector<char> staged;
  if (kind == 1) staged.assign((const char*)from, (const char*)from + n);
  pending.push_back([=, staged = std::move(staged)] {
    within(to, n), within(from, n);
    std::memcpy(to, kind == 1 ? staged.data() : from, n);
  });
  return 0;
}
API int cudaMemsetAsync(void* p, int v, size_t n, void* stream) {
  known("stream", stream);
  pending.push_back([=] { within(p, n), std::memset(p, v, n); });
  return 0;
}
API int cudaMemcpy2DAsync(void* to, size_t pitch, const void* from, size_t from_pitch, size_t width, size_t height, int, void* stream) {
  known("stream", stream);
  if (width > pitch || width > from_pitch) return 12;
  pending.push_back([=] {
    within(to, (height - 1) * pitch + width), within(from, (height - 1) * from_pitch + width);
    for (size_t i = 0; i < height; i++) std::memcpy((char*)to + i * pitch, (const char*)from + i * from_pitch, width);
  });
  return 0;
}
API int cudaStreamCreateWithFlags(void** s, unsigned flags) { return *s = opened("stream", std::malloc(1)), flags != 1; }
API int cudaStreamDestroy(void* s) {
  none_open({"handle", "blas", "grid", "comm"}, "a stream goes before what uses it");
  return closed("stream", s), 0;
}
API int cudaStreamSynchronize(void* s) {
  if (s) known("stream", s);
  return flush(), 0;
}
API int cudaDeviceSynchronize() { return flush(), 0; }
API int cublasCreate_v2(void** h) { return *h = opened("blas", std::malloc(1)), 0; }
API int cublasDestroy_v2(void* h) { return closed("blas", h), 0; }
API int cublasSetStream_v2(void* h, void* s) { return known("blas", h), known("stream", s), 0; }
#define GEAM(letter, type)                                                                                                    \
  API int cublas##letter##geam(void* handle, int ta, int tb, int m, int n, const void* alpha, const void* a, int lda,          \
                               const void* beta, const void* b, int ldb, void* c, int ldc) {                                  \
    known("blas", handle);                                                                                                    \
    if (ta == 0 && tb == 0) { /* a sum; the weights are read now, the rest when somebody waits */                             \
      expect(lda >= m && ldb >= m && ldc >= m, "a sum has wrong arguments");                                                  \
      Z u = read(alpha, 0, type), v = read(beta, 0, type);                                                                    \
      pending.push_back([=] {                                                                                                 \
        for (auto p : {a, b, (const void*)c}) within(p, (int64_t(n - 1) * lda + m) * item(type));                             \
        for (int j = 0; j < n; j++)                                                                                           \
          for (int i = 0; i < m; i++)                                                                                         \
            write(c, i + int64_t(j) * ldc, type,                                                                              \
                  u * read(a, i + int64_t(j) * lda, type) + v * read(b, i + int64_t(j) * ldb, type));                         \
      });                                                                                                                     \
      return 0;                                                                                                               \
    }                                                                                                                         \
    expect(read(alpha, 0, type) == 1.0 && (ta == 1 || ta == 2) && lda >= n && ldc >= m, "a transpose has wrong arguments");   \
    pending.push_back([=] {                                                                                                   \
      within(a, (int64_t(m - 1) * lda + n) * item(type)), within(c, (int64_t(n - 1) * ldc + m) * item(type));                 \
      for (int j = 0; j < n; j++)                                                                                             \
        for (int i = 0; i < m; i++) {                                                                                         \
          Z x = read(a, j + int64_t(i) * lda, type);                                                                          \
          write(c, i + int64_t(j) * ldc, type, ta == 2 ? std::conj(x) : x);                                                   \
        }                                                                                                                     \
    });                                                                                                                       \
    return 0;                                                                                                                 \
  }
#define NRM2(name, type, real)                                                                                                \
  API int cublas##name##_v2(void* handle, int n, const void* x, int step, real* found) {                                      \
    known("blas", handle), flush(), within(x, n * item(type));                                                                \
    double sum = 0;                                                                                                           \
    for (int i = 0; i < n; i++) sum = std::hypot(sum, std::abs(read(x, i, type)));                                            \
    return *found = real(sum), step != 1;                                                                                     \
  }
NRM2(Snrm2, 0, float) NRM2(Dnrm2, 1, double) NRM2(Scnrm2, 4, float) NRM2(Dznrm2, 5, double)
GEAM(S, 0) GEAM(D, 1) GEAM(C, 4) GEAM(Z, 5)

// ---- NCCL ----
struct Id { char name[128]; };
API int ncclGetVersion(int* v) {
  const char* told = std::getenv("MOCK_NCCL");
  return *v = told ? std::atoi(told) : 22907, 0;
}
API const char* ncclGetErrorString(int) { return "an error"; }
API int ncclGetUniqueId(Id* id) {
  static int count = 0;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->name, sizeof id->name, "c%d-%d", int(getpid()), count++);
  return 0;
}
API int ncclCommInitRank(Comm** comm, int size, Id id, int rank) {
  *comm = opened("comm", new Comm{id.name, rank, size, std::vector<int>(size), std::vector<int>(size)});
  return 0;
}
API int ncclCommDestroy(Comm* c) {
  expect(pending.empty(), "a communicator goes while there is work");
  for (auto grid : open_things["grid"]) expect(((const Grid*)grid)->comm != c, "a communicator goes before its grid");
  return closed("comm", c), 0;
}
API int ncclCommAbort(Comm* c) { return closed("comm", c), 0; }
API int ncclGroupStart() { return depth++, 0; }
API int ncclSend(void* p, size_t n, int type, int to, Comm* c, void* s) { return known("comm", c), known("stream", s), queue.push_back({c, to, p, n, true}), type != 1; }
API int ncclRecv(void* p, size_t n, int type, int from, Comm* c, void* s) { return known("comm", c), known("stream", s), queue.push_back({c, from, p, n, false}), type != 1; }
API int ncclGroupEnd() {
  if (--depth) return 0;
  // what is sent goes at once: the others may wait for it, and this process may never wait again
  flush();
  for (auto& x : queue)
    if (x.send) within(x.data, x.bytes), post(*x.comm, x.peer, x.data, x.bytes);
  pending.push_back([group = std::move(queue)] {
    for (auto& x : group) within(x.data, x.bytes);
    for (auto& x : group)
      if (!x.send) fetch(*x.comm, x.peer, x.data, x.bytes);
  });
  return queue.clear(), 0;
}

// ---- cuSOLVERMp ----
#if VERSION >= 900
API const char stand_in_wants[] = "libcublasmp.so.0";
#endif
API int cusolverMpCreate(void** h, int, void* stream) { return known("stream", stream), *h = opened("handle", std::malloc(1)), 0; }
API int cusolverMpDestroy(void* h) {
  none_open({"grid", "desc"}, "a handle goes before its grids");
  return closed("handle", h), 0;
}
API int cusolverMpGetVersion(void* h, int* v) { return known("handle", h), *v = VERSION, 0; }
API int cusolverMpCreateDeviceGrid(void* h, Grid** g, Comm* c, int p, int q, int mapping) {
  known("handle", h), known("comm", c);
  *g = opened("grid", new Grid{c, p, q});
  return mapping == 1 && p * q == c->size ? 0 : 3;
}
API int cusolverMpDestroyGrid(Grid* g) {
  none_open({"desc"}, "a grid goes before its descriptors");
  return closed("grid", g), 0;
}
API int cusolverMpCreateMatrixDesc(Desc** d, Grid* g, int type, int64_t m, int64_t n, int64_t mb, int64_t nb, uint32_t r, uint32_t c, int64_t lld) {
  known("grid", g);
  const char* fails = std::getenv("MOCK_DESC");  // after so many it fails
  static int made = 0;
  if (fails && made++ >= std::atoi(fails)) return 7;
  *d = opened("desc", new Desc{g, type, m, n, mb, nb, lld});
  return mb == nb && r == 0 && c == 0 && lld >= std::max<int64_t>(1, numroc(m, mb, g->comm->rank / g->q, g->p)) ? 0 : 3;
}
API int cusolverMpDestroyMatrixDesc(Desc* d) { return closed("desc", d), delete d, 0; }

#define MATRIX(x) void *x, int64_t i##x, int64_t j##x, Desc *d##x
#define WORK int type, void *dw, size_t dn, void *hw, size_t hn, int *info
#define ASK int type, size_t *device, size_t *host
#define BEGIN check_work(dn, hn, dw, hw); expect(type == da->type, "types differ")

API int cusolverMpPotrf_bufferSize(void*, int, int64_t, MATRIX(a), ASK) { return a && ia && ja ? ask(device, host, type, da) : 3; }
API int cusolverMpPotrf(void*, int uplo, int64_t n, MATRIX(a), WORK) {
  BEGIN;
  expect(uplo == 0 && n <= da->m && n <= da->n, "potrf: arguments");
  Whole whole(a, ia, ja, da);
  *info = potrf(whole, n);
  for (int64_t j = *info; *info && j < n; j++) whole(j, j) = NAN;  // as on an H200
  whole.put();
  bool failed = *info;
  if (failed && VERSION < 900) *info = 0;  // and the pivot that failed keeps what was there
  return failed && VERSION < 900 ? 7 : 0;
}
API int cusolverMpPotrs_bufferSize(void*, int, int64_t, int64_t, MATRIX(a), MATRIX(b), ASK) { return a && ia && ja && b && ib && jb && db ? ask(device, host, type, da) : 3; }
API int cusolverMpPotrs(void*, int uplo, int64_t n, int64_t k, MATRIX(a), MATRIX(b), WORK) {
  BEGIN;
  expect(uplo == 0 && n == da->m && db->m == n && db->n == k && db->mb == da->mb, "potrs: arguments");
  Whole l(a, ia, ja, da), x(b, ib, jb, db);
  solve(l, x, n, k);
  return x.put(), *info = 0;
}
API int cusolverMpGetrf_bufferSize(void*, int64_t, int64_t, MATRIX(a), int64_t* ipiv, ASK) { return a && ia && ja && ipiv ? ask(device, host, type, da) : 3; }
API int cusolverMpGetrf(void*, int64_t m, int64_t n, MATRIX(a), int64_t* ipiv, WORK) {
  BEGIN;
  expect(m == n && m == da->m && n == da->n, "getrf: arguments");
  Whole w(a, ia, ja, da);
  *info = 0;
  std::vector<int64_t> pivots(n);
  for (int64_t j = 0; j < n; j++) {
    int64_t best = j;
    for (int64_t i = j; i < n; i++)
      if (std::abs(w(i, j)) > std::abs(w(best, j))) best = i;
    pivots[j] = best + 1;
    for (int64_t c = 0; c < n; c++) std::swap(w(j, c), w(best, c));
    if (w(j, j) == 0.0 && !*info) *info = int(j) + 1;  // and divides by it, as the library does
    for (int64_t i = j + 1; i < n; i++) {
      w(i, j) /= w(j, j);
      for (int64_t c = j + 1; c < n; c++) w(i, c) -= w(i, j) * w(j, c);
    }
  }
  for (int64_t i = 0, mine = 0; i < n; i++)
    if (holds_pivot(*da, i)) within(&ipiv[mine], 8), ipiv[mine++] = pivots[i];
  return w.put(), 0;
}
API int cusolverMpGetrs_bufferSize(void*, int, int64_t, int64_t, MATRIX(a), const int64_t* ipiv, MATRIX(b), ASK) { return a && ia && ja && ipiv && b && ib && jb && db ? ask(device, host, type, da) : 3; }
API int cusolverMpGetrs(void*, int trans, int64_t n, int64_t k, MATRIX(a), const int64_t* ipiv, MATRIX(b), WORK) {
  BEGIN;
  expect(trans == 0 && db->m == n && db->n == k, "getrs: arguments");
  Whole w(a, ia, ja, da), x(b, ib, jb, db);
  // each rank has some: all of them together are the diagonal of a matrix
  Desc square{da->grid, 5, n, n, da->mb, da->mb, std::max<int64_t>(1, numroc(n, da->mb, da->grid->comm->rank / da->grid->q, da->grid->p))};
  Grid& g = *da->grid;
  std::vector<Z> local(square.lld * std::max<int64_t>(1, numroc(n, da->mb, g.comm->rank % g.q, g.q)));
  for (int64_t i = 0, mine = 0; i < n; i++)
    if (holds_pivot(*da, i)) {
      if (i / da->mb % g.p == g.comm->rank / g.q && i / da->mb % g.q == g.comm->rank % g.q)
        local[i / da->mb / g.p * da->mb + i % da->mb + (i / da->mb / g.q * da->mb + i % da->mb) * square.lld] = double(ipiv[mine]);
      mine++;
    }
  opened("desc", &square);
  Whole pivots(local.data(), 1, 1, &square);
  closed("desc", &square);
  for (int64_t c = 0; c < k; c++) {
    for (int64_t i = 0; i < n; i++) std::swap(x(i, c), x(int64_t(pivots(i, i).real()) - 1, c));
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < i; j++) x(i, c) -= w(i, j) * x(j, c);
    for (int64_t i = n; i-- > 0;) {
      for (int64_t j = i + 1; j < n; j++) x(i, c) -= w(i, j) * x(j, c);
      x(i, c) /= w(i, i);
    }
  }
  return x.put(), *info = 0;
}
API int cusolverMpGeqrf_bufferSize(void*, int64_t, int64_t, MATRIX(a), ASK) { return a && ia && ja ? ask(device, host, type, da) : 3; }
API int cusolverMpGeqrf(void*, int64_t m, int64_t n, MATRIX(a), void* tau, WORK) {
  BEGIN;
  expect(m == da->m && n == da->n && m >= n, "geqrf: arguments");
  Whole w(a, ia, ja, da);
  std::vector<Z> t(n);
  geqrf(w, m, n, t);
  Grid& g = *da->grid;
  for (int64_t j = 0, mine = 0; j < n; j++)
    if (j / da->nb % g.q == g.comm->rank % g.q) write(tau, mine++, type, t[j]);
  return w.put(), *info = 0;
}
API int cusolverMpOrgqr_bufferSize(void*, int64_t, int64_t, int64_t, MATRIX(a), const void* tau, ASK) { return a && ia && ja && tau ? ask(device, host, type, da) : 3; }
API int cusolverMpOrgqr(void*, int64_t m, int64_t n, int64_t k, MATRIX(a), const void* tau, WORK) {
  BEGIN;
  expect(m == da->m && n == da->n && k == n, "orgqr: arguments");
  Grid& g = *da->grid;
  Desc columns{da->grid, 5, da->grid->p, n, 1, da->nb, 1};
  std::vector<Z> local(std::max<int64_t>(1, numroc(n, da->nb, g.comm->rank % g.q, g.q)));
  for (int64_t j = 0; j < numroc(n, da->nb, g.comm->rank % g.q, g.q); j++) local[j] = read(tau, j, type);
  opened("desc", &columns);
  Whole w(a, ia, ja, da), t(local.data(), 1, 1, &columns);
  closed("desc", &columns);
  std::vector<Z> q(m * n);
  for (int64_t j = 0; j < n; j++) q[j + j * m] = 1;
  for (int64_t h = n; h-- > 0;)
    for (int64_t c = 0; c < n; c++) {
      Z s = q[h + c * m];
      for (int64_t i = h + 1; i < m; i++) s += std::conj(w(i, h)) * q[i + c * m];
      s *= t(0, h);
      q[h + c * m] -= s;
      for (int64_t i = h + 1; i < m; i++) q[i + c * m] -= w(i, h) * s;
    }
  w.a = q;
  return w.put(), *info = 0;
}
API int cusolverMpGels_bufferSize(void*, int, int64_t, int64_t, int64_t, MATRIX(a), MATRIX(b), ASK) { return a && ia && ja && b && ib && jb && db ? ask(device, host, type, da) : 3; }
API int cusolverMpGels(void*, int trans, int64_t m, int64_t n, int64_t k, MATRIX(a), MATRIX(b), WORK) {
  BEGIN;
  expect(trans == 0 && m >= n && db->m == m && db->n == k, "gels: arguments");
  Whole w(a, ia, ja, da), x(b, ib, jb, db);
  std::vector<Z> t(n);
  geqrf(w, m, n, t);
  for (int64_t c = 0; c < k; c++) {
    for (int64_t h = 0; h < n; h++) {
      Z s = x(h, c);
      for (int64_t i = h + 1; i < m; i++) s += std::conj(w(i, h)) * x(i, c);
      s *= std::conj(t[h]);
      x(h, c) -= s;
      for (int64_t i = h + 1; i < m; i++) x(i, c) -= w(i, h) * s;
    }
    for (int64_t i = n; i-- > 0;) {
      for (int64_t j = i + 1; j < n; j++) x(i, c) -= w(i, j) * x(j, c);
      x(i, c) /= w(i, i);
    }
  }
  return x.put(), *info = 0;
}
API int cusolverMpSyevd_bufferSize(void*, char* job, int, int64_t, MATRIX(a), void*, MATRIX(q), ASK) { return a && ia && ja && q && iq && jq && dq && *job ? ask(device, host, type, da) : 3; }
API int cusolverMpSyevd(void*, char* job, int uplo, int64_t n, MATRIX(a), void* values, MATRIX(q), WORK) {
  BEGIN;
  expect(uplo == 0 && n == da->m, "syevd: arguments");
  if (!(VERSION >= 900 ? *job == 'V' || *job == 'N' : *job == 'Z')) return 3;
  Whole w(a, ia, ja, da), v(q, iq, jq, dq);
  // shifted by its norm the matrix is positive: its singular vectors are its eigenvectors
  double shift = 0;
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j <= i; j++) shift += (i == j ? 1 : 2) * std::norm(w(i, j));
  shift = std::sqrt(shift);
  std::vector<std::vector<Z>> columns(n, std::vector<Z>(n)), turned = columns;
  for (int64_t j = 0; j < n; j++) {
    turned[j][j] = 1;
    for (int64_t i = 0; i < n; i++) columns[j][i] = i == j ? w(i, i).real() + shift : i > j ? w(i, j) : std::conj(w(j, i));
  }
  jacobi(columns, turned);
  std::vector<std::pair<double, int64_t>> order(n);
  for (int64_t j = 0; j < n; j++) {
    double norm = 0;
    for (Z x : columns[j]) norm += std::norm(x);
    order[j] = {std::sqrt(norm) - shift, j};
  }
  std::sort(order.begin(), order.end());
  for (int64_t j = 0; j < n; j++) {
    write(values, j, complex_type(type) ? type - 4 : type, order[j].first);
    for (int64_t i = 0; i < n && *job != 'N'; i++) v(i, j) = turned[order[j].second][i];
  }
  if (*job != 'N') v.put();
  return *info = 0;
}
#if VERSION >= 900
API int cusolverMpGesvdDescriptorCreate(void** d) { return *d = opened("svd", std::malloc(1)), 0; }
API int cusolverMpGesvdDescriptorDestroy(void* d) { return closed("svd", d), 0; }
API int cusolverMpGesvd_bufferSize(void*, void* settings, int, int, int64_t, int64_t, MATRIX(a), const void*, MATRIX(u), MATRIX(v), ASK) { return settings && a && ia && ja && u && iu && ju && du && v && iv && jv && dv ? ask(device, host, type, da) : 3; }
API int cusolverMpGesvd(void*, void*, int left, int right, int64_t m, int64_t n, MATRIX(a), void* values, MATRIX(u), MATRIX(v), WORK) {
  BEGIN;
  expect(m == da->m && n == da->n && m >= n && left == right && du->n == n && dv->m == n, "gesvd: arguments");
  Whole w(a, ia, ja, da), l(u, iu, ju, du), r(v, iv, jv, dv);
  std::vector<std::vector<Z>> columns(n, std::vector<Z>(m)), turned(n, std::vector<Z>(n));
  for (int64_t j = 0; j < n; j++) {
    turned[j][j] = 1;
    for (int64_t i = 0; i < m; i++) columns[j][i] = w(i, j);
  }
  jacobi(columns, turned);
  std::vector<std::pair<double, int64_t>> order(n);
  for (int64_t j = 0; j < n; j++) {
    double norm = 0;
    for (Z x : columns[j]) norm += std::norm(x);
    order[j] = {-std::sqrt(norm), j};
  }
  std::sort(order.begin(), order.end());
  for (int64_t j = 0; j < n; j++) {
    write(values, j, complex_type(type) ? type - 4 : type, -order[j].first);
    for (int64_t i = 0; i < m; i++) l(i, j) = columns[order[j].second][i] / -order[j].first;
    for (int64_t i = 0; i < n; i++) r(j, i) = std::conj(turned[order[j].second][i]);
  }
  if (left) l.put(), r.put();
  return *info = 0;
}
#endif
