// One large real symmetric matrix after the other in two stages: A = Q1 B Q1^T with a band matrix B, B = Q2 T Q2^T with a tridiagonal one,
// the spectrum of T, and Q1 Q2 times its vectors. All of it only queues work on the frame's stream.
//
// What each stage takes, and in brackets on an H200 at n = 16384 in float64, 2026-11-19 (1224 ms in all, values alone 397):
//   1. band            4/3 n^3 flops of products by the vendor's BLAS, 2/3 n^3 of them with BAND columns, 4/3 n^3 gathered to
//                      update one triangle; 2/3 n^3 / BAND elements are read. n barriers of all blocks in the panels   (about 260 ms)
//   2. tridiagonal     6 n^2 BAND flops in the L2 cache, 2 n steps one behind the other                                (131)
//   3. spectrum of T   at most 4/3 n^3 flops, less by deflation                                                        (about 110)
//   4. Q2              2 n^3 flops, 3 n^3 as blocks of reflections that are half empty; n^3 / 2 BAND elements are read and written
//                                                                                                                     (565; float32 385)
//   5. Q1              2 n^3 flops of products by the vendor's BLAS                                                  (about 160)
#pragma once
#include <string>

#include "frame.h"
#include "gpu/cuda.h"

namespace lapwing::cuda {

// Why a frame cannot be done, or "".
std::string two_stage_refuses(const Frame& frame, const Properties& gpu);

// Bytes of scratch memory; -1 with a message in the frame.
int64_t two_stage_bytes(Frame& frame);

// EIGH and EIGVALSH. 0, or 1 with a message in the frame.
int eigh_two_stage(Frame& frame);

}  // namespace lapwing::cuda
