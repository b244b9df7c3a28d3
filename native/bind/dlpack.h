// DLPack's exchange table (version 1.3 and later): a library's own functions that describe its tensors without a call of Python.
#pragma once
#include <cstdint>

namespace lapwing::dlpack {

enum : int32_t { ON_CPU = 1 };
enum : uint8_t { FLOAT = 2, COMPLEX = 5 };

struct Tensor {
  void* data;
  struct { int32_t kind, number; } device;
  int32_t axes;
  struct { uint8_t code, bits; uint16_t lanes; } dtype;
  const int64_t* shape;
  const int64_t* strides;  // in elements
  uint64_t byte_offset;
};

struct Exchange {
  struct { uint32_t major, minor; } version;
  const void* older;
  void (*allocate)();
  void (*own)();
  void (*give)();
  int (*describe)(void* object, Tensor* out);  // valid until the object changes; -1 with a Python exception
  void (*stream)();
};

}  // namespace lapwing::dlpack
