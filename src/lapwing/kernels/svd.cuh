// The rotation of one-sided Jacobi: two columns become orthogonal, the larger one first.
#pragma once
#include "eigh.cuh"

#define LW_NO_COLUMN (sizeof(Real) == 4 ? Real(1e-33f) : Real(1e-280))  // a square below it counts as zero

// Own column <- c own + s other. The lower lane of a pair gets the larger column: that brings them into order, and order
// brings convergence.
struct Turn {
  Real c;
  T s;
  bool moves;

  // small: a cosine that counts as zero; least: a square of a column that does
  LW_INLINE Turn(T product, Real mine, Real other, bool first, Real small, Real least = LW_NO_COLUMN) {
    Real p = first ? mine : other, q = first ? other : mine;
    bool both = p > least && q > least;
    Real by = both ? fine_root(p) * fine_root(q) : Real(0);
    T cosine = scale(product, by);
#if LW_DTYPE < 2
    Real size = fabs(cosine);
    T phase = cosine < 0 ? Real(-1) : Real(1);
#else
    Real squares = square(cosine), root = fine_root(squares > LW_NO_COLUMN ? squares : Real(1)), size = squares * root;
    T phase = scale(cosine, root);
#endif
    bool turns = size > small, swaps = !turns && q > p * Real(1.0625);
    moves = turns || swaps;
    // beside the product of the norms: tan(2 angle) = 2 size / gap
    Real gap = p * by - q * by;
    Real inverse = fine_root(turns ? gap * gap + 4 * size * size : Real(1));
    Real half = Real(0.5) * fabs(gap) * inverse + Real(0.5), root_half = fine_root(turns ? half : Real(1));
    Real large = half * root_half, less = size * inverse * root_half;
    Real sine = gap >= 0 ? less : large;
    c = turns ? (gap >= 0 ? large : less) : swaps ? Real(0) : Real(1);
    T forward = turns ? scale(phase, sine) : from_real(Real(swaps));
    // c^2 + |s|^2 = 1 to the last bit: thousands of turns must not add up
    Real more = Real(0.5) * ((Real(1) - c * c) - square(forward));
    c = c * more + c;
    forward = add(forward, scale(forward, more));
    s = first ? forward : negate(conjugate(forward));
  }

  LW_INLINE T apply(T own, T other) const { return add_plain(scale(own, c), s, other); }
};
