#include "gpu/cuda.h"

#include <dirent.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gpu/cubin_cache.h"
#include "gpu/vendor.h"

namespace lapwing::cuda {
namespace {

std::mutex mutex;
std::string source_folder;

int check(Frame& frame, int status, const char* doing) {
  if (!status) return 0;
  const char* text = nullptr;
  vendor::table().error_text(status, &text);
  return fail(frame, "%s: the GPU driver answered \"%s\" (%d)", doing, text ? text : "unknown error", status);
}

// The context of the calling thread, as a device number.
int current_device() {
  int device = -1;
  vendor::table().context_device(&device);
  return device;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Source {
  std::string text;
  std::vector<std::pair<std::string, std::string>> headers;  // every .cuh beside it
};

bool read_source(Frame& frame, const char* name, Source* source) {
  source->text = read_file(source_folder + "/" + name);
  if (source->text.empty()) {
    fail(frame, "the device source %s is missing from the installation", name);
    return false;
  }
  if (DIR* folder = opendir(source_folder.c_str())) {
    while (dirent* entry = readdir(folder)) {
      std::string file = entry->d_name;
      if (file.size() > 4 && file.compare(file.size() - 4, 4, ".cuh") == 0)
        source->headers.emplace_back(file, read_file(source_folder + "/" + file));
    }
    closedir(folder);
  }
  // they are part of the key of compiled kernels, and folders are listed in any order
  std::sort(source->headers.begin(), source->headers.end());
  return true;
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> out;
  for (std::string word; stream >> word;) out.push_back(word);
  return out;
}

// "" leaves a message in the frame.
std::string compile(Frame& frame, const Source& source, const char* name, const std::string& options) {
  const auto& rtc = vendor::table();
  std::vector<const char*> header_text, header_name, flags;
  for (const auto& header : source.headers) {
    header_name.push_back(header.first.c_str());
    header_text.push_back(header.second.c_str());
  }
  std::vector<std::string> all = words(options);
  for (const auto& word : all) flags.push_back(word.c_str());
  void* program = nullptr;
  if (rtc.rtc_create(&program, source.text.c_str(), name, int(header_text.size()), header_text.data(), header_name.data())) {
    fail(frame, "the run-time compiler refused %s", name);
    return "";
  }
  std::string binary;
  size_t size = 0;
  if (rtc.rtc_compile(program, int(flags.size()), flags.data())) {
    std::string log;
    if (!rtc.rtc_log_size(program, &size)) {
      log.resize(size);
      rtc.rtc_log(program, log.data());
    }
    fail(frame, "%s does not compile with %s: %s", name, options.c_str(), log.c_str());
  } else if (!rtc.rtc_binary_size(program, &size) && size) {
    binary.resize(size);
    if (rtc.rtc_binary(program, binary.data())) binary.clear();
  }
  if (binary.empty() && !frame.error[0]) fail(frame, "the run-time compiler gave no code for %s", name);
  rtc.rtc_destroy(&program);
  return binary;
}

// Loading code is not a stream operation, but a capture under way on this thread would forbid it.
class RelaxedCapture {
 public:
  RelaxedCapture() { vendor::table().capture_mode(&mode_); }
  ~RelaxedCapture() { vendor::table().capture_mode(&mode_); }

 private:
  int mode_ = vendor::CAPTURE_RELAXED;
};

void* load_module(Frame& frame, const char* name, const char* options) {
  const Properties* device = properties(frame);
  if (!device) return nullptr;
  int major = 0, minor = 0;
  if (const char* reason = vendor::missing(vendor::compiler)) {
    fail(frame, "own GPU kernels need the run-time compiler: %s", reason);
    return nullptr;
  }
  vendor::table().rtc_version(&major, &minor);
  Source source;
  if (!read_source(frame, name, &source)) return nullptr;
  std::string all = std::string(options) + " -std=c++17 -default-device -arch=sm_" + std::to_string(device->compute_capability);
  std::string key = std::to_string(major) + "." + std::to_string(minor) + " " + all + "\n" + source.text;
  for (const auto& header : source.headers) key += "\n// " + header.first + "\n" + header.second;

  void* module = nullptr;
  std::string binary = cubin_cache::read(key);
  RelaxedCapture relaxed;
  if (!binary.empty() && vendor::table().module_load(&module, binary.data()) == 0) return module;
  binary = compile(frame, source, name, all);
  if (binary.empty()) return nullptr;
  if (check(frame, vendor::table().module_load(&module, binary.data()), "loading a kernel")) return nullptr;
  cubin_cache::write(key, binary);
  return module;
}

}  // namespace

void set_source_folder(const char* path) {
  std::lock_guard<std::mutex> hold(mutex);
  source_folder = path;
}

namespace {

// The device's primary context, held from the first use to the end of the process.
int primary_context(int device, void** context) {
  static std::map<int, void*> held;
  std::lock_guard<std::mutex> hold(mutex);
  void*& it = held[device];
  int status = it ? 0 : vendor::table().primary_context(&it, device);
  *context = it;
  return status;
}

}  // namespace

Guard::Guard(Frame& frame) {
  if (const char* reason = vendor::missing(vendor::driver)) {
    fail(frame, "no usable GPU: %s", reason);
    return;
  }
  const auto& api = vendor::table();
  void* context = nullptr;
  // 0, 1 and 2 are the default streams: they carry no context, so the device's primary one is meant.
  bool named = reinterpret_cast<uintptr_t>(frame.stream) > 2;
  int device = frame.ordinal < 0 ? 0 : frame.ordinal;
  int status = named ? api.stream_context(frame.stream, &context) : primary_context(device, &context);
  if (check(frame, status, "finding the GPU context")) return;
  ok_ = check(frame, api.context_push(context), "entering the GPU context") == 0;
}

Guard::~Guard() {
  void* old = nullptr;
  if (ok_) vendor::table().context_pop(&old);
}

const Properties* properties(Frame& frame) {
  static std::map<int, Properties> known;
  int device = current_device();
  std::lock_guard<std::mutex> hold(mutex);
  auto found = known.find(device);
  if (found != known.end()) return &found->second;
  const auto& api = vendor::table();
  Properties p{};
  int major = 0, minor = 0;
  int status = api.device_attribute(&p.multiprocessors, vendor::ATTRIBUTE_MULTIPROCESSORS, device);
  if (!status) status = api.device_attribute(&p.shared_per_block, vendor::ATTRIBUTE_SHARED_OPTIN, device);
  if (!status) status = api.device_attribute(&major, vendor::ATTRIBUTE_MAJOR, device);
  if (!status) status = api.device_attribute(&minor, vendor::ATTRIBUTE_MINOR, device);
  if (!status) status = api.device_name(p.name, sizeof p.name, device);
  if (check(frame, status, "reading the GPU's properties")) return nullptr;
  p.compute_capability = 10 * major + minor;
  return &(known[device] = p);
}

void* function(Frame& frame, const char* source, const char* options, const char* name, size_t shared) {
  struct Function {
    void* handle;
    size_t shared;
  };
  static std::mutex loading;  // one thread compiles, the others wait for it
  static std::map<std::string, void*> modules;
  static std::map<std::string, Function> functions;
  const auto& api = vendor::table();
  // code belongs to a context: a program may have one of its own beside the device's primary one
  void* context = nullptr;
  if (check(frame, api.context_current(&context), "finding the GPU context")) return nullptr;
  std::string module_key = std::to_string(reinterpret_cast<uintptr_t>(context)) + "|" + source + "|" + options;
  std::string key = module_key + "|" + name;
  std::lock_guard<std::mutex> hold(loading);
  auto found = functions.find(key);
  if (found == functions.end()) {
    void*& module = modules[module_key];
    if (!module) module = load_module(frame, source, options);
    if (!module) return nullptr;
    Function made{nullptr, 48 * 1024};  // what every block may have without asking
    if (check(frame, api.module_function(&made.handle, module, name), name)) return nullptr;
    found = functions.emplace(key, made).first;
  }
  Function& it = found->second;
  if (shared > it.shared) {
    if (check(frame, api.function_attribute(it.handle, vendor::FUNCTION_MAX_SHARED, int(shared)), "asking for shared memory"))
      return nullptr;
    it.shared = shared;
  }
  return it.handle;
}

std::string options(int32_t dtype, bool upper, int width, const char* more, ...) {
  char own[160];
  va_list arguments;
  va_start(arguments, more);
  std::vsnprintf(own, sizeof own, more, arguments);
  va_end(arguments);
  char text[240];
  std::snprintf(text, sizeof text, "-DLW_DTYPE=%d -DLW_UPPER=%d -DLW_V=%d%s", dtype, upper, width, own);
  return text;
}

int launch(Frame& frame, void* function, Grid grid, unsigned threads, size_t shared, void** arguments) {
  int status = vendor::table().launch(function, grid.x, grid.y, grid.z, threads, 1, 1, unsigned(shared), frame.stream,
                                      arguments, nullptr);
  return check(frame, status, "launching a kernel");
}

char* scratch(Frame& frame, size_t bytes) {
  auto* found = frame.scratch.get ? static_cast<char*>(frame.scratch.get(frame.scratch.self, bytes)) : nullptr;
  if (!found) fail(frame, "no GPU memory for a workspace of %zu bytes", bytes);
  return found;
}

int copy(Frame& frame, void* to, const void* from, size_t bytes) {
  int status = vendor::table().copy(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), bytes, frame.stream);
  return check(frame, status, "copying GPU memory");
}

int fill(Frame& frame, void* where, unsigned char value, size_t bytes) {
  int status = vendor::table().fill(reinterpret_cast<uint64_t>(where), value, bytes, frame.stream);
  return check(frame, status, "filling GPU memory");
}

}  // namespace lapwing::cuda
