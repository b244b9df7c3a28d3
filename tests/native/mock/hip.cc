// Stand-in for libamdhip64: the stand-in of libcuda under AMD's names, with waves of 64 lanes and 64 KB of shared memory.
// A device is current where NVIDIA has contexts.
//   MOCK_GFX  the architecture, as the driver writes it        MOCK_LANES  lanes of a wave (64)
#define MOCK_SHARED_BYTES 65536
#define mock_depth mock_depth_of_contexts
#define mock_stream mock_stream_of_context
#include "cuda.cc"
#undef mock_depth
#undef mock_stream

namespace {

thread_local int device_now = 0;

// The context of the current device, in which the other stand-in works.
void use() { stack.assign(1, &primary[device_now]); }

}  // namespace

EXPORT void* mock_stream(int device, int) { return mock_stream_of_context(device, 1); }
EXPORT int mock_depth() { return device_now; }  // programs of the tests start on device 0

EXPORT int hipInit(unsigned flags) { return cuInit(flags); }
EXPORT int hipDriverGetVersion(int* version) {
  *version = int(number("MOCK_HIP_VERSION", 60241134));
  return 0;
}
EXPORT int hipGetDeviceCount(int* count) { return cuDeviceGetCount(count); }
EXPORT int hipDeviceGet(int* device, int ordinal) { return cuDeviceGet(device, ordinal); }
EXPORT int hipDeviceGetName(char* name, int size, int device) {
  const int status = cuDeviceGetName(name, size, device);
  if (!status) std::snprintf(name, size_t(size), "Mock Instinct");
  return status;
}
EXPORT int hipDeviceGetAttribute(int* value, int attribute, int device) {
  ENTER(UNKNOWN);
  NEED_DEVICE(device);
  switch (attribute) {
    case 10: *value = 1; return 0;
    case 63: *value = int(number("MOCK_MULTIPROCESSORS", 110)); return 0;
    case 74: *value = int(shared_limit()); return 0;
    case 87: *value = int(number("MOCK_LANES", 64)); return 0;
    default: return refuse(INVALID_VALUE, "attribute %d", attribute);
  }
}
EXPORT int hipDeviceTotalMem(size_t* bytes, int device) { return cuDeviceTotalMem_v2(bytes, device); }

// Name of the GPU, numbers that hold no text, and the architecture, at a place that differs between versions
namespace {
int write_properties(void* to, int device, size_t place) {
  NEED_DEVICE(device);
  auto* text = static_cast<char*>(to);
  std::memset(text, 1, place + 256);
  std::snprintf(text, 256, "gfx00 is no architecture here");
  const char* name = std::getenv("MOCK_GFX");
  std::snprintf(text + place, 256, "%s", name ? name : "gfx90a:sramecc+:xnack-");
  return 0;
}
}  // namespace
EXPORT int hipGetDeviceProperties(void* to, int device) { return write_properties(to, device, 396); }
EXPORT int hipGetDevicePropertiesR0600(void* to, int device) { return write_properties(to, device, 1160); }
EXPORT int hipStreamGetDevice(void* stream, int* device) {
  ENTER(INVALID_HANDLE);
  void* context = nullptr;
  const int status = cuStreamGetCtx(stream, &context);
  if (!status) *device = static_cast<Context*>(context)->device;
  return status;
}
EXPORT int hipModuleLaunchCooperativeKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                            unsigned bz, unsigned shared, void* stream, void** arguments) {
  use();
  return cuLaunchCooperativeKernel(function, gx, gy, gz, bx, by, bz, shared, stream, arguments);
}

EXPORT int hipSetDevice(int device) {
  ENTER(INVALID_DEVICE);
  NEED_DEVICE(device);
  device_now = device;
  note("hipSetDevice device=%d", device);
  return 0;
}
EXPORT int hipGetDevice(int* device) {
  ENTER(INVALID_DEVICE);
  *device = device_now;
  return 0;
}
EXPORT int hipThreadExchangeStreamCaptureMode(int* mode) { return cuThreadExchangeStreamCaptureMode(mode); }
EXPORT int hipModuleLoadData(void** module, const void* image) { return use(), cuModuleLoadData(module, image); }
EXPORT int hipModuleGetFunction(void** function, void* module, const char* name) {
  use();
  const int status = cuModuleGetFunction(function, module, name);
  if (!status) static_cast<Function*>(*function)->shared = shared_limit();  // nothing has to be asked for
  return status;
}
EXPORT int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                 unsigned shared, void* stream, void** arguments, void** extra) {
  use();
  if (uint64_t(gx) * bx > UINT32_MAX) return refuse(INVALID_VALUE, "2^32 threads along x");
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);
}
EXPORT int hipMemsetAsync(void* where, int value, size_t bytes, void* stream) {
  use();
  if (value < 0 || value > 255) return refuse(INVALID_VALUE, "memset");
  return cuMemsetD8Async(reinterpret_cast<uint64_t>(where), static_cast<unsigned char>(value), bytes, stream);
}
EXPORT int hipMemcpyDtoDAsync(void* to, void* from, size_t bytes, void* stream) {
  use();
  return cuMemcpyDtoDAsync_v2(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), bytes, stream);
}
EXPORT int hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, int kind,
                            void* stream) {
  ENTER(INVALID_VALUE);
  use();
  if (int status = check_stream(stream)) return status;
  if (!to || !from || kind != 3 || width > to_pitch || width > from_pitch) return refuse(INVALID_VALUE, "copy of rows");
  for (size_t i = 0; i < height; i++)
    std::memcpy(static_cast<char*>(to) + i * to_pitch, static_cast<const char*>(from) + i * from_pitch, width);
  return 0;
}
EXPORT int hipMemGetInfo(size_t* free, size_t* total) { return use(), cuMemGetInfo_v2(free, total); }
EXPORT int hipMemcpyDtoHAsync(void* to, void* from, size_t bytes, void* stream) {
  return use(), cuMemcpyDtoHAsync_v2(to, reinterpret_cast<uint64_t>(from), bytes, stream);
}
EXPORT int hipMemcpyHtoDAsync(void* to, void* from, size_t bytes, void* stream) {
  return use(), cuMemcpyHtoDAsync_v2(reinterpret_cast<uint64_t>(to), from, bytes, stream);
}
EXPORT int hipStreamSynchronize(void* stream) { return use(), cuStreamSynchronize(stream); }
EXPORT const char* hipGetErrorString(int status) {
  const char* text = nullptr;
  return cuGetErrorString(status, &text) ? "unknown error" : text;
}
