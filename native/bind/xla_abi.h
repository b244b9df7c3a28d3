// The part of XLA's FFI C interface that is the same in every version since 0.1, declared by hand so that one binary serves
// every jaxlib. tests/native/abi/xla.cc checks each offset and value against the installed header.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lapwing::xla {

struct Extension {
  size_t size;
  int type;
  Extension* next;
};
struct Version {
  size_t size;
  Extension* extension;
  int major, minor;
};
struct Metadata {
  size_t size;
  Version version;
  uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};
struct Buffer {
  size_t size;
  Extension* extension;
  int dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};
struct Buffers {
  size_t size;
  Extension* extension;
  int64_t count;
  int* types;
  void** items;
};
struct Text {
  const char* data;
  size_t size;
};
struct Attributes {
  size_t size;
  Extension* extension;
  int64_t count;
  int* types;
  Text** names;
  void** values;
};
struct Scalar {
  int dtype;
  void* value;
};
struct ErrorArgs {
  size_t size;
  Extension* extension;
  const char* message;
  int code;
};
struct ErrorMessageArgs {
  size_t size;
  Extension* extension;
  void* error;
  const char* message;
};
struct ErrorDestroyArgs {
  size_t size;
  Extension* extension;
  void* error;
};
struct StreamArgs {
  size_t size;
  Extension* extension;
  void* context;
  void* stream;
};
struct AllocateArgs {
  size_t size;
  Extension* extension;
  void* context;
  size_t bytes, alignment;
  void* data;
};
struct FreeArgs {
  size_t size;
  Extension* extension;
  void* context;
  size_t bytes;
  void* data;
};
struct Api {
  size_t size;
  Extension* extension;
  Version version;
  void* internal;
  void* (*error_create)(ErrorArgs*);
  void (*error_message)(ErrorMessageArgs*);
  void (*error_destroy)(ErrorDestroyArgs*);
  void* handler_register;
  void* (*stream_get)(StreamArgs*);
  void *type_register, *context_get, *state_set, *state_get;
  void* (*allocate)(AllocateArgs*);
  void* (*free)(FreeArgs*);
};
struct CallFrame {
  size_t size;
  Extension* extension;
  const Api* api;
  void* context;
  int stage;
  Buffers arguments, results;
  Attributes attributes;
};

constexpr int EXTENSION_METADATA = 1;
constexpr int ATTRIBUTE_SCALAR = 3;
constexpr int DTYPE_S32 = 4, DTYPE_S64 = 5, DTYPE_F32 = 11, DTYPE_F64 = 12, DTYPE_C64 = 15, DTYPE_C128 = 18;
constexpr int ERROR_RESOURCE_EXHAUSTED = 8, ERROR_INTERNAL = 13;
constexpr uint32_t TRAIT_GRAPH = 1;
constexpr int VERSION_MAJOR = 0, VERSION_MINOR = 1;

}  // namespace lapwing::xla
