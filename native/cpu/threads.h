// Threads over a batch: one small pool per process, rebuilt after fork, never nested.
#pragma once
#include <atomic>
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

// Threads that work on one matrix together, step by step. They wait for the next step in a loop, without sleep: a step takes
// microseconds. The calling thread can do all of the work alone, so it does not matter how many others come.
class Team {
 public:
  using Task = std::function<void(int64_t)>;

  // Calls body(team) on the calling thread, with up to `threads` - 1 others at hand until it returns.
  static void gather(int threads, const std::function<void(Team&)>& body);

  // Calls task(i) for all i in [0, count), in this order as far as they begin, and returns when all are done. From the calling
  // thread only. Throws std::bad_alloc when a task ran out of memory.
  void run(int64_t count, const Task& task);

  int threads() const { return threads_; }

 private:
  explicit Team(int threads) : threads_(threads) {}
  bool step();
  void help();

  // The number of the step, how many tasks it has and the next of them, in one word: who takes a task knows which step it is of.
  static constexpr int BITS = 21;
  static constexpr uint64_t COUNT = (uint64_t(1) << BITS) - 1;
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int64_t> finished_{0};
  std::atomic<bool> over_{false}, failed_{false};
  const Task* task_ = nullptr;
  uint64_t number_ = 0;
  const int threads_;
};

// Calls body(&team) as Team::gather does, or body(nullptr) if one thread does all the work. The team ends with it, so that none of its
// threads takes a core while the caller goes on with the threads of another library.
template <class Body>
void with_team(int threads, const Body& body) {
  if (threads < 2) return body(static_cast<Team*>(nullptr));
  Team::gather(threads, [&](Team& team) { body(&team); });
}

// What this process may use: the limit NumPy's BLAS reports (it follows OMP_NUM_THREADS and threadpoolctl), else
// OMP_NUM_THREADS, else the cores this process is bound to.
int allowed_threads();

// The limit of the frame, which may have none.
int threads_for(const Frame& frame);

// Whether a batch is faster with a matrix in each of `lanes` lanes than matrix by matrix, one on each thread, when a matrix in a lane
// of a full vector takes 1 / gain of the time. A vector that is not full takes as long as a full one.
bool lanes_pay(const Frame& frame, int64_t lanes, double gain);

// `get` is the BLAS library's own "how many threads" function.
void follow_thread_limit(int (*get)());

}  // namespace lapwing
