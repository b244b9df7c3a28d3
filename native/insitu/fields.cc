// Fields, meshes and tensors as arguments of the bridge.
#include <cstring>

#include "context.h"

namespace lapwing::insitu {
namespace {

const size_t MOST_KNOWN = 64;  // fields times buffers that are kept

Object* number(int64_t value) { return py.PyLong_FromLongLong(value); }
Object* number(double value) { return py.PyFloat_FromDouble(value); }

template <class Number>
Ref numbers(const Number* values, int count) {
  Ref tuple(py.PyTuple_New(count));
  for (int i = 0; tuple && i < count; ++i) py.PyTuple_SetItem(tuple.get(), i, number(values[i]));
  return tuple;
}

// (name,) pointer, shape, strides, code, bits, device type, device id, stream, writable
Ref describe(const char* name, const insitu_array& a, int writable) {
  Ref shape = numbers(a.shape, a.ndim);
  Ref strides = a.strides ? numbers(a.strides, a.ndim) : Ref(py.Py_BuildValue(""));
  if (!shape || !strides) return Ref();
  auto data = static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(a.data));
  auto stream = static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(a.device.stream));
  char code[2] = {a.code, 0};
  int type = a.device.device_type, id = a.device.device_id, bits = a.bits;
  Object *s = shape.get(), *t = strides.get();
  if (name) return Ref(py.Py_BuildValue("(sKOOsiiiKi)", name, data, s, t, code, bits, type, id, stream, writable));
  return Ref(py.Py_BuildValue("(KOOsiiiKi)", data, s, t, code, bits, type, id, stream, writable));
}

bool same(const KnownField& known, const char* name, const insitu_array& a, int writable) {
  const insitu_array& b = known.array;
  size_t bytes = sizeof(int64_t) * a.ndim;
  return a.data == b.data && a.ndim == b.ndim && a.code == b.code && a.bits == b.bits && writable == known.writable &&
         a.device.device_type == b.device.device_type && a.device.device_id == b.device.device_id &&
         a.device.stream == b.device.stream && known.name == name && known.has_strides == (a.strides != nullptr) &&
         (bytes == 0 || (std::memcmp(known.shape.data(), a.shape, bytes) == 0 &&
                         (!a.strides || std::memcmp(known.strides.data(), a.strides, bytes) == 0)));
}

// the structs of DLPack 1.x
struct Tensor {
  void* data;
  int32_t device[2], ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct Managed {
  Tensor tensor;
  void* owner;
  void (*deleter)(Managed*);
};
struct Versioned {
  uint32_t version[2];
  void* owner;
  void (*deleter)(Versioned*);
};
const char PLAIN[] = "dltensor", VERSIONED[] = "dltensor_versioned";

// A consumed capsule has another name; then its consumer calls the deleter.
void drop_capsule(Object* capsule) {
  for (const char* name : {VERSIONED, PLAIN})
    if (py.PyCapsule_IsValid(capsule, name)) drop(py.PyCapsule_GetPointer(capsule, name), name == VERSIONED);
}

}  // namespace

Object* arguments_of(insitu_ctx* ctx, const char* name, const insitu_array& array, int writable) {
  for (KnownField& known : ctx->known)
    if (same(known, name, array, writable)) return known.arguments.get();
  Ref arguments = describe(name, array, writable);
  if (!arguments) return nullptr;
  KnownField field{name, array, writable, {}, {}, array.strides != nullptr, std::move(arguments)};
  if (array.ndim) field.shape.assign(array.shape, array.shape + array.ndim);
  if (array.ndim && array.strides) field.strides.assign(array.strides, array.strides + array.ndim);
  if (ctx->known.size() < MOST_KNOWN) {
    ctx->known.push_back(std::move(field));
    return ctx->known.back().arguments.get();
  }
  KnownField& oldest = ctx->known[ctx->next++ % MOST_KNOWN];
  oldest = std::move(field);
  return oldest.arguments.get();
}

std::string problem_with(const char* name, const insitu_array& a) {
  if (!name || !*name) return "a field has no name";
  std::string field = std::string("field \"") + name + "\" ";
  if (a.ndim < 0 || a.ndim > 64) return field + "has " + std::to_string(a.ndim) + " dimensions";
  if (a.ndim && !a.shape) return field + "has no shape";
  return "";
}

Ref mesh_of(const insitu_mesh_info& mesh) {
  Ref spec(py.PyDict_New());
  auto put = [&](const char* key, Ref value) {
    if (spec && value)
      py.PyDict_SetItemString(spec.get(), key, value.get());
    else
      spec = Ref();
  };
  if (mesh.global_shape) put("global_shape", numbers(mesh.global_shape, mesh.ndim));
  if (mesh.offset) put("offset", numbers(mesh.offset, mesh.ndim));
  if (mesh.spacing) put("spacing", numbers(mesh.spacing, mesh.ndim));
  if (mesh.origin) put("origin", numbers(mesh.origin, mesh.ndim));
  if (mesh.weights) put("weights", describe(nullptr, *mesh.weights, 0));
  if (mesh.coordinates) {
    Ref all(py.PyTuple_New(mesh.ndim));
    for (int i = 0; all && i < mesh.ndim; ++i)
      py.PyTuple_SetItem(all.get(), i, describe(nullptr, mesh.coordinates[i], 0).release());
    put("coordinates", std::move(all));
  }
  return spec;
}

void drop(void* tensor, bool versioned) {
  if (versioned) {
    auto* managed = static_cast<Versioned*>(tensor);
    if (managed->deleter) managed->deleter(managed);
  } else {
    auto* managed = static_cast<Managed*>(tensor);
    if (managed->deleter) managed->deleter(managed);
  }
}

Ref capsule_of(void* tensor, bool versioned) {
  return Ref(py.PyCapsule_New(tensor, versioned ? VERSIONED : PLAIN, drop_capsule));
}

}  // namespace lapwing::insitu
