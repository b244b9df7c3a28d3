#include "gpu/vendor.h"

#include <dlfcn.h>

#include <cstring>
#include <mutex>
#include <string>
#include <vector>

namespace lapwing::vendor {
namespace {

std::mutex mutex;
Table symbols;
bool found[N_LIBRARIES];
std::string paths_first, paths_last;
thread_local bool pretending = false;

template <class Result, class... Arguments>
void do_nothing(Result (*&call)(Arguments...)) {
  call = [](Arguments...) { return Result(0); };
}

int give_handle(void** handle) {
  static char any;
  *handle = &any;
  return 0;
}

// Functions that only succeed; where a result is used before it is checked, it is a harmless one.
Table make_pretended() {
  Table made;
#define LAPWING_NOTHING(of, name, symbol, result, arguments) do_nothing(made.name);
  LAPWING_VENDOR(LAPWING_NOTHING)
#undef LAPWING_NOTHING
  made.context_current = made.solver_create = made.solver_params = made.blas_create = give_handle;
  made.stream_context = [](void*, void** context) { return give_handle(context); };
  made.copy_to_host = [](void* to, uint64_t, size_t bytes, void*) {
    std::memset(to, 0, bytes);
    return 0;
  };
  made.memory_info = [](size_t* free, size_t* total) {
    *free = *total = size_t(1) << 36;
    return 0;
  };
  return made;
}

const std::vector<const char*> NAMES[N_LIBRARIES] = {
    {"libcuda.so.1"},
    {"libcusolver.so.12", "libcusolver.so.11"},
    {"libcusolver.so.12", "libcusolver.so.11"},
    {"libcusolver.so.12", "libcusolver.so.11"},
    {"libcusolver.so.12", "libcusolver.so.11"},
    {"libcublas.so.13", "libcublas.so.12"},
    {"libcublas.so.13", "libcublas.so.12"},
    {"libnvrtc.so.13", "libnvrtc.so.12"},
};

void* open_in(const std::string& folders, Library library) {
  size_t start = 0;
  while (start < folders.size()) {
    size_t end = folders.find(':', start);
    if (end == std::string::npos) end = folders.size();
    std::string folder = folders.substr(start, end - start);
    for (const char* name : NAMES[library])
      if (void* handle = dlopen((folder + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    start = end + 1;
  }
  return nullptr;
}

void* open(Library library) {
  if (void* handle = open_in(paths_first, library)) return handle;
  // A framework may have loaded it already: share that copy.
  for (const char* name : NAMES[library])
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return handle;
  for (const char* name : NAMES[library])
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return handle;
  return open_in(paths_last, library);
}

// "libcusolver.so.12" -> "libcusolver": another version of it may be the one that was opened.
std::string library_of(const char* name) { return std::string(name).substr(0, std::string(name).find('.')); }

std::string load(Library library) {
  void* handle = open(library);
  if (!handle) return std::string(NAMES[library][0]) + " was not found";
#define LAPWING_FIND(of, name, symbol, result, arguments)                        \
  if (of == library) {                                                           \
    symbols.name = reinterpret_cast<result(*) arguments>(dlsym(handle, symbol)); \
    if (!symbols.name) return library_of(NAMES[library][0]) + " has no " + symbol;  \
  }
  LAPWING_VENDOR(LAPWING_FIND)
#undef LAPWING_FIND
  if (library == driver) {
    int count = 0;
    if (symbols.init(0) || symbols.device_count(&count)) return "the NVIDIA driver does not start";
    if (count == 0) return "the NVIDIA driver sees no GPU";
  }
  return "";
}

}  // namespace

const char* missing(Library library) {
  if (pretending) return nullptr;
  std::lock_guard<std::mutex> hold(mutex);
  if (found[library]) return nullptr;
  static bool old_solver = false;  // what a library that is there lacks, it will lack tomorrow
  if (library == many_solver && old_solver) return "this cuSOLVER cannot take several matrices together";
  // Asked again after a failure it looks again: a framework may have loaded the library since.
  static thread_local std::string reason;
  reason = load(library);
  old_solver = old_solver || (library == many_solver && !reason.empty() && found[solver]);
  found[library] = reason.empty();
  return found[library] ? nullptr : reason.c_str();
}

const Table& table() {
  if (!pretending) return symbols;
  static const Table pretended = make_pretended();
  return pretended;
}

Pretence::Pretence() { pretending = true; }
Pretence::~Pretence() { pretending = false; }

void set_paths(const char* first, const char* last) {
  std::lock_guard<std::mutex> hold(mutex);
  paths_first = first;
  paths_last = last;
}

}  // namespace lapwing::vendor
