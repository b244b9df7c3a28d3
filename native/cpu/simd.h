// Vectors of one instruction set. Included once per instruction set, so there is no include guard:
// the includer defines LAPWING_ISA (a namespace), LAPWING_VECTOR (bytes in a register) and
// LAPWING_REGISTERS (how many there are), and sets the target of the code that follows.
// System headers, <immintrin.h> or <arm_neon.h> too, go before that: they must not be compiled for a wider target.

namespace lapwing {
namespace {
namespace LAPWING_ISA {

#define LAPWING_INLINE inline __attribute__((always_inline))

template <class R>
struct VecOf {
  typedef R type __attribute__((vector_size(LAPWING_VECTOR)));
};
template <class R>
using Vec = typename VecOf<R>::type;

template <class R>
constexpr int LANES = LAPWING_VECTOR / sizeof(R);
// Memory is transposed in pieces of 16 bytes, the largest that shuffle without crossing lanes.
template <class R>
constexpr int CHUNK = 16 / sizeof(R);

template <class R>
LAPWING_INLINE Vec<R> load(const R* p) {
  Vec<R> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class R>
LAPWING_INLINE void store(R* p, Vec<R> v) {
  __builtin_memcpy(p, &v, sizeof v);
}
template <class R>
LAPWING_INLINE Vec<R> broadcast(R x) {
  return x - Vec<R>{};  // x - 0 is x for every x, -0 too
}

typedef Vec<float> VecF;
typedef Vec<double> VecD;

// The result of a comparison of vectors: an integer as wide as R in each lane, with all bits set or none.
template <class R>
using Mask = decltype(Vec<R>{} < Vec<R>{});
template <class R>
LAPWING_INLINE Mask<R> broadcast_int(int64_t i) {
  return std::remove_reference_t<decltype(Mask<R>{}[0])>(i) - Mask<R>{};
}
template <class V>
LAPWING_INLINE V abs(V x) {
  typedef decltype(x < x) Bits;
  return (V)((Bits)x & ~(Bits)(-V{}));
}

// gather: 16 bytes from each pointer, side by side.  scatter: the way back.
// transpose_pieces: the 16-byte pieces of as many vectors as a vector has pieces.
#if LAPWING_VECTOR == 64
LAPWING_INLINE VecF sqrt(VecF x) { return _mm512_maskz_sqrt_ps(0xffff, x); }
LAPWING_INLINE VecD sqrt(VecD x) { return _mm512_maskz_sqrt_pd(0xff, x); }
LAPWING_INLINE unsigned positive_finite(VecF x) {
  const __mmask16 above = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
  return _mm512_mask_cmp_ps_mask(above, x, _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ);
}
LAPWING_INLINE unsigned positive_finite(VecD x) {
  const __mmask8 above = _mm512_cmp_pd_mask(x, _mm512_setzero_pd(), _CMP_GT_OQ);
  return _mm512_mask_cmp_pd_mask(above, x, _mm512_set1_pd(__builtin_inf()), _CMP_LT_OQ);
}
// fma: a b + c with one rounding where there is such an instruction. To be named where the compiler has a
// choice, as in a b + c d, and copies of the code must give the same bits.
LAPWING_INLINE VecF fma(VecF a, VecF b, VecF c) { return _mm512_fmadd_ps(a, b, c); }
LAPWING_INLINE VecD fma(VecD a, VecD b, VecD c) { return _mm512_fmadd_pd(a, b, c); }
// less: c - a b. Not fma(-a, b, c): the compiler would negate a number before it spreads it over a vector, which costs two
// instructions more for each.
LAPWING_INLINE VecF less(VecF a, VecF b, VecF c) { return _mm512_fnmadd_ps(a, b, c); }
LAPWING_INLINE VecD less(VecD a, VecD b, VecD c) { return _mm512_fnmadd_pd(a, b, c); }
LAPWING_INLINE bool any(Mask<float> x) { return _mm512_test_epi32_mask((__m512i)x, (__m512i)x); }
LAPWING_INLINE bool any(Mask<double> x) { return _mm512_test_epi64_mask((__m512i)x, (__m512i)x); }
// 1 / sqrt(x) for positive x, neither tiny nor huge, to the last bit or two. Newton's step is written so that its
// rounding is that of one operation; it takes 14 good bits to 27, and the next to all of a double.
LAPWING_INLINE VecF rsqrt(VecF x) {
  const VecF y = _mm512_maskz_rsqrt14_ps(0xffff, x);
  return fma(y * 0.5f, fma(-x * y, y, broadcast(1.0f)), y);
}
LAPWING_INLINE VecD rsqrt(VecD x) {
  VecD y = _mm512_maskz_rsqrt14_pd(0xff, x);
  y = fma(y * 0.5, fma(-x * y, y, broadcast(1.0)), y);
  return fma(y * 0.5, fma(-x * y, y, broadcast(1.0)), y);
}
template <class R>
LAPWING_INLINE Vec<R> gather(const R* p0, const R* p1, const R* p2, const R* p3) {
  __m512 v = _mm512_castps128_ps512(_mm_loadu_ps((const float*)p0));
  v = _mm512_insertf32x4(v, _mm_loadu_ps((const float*)p1), 1);
  v = _mm512_insertf32x4(v, _mm_loadu_ps((const float*)p2), 2);
  return (Vec<R>)_mm512_insertf32x4(v, _mm_loadu_ps((const float*)p3), 3);
}
template <class R>
LAPWING_INLINE void scatter(Vec<R> v, R* p0, R* p1, R* p2, R* p3) {
  _mm_storeu_ps((float*)p0, _mm512_maskz_extractf32x4_ps(0xf, (__m512)v, 0));
  _mm_storeu_ps((float*)p1, _mm512_maskz_extractf32x4_ps(0xf, (__m512)v, 1));
  _mm_storeu_ps((float*)p2, _mm512_maskz_extractf32x4_ps(0xf, (__m512)v, 2));
  _mm_storeu_ps((float*)p3, _mm512_maskz_extractf32x4_ps(0xf, (__m512)v, 3));
}
#define LAPWING_PIECES(p, e, K, at) p[e] + (at), p[e + K] + (at), p[e + 2 * K] + (at), p[e + 3 * K] + (at)
#define LAPWING_LO32 {0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29}
#define LAPWING_HI32 {2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31}
LAPWING_INLINE void transpose_pieces(VecD (&v)[4]) {
  typedef Vec<int64_t> Index;
  const VecD a = __builtin_shuffle(v[0], v[1], Index{0, 1, 2, 3, 8, 9, 10, 11});
  const VecD b = __builtin_shuffle(v[0], v[1], Index{4, 5, 6, 7, 12, 13, 14, 15});
  const VecD c = __builtin_shuffle(v[2], v[3], Index{0, 1, 2, 3, 8, 9, 10, 11});
  const VecD d = __builtin_shuffle(v[2], v[3], Index{4, 5, 6, 7, 12, 13, 14, 15});
  v[0] = __builtin_shuffle(a, c, Index{0, 1, 4, 5, 8, 9, 12, 13});
  v[1] = __builtin_shuffle(a, c, Index{2, 3, 6, 7, 10, 11, 14, 15});
  v[2] = __builtin_shuffle(b, d, Index{0, 1, 4, 5, 8, 9, 12, 13});
  v[3] = __builtin_shuffle(b, d, Index{2, 3, 6, 7, 10, 11, 14, 15});
}
#define LAPWING_LO64 {0, 8, 2, 10, 4, 12, 6, 14}
#define LAPWING_HI64 {1, 9, 3, 11, 5, 13, 7, 15}
#elif LAPWING_VECTOR == 32
LAPWING_INLINE VecF sqrt(VecF x) { return _mm256_sqrt_ps(x); }
LAPWING_INLINE VecD sqrt(VecD x) { return _mm256_sqrt_pd(x); }
LAPWING_INLINE unsigned positive_finite(VecF x) {
  return _mm256_movemask_ps((__m256)((x > 0) & (x < __builtin_inff())));
}
LAPWING_INLINE unsigned positive_finite(VecD x) {
  return _mm256_movemask_pd((__m256d)((x > 0) & (x < __builtin_inf())));
}
LAPWING_INLINE VecF fma(VecF a, VecF b, VecF c) { return _mm256_fmadd_ps(a, b, c); }
LAPWING_INLINE VecD fma(VecD a, VecD b, VecD c) { return _mm256_fmadd_pd(a, b, c); }
LAPWING_INLINE VecF less(VecF a, VecF b, VecF c) { return _mm256_fnmadd_ps(a, b, c); }
LAPWING_INLINE VecD less(VecD a, VecD b, VecD c) { return _mm256_fnmadd_pd(a, b, c); }
LAPWING_INLINE bool any(Mask<float> x) { return _mm256_movemask_ps((__m256)x); }
LAPWING_INLINE bool any(Mask<double> x) { return _mm256_movemask_pd((__m256d)x); }
LAPWING_INLINE VecF rsqrt(VecF x) { return 1 / sqrt(x); }
LAPWING_INLINE VecD rsqrt(VecD x) { return 1 / sqrt(x); }
template <class R>
LAPWING_INLINE Vec<R> gather(const R* p0, const R* p1) {
  const __m256 v = _mm256_castps128_ps256(_mm_loadu_ps((const float*)p0));
  return (Vec<R>)_mm256_insertf128_ps(v, _mm_loadu_ps((const float*)p1), 1);
}
template <class R>
LAPWING_INLINE void scatter(Vec<R> v, R* p0, R* p1) {
  _mm_storeu_ps((float*)p0, _mm256_castps256_ps128((__m256)v));
  _mm_storeu_ps((float*)p1, _mm256_extractf128_ps((__m256)v, 1));
}
#define LAPWING_PIECES(p, e, K, at) p[e] + (at), p[e + K] + (at)
#define LAPWING_LO32 {0, 8, 1, 9, 4, 12, 5, 13}
#define LAPWING_HI32 {2, 10, 3, 11, 6, 14, 7, 15}
LAPWING_INLINE void transpose_pieces(VecD (&v)[2]) {
  typedef Vec<int64_t> Index;
  const VecD a = v[0], b = v[1];
  v[0] = __builtin_shuffle(a, b, Index{0, 1, 4, 5});
  v[1] = __builtin_shuffle(a, b, Index{2, 3, 6, 7});
}
#define LAPWING_LO64 {0, 4, 2, 6}
#define LAPWING_HI64 {1, 5, 3, 7}
#else  // 16 bytes: SSE2, NEON, or anything else the compiler has or imitates
#ifdef __SSE2__
LAPWING_INLINE VecF sqrt(VecF x) { return _mm_sqrt_ps(x); }
LAPWING_INLINE VecD sqrt(VecD x) { return _mm_sqrt_pd(x); }
#elif defined(__aarch64__)
LAPWING_INLINE VecF sqrt(VecF x) { return vsqrtq_f32(x); }
LAPWING_INLINE VecD sqrt(VecD x) { return vsqrtq_f64(x); }
LAPWING_INLINE VecF fma(VecF a, VecF b, VecF c) { return vfmaq_f32(c, a, b); }
LAPWING_INLINE VecD fma(VecD a, VecD b, VecD c) { return vfmaq_f64(c, a, b); }
LAPWING_INLINE VecF less(VecF a, VecF b, VecF c) { return vfmsq_f32(c, a, b); }
LAPWING_INLINE VecD less(VecD a, VecD b, VecD c) { return vfmsq_f64(c, a, b); }
#else
LAPWING_INLINE VecF sqrt(VecF x) {
  return VecF{__builtin_sqrtf(x[0]), __builtin_sqrtf(x[1]), __builtin_sqrtf(x[2]), __builtin_sqrtf(x[3])};
}
LAPWING_INLINE VecD sqrt(VecD x) { return VecD{__builtin_sqrt(x[0]), __builtin_sqrt(x[1])}; }
#endif
LAPWING_INLINE unsigned positive_finite(VecF x) {
  const auto m = ((x > 0) & (x < __builtin_inff())) & (decltype(x > x)){1, 2, 4, 8};
  return m[0] | m[1] | m[2] | m[3];
}
LAPWING_INLINE unsigned positive_finite(VecD x) {
  const auto m = ((x > 0) & (x < __builtin_inf())) & (decltype(x > x)){1, 2};
  return m[0] | m[1];
}
#ifndef __aarch64__
LAPWING_INLINE VecF fma(VecF a, VecF b, VecF c) { return a * b + c; }
LAPWING_INLINE VecD fma(VecD a, VecD b, VecD c) { return a * b + c; }
LAPWING_INLINE VecF less(VecF a, VecF b, VecF c) { return c - a * b; }
LAPWING_INLINE VecD less(VecD a, VecD b, VecD c) { return c - a * b; }
#endif
LAPWING_INLINE bool any(Mask<float> x) { return x[0] | x[1] | x[2] | x[3]; }
LAPWING_INLINE bool any(Mask<double> x) { return x[0] | x[1]; }
LAPWING_INLINE VecF rsqrt(VecF x) { return 1 / sqrt(x); }
LAPWING_INLINE VecD rsqrt(VecD x) { return 1 / sqrt(x); }
template <class R>
LAPWING_INLINE Vec<R> gather(const R* p0) {
  return load(p0);
}
template <class R>
LAPWING_INLINE void scatter(Vec<R> v, R* p0) {
  store(p0, v);
}
#define LAPWING_PIECES(p, e, K, at) p[e] + (at)
#define LAPWING_LO32 {0, 4, 1, 5}
#define LAPWING_HI32 {2, 6, 3, 7}
LAPWING_INLINE void transpose_pieces(VecD (&)[1]) {}
#define LAPWING_LO64 {0, 2}
#define LAPWING_HI64 {1, 3}
#endif

// Transposes the CHUNK x CHUNK blocks, one in each 16 bytes of v[0], v[1], ...
LAPWING_INLINE void transpose(VecD (&v)[2]) {
  typedef Vec<int64_t> Index;
  const VecD a = v[0], b = v[1];
  v[0] = __builtin_shuffle(a, b, Index LAPWING_LO64);
  v[1] = __builtin_shuffle(a, b, Index LAPWING_HI64);
}
LAPWING_INLINE void transpose(VecF (&v)[4]) {
  typedef Vec<int32_t> Index;
  VecD even[2] = {(VecD)__builtin_shuffle(v[0], v[1], Index LAPWING_LO32),
                  (VecD)__builtin_shuffle(v[2], v[3], Index LAPWING_LO32)};
  VecD odd[2] = {(VecD)__builtin_shuffle(v[0], v[1], Index LAPWING_HI32),
                 (VecD)__builtin_shuffle(v[2], v[3], Index LAPWING_HI32)};
  transpose(even);
  transpose(odd);
  v[0] = (VecF)even[0], v[1] = (VecF)even[1], v[2] = (VecF)odd[0], v[3] = (VecF)odd[1];
}

// v[g][e] <- scalar offset + g CHUNK + e of every p[lane]; and the way back. G chunks in one go, so
// that a cache line is touched once: matrices 4096 bytes apart share one set of the first-level cache.
template <class R, int G, class Pointers>
LAPWING_INLINE void read_chunks(Vec<R> (&v)[G][CHUNK<R>], const Pointers& p, int64_t offset) {
  constexpr int K = CHUNK<R>;
  if constexpr (G == LAPWING_VECTOR / 16) {
#pragma GCC unroll 4
    for (int e = 0; e < K; e++) {
      VecD w[G];
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) w[g] = (VecD)load(p[e + g * K] + offset);
      transpose_pieces(w);
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) v[g][e] = (Vec<R>)w[g];
    }
  } else {
#pragma GCC unroll 4
    for (int e = 0; e < K; e++)
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) v[g][e] = gather<R>(LAPWING_PIECES(p, e, K, offset + g * K));
  }
#pragma GCC unroll 4
  for (int g = 0; g < G; g++) transpose(v[g]);
}
template <class R, int G, class Pointers>
LAPWING_INLINE void write_chunks(Vec<R> (&v)[G][CHUNK<R>], const Pointers& p, int64_t offset) {
  constexpr int K = CHUNK<R>;
#pragma GCC unroll 4
  for (int g = 0; g < G; g++) transpose(v[g]);
  if constexpr (G == LAPWING_VECTOR / 16) {
#pragma GCC unroll 4
    for (int e = 0; e < K; e++) {
      VecD w[G];
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) w[g] = (VecD)v[g][e];
      transpose_pieces(w);
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) store(p[e + g * K] + offset, (Vec<R>)w[g]);
    }
  } else {
#pragma GCC unroll 4
    for (int e = 0; e < K; e++)
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) scatter<R>(v[g][e], LAPWING_PIECES(p, e, K, offset + g * K));
  }
}

// The same inside one matrix: v is a block of CHUNK x CHUNK.
template <class R>
struct ChunkOf {
  typedef R type __attribute__((vector_size(16)));
};
template <class R>
using Chunk = typename ChunkOf<R>::type;

template <class R>
LAPWING_INLINE Chunk<R> load_chunk(const R* p) {
  Chunk<R> v;
  __builtin_memcpy(&v, p, 16);
  return v;
}
template <class R, class C>
LAPWING_INLINE void store_chunk(R* p, C v) {
  __builtin_memcpy(p, &v, 16);
}
LAPWING_INLINE void transpose_chunks(Chunk<double> (&v)[2]) {
  const Chunk<double> a = v[0], b = v[1];
  v[0] = __builtin_shuffle(a, b, Chunk<int64_t>{0, 2}), v[1] = __builtin_shuffle(a, b, Chunk<int64_t>{1, 3});
}
LAPWING_INLINE void transpose_chunks(Chunk<float> (&v)[4]) {
  const Chunk<int32_t> low = {0, 4, 1, 5}, high = {2, 6, 3, 7};
  const Chunk<float> a = __builtin_shuffle(v[0], v[2], low), b = __builtin_shuffle(v[1], v[3], low);
  const Chunk<float> c = __builtin_shuffle(v[0], v[2], high), d = __builtin_shuffle(v[1], v[3], high);
  v[0] = __builtin_shuffle(a, b, low), v[1] = __builtin_shuffle(a, b, high);
  v[2] = __builtin_shuffle(c, d, low), v[3] = __builtin_shuffle(c, d, high);
}

#undef LAPWING_PIECES
#undef LAPWING_LO32
#undef LAPWING_HI32
#undef LAPWING_LO64
#undef LAPWING_HI64

// An element of LANES<R> matrices, or LANES<R> elements of one.
template <class R, int P>
struct Element {
  Vec<R> re;
};
template <class R>
struct Element<R, 2> {
  Vec<R> re, im;
};

template <class R, int P>
LAPWING_INLINE Element<R, P> get(const Vec<R>* p) {
  if constexpr (P == 1)
    return {p[0]};
  else
    return {p[0], p[1]};
}
template <class R, int P>
LAPWING_INLINE void put(Vec<R>* p, const Element<R, P>& x) {
  p[0] = x.re;
  if constexpr (P == 2) p[1] = x.im;
}
// c <- c - a conj(b)
template <class R, int P>
LAPWING_INLINE void subtract(Element<R, P>& c, const Element<R, P>& a, const Element<R, P>& b) {
  c.re -= a.re * b.re;
  if constexpr (P == 2) {
    c.re -= a.im * b.im;
    c.im -= a.im * b.re;
    c.im += a.re * b.im;
  }
}
template <class R, int P>
LAPWING_INLINE void scale(Element<R, P>& x, Vec<R> by) {
  x.re *= by;
  if constexpr (P == 2) x.im *= by;
}
// c <- c + a b
template <class R, int P>
LAPWING_INLINE void add_product(Element<R, P>& c, const Element<R, P>& a, const Element<R, P>& b) {
  c.re = fma(a.re, b.re, c.re);
  if constexpr (P == 2) {
    c.re = less(a.im, b.im, c.re);
    c.im = fma(a.re, b.im, c.im);
    c.im = fma(a.im, b.re, c.im);
  }
}
template <class R, int P>
LAPWING_INLINE Element<R, P> real(Vec<R> x) {
  if constexpr (P == 1)
    return {x};
  else
    return {x, Vec<R>{}};
}
template <class R, int P>
LAPWING_INLINE Element<R, P> conj(const Element<R, P>& a) {
  if constexpr (P == 1)
    return a;
  else
    return {a.re, -a.im};
}
template <class R, int P>
LAPWING_INLINE Element<R, P> negative(const Element<R, P>& a) {
  if constexpr (P == 1)
    return {-a.re};
  else
    return {-a.re, -a.im};
}
template <class R, int P>
LAPWING_INLINE Element<R, P> product(const Element<R, P>& a, const Element<R, P>& b) {
  Element<R, P> c = {};
  add_product<R, P>(c, a, b);
  return c;
}
template <class R>
LAPWING_INLINE Vec<R> larger(Vec<R> a, Vec<R> b) {
  return a > b ? a : b;
}
// +-x with the sign of y
template <class R>
LAPWING_INLINE Vec<R> with_sign(Vec<R> x, Vec<R> y) {
  const Mask<R> sign = (Mask<R>)(-Vec<R>{});
  return (Vec<R>)(((Mask<R>)x & ~sign) | ((Mask<R>)y & sign));
}
template <class R>
LAPWING_INLINE Mask<R> is_finite(Vec<R> x) {
  return abs(x) <= std::numeric_limits<R>::max();
}

// down: about the largest power of two not above x; up: one over it. Both are normal numbers, so they need not be exact at
// the ends of the range.
template <class R>
struct PowerOfTwo {
  static constexpr int MANTISSA = std::numeric_limits<R>::digits - 1, TOP = 2 * std::numeric_limits<R>::max_exponent - 1;
  Mask<R> exponent;  // of down, and half of TOP above it
  Vec<R> up, down;

  LAPWING_INLINE explicit PowerOfTwo(Vec<R> x) {
    // 1 .. TOP - 2: then both powers are normal numbers
    exponent = (Mask<R>)x >> MANTISSA;
    exponent = exponent < 1 ? broadcast_int<R>(1) : exponent;
    exponent = exponent > TOP - 2 ? broadcast_int<R>(TOP - 2) : exponent;
    down = (Vec<R>)(exponent << MANTISSA);
    up = (Vec<R>)((TOP - 1 - exponent) << MANTISSA);
  }
};

}  // namespace LAPWING_ISA
}  // namespace
}  // namespace lapwing
