// What the kernels that solve a least squares problem alone share, a block of threads or some lanes of a warp for each.
#pragma once
#include "lstsq.cuh"

struct Call {
  const T* a;
  const T* b;
  T* x;
  Real* residuals;
  int* rank;
  int* info;
  i64 batch;
  int m, n, k;
  int* doubtful;  // how many matrices the SVD must look at; may be null
};

LW_INLINE void count_doubtful(const Call& call) {
  if (call.doubtful) atomicAdd(call.doubtful, 1);
}

constexpr int DOUBTFUL = -2;  // as a rank: lstsq_gram.cu has left the matrix to lstsq_block.cu
