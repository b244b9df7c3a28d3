// How a thread waits for another that is about to finish, without sleep.
#pragma once
#include <sched.h>

namespace lapwing {

inline void pause_once() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits for a moment. `turns` counts the moments: after many of them the core may be wanted by that thread.
inline void wait_a_moment(int& turns) {
  if (++turns > 4000)
    sched_yield();
  else
    pause_once();
}

}  // namespace lapwing
