#include "cpu/threads.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "cpu/denormals.h"
#include "cpu/wait.h"
#include "frame.h"

namespace lapwing {
namespace {

using Clock = std::chrono::steady_clock;
using Body = std::function<void(int64_t, int64_t)>;

struct Job {
  const Body* body;
  int64_t count, piece;
  static constexpr int64_t STOPPED = INT64_MAX / 2;  // far past the end, with room for fetch_add
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::atomic<int> helpers{0};  // places left for pool threads

  bool step() {
    int64_t first = next.fetch_add(piece);
    if (first >= count) return false;
    try {
      (*body)(first, first + piece < count ? first + piece : count);
    } catch (...) {  // only memory can run out here; an exception must not leave a pool thread
      failed = true;
      stop();
    }
    return true;
  }

  void stop() { next = STOPPED; }
};

// Set while this thread does pieces of a job that several threads share: what it starts then it does alone.
thread_local bool sharing = false;

// For how long a thread looks for work in a loop before it sleeps. To wake it takes as long as many small matrices: 300 triangular
// solves of order 33, one after the other in float64, took 84 us on two threads of Zen 5, 82 us on one, and take 50 us with this
// (2026-11-18).
constexpr std::chrono::microseconds AWAKE{50};

// Whether `ready` became true in that time
template <class Ready>
bool stay_awake(const Ready& ready) {
  if (ready()) return true;
  for (const auto begun = Clock::now(); Clock::now() - begun < AWAKE;)
    for (int i = 0; i < 16; i++) {
      if (ready()) return true;
      pause_once();
    }
  return false;
}

bool in_virtual_machine() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 31);
#else
  return false;
#endif
}

// A thread of the pool, as seen by the one that wakes it. In a virtual machine Linux does not count a core as idle once its host has
// taken it away, which is soon after it fell idle. A thread then often wakes on its waker's core, nearly always if it fell asleep there,
// and stands in line behind it for milliseconds. So the waker forbids it that core, and the thread takes its own cores back when it runs.
// Two jobs of 0.47 ms after a pause of 10 ms took 0.97 ms on two threads, at times 5.9, and take 0.52 (KVM, Linux 6.18, 2026-11-19).
class Sleeper {
 public:
  Sleeper* next = nullptr;  // in the pool's list
  int core = -1;            // where it fell asleep; -1 while it is awake

  Sleeper() : thread_(pid_t(syscall(SYS_gettid))) {}

  void keep_off(int busy) {
    if (!away_ && sched_getaffinity(thread_, sizeof usual_, &usual_)) return;
    cpu_set_t others = usual_;
    CPU_CLR(busy, &others);
    if (CPU_COUNT(&others) && !sched_setaffinity(thread_, sizeof others, &others)) away_ = true;
  }

  void come_back() {
    if (away_) sched_setaffinity(thread_, sizeof usual_, &usual_);
    away_ = false;
  }

 private:
  const pid_t thread_;
  bool away_ = false;
  cpu_set_t usual_;
};

// Never destroyed: its threads sleep until the process ends.
class Pool {
 public:
  std::mutex owner;  // held by the caller whose job is running

  void run(Job& job, int helpers, bool (*interrupted)()) {
    job.helpers = helpers;
    bool asleep;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      grow(helpers);
      job_ = &job;
      jobs_.fetch_add(1, std::memory_order_release);
      asleep = asleep_ > 0;
      const int core = asleep && in_virtual_machine_ ? sched_getcpu() : -1;
      for (Sleeper* one = core < 0 ? nullptr : sleepers_; one; one = one->next)
        if (one->core == core || (one->core >= 0 && helpers <= FEW)) one->keep_off(core);
    }
    if (asleep) wake_.notify_all();
    sharing = true;
    drain(job, interrupted);
    sharing = false;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      job_ = nullptr;
    }
    const auto finished = [&] { return active_.load(std::memory_order_acquire) == 0; };
    if (stay_awake(finished)) return;
    std::unique_lock<std::mutex> hold(mutex_);
    done_.wait(hold, finished);
  }

  static void drain(Job& job, bool (*interrupted)()) {
    if (job.count <= job.piece) {  // without a look at the clock, which takes as long as a small matrix
      job.step();
      return;
    }
    auto asked = Clock::now();
    while (job.step()) {
      if (!interrupted) continue;
      auto now = Clock::now();
      if (now - asked < std::chrono::milliseconds(100)) continue;
      asked = now;
      if (interrupted()) job.stop();
    }
  }

 private:
  // Where the system gives no more threads, those that are there do the work.
  void grow(int wanted) {
    try {
      for (; size_ < wanted; size_++) std::thread([this] { work(); }).detach();
    } catch (const std::system_error&) {
    }
  }

  void work() {
    const KeepDenormals exact;  // a new thread starts with the settings of the one that made it
    sharing = true;
    const auto wanted = [&] { return job_ && job_->helpers > 0; };
    Sleeper self;
    std::unique_lock<std::mutex> hold(mutex_);
    self.next = sleepers_;
    sleepers_ = &self;
    for (;;) {
      if (!wanted()) {
        const uint64_t seen = jobs_;
        hold.unlock();
        const bool another = stay_awake([&] { return jobs_.load(std::memory_order_acquire) != seen; });
        hold.lock();
        if (another) continue;
        asleep_++;
        while (!wanted()) {
          self.core = sched_getcpu();
          wake_.wait(hold);
          self.core = -1;
          self.come_back();
        }
        asleep_--;
      }
      Job& job = *job_;
      job.helpers--;
      active_++;
      hold.unlock();
      while (job.step()) {}
      hold.lock();
      // the caller may be gone with its job as soon as nobody is active
      if (--active_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  std::atomic<uint64_t> jobs_{0};  // that came so far
  std::atomic<int> active_{0};
  int size_ = 0, asleep_ = 0;
  Sleeper* sleepers_ = nullptr;  // all threads, awake ones too
  static constexpr int FEW = 3;  // that are all kept off the core of their waker, at 2 to 3 us each
  const bool in_virtual_machine_ = in_virtual_machine();
};

std::atomic<Pool*> pool{nullptr};
std::atomic<int (*)()> blas_threads{nullptr};

// A forked child has none of its parent's threads, and may have inherited a held lock: it starts a pool of its own.
Pool& this_process_pool() {
  static const int once = pthread_atfork(nullptr, nullptr, [] { pool = nullptr; });
  (void)once;
  Pool* mine = pool.load();
  if (!mine) {
    Pool* made = new Pool;
    if (pool.compare_exchange_strong(mine, made)) return *made;
    delete made;
  }
  return *mine;
}

}  // namespace

bool parallel(int threads, int64_t count, int64_t piece, const Body& body, bool (*interrupted)()) {
  if (piece < 1) piece = 1;
  Job job;
  job.body = &body;
  job.count = count;
  job.piece = piece;
  int64_t pieces = (count + piece - 1) / piece;
  int helpers = sharing ? 0 : int(threads < pieces ? threads : pieces) - 1;
  std::unique_lock<std::mutex> mine;
  if (helpers > 0) mine = std::unique_lock<std::mutex>(this_process_pool().owner, std::try_to_lock);
  if (mine.owns_lock())
    this_process_pool().run(job, helpers, interrupted);
  else
    Pool::drain(job, interrupted);
  if (job.failed) throw std::bad_alloc();
  return job.next < Job::STOPPED;
}

void Team::gather(int threads, const std::function<void(Team&)>& body) {
  Team team(threads);
  const auto caller = std::this_thread::get_id();
  bool begun = false;
  std::exception_ptr error;
  // Each of the others takes one place and keeps it to the end, so that one is left for the calling thread.
  parallel(threads, threads, 1, [&](int64_t, int64_t) {
    if (std::this_thread::get_id() != caller) return team.help();
    if (begun) return;
    begun = true;
    try {
      body(team);
    } catch (...) {
      error = std::current_exception();
    }
    team.over_.store(true, std::memory_order_release);
  });
  if (error) std::rethrow_exception(error);
}

bool Team::step() {
  uint64_t seen = ticket_.load(std::memory_order_acquire);
  if ((seen & COUNT) >= ((seen >> BITS) & COUNT)) return false;
  seen = ticket_.fetch_add(1, std::memory_order_acq_rel);
  const uint64_t next = seen & COUNT;
  if (next >= ((seen >> BITS) & COUNT)) return false;
  try {
    (*task_)(int64_t(next));
  } catch (...) {
    failed_ = true;
  }
  finished_.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

void Team::help() {
  for (int turns = 0; !over_.load(std::memory_order_acquire);)
    if (step())
      turns = 0;
    else
      wait_a_moment(turns);
}

void Team::run(int64_t count, const Task& task) {
  if (count < 1) return;
  task_ = &task;
  finished_.store(0, std::memory_order_relaxed);
  number_++;
  ticket_.store((number_ << (2 * BITS)) | (uint64_t(count) << BITS), std::memory_order_release);
  while (step()) {}
  for (int turns = 0; finished_.load(std::memory_order_acquire) < count;) wait_a_moment(turns);
  if (failed_) throw std::bad_alloc();
}

bool parallel_batch(const Frame& frame, int64_t group, double work, const std::function<void(int64_t, int64_t)>& body) {
  constexpr double ALONE_FLOPS = 250e3, PIECE_FLOPS = 500e3;  // a piece takes ten microseconds
  const int64_t batch = frame.size[0];
  int threads = 1;
  int64_t piece = batch;
  if (batch > group && work * double(batch) > ALONE_FLOPS) {
    threads = threads_for(frame);
    // as many pieces for each thread: 30 matrices by fours would be 16 and 14 of them on two threads
    const int64_t groups = (batch + group - 1) / group, rounds = std::max<int64_t>(2, int64_t(work * double(batch) / PIECE_FLOPS) / threads);
    piece = group * std::max<int64_t>(1, (groups + rounds * threads - 1) / (rounds * threads));
  }
  return parallel(threads, batch, piece, body, frame.interrupted);
}

int allowed_threads() {
  if (auto get = blas_threads.load()) {
    int n = get();
    if (n > 0) return n;
  }
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    int n = std::atoi(text);
    if (n > 0) return n;
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return 1;
}

int threads_for(const Frame& frame) { return frame.threads > 0 ? frame.threads : allowed_threads(); }

bool lanes_pay(const Frame& frame, int64_t lanes, double gain) {
  const int64_t batch = frame.size[0], threads = threads_for(frame);
  const auto rounds = [&](int64_t pieces) { return (pieces + threads - 1) / threads; };
  return double(rounds((batch + lanes - 1) / lanes) * lanes) < gain * double(rounds(batch));
}

void follow_thread_limit(int (*get)()) { blas_threads = get; }

}  // namespace lapwing
