#include "bind/xla.h"

#include <cstring>
#include <string>

#include "frame.h"
#include "bind/shapes.h"
#include "bind/xla_abi.h"

namespace lapwing::xla {
namespace {

int32_t dtype_of(int dtype) {
  switch (dtype) {
    case DTYPE_F32: return F32;
    case DTYPE_F64: return F64;
    case DTYPE_C64: return C64;
    case DTYPE_C128: return C128;
    default: return -1;
  }
}

void* error(const CallFrame* call, const char* message, int code = ERROR_INTERNAL) {
  ErrorArgs args{};
  args.size = offsetof(ErrorArgs, code) + sizeof(int);
  args.message = message;
  args.code = code;
  return call->api->error_create(&args);
}

// Reads and frees an error of XLA's.
std::string take_message(const CallFrame* call, void* failed) {
  ErrorMessageArgs ask{sizeof ask, nullptr, failed, nullptr};
  call->api->error_message(&ask);
  std::string text = ask.message ? ask.message : "";
  ErrorDestroyArgs args{sizeof args, nullptr, failed};
  call->api->error_destroy(&args);
  return text;
}

// Device memory from XLA's allocator, given back when the handler returns.
class DeviceScratch {
 public:
  explicit DeviceScratch(const CallFrame* call) : call_(call) {}
  ~DeviceScratch() {
    while (count_) {
      Block& block = blocks_[--count_];
      FreeArgs args{sizeof args, nullptr, call_->context, block.bytes, block.data};
      if (void* failed = call_->api->free(&args)) take_message(call_, failed);
    }
  }
  static void* get(void* self, size_t bytes) {
    auto* scratch = static_cast<DeviceScratch*>(self);
    // every block is aligned for any use; asking for more than a byte is refused by some versions
    AllocateArgs args{sizeof args, nullptr, scratch->call_->context, bytes, 1, nullptr};
    if (scratch->count_ == MOST) return nullptr;
    if (void* failed = scratch->call_->api->allocate(&args)) {
      scratch->message = take_message(scratch->call_, failed);
      return nullptr;
    }
    scratch->blocks_[scratch->count_++] = {bytes, args.data};
    return args.data;
  }

  std::string message;  // why the last request failed

 private:
  static constexpr int MOST = 8;
  struct Block {
    size_t bytes;
    void* data;
  };
  const CallFrame* call_;
  Block blocks_[MOST];
  int count_ = 0;
};

int64_t attribute(const Attributes& attributes, const char* name, int64_t otherwise) {
  for (int64_t i = 0; i < attributes.count; i++) {
    const Text* text = attributes.names[i];
    if (text->size == std::strlen(name) && std::memcmp(text->data, name, text->size) == 0 &&
        attributes.types[i] == ATTRIBUTE_SCALAR) {
      auto* scalar = static_cast<const Scalar*>(attributes.values[i]);
      if (scalar->dtype == DTYPE_S64) return *static_cast<const int64_t*>(scalar->value);
    }
  }
  return otherwise;
}

void* handle(CallFrame* call, Device device, uint32_t traits) {
  // XLA asks once which version and traits the handler has.
  for (Extension* it = call->extension; it; it = it->next) {
    if (it->type != EXTENSION_METADATA) continue;
    Metadata* metadata = reinterpret_cast<MetadataExtension*>(it)->metadata;
    metadata->version.major = VERSION_MAJOR;
    metadata->version.minor = VERSION_MINOR;
    metadata->traits = traits;
    return nullptr;
  }
  Frame frame;
  const Buffers &in = call->arguments, &out = call->results;
  if (in.count < 1 || in.count + out.count > 8) return error(call, "lapwing: wrong number of buffers");
  for (int64_t i = 0; i < in.count; i++) frame.buffer[i] = static_cast<Buffer*>(in.items[i])->data;
  for (int64_t i = 0; i < out.count; i++) frame.buffer[in.count + i] = static_cast<Buffer*>(out.items[i])->data;
  const auto* a = static_cast<Buffer*>(in.items[0]);
  const auto* last = static_cast<Buffer*>(in.items[in.count - 1]);
  frame.op = int32_t(attribute(call->attributes, "op", -1));
  frame.engine = int32_t(attribute(call->attributes, "engine", AUTO));
  frame.flags = uint32_t(attribute(call->attributes, "flags", 0));
  const int64_t one = attribute(call->attributes, "size2", 0), two = attribute(call->attributes, "size3", -1);
  if (const char* what = set_sizes(frame, a->dims, a->rank, last->dims, last->rank, one, two))
    return error(call, (std::string("lapwing: ") + what).c_str());
  frame.dtype = dtype_of(a->dtype);
  frame.device = device;
  DeviceScratch scratch(call);
  if (device == CUDA) {
    StreamArgs args{sizeof args, nullptr, call->context, nullptr};
    if (void* failed = call->api->stream_get(&args)) return failed;
    frame.stream = args.stream;
    frame.scratch = {&scratch, DeviceScratch::get};
  }
  if (!run(frame)) return nullptr;
  std::string text = frame.error;
  if (!scratch.message.empty()) text += " (XLA: " + scratch.message + ")";
  return error(call, text.c_str(), frame.out_of_memory ? ERROR_RESOURCE_EXHAUSTED : ERROR_INTERNAL);
}

}  // namespace
}  // namespace lapwing::xla

using lapwing::xla::CallFrame;

void* lapwing_xla_cpu(void* call) { return lapwing::xla::handle(static_cast<CallFrame*>(call), lapwing::CPU, 0); }
void* lapwing_xla_cuda(void* call) { return lapwing::xla::handle(static_cast<CallFrame*>(call), lapwing::CUDA, 0); }
void* lapwing_xla_cuda_graph(void* call) {
  return lapwing::xla::handle(static_cast<CallFrame*>(call), lapwing::CUDA, lapwing::xla::TRAIT_GRAPH);
}
