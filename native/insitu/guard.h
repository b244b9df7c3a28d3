// Keeps the solver's floating-point environment and signals unchanged by Python.
#pragma once

#include <cfenv>
#include <csignal>

namespace lapwing::insitu {

// Python runs in the default environment: no traps, rounding to nearest, subnormal numbers kept.
// Importing NumPy under the traps of a solver raises SIGFPE.
class FloatGuard {
 public:
  FloatGuard() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatGuard() { std::fesetenv(&saved_); }
  FloatGuard(const FloatGuard&) = delete;

 private:
  std::fenv_t saved_;
};

// Restores signal handlers and mask. Reading a handler costs a system call (about 0.1 us), so a step checks only the signals
// that solvers catch; rarer calls, which may import libraries, check all of them.
class SignalGuard {
 public:
  explicit SignalGuard(bool all) : all_(all) {
    pthread_sigmask(SIG_SETMASK, nullptr, &mask_);
    for_each([this](int i, int number) { sigaction(number, nullptr, &saved_[i]); });
  }
  ~SignalGuard() {
    for_each([this](int i, int number) {
      struct sigaction now;
      if (sigaction(number, nullptr, &now) == 0 && !same(now, saved_[i])) sigaction(number, &saved_[i], nullptr);
    });
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  SignalGuard(const SignalGuard&) = delete;

 private:
  static constexpr int LAST = 31;  // the real-time signals above it are not used by default
  static constexpr int OFTEN[] = {SIGINT, SIGTERM, SIGFPE, SIGSEGV, SIGUSR1, SIGUSR2};

  template <class Work>
  void for_each(Work work) {
    if (all_) {
      for (int i = 0; i < LAST; ++i)
        if (i + 1 != SIGKILL && i + 1 != SIGSTOP) work(i, i + 1);
    } else {
      int i = 0;
      for (int number : OFTEN) work(i++, number);
    }
  }
  static bool same(const struct sigaction& a, const struct sigaction& b) {
    return a.sa_handler == b.sa_handler && a.sa_flags == b.sa_flags;
  }

  bool all_;
  sigset_t mask_;
  struct sigaction saved_[LAST];
};

}  // namespace lapwing::insitu
