// A hand-made XLA: builds a call frame for one handler, with an API that keeps books on streams, scratch and errors.
#include "bind/xla_abi.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

using namespace lapwing::xla;

namespace {

struct Books {
  void* stream;
  int32_t fail_stream, fail_allocate;          // orders
  int32_t streams, allocations, frees, wrong;  // what happened
  int32_t errors_made, errors_destroyed;
  int64_t bytes;
  char message[512];
};
struct Error {
  std::string message;
};

Books* current;
std::map<void*, size_t> alive;

void* make_error(const char* message) {
  std::strncpy(current->message, message, sizeof current->message - 1);
  current->errors_made++;
  return new Error{message};
}

void* error_create(ErrorArgs* args) {
  if (args->size < offsetof(ErrorArgs, code) + sizeof(int) || args->extension || args->code != ERROR_INTERNAL)
    current->wrong++;
  return make_error(args->message);
}

void error_message(ErrorMessageArgs* args) {
  if (args->size != sizeof(ErrorMessageArgs) || args->extension) current->wrong++;
  args->message = static_cast<Error*>(args->error)->message.c_str();
}

void error_destroy(ErrorDestroyArgs* args) {
  if (args->size != sizeof(ErrorDestroyArgs) || args->extension) current->wrong++;
  current->errors_destroyed++;
  delete static_cast<Error*>(args->error);
}

void* stream_get(StreamArgs* args) {
  current->streams++;
  if (args->size != sizeof(StreamArgs) || args->extension || args->context != current) current->wrong++;
  if (current->fail_stream) return make_error("no stream here");
  args->stream = current->stream;
  return nullptr;
}

void* allocate(AllocateArgs* args) {
  if (args->size != sizeof(AllocateArgs) || args->extension || args->context != current) current->wrong++;
  if (args->bytes == 0 || args->alignment == 0 || args->alignment & (args->alignment - 1)) current->wrong++;
  if (current->fail_allocate) return make_error("out of memory");
  // XLA aligns every block, whatever is asked for
  constexpr size_t ALIGNMENT = 256;
  if (args->alignment > ALIGNMENT) current->wrong++;
  size_t rounded = (args->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  args->data = std::aligned_alloc(ALIGNMENT, rounded);
  std::memset(args->data, 0xcd, rounded);  // XLA's memory is not cleared
  alive[args->data] = args->bytes;
  current->allocations++;
  current->bytes += int64_t(args->bytes);
  return nullptr;
}

void* free_memory(FreeArgs* args) {
  auto found = alive.find(args->data);
  if (args->size != sizeof(FreeArgs) || args->extension || args->context != current || found == alive.end() ||
      found->second != args->bytes) {
    current->wrong++;
    return nullptr;
  }
  std::free(args->data);
  alive.erase(found);
  current->frees++;
  return nullptr;
}

using Handler = void* (*)(void*);

// One call: 1 when it answered with an error.
int call_handler(void* handler, Books* books, Buffer* in, Buffer** out, int outputs, const char** names, int64_t* values,
                 int attributes) {
  constexpr int MOST = 8;
  current = books;
  Api api{};
  api.size = sizeof api;
  api.version = {sizeof(Version), nullptr, 0, 1};
  api.error_create = error_create;
  api.error_message = error_message;
  api.error_destroy = error_destroy;
  api.stream_get = stream_get;
  api.allocate = allocate;
  api.free = free_memory;

  int types[MOST], scalar_types[MOST];
  void *inputs[] = {in}, *results[MOST], *scalar_items[MOST];
  Text texts[MOST], *text_items[MOST];
  Scalar scalars[MOST];
  for (int i = 0; i < MOST; i++) types[i] = 1;
  for (int i = 0; i < outputs; i++) results[i] = out[i];
  for (int i = 0; i < attributes; i++) {
    texts[i] = {names[i], std::strlen(names[i])};
    scalars[i] = {DTYPE_S64, &values[i]};
    text_items[i] = &texts[i];
    scalar_items[i] = &scalars[i];
    scalar_types[i] = ATTRIBUTE_SCALAR;
  }
  constexpr int EXECUTE = 3;
  CallFrame call{sizeof(CallFrame), nullptr, &api, books, EXECUTE,
                 {sizeof(Buffers), nullptr, 1, types, inputs},
                 {sizeof(Buffers), nullptr, outputs, types, results},
                 {sizeof(Attributes), nullptr, attributes, scalar_types, text_items, scalar_items}};
  auto* error = static_cast<Error*>(reinterpret_cast<Handler>(handler)(&call));
  delete error;
  return error != nullptr;
}

}  // namespace

extern "C" {

// One execution of the handler on a batch of n x n matrices: a -> factor, info. 1 when it answered with an error.
int execute(void* handler, Books* books, int dtype, int rank, int64_t* dims, int64_t op, int64_t engine, int64_t flags, void* a,
            void* factor, void* info) {
  Buffer in{sizeof(Buffer), nullptr, dtype, a, rank, dims}, out{sizeof(Buffer), nullptr, dtype, factor, rank, dims};
  Buffer status{sizeof(Buffer), nullptr, DTYPE_S32, info, rank - 2, dims};
  Buffer* results[] = {&out, &status};
  const char* names[] = {"engine", "flags", "op"};  // XLA sorts them
  int64_t values[] = {engine, flags, op};
  return call_handler(handler, books, &in, results, 2, names, values, 3);
}

// The same for eigenvalues: a -> w, v, info, without v for EIGVALSH (op 3). `count` -1 is the whole spectrum.
int execute_eigh(void* handler, Books* books, int dtype, int rank, int64_t* dims, int64_t op, int64_t engine, int64_t flags,
                 int64_t first, int64_t count, void* a, void* w, void* v, void* info) {
  constexpr int MOST = 8, EIGVALSH = 3;
  int64_t w_dims[MOST], v_dims[MOST], n = dims[rank - 1], columns = count < 0 ? n : count;
  for (int i = 0; i + 2 < rank; i++) w_dims[i] = v_dims[i] = dims[i];
  w_dims[rank - 2] = v_dims[rank - 1] = columns;
  v_dims[rank - 2] = n;
  int real = dtype == DTYPE_C64 ? DTYPE_F32 : dtype == DTYPE_C128 ? DTYPE_F64 : dtype;
  Buffer in{sizeof(Buffer), nullptr, dtype, a, rank, dims}, values_out{sizeof(Buffer), nullptr, real, w, rank - 1, w_dims};
  Buffer vectors{sizeof(Buffer), nullptr, dtype, v, rank, v_dims}, status{sizeof(Buffer), nullptr, DTYPE_S32, info, rank - 2, dims};
  Buffer* all[] = {&values_out, &vectors, &status};
  Buffer* values_only[] = {&values_out, &status};
  const char* names[] = {"engine", "flags", "op", "size2", "size3"};
  int64_t values[] = {engine, flags, op, first, count};
  return op == EIGVALSH ? call_handler(handler, books, &in, values_only, 2, names, values, 5)
                        : call_handler(handler, books, &in, all, 3, names, values, 5);
}

// What the handler says of itself: major, minor, traits. 1 when it answered with an error.
int describe(void* handler, int* answer) {
  struct {
    Metadata metadata;
    int64_t state_type = 77;  // newer versions end with this; it is not ours to write
  } whole{};
  whole.metadata.size = sizeof whole;
  whole.metadata.version = {sizeof(Version), nullptr, -1, -1};
  whole.metadata.traits = 99;
  MetadataExtension extension{{sizeof(MetadataExtension), EXTENSION_METADATA, nullptr}, &whole.metadata};
  CallFrame call{};
  call.size = sizeof call;
  call.extension = &extension.base;
  void* error = reinterpret_cast<Handler>(handler)(&call);
  answer[0] = whole.metadata.version.major;
  answer[1] = whole.metadata.version.minor;
  answer[2] = int(whole.metadata.traits);
  return error != nullptr || whole.state_type != 77;
}

}
