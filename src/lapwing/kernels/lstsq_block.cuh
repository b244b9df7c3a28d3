// What the kernels with a block of threads for each least squares problem share.
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
};

constexpr int DOUBTFUL = -2;  // as a rank: lstsq_gram.cu has left the matrix to lstsq_block.cu
