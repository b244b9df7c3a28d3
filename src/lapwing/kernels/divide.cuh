// Divide and conquer for a batch of real symmetric tridiagonal matrices: what its kernels share.
//
// T is torn into leaves by rank-one terms. Each level then joins pairs of neighbours: with the eigenvalues D and the
// eigenvectors of both, what is left is D + rho z z^T. Components of z that are negligible are deflated, the other eigenvalues
// are the roots of 1 + rho sum z_j^2 / (D_j - x), and a product with the eigenvectors of D + rho z z^T gives those of the pair.
// All pairs of a level of all matrices are joined by the same launches, and the host never learns how many components
// were deflated. Everything but the eigenvectors is double precision for float matrices too.
#pragma once
#include "eigh.cuh"

// A row of the eigenvectors' matrix, and which halves of the pair's columns it has entries in.
constexpr int LEFT = 1 << 24, RIGHT = 2 << 24, BOTH = LEFT | RIGHT, DEFLATED = 4 << 24, ROW = LEFT - 1;

// Arrays of n elements for each matrix; those of a pair begin at the pair's first row.
struct Divide {
  Real *d, *e;            // the matrices, scaled
  double *values;         // eigenvalues of the parts that are joined, ascending
  double *joined;         // eigenvalues of the pairs, ascending
  double *pole, *weight;  // D and z without what is deflated, ascending; then the deflated eigenvalues, ascending
  double *base, *offset;  // the roots: the nearest pole and the distance from it
  double *squares;        // of the lengths of u's columns, in `parts` parts, each of all matrices
  double *rho;            // for each pair
  Real *turns;            // 2n: cosines and sines of the rotations that deflate
  int *turned;            // 2n: the two rows of each rotation, and their halves before it
  int *row;               // place in the product -> row of an eigenvector; then the deflated rows
  int *place;             // pole -> place in the product: those of the left part first, those of the right part last
  int *rank;              // root, then deflated eigenvalue -> its row in the joined eigenvectors
  int *head;              // 4n: for each pair how many are not deflated, of these in the left part alone, not in the right
                          // part alone, and the rotations
  Real *up;               // for each matrix: the factor that undoes the scaling
  Real *from, *to, *u;    // eigenvectors of the parts, of the pairs (one to a row), and the factor between them
  Real *w;                // the result, at the last level; null before
  int *info;
  char *room;             // memory of divide_merge where a pair is too large for shared memory; null: shared memory
  i64 batch;
  int n, pitch, pairs, parts;  // pitch: elements between rows of u
};

// Row `index` of `count` at which a matrix of n rows is cut: multiples of 4, for accesses of 16 bytes.
LW_INLINE int cut(int index, int count, int n) { return index == count ? n : (int)((i64)index * n / count) & ~3; }

struct Pair {
  int begin, middle, end, n;
  i64 matrix, first, number;  // first: its place in the arrays of n elements for each matrix
  int k, left, not_right, turns;

  LW_INLINE int size() const { return end - begin; }

  // Pair `index` of the level; `headed`: its counts are known already.
  LW_INLINE static Pair of(const Divide& at, i64 index, bool headed) {
    Pair p;
    p.n = at.n;
    p.matrix = index / at.pairs;
    int t = (int)(index % at.pairs);
    p.begin = cut(t, at.pairs, at.n);
    p.middle = cut(2 * t + 1, 2 * at.pairs, at.n);
    p.end = cut(t + 1, at.pairs, at.n);
    p.first = p.matrix * at.n + p.begin;
    p.number = index;
    if (headed) {
      const int* head = at.head + 4 * p.first;
      p.k = head[0];
      p.left = head[1];
      p.not_right = head[2];
      p.turns = head[3];
    }
    return p;
  }

  // Row r of the pair's rows in a matrix of eigenvectors.
  LW_INLINE i64 row(int r) const { return (matrix * n + begin + r) * n; }
};

// 1 / x of a number that is neither huge nor tiny: the hardware's 20 bits and a step of third order in double precision, of
// second order where the eigenvectors are float.
LW_INLINE double inverse(double x) {
  double y = estimated_inverse(x), e = fma(-x, y, 1.0);
  return fma(y, sizeof(Real) == 4 ? e : fma(e, e, e), y);
}

// Elements of the ascending list that are below x, or not above it.
LW_INLINE int count_below(const double* list, int size, double x, bool not_above) {
  int low = 0, high = size;
  while (low < high) {
    int middle = (low + high) / 2;
    double y = list[middle];
    if (not_above ? y <= x : y < x)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}
