// Threads over a batch: one small pool per process, rebuilt after fork, never nested.
#pragma once
#include <cstdint>
#include <functional>

namespace lapwing {

// Calls body(first, last) over [0, count) in pieces that start at multiples of `piece`, on at most `threads` threads, the
// calling one among them. When the pool is busy with another caller's work the caller does all of it alone.
// false: `interrupted` answered true and pieces were left undone. Throws std::bad_alloc when a piece ran out of memory.
bool parallel(int threads, int64_t count, int64_t piece, const std::function<void(int64_t, int64_t)>& body,
              bool (*interrupted)() = nullptr);

// What this process may use: the limit NumPy's BLAS reports (it follows OMP_NUM_THREADS and threadpoolctl), else
// OMP_NUM_THREADS, else the cores this process is bound to.
int allowed_threads();

// `get` is the BLAS library's own "how many threads" function.
void follow_thread_limit(int (*get)());

}  // namespace lapwing
