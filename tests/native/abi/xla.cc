// native/bind/xla_abi.h against the header of the installed jaxlib: every member at the same place and of the same kind, every
// number the same. Ours may end earlier than theirs.
#include "bind/xla_abi.h"

#include <cstddef>

#include "same.h"
#include "xla/ffi/api/c_api.h"

using namespace lapwing::xla;

PAIR(Extension, XLA_FFI_Extension_Base);
PAIR(Version, XLA_FFI_Api_Version);
PAIR(Metadata, XLA_FFI_Metadata);
PAIR(MetadataExtension, XLA_FFI_Metadata_Extension);
PAIR(Buffer, XLA_FFI_Buffer);
PAIR(Buffers, XLA_FFI_Args);
PAIR(Buffers, XLA_FFI_Rets);
PAIR(Text, XLA_FFI_ByteSpan);
PAIR(Attributes, XLA_FFI_Attrs);
PAIR(Scalar, XLA_FFI_Scalar);
PAIR(ErrorArgs, XLA_FFI_Error_Create_Args);
PAIR(ErrorMessageArgs, XLA_FFI_Error_GetMessage_Args);
PAIR(ErrorDestroyArgs, XLA_FFI_Error_Destroy_Args);
PAIR(StreamArgs, XLA_FFI_Stream_Get_Args);
PAIR(AllocateArgs, XLA_FFI_DeviceMemory_Allocate_Args);
PAIR(FreeArgs, XLA_FFI_DeviceMemory_Free_Args);
PAIR(Api, XLA_FFI_Api);
PAIR(CallFrame, XLA_FFI_CallFrame);

#define SAME(ours, member, theirs, their_member)                                                              \
  static_assert(Paired<ours, theirs>::value && offsetof(ours, member) == offsetof(theirs, their_member) &&    \
                    sizeof(ours::member) == sizeof(theirs::their_member) &&                                   \
                    Same<decltype(ours::member), decltype(theirs::their_member)>::value,                      \
                #ours "." #member)
// A function we never call is a plain pointer.
#define UNUSED(ours, member, theirs, their_member) \
  static_assert(offsetof(ours, member) == offsetof(theirs, their_member), #ours "." #member)
#define WHOLE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs), #ours)
#define PREFIX(ours, theirs) static_assert(sizeof(ours) <= sizeof(theirs), #ours)
#define VALUE(name, theirs) static_assert(name == theirs, #name)

SAME(Extension, size, XLA_FFI_Extension_Base, struct_size);
SAME(Extension, type, XLA_FFI_Extension_Base, type);
SAME(Extension, next, XLA_FFI_Extension_Base, next);
WHOLE(Extension, XLA_FFI_Extension_Base);

SAME(Version, size, XLA_FFI_Api_Version, struct_size);
SAME(Version, extension, XLA_FFI_Api_Version, extension_start);
SAME(Version, major, XLA_FFI_Api_Version, major_version);
SAME(Version, minor, XLA_FFI_Api_Version, minor_version);
WHOLE(Version, XLA_FFI_Api_Version);

SAME(Metadata, size, XLA_FFI_Metadata, struct_size);
SAME(Metadata, version, XLA_FFI_Metadata, api_version);
SAME(Metadata, traits, XLA_FFI_Metadata, traits);
PREFIX(Metadata, XLA_FFI_Metadata);

SAME(MetadataExtension, base, XLA_FFI_Metadata_Extension, extension_base);
SAME(MetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);
PREFIX(MetadataExtension, XLA_FFI_Metadata_Extension);

SAME(Buffer, size, XLA_FFI_Buffer, struct_size);
SAME(Buffer, extension, XLA_FFI_Buffer, extension_start);
SAME(Buffer, dtype, XLA_FFI_Buffer, dtype);
SAME(Buffer, data, XLA_FFI_Buffer, data);
SAME(Buffer, rank, XLA_FFI_Buffer, rank);
SAME(Buffer, dims, XLA_FFI_Buffer, dims);
PREFIX(Buffer, XLA_FFI_Buffer);

SAME(Buffers, size, XLA_FFI_Args, struct_size);
SAME(Buffers, extension, XLA_FFI_Args, extension_start);
SAME(Buffers, count, XLA_FFI_Args, size);
SAME(Buffers, types, XLA_FFI_Args, types);
SAME(Buffers, items, XLA_FFI_Args, args);
WHOLE(Buffers, XLA_FFI_Args);
SAME(Buffers, size, XLA_FFI_Rets, struct_size);
SAME(Buffers, extension, XLA_FFI_Rets, extension_start);
SAME(Buffers, count, XLA_FFI_Rets, size);
SAME(Buffers, types, XLA_FFI_Rets, types);
SAME(Buffers, items, XLA_FFI_Rets, rets);
WHOLE(Buffers, XLA_FFI_Rets);

SAME(Text, data, XLA_FFI_ByteSpan, ptr);
SAME(Text, size, XLA_FFI_ByteSpan, len);
WHOLE(Text, XLA_FFI_ByteSpan);

SAME(Attributes, size, XLA_FFI_Attrs, struct_size);
SAME(Attributes, extension, XLA_FFI_Attrs, extension_start);
SAME(Attributes, count, XLA_FFI_Attrs, size);
SAME(Attributes, types, XLA_FFI_Attrs, types);
SAME(Attributes, names, XLA_FFI_Attrs, names);
SAME(Attributes, values, XLA_FFI_Attrs, attrs);
WHOLE(Attributes, XLA_FFI_Attrs);

SAME(Scalar, dtype, XLA_FFI_Scalar, dtype);
SAME(Scalar, value, XLA_FFI_Scalar, value);
WHOLE(Scalar, XLA_FFI_Scalar);

// Structures we fill in: XLA compares their `size` with its own.
SAME(ErrorArgs, size, XLA_FFI_Error_Create_Args, struct_size);
SAME(ErrorArgs, extension, XLA_FFI_Error_Create_Args, extension_start);
SAME(ErrorArgs, message, XLA_FFI_Error_Create_Args, message);
SAME(ErrorArgs, code, XLA_FFI_Error_Create_Args, errc);
WHOLE(ErrorArgs, XLA_FFI_Error_Create_Args);

SAME(ErrorMessageArgs, size, XLA_FFI_Error_GetMessage_Args, struct_size);
SAME(ErrorMessageArgs, extension, XLA_FFI_Error_GetMessage_Args, extension_start);
SAME(ErrorMessageArgs, error, XLA_FFI_Error_GetMessage_Args, error);
SAME(ErrorMessageArgs, message, XLA_FFI_Error_GetMessage_Args, message);
WHOLE(ErrorMessageArgs, XLA_FFI_Error_GetMessage_Args);

SAME(ErrorDestroyArgs, size, XLA_FFI_Error_Destroy_Args, struct_size);
SAME(ErrorDestroyArgs, extension, XLA_FFI_Error_Destroy_Args, extension_start);
SAME(ErrorDestroyArgs, error, XLA_FFI_Error_Destroy_Args, error);
WHOLE(ErrorDestroyArgs, XLA_FFI_Error_Destroy_Args);

SAME(StreamArgs, size, XLA_FFI_Stream_Get_Args, struct_size);
SAME(StreamArgs, extension, XLA_FFI_Stream_Get_Args, extension_start);
SAME(StreamArgs, context, XLA_FFI_Stream_Get_Args, ctx);
SAME(StreamArgs, stream, XLA_FFI_Stream_Get_Args, stream);
WHOLE(StreamArgs, XLA_FFI_Stream_Get_Args);

SAME(AllocateArgs, size, XLA_FFI_DeviceMemory_Allocate_Args, struct_size);
SAME(AllocateArgs, extension, XLA_FFI_DeviceMemory_Allocate_Args, extension_start);
SAME(AllocateArgs, context, XLA_FFI_DeviceMemory_Allocate_Args, ctx);
SAME(AllocateArgs, bytes, XLA_FFI_DeviceMemory_Allocate_Args, size);
SAME(AllocateArgs, alignment, XLA_FFI_DeviceMemory_Allocate_Args, alignment);
SAME(AllocateArgs, data, XLA_FFI_DeviceMemory_Allocate_Args, data);
WHOLE(AllocateArgs, XLA_FFI_DeviceMemory_Allocate_Args);

SAME(FreeArgs, size, XLA_FFI_DeviceMemory_Free_Args, struct_size);
SAME(FreeArgs, extension, XLA_FFI_DeviceMemory_Free_Args, extension_start);
SAME(FreeArgs, context, XLA_FFI_DeviceMemory_Free_Args, ctx);
SAME(FreeArgs, bytes, XLA_FFI_DeviceMemory_Free_Args, size);
SAME(FreeArgs, data, XLA_FFI_DeviceMemory_Free_Args, data);
WHOLE(FreeArgs, XLA_FFI_DeviceMemory_Free_Args);

SAME(Api, size, XLA_FFI_Api, struct_size);
SAME(Api, extension, XLA_FFI_Api, extension_start);
SAME(Api, version, XLA_FFI_Api, api_version);
SAME(Api, internal, XLA_FFI_Api, internal_api);
SAME(Api, error_create, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME(Api, error_message, XLA_FFI_Api, XLA_FFI_Error_GetMessage);
SAME(Api, error_destroy, XLA_FFI_Api, XLA_FFI_Error_Destroy);
UNUSED(Api, handler_register, XLA_FFI_Api, XLA_FFI_Handler_Register);
SAME(Api, stream_get, XLA_FFI_Api, XLA_FFI_Stream_Get);
UNUSED(Api, type_register, XLA_FFI_Api, XLA_FFI_Type_Register);
UNUSED(Api, context_get, XLA_FFI_Api, XLA_FFI_ExecutionContext_Get);
UNUSED(Api, state_set, XLA_FFI_Api, XLA_FFI_State_Set);
UNUSED(Api, state_get, XLA_FFI_Api, XLA_FFI_State_Get);
SAME(Api, allocate, XLA_FFI_Api, XLA_FFI_DeviceMemory_Allocate);
SAME(Api, free, XLA_FFI_Api, XLA_FFI_DeviceMemory_Free);
PREFIX(Api, XLA_FFI_Api);

SAME(CallFrame, size, XLA_FFI_CallFrame, struct_size);
SAME(CallFrame, extension, XLA_FFI_CallFrame, extension_start);
SAME(CallFrame, api, XLA_FFI_CallFrame, api);
SAME(CallFrame, context, XLA_FFI_CallFrame, ctx);
SAME(CallFrame, stage, XLA_FFI_CallFrame, stage);
SAME(CallFrame, arguments, XLA_FFI_CallFrame, args);
SAME(CallFrame, results, XLA_FFI_CallFrame, rets);
SAME(CallFrame, attributes, XLA_FFI_CallFrame, attrs);
PREFIX(CallFrame, XLA_FFI_CallFrame);

VALUE(EXTENSION_METADATA, XLA_FFI_Extension_Metadata);
VALUE(ATTRIBUTE_SCALAR, XLA_FFI_AttrType_SCALAR);
VALUE(DTYPE_S32, XLA_FFI_DataType_S32);
VALUE(DTYPE_S64, XLA_FFI_DataType_S64);
VALUE(DTYPE_F32, XLA_FFI_DataType_F32);
VALUE(DTYPE_F64, XLA_FFI_DataType_F64);
VALUE(DTYPE_C64, XLA_FFI_DataType_C64);
VALUE(DTYPE_C128, XLA_FFI_DataType_C128);
VALUE(ERROR_INTERNAL, XLA_FFI_Error_Code_INTERNAL);
VALUE(ERROR_RESOURCE_EXHAUSTED, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
VALUE(TRAIT_GRAPH, XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
VALUE(VERSION_MAJOR, XLA_FFI_API_MAJOR);
static_assert(VERSION_MINOR <= XLA_FFI_API_MINOR, "the installed jaxlib is older than the interface we declare");
