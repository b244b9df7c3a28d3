// Stand-in for libcuda: host memory is device memory, a launch runs the kernel's plain C++ twin at once, and every argument
// is checked.
//   MOCK_DEVICES  how many GPUs there are (2)     MOCK_ARCH    compute capability (90)
//   MOCK_SHARED   shared memory a block may have  MOCK_CAPTURING  1: a stream of this thread is being captured
#include <dlfcn.h>

#include <memory>
#include <sstream>

#include "kernels.h"
#include "mock.h"

using namespace mock;

namespace {

constexpr int INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
              INVALID_HANDLE = 400, NOT_FOUND = 500, LAUNCH_FAILED = 719, CAPTURE_UNSUPPORTED = 900, UNKNOWN = 999;
constexpr int MOST_DEVICES = 4;
constexpr int64_t FREE_SHARED = 48 * 1024;

struct Context {
  int device;
  const char* kind;
};
Context primary[MOST_DEVICES] = {{0, "primary"}, {1, "primary"}, {2, "primary"}, {3, "primary"}};
Context other[MOST_DEVICES] = {{0, "other"}, {1, "other"}, {2, "other"}, {3, "other"}};

struct Stream {
  uint64_t magic = 0x57e4a3;
  Context* context;
};

struct Module {
  Context* context;
  std::string name, options, emulated;  // emulated: a library with the kernel as host code, or ""
  std::map<std::string, std::string> kernels;  // name -> signature
};

struct Function {
  uint64_t magic = 0xf03c7;
  Module* module;
  std::string name, signature;
  int64_t shared = FREE_SHARED;
};

thread_local std::vector<Context*> stack;
thread_local int capture_mode = 0;
std::atomic<bool> started{false};

int devices() { return int(number("MOCK_DEVICES", 2)); }
#ifndef MOCK_SHARED_BYTES
#define MOCK_SHARED_BYTES 232448
#endif
int64_t shared_limit() { return number("MOCK_SHARED", MOCK_SHARED_BYTES); }

Context* current() { return stack.empty() ? nullptr : stack.back(); }

int check_stream(void* stream) {
  if (uintptr_t(stream) <= 2) return 0;
  auto* s = static_cast<Stream*>(stream);
  if (s->magic != Stream().magic) return refuse(INVALID_HANDLE, "not a stream");
  return s->context == current() ? 0 : refuse(INVALID_CONTEXT, "the stream belongs to another context");
}

std::string after(const std::string& line, size_t words) {
  size_t at = 0;
  while (words--) at = line.find(' ', at) + 1;
  return line.substr(at);
}

// The binary of the stand-in compiler; nullptr when it is damaged.
std::unique_ptr<Module> parse(const char* image) {
  size_t size = 0;
  unsigned long long sum = 0, source = 0;
  if (std::sscanf(image, "MOCKCUBIN %zu %llx %llx\n", &size, &sum, &source) != 3) return nullptr;
  const char* body = std::strchr(image, '\n') + 1;
  if (strnlen(body, size) != size || hash(body, size) != sum) return nullptr;
  auto module = std::make_unique<Module>();
  std::istringstream lines(std::string(body, size));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("name ", 0) == 0) module->name = after(line, 1);
    if (line.rfind("options ", 0) == 0) module->options = after(line, 1);
    if (line.rfind("emulated ", 0) == 0) module->emulated = after(line, 1);
    if (line.rfind("kernel ", 0) == 0) {
      std::string rest = after(line, 1);
      module->kernels[rest.substr(0, rest.find(' '))] = after(rest, 1);
    }
  }
  return module;
}

void read_options(const std::string& options, Launch* call) {
  std::istringstream words(options);
  for (std::string word; words >> word;) {
    size_t equal = word.find('=');
    if (word.rfind("-DLW_", 0) == 0 && equal != std::string::npos)
      call->option[word.substr(2, equal - 2)] = std::atoll(word.c_str() + equal + 1);
  }
}

// One value at `from`, which is moved behind it as in a structure of C.
bool read_value(const std::string& kind, const std::string& name, const char** from, Launch* call, std::string* text) {
  const bool wide = kind == "p" || kind == "q" || kind == "d" || (kind == "r" && call->dtype() % 2);
  const size_t size = wide ? 8 : 4;
  auto start = (reinterpret_cast<uintptr_t>(*from) + size - 1) / size * size;
  auto* at = reinterpret_cast<const char*>(start);
  *from = at + size;
  char number[40];
  if (kind == "p" || kind == "q" || kind == "i") {
    int64_t value = 0;
    if (wide)
      std::memcpy(&value, at, 8);
    else
      value = *reinterpret_cast<const int32_t*>(at);
    call->argument[name] = value;
    std::snprintf(number, sizeof number, kind == "p" ? "0x%llx" : "%lld", (long long)value);
  } else if (kind == "d" || kind == "r") {
    double value = wide ? *reinterpret_cast<const double*>(at) : *reinterpret_cast<const float*>(at);
    call->number[name] = value;
    std::snprintf(number, sizeof number, "%.17g", value);
  } else {
    return false;
  }
  *text += " " + name + "=" + number;
  return true;
}

bool read_arguments(const std::string& signature, void** arguments, Launch* call, std::string* text) {
  std::istringstream list(signature);
  int index = 0;
  for (std::string one; std::getline(list, one, ','); index++) {
    std::string kind = one.substr(0, one.find(':')), name = one.substr(one.find(':') + 1);
    if (!arguments || !arguments[index]) return false;
    auto* from = static_cast<const char*>(arguments[index]);
    if (kind.find('.') == std::string::npos) {
      if (!read_value(kind, name, &from, call, text)) return false;
      continue;
    }
    std::istringstream members(kind);
    for (std::string member; std::getline(members, member, '/');)
      if (!read_value(member.substr(0, 1), name + "." + member.substr(2), &from, call, text)) return false;
  }
  return true;
}

// What the kernel takes for granted about the launch; "" when all holds.
std::string complaint(const Kernel& kernel, const Launch& call, int64_t shared) {
  int64_t size = call.element(), width = call.choice("LW_V"), real = call.dtype() % 2 ? 8 : 4;
  if (width != 4 && width != 8 && width != 16) return "LW_V";
  if (width < real) return "LW_V is less than a real number: the kernel does not compile";
  int64_t threads = kernel.threads ? kernel.threads(call) : call.threads;
  if (call.threads != threads) return "threads per block";
  if (kernel.needs && call.choice(kernel.needs, -1) != kernel.value) return "compiled without this kernel";
  if (shared < kernel.memory(call)) return "too little shared memory";
  if (call.has("batch") && call.get("batch") < 1) return "an empty batch";
  int64_t unit = kernel.access == OF_ELEMENT ? std::min(size, width) : width;
  for (const char* name : {"a", "out"})
    if (call.has(name) && (!call.get(name) || call.get(name) % unit)) return std::string("alignment of ") + name;
  if (kernel.access == OF_ROW && call.n() * size % width) return "alignment of rows";
  if (call.has("progress.ticket")) {
    if (call.get("progress.ticket") % 8) return "alignment of the ticket";
    if (*call.pointer<int64_t>("progress.ticket")) return "the progress was not cleared";
  }
  return "";
}

}  // namespace

// ---- for the tests -----------------------------------------------------------------------------------------------

EXPORT void* mock_stream(int device, int of_primary) {
  return new Stream{Stream().magic, of_primary ? &primary[device] : &other[device]};
}
EXPORT void mock_mark(const char* text) { note("mark %s", text); }
EXPORT int mock_depth() { return int(stack.size()); }
EXPORT int mock_capture_mode() { return capture_mode; }

// ---- the driver --------------------------------------------------------------------------------------------------

#define ENTER(status)                                          \
  if (int ordered_status = ordered(__func__, status)) return ordered_status; \
  if (!started && std::strcmp(__func__, "cuInit")) return refuse(NOT_INITIALIZED, "%s before cuInit", __func__)
#define NEED_CONTEXT \
  if (!current()) return refuse(INVALID_CONTEXT, "%s without a context", __func__)
#define NEED_DEVICE(device) \
  if (device < 0 || device >= devices()) return refuse(INVALID_DEVICE, "%s: device %d", __func__, device)

EXPORT int cuInit(unsigned flags) {
  ENTER(UNKNOWN);
  note("cuInit");
  if (flags) return refuse(INVALID_VALUE, "cuInit flags");
  started = true;
  return 0;
}
EXPORT int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
EXPORT int cuDeviceGetCount(int* count) {
  ENTER(UNKNOWN);
  *count = devices();
  return 0;
}
EXPORT int cuDeviceGet(int* device, int ordinal) {
  ENTER(INVALID_DEVICE);
  NEED_DEVICE(ordinal);
  *device = ordinal;
  return 0;
}
EXPORT int cuDeviceGetName(char* name, int size, int device) {
  ENTER(UNKNOWN);
  NEED_DEVICE(device);
  std::snprintf(name, size_t(size), "Mock GPU");
  return 0;
}
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
  ENTER(UNKNOWN);
  NEED_DEVICE(device);
  long arch = number("MOCK_ARCH", 90);
  switch (attribute) {
    case 16: *value = int(number("MOCK_MULTIPROCESSORS", 132)); return 0;
    case 75: *value = int(arch / 10); return 0;
    case 76: *value = int(arch % 10); return 0;
    case 97: *value = int(shared_limit()); return 0;
    default: return refuse(INVALID_VALUE, "attribute %d", attribute);
  }
}
EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  ENTER(UNKNOWN);
  NEED_DEVICE(device);
  *bytes = size_t(1) << 37;
  return 0;
}

EXPORT int cuMemGetInfo_v2(size_t* free, size_t* total) {
  ENTER(UNKNOWN);
  NEED_CONTEXT;
  *total = size_t(1) << 37;
  *free = *total - (size_t(1) << 30);
  return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  ENTER(INVALID_DEVICE);
  NEED_DEVICE(device);
  note("cuDevicePrimaryCtxRetain device=%d", device);
  *context = &primary[device];
  return 0;
}
EXPORT int cuCtxPushCurrent_v2(void* context) {
  ENTER(INVALID_CONTEXT);
  auto* c = static_cast<Context*>(context);
  if (!c) return refuse(INVALID_CONTEXT, "pushing no context");
  stack.push_back(c);
  note("cuCtxPushCurrent device=%d kind=%s depth=%zu", c->device, c->kind, stack.size());
  return 0;
}
EXPORT int cuCtxPopCurrent_v2(void** context) {
  ENTER(INVALID_CONTEXT);
  NEED_CONTEXT;
  *context = stack.back();
  stack.pop_back();
  note("cuCtxPopCurrent depth=%zu", stack.size());
  return 0;
}
EXPORT int cuCtxGetCurrent(void** context) {
  ENTER(INVALID_CONTEXT);
  *context = current();
  return 0;
}
EXPORT int cuCtxGetDevice(int* device) {
  ENTER(INVALID_CONTEXT);
  NEED_CONTEXT;
  *device = current()->device;
  return 0;
}
EXPORT int cuStreamGetCtx(void* stream, void** context) {
  ENTER(INVALID_HANDLE);
  auto* s = static_cast<Stream*>(stream);
  if (uintptr_t(stream) <= 2 || s->magic != Stream().magic) return refuse(INVALID_HANDLE, "not a stream");
  *context = s->context;
  note("cuStreamGetCtx stream=%p", stream);
  return 0;
}
EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
  ENTER(INVALID_VALUE);
  if (*mode < 0 || *mode > 2) return refuse(INVALID_VALUE, "capture mode %d", *mode);
  std::swap(*mode, capture_mode);
  return 0;
}

EXPORT int cuModuleLoadData(void** module, const void* image) {
  ENTER(INVALID_IMAGE);
  NEED_CONTEXT;
  if (number("MOCK_CAPTURING", 0) && capture_mode != 2)
    return refuse(CAPTURE_UNSUPPORTED, "cuModuleLoadData during a capture");
  auto parsed = parse(static_cast<const char*>(image));
  note("cuModuleLoadData good=%d name=%s device=%d", parsed != nullptr, parsed ? parsed->name.c_str() : "",
       current()->device);
  if (!parsed) return INVALID_IMAGE;
  parsed->context = current();
  *module = parsed.release();
  return 0;
}
EXPORT int cuModuleGetFunction(void** function, void* module, const char* name) {
  ENTER(NOT_FOUND);
  NEED_CONTEXT;
  auto* m = static_cast<Module*>(module);
  auto found = m->kernels.find(name);
  if (found == m->kernels.end()) return refuse(NOT_FOUND, "no kernel %s in %s", name, m->name.c_str());
  *function = new Function{Function().magic, m, name, found->second, FREE_SHARED};
  return 0;
}
EXPORT int cuFuncSetAttribute(void* function, int attribute, int value) {
  ENTER(INVALID_VALUE);
  NEED_CONTEXT;
  auto* f = static_cast<Function*>(function);
  note("cuFuncSetAttribute name=%s attribute=%d value=%d", f->name.c_str(), attribute, value);
  if (attribute != 8) return refuse(INVALID_VALUE, "function attribute %d", attribute);
  if (value < 0 || value > shared_limit()) return INVALID_VALUE;
  f->shared = value;
  return 0;
}

EXPORT int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* stream, void** arguments, void** extra) {
  ENTER(LAUNCH_FAILED);
  NEED_CONTEXT;
  auto* f = static_cast<Function*>(function);
  if (!f || f->magic != Function().magic) return refuse(INVALID_HANDLE, "not a function");
  if (f->module->context != current()) return refuse(INVALID_HANDLE, "the function belongs to another context");
  if (int status = check_stream(stream)) return status;
  auto kernel = KERNELS.find(f->name);
  const std::string& emulated = f->module->emulated;
  if (kernel == KERNELS.end() && emulated.empty()) return refuse(NOT_FOUND, "the stand-in has no kernel %s: see kernels.h", f->name.c_str());
  if (!gx || gx > 2147483647u || !gy || gy > 65535 || !gz || gz > 65535)
    return refuse(INVALID_VALUE, "grid %u %u %u", gx, gy, gz);
  if (!bx || !by || !bz || uint64_t(bx) * by * bz > 1024) return refuse(INVALID_VALUE, "block %u %u %u", bx, by, bz);
  if (int64_t(shared) > f->shared) return refuse(INVALID_VALUE, "%u bytes of shared memory, %lld allowed", shared,
                                                 (long long)f->shared);
  if (extra) return refuse(INVALID_VALUE, "extra");
  Launch call;
  call.threads = bx * by * bz;
  std::string text;
  read_options(f->module->options, &call);
  if (!read_arguments(f->signature, arguments, &call, &text)) return refuse(INVALID_VALUE, "arguments of %s", f->name.c_str());
  note("cuLaunchKernel name=%s grid=%u,%u,%u block=%u shared=%u stream=%p device=%d upper=%d width=%lld%s", f->name.c_str(),
       gx, gy, gz, call.threads, shared, stream, current()->device, call.upper(), (long long)call.choice("LW_V"),
       text.c_str());
  if (!emulated.empty()) {
    void* library = dlopen(emulated.c_str(), RTLD_NOW);
    auto* emulate = library ? reinterpret_cast<int (*)(const char*, void**, unsigned, unsigned, unsigned, unsigned)>(dlsym(library, "emulate")) : nullptr;
    if (!emulate) return refuse(NOT_FOUND, "%s does not compile as host code", f->name.c_str());
    const int status = emulate(f->name.c_str(), arguments, gx, gy, bx, shared);
    auto* fault = reinterpret_cast<const char* (*)()>(dlsym(library, "emulate_fault"));
    return status ? refuse(LAUNCH_FAILED, "%s: %s", f->name.c_str(), fault()) : 0;
  }
  std::string wrong = complaint(kernel->second, call, shared);
  if (!wrong.empty()) return refuse(INVALID_VALUE, "%s: %s", f->name.c_str(), wrong.c_str());
  kernel->second.run[call.dtype()](call);
  return 0;
}

EXPORT int cuLaunchCooperativeKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                     unsigned shared, void* stream, void** arguments) {
  if (uint64_t(gx) * gy * gz > uint64_t(number("MOCK_MULTIPROCESSORS", 132))) return refuse(INVALID_VALUE, "more blocks than fit at once");
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, nullptr);
}

EXPORT int cuMemsetD8Async(uint64_t where, unsigned char value, size_t bytes, void* stream) {
  ENTER(INVALID_VALUE);
  NEED_CONTEXT;
  if (int status = check_stream(stream)) return status;
  note("cuMemsetD8Async where=0x%llx value=%u bytes=%zu stream=%p", (unsigned long long)where, value, bytes, stream);
  if (!where) return refuse(INVALID_VALUE, "memset of nothing");
  std::memset(reinterpret_cast<void*>(where), value, bytes);
  return 0;
}

namespace {

int move(const char* name, void* to, const void* from, size_t bytes, void* stream) {
  NEED_CONTEXT;
  if (int status = check_stream(stream)) return status;
  note("%s to=%p bytes=%zu stream=%p", name, to, bytes, stream);
  if (!to || !from) return refuse(INVALID_VALUE, "copy of nothing");
  std::memmove(to, from, bytes);
  return 0;
}

}  // namespace

EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  ENTER(INVALID_VALUE);
  return move("cuMemcpyDtoDAsync_v2", reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes, stream);
}

EXPORT int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
  ENTER(INVALID_VALUE);
  return move("cuMemcpyDtoHAsync_v2", to, reinterpret_cast<void*>(from), bytes, stream);
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
  ENTER(INVALID_VALUE);
  return move("cuMemcpyHtoDAsync_v2", reinterpret_cast<void*>(to), from, bytes, stream);
}

EXPORT int cuStreamSynchronize(void* stream) {
  ENTER(INVALID_VALUE);
  NEED_CONTEXT;
  return check_stream(stream);
}

EXPORT int cuGetErrorString(int status, const char** text) {
  static const std::map<int, const char*> texts = {
      {INVALID_VALUE, "invalid argument"},     {INVALID_DEVICE, "invalid device ordinal"},
      {INVALID_IMAGE, "device kernel image is invalid"}, {INVALID_CONTEXT, "invalid device context"},
      {INVALID_HANDLE, "invalid resource handle"}, {NOT_FOUND, "named symbol not found"},
      {LAUNCH_FAILED, "unspecified launch failure"}, {CAPTURE_UNSUPPORTED, "not permitted when stream is capturing"},
  };
  auto found = texts.find(status);
  *text = found == texts.end() ? nullptr : found->second;
  return found == texts.end() ? INVALID_VALUE : 0;
}
