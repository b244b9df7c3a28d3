#include "gpu/cuda.h"

#include <algorithm>
#include <chrono>
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
#include "gpu/dry.h"
#include "gpu/hip.h"
#include "gpu/kernel_pack.h"
#include "gpu/vendor.h"
#include "run.h"

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

// Behind the options of every kernel.
const char* const ALWAYS = " -std=c++17 -default-device";
// The same for AMD's compiler, whose kernels also learn how many lanes a wave has.
std::string always_for(const std::string& architecture, int lanes) {
  return " -std=c++17 -DLW_WAVE=" + std::to_string(lanes) + " --offload-arch=" + architecture;
}

struct Source {
  std::string text;
  std::map<std::string, std::string> headers;  // that it includes, directly or not

  // Everything that decides what the compiler makes of it
  std::string key(const std::string& options) const {
    std::string whole = options + "\n" + text;
    for (const auto& header : headers) whole += "\n// " + header.first + "\n" + header.second;
    return whole;
  }
};

void add_headers(const std::string& text, std::map<std::string, std::string>* headers) {
  const std::string directive = "#include \"";
  for (size_t at = text.find(directive); at != std::string::npos; at = text.find(directive, at)) {
    at += directive.size();
    const std::string name = text.substr(at, text.find('"', at) - at), header = read_file(source_folder + "/" + name);
    if (!header.empty() && headers->emplace(name, header).second) add_headers(header, headers);
  }
}

bool read_source(Frame& frame, const char* name, Source* source) {
  source->text = read_file(source_folder + "/" + name);
  if (source->text.empty()) {
    fail(frame, "the device source %s is missing from the installation", name);
    return false;
  }
  add_headers(source->text, &source->headers);
  return true;
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> out;
  for (std::string word; stream >> word;) out.push_back(word);
  return out;
}

// "" leaves a message in the frame.
std::string compile_source(Frame& frame, const vendor::Table& rtc, const Source& source, const char* name, const std::string& options,
                           std::string* log) {
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
  const int status = rtc.rtc_compile(program, int(flags.size()), flags.data());
  if (!rtc.rtc_log_size(program, &size) && size) {
    log->resize(size);
    rtc.rtc_log(program, log->data());
    log->resize(size - 1);  // it ends with a zero
  }
  if (status) {
    fail(frame, "%s does not compile with %s: %s", name, options.c_str(), log->c_str());
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

const char* const COMPILER = "compiler";
std::mutex loads_mutex;
std::vector<Loaded> loads;

// Code of another compiler is compiled again.
std::string compiler_version(const Properties& device) {
  if (device.is_amd()) return "amd " + vendor::hip::version_of(vendor::compiler);
  int major = 0, minor = 0;
  vendor::table().rtc_version(&major, &minor);
  return std::to_string(major) + "." + std::to_string(minor);
}

// A pack is asked first: its keys need no compiler, which takes time to load and may be missing. What a pack or the cache holds
// may not suit this driver; then the next one is asked.
void* find_module(Frame& frame, const char* name, const std::string& options, const char** origin) {
  const Properties* device = properties(frame);
  if (!device) return nullptr;
  const bool has_pack = kernel_pack::any_for(device->compute_capability);
  const auto has_compiler = [&] {
    const char* reason = vendor::missing(vendor::compiler);
    const char* who = has_pack ? "this GPU kernel is not in the kernel pack, and needs" : "own GPU kernels need";
    return !reason || !fail(frame, "%s the run-time compiler: %s", who, reason);
  };
  Source source;
  if ((!has_pack && !has_compiler()) || !read_source(frame, name, &source)) return nullptr;
  RelaxedCapture relaxed;
  void* module = nullptr;
  const auto load = [&](const std::string& binary) { return vendor::table().module_load(&module, binary.data()); };
  *origin = "pack";
  std::string binary = has_pack ? kernel_pack::find(kernel_pack::key_of(source.key(options + ALWAYS)), device->compute_capability) : "";
  if (!binary.empty() && load(binary) == 0) return module;

  if (!has_compiler()) return nullptr;
  *origin = "cache";
  const std::string all = options + (device->is_amd() ? always_for(device->architecture, device->lanes)
                                                      : ALWAYS + (" -arch=sm_" + std::to_string(device->compute_capability)));
  const std::string key = source.key(compiler_version(*device) + " " + all);
  binary = cubin_cache::read(key);
  if (!binary.empty() && load(binary) == 0) return module;

  *origin = COMPILER;
  std::string log;
  binary = compile_source(frame, vendor::table(), source, name, all, &log);
  if (binary.empty()) return nullptr;
  if (check(frame, load(binary), "loading a kernel")) return nullptr;
  cubin_cache::write(key, binary);
  return module;
}

void* load_module(Frame& frame, const char* name, const char* options) {
  const auto start = std::chrono::steady_clock::now();
  const char* origin = "";
  void* module = find_module(frame, name, options, &origin);
  if (!module) return nullptr;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (origin == COMPILER) note("compiled %s for this GPU in %.2f s (%s)", name, seconds, options);
  std::lock_guard<std::mutex> hold(loads_mutex);
  loads.push_back({name, options, origin, seconds});
  return module;
}

}  // namespace

void set_source_folder(const char* path) {
  std::lock_guard<std::mutex> hold(mutex);
  source_folder = path;
}

std::string compile(Frame& frame, const char* name, const std::string& options, const std::string& architecture,
                    std::string* log) {
  std::string reason;
  const vendor::Table* rtc = vendor::compiler_for(architecture, &reason);
  if (!rtc) {
    fail(frame, "the run-time compiler is missing: %s", reason.c_str());
    return "";
  }
  Source source;
  if (!read_source(frame, name, &source)) return "";
  const bool is_amd = architecture.compare(0, 3, "gfx") == 0;
  const std::string always = is_amd ? always_for(architecture, vendor::hip::lanes_of(architecture)) : ALWAYS + (" -arch=" + architecture);
  return compile_source(frame, *rtc, source, name, options + always, log);
}

std::string pack_key(Frame& frame, const char* name, const std::string& options) {
  Source source;
  if (!read_source(frame, name, &source)) return "";
  const kernel_pack::Key key = kernel_pack::key_of(source.key(options + ALWAYS));
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)key.low, (unsigned long long)key.high);
  return text;
}

std::vector<Loaded> loaded() {
  std::lock_guard<std::mutex> hold(loads_mutex);
  return loads;
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
  if (const Dry* dry = Dry::current()) return &dry->gpu;
  int device = current_device();
  std::lock_guard<std::mutex> hold(mutex);
  auto entry = known.find(device);
  if (entry != known.end()) return &entry->second;
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
  if (vendor::is_amd()) {
    const std::string architecture = vendor::hip::architecture_of(device);
    if (architecture.empty() || architecture.size() >= sizeof p.architecture) {
      fail(frame, "the driver does not say which architecture %s has", p.name);
      return nullptr;
    }
    std::snprintf(p.architecture, sizeof p.architecture, "%s", architecture.c_str());
    p.lanes = vendor::hip::lanes_of(device);
    p.together = vendor::hip::has_cooperative_launch(device);
  }
  return &(known[device] = p);
}

void* function(Frame& frame, const char* source, const char* options, const char* name, size_t shared) {
  if (Dry* dry = Dry::current()) return dry->function(source, options);
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
  auto entry = functions.find(key);
  if (entry == functions.end()) {
    void*& module = modules[module_key];
    if (!module) module = load_module(frame, source, options);
    if (!module) return nullptr;
    Function function{nullptr, 48 * 1024};  // what every block may have without asking
    if (check(frame, api.module_function(&function.handle, module, name), name)) return nullptr;
    entry = functions.emplace(key, function).first;
  }
  Function& it = entry->second;
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

int launch(Frame& frame, void* function, Grid grid, unsigned threads, size_t shared, void** arguments, bool together) {
  const vendor::Table& table = vendor::table();
  const int status = together ? table.launch_together(function, grid.x, grid.y, grid.z, threads, 1, 1, unsigned(shared),
                                                      frame.stream, arguments)
                              : table.launch(function, grid.x, grid.y, grid.z, threads, 1, 1, unsigned(shared), frame.stream,
                                             arguments, nullptr);
  return check(frame, status, "launching a kernel");
}

char* scratch(Frame& frame, size_t bytes) {
  auto* memory = frame.scratch.get ? static_cast<char*>(frame.scratch.get(frame.scratch.self, bytes)) : nullptr;
  if (!memory) fail(frame, "no GPU memory for a workspace of %zu bytes", bytes);
  return memory;
}

int copy(Frame& frame, void* to, const void* from, size_t bytes) {
  int status = vendor::table().copy(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), bytes, frame.stream);
  return check(frame, status, "copying GPU memory");
}

int fill(Frame& frame, void* where, unsigned char value, size_t bytes) {
  int status = vendor::table().fill(reinterpret_cast<uint64_t>(where), value, bytes, frame.stream);
  return check(frame, status, "filling GPU memory");
}

int download(Frame& frame, void* to, const void* from, size_t bytes) {
  const vendor::Table& api = vendor::table();
  int status = api.copy_to_host(to, reinterpret_cast<uint64_t>(from), bytes, frame.stream);
  if (!status) status = api.synchronize(frame.stream);
  return check(frame, status, "waiting for the GPU");
}

}  // namespace lapwing::cuda
