// Threads over a batch: one small pool per process, rebuilt after fork, never nested.
#pragma once
#include <cstdint>
#include <functional>

namespace lapwing {

struct Frame;

// Calls body(first, last) over [0, count) in pieces that start at multiples of `piece`, on at most `threads` threads, the
// calling one among them. When the pool is busy with another caller's work, or this is called from a piece of its work, the
// caller does all of it alone.
// false: `interrupted` answered true and pieces were left undone. Throws std::bad_alloc when a piece ran out of memory.
bool parallel(int threads, int64_t count, int64_t piece, const std::function<void(int64_t, int64_t)>& body,
              bool (*interrupted)() = nullptr);

// The same for the matrices of a frame, each of about `work` flops: cut at multiples of `group` into pieces that finish
// together and let Ctrl-C be seen in time, on one thread where there is little to do.
bool parallel_batch(const Frame& frame, int64_t group, double work, const std::function<void(int64_t, int64_t)>& body);

// What this process may use: the limit NumPy's BLAS reports (it follows OMP_NUM_THREADS and threadpoolctl), else
// OMP_NUM_THREADS, else the cores this process is bound to.
int allowed_threads();

// What the frame allows, which may say nothing.
int threads_for(const Frame& frame);

// Whether a batch is faster with a matrix in each of `lanes` lanes than matrix by matrix, one on each thread, when a matrix in a lane
// of a full vector takes 1 / gain of the time. A vector that is not full takes as long as a full one.
bool lanes_pay(const Frame& frame, int64_t lanes, double gain);

// `get` is the BLAS library's own "how many threads" function.
void follow_thread_limit(int (*get)());

}  // namespace lapwing
