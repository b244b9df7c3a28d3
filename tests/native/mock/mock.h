// What the stand-in libraries share: the book of calls and the orders to fail.
//
//   MOCK_LOG   file; every call adds one line "thread name key=value ...", in the order of the calls
//   MOCK_FAIL  name:k or name:k:status; the k-th call of that name (1 is the first, 0 is each) fails
#pragma once
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace mock {

inline std::string text_of(const char* name, const char* otherwise = "") {
  const char* text = std::getenv(name);
  return text ? text : otherwise;
}

inline long number(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atol(text) : otherwise;
}

__attribute__((format(printf, 1, 2))) inline void note(const char* format, ...) {
  static const char* path = std::getenv("MOCK_LOG");
  if (!path) return;
  static int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  char line[4096];
  int length = std::snprintf(line, sizeof line, "%ld ", long(syscall(SYS_gettid)));
  va_list arguments;
  va_start(arguments, format);
  length += std::vsnprintf(line + length, sizeof line - size_t(length) - 1, format, arguments);
  va_end(arguments);
  line[length++] = '\n';
  if (write(file, line, size_t(length)) != length) std::abort();
}

// The status the call named in MOCK_FAIL answers with, or 0.
inline int ordered(const char* name, int status) {
  static std::mutex mutex;
  static std::map<std::string, int> calls;
  static std::string last;
  const char* order = std::getenv("MOCK_FAIL");
  if (!order) order = "";
  std::lock_guard<std::mutex> hold(mutex);
  if (last != order) calls.clear();  // a new order counts from here
  last = order;
  if (!*order) return 0;
  int call = ++calls[name];
  std::string text(order), wanted = text.substr(0, text.find(':'));
  if (wanted != name) return 0;
  int at = 1, code = status;
  std::sscanf(order + wanted.size(), ":%d:%d", &at, &code);
  if (at != 0 && at != call) return 0;
  note("failing call=%s status=%d", name, code);
  return code;
}

// An argument no caller of ours should pass: written down and refused.
__attribute__((format(printf, 2, 3))) inline int refuse(int status, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  note("refused %s", text);
  return status;
}

// A new handle of a library, numbered from 1. `name` is the function that was called, `status` what it answers if it must fail.
template <class Handle>
int create_handle(const char* name, int status, void** handle) {
  static std::atomic<int> created{0};
  if (int failure = ordered(name, status)) return failure;
  auto* made = new Handle;
  made->number = ++created;
  *handle = made;
  note("%s handle=%d", name, made->number);
  return 0;
}

// FNV-1a
inline uint64_t hash(const char* text, size_t size) {
  uint64_t h = 14695981039346656037ull;
  for (size_t i = 0; i < size; i++) h = (h ^ uint8_t(text[i])) * 1099511628211ull;
  return h;
}

}  // namespace mock
