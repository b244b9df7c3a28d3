// The running Python, found in the process or started. No header or library of Python is needed.
#pragma once

#include <string>

namespace lapwing::insitu {

struct Object;  // PyObject; only its address is used
struct Status {  // PyStatus, unchanged since 3.8
  int type;
  const char* function;
  const char* message;
  int exit_code;
};

// name, result, arguments: all belong to the stable ABI, except those that start the interpreter (3.8 and later).
#define LAPWING_PYTHON(SYMBOL)                                                \
  SYMBOL(Py_IsInitialized, int, ())                                           \
  SYMBOL(Py_GetVersion, const char*, ())                                      \
  SYMBOL(PyPreConfig_InitPythonConfig, void, (void*))                         \
  SYMBOL(Py_PreInitialize, Status, (const void*))                             \
  SYMBOL(PyConfig_InitPythonConfig, void, (void*))                            \
  SYMBOL(PyConfig_SetBytesArgv, Status, (void*, ssize_t, char* const*))       \
  SYMBOL(PyConfig_Clear, void, (void*))                                       \
  SYMBOL(Py_InitializeFromConfig, Status, (const void*))                      \
  SYMBOL(PyStatus_Exception, int, (Status))                                   \
  SYMBOL(PyEval_SaveThread, void*, ())                                        \
  SYMBOL(PyEval_RestoreThread, void, (void*))                                 \
  SYMBOL(PyGILState_Ensure, int, ())                                          \
  SYMBOL(PyGILState_Release, void, (int))                                     \
  SYMBOL(Py_IncRef, void, (Object*))                                          \
  SYMBOL(Py_DecRef, void, (Object*))                                          \
  SYMBOL(Py_BuildValue, Object*, (const char*, ...))                          \
  SYMBOL(PyImport_ImportModule, Object*, (const char*))                       \
  SYMBOL(PyObject_GetAttrString, Object*, (Object*, const char*))             \
  SYMBOL(PyObject_CallObject, Object*, (Object*, Object*))                    \
  SYMBOL(PyTuple_New, Object*, (ssize_t))                                     \
  SYMBOL(PyTuple_SetItem, int, (Object*, ssize_t, Object*))                   \
  SYMBOL(PyDict_New, Object*, ())                                             \
  SYMBOL(PyDict_SetItemString, int, (Object*, const char*, Object*))          \
  SYMBOL(PyLong_FromLongLong, Object*, (long long))                           \
  SYMBOL(PyLong_AsLong, long, (Object*))                                      \
  SYMBOL(PyFloat_FromDouble, Object*, (double))                               \
  SYMBOL(PyUnicode_DecodeFSDefault, Object*, (const char*))                   \
  SYMBOL(PyUnicode_AsEncodedString, Object*, (Object*, const char*, const char*)) \
  SYMBOL(PyBytes_AsString, char*, (Object*))                                  \
  SYMBOL(PyCapsule_New, Object*, (void*, const char*, void (*)(Object*)))     \
  SYMBOL(PyCapsule_IsValid, int, (Object*, const char*))                      \
  SYMBOL(PyCapsule_GetPointer, void*, (Object*, const char*))                 \
  SYMBOL(PyErr_Fetch, void, (Object**, Object**, Object**))                   \
  SYMBOL(PyErr_NormalizeException, void, (Object**, Object**, Object**))      \
  SYMBOL(PyErr_Occurred, Object*, ())                                         \
  SYMBOL(PyErr_Clear, void, ())

struct Python {
#define LAPWING_MEMBER(name, result, arguments) result(*name) arguments;
  LAPWING_PYTHON(LAPWING_MEMBER)
#undef LAPWING_MEMBER
};

// Valid after attach() has succeeded.
extern Python py;

// Finds the running interpreter or starts one; afterwards no thread holds its lock. Returns "", or why it failed.
std::string attach();
// False once the interpreter has ended: then no function of it may be called.
bool alive();
// True if attach() has started it: then this library must also end it with the process.
bool started_here();
// Marks the interpreter as ended.
void end();

// Holds the interpreter's lock during its lifetime.
class Lock {
 public:
  Lock() : state_(py.PyGILState_Ensure()) {}
  ~Lock() { py.PyGILState_Release(state_); }
  Lock(const Lock&) = delete;

 private:
  int state_;
};

// Owns one reference.
class Ref {
 public:
  explicit Ref(Object* object = nullptr) : object_(object) {}
  Ref(Ref&& other) noexcept : object_(other.release()) {}
  Ref& operator=(Ref&& other) noexcept {
    Object* old = object_;
    object_ = other.release();
    if (old) py.Py_DecRef(old);
    return *this;
  }
  ~Ref() {
    if (object_) py.Py_DecRef(object_);
  }
  Object* get() const { return object_; }
  Object* release() {
    Object* object = object_;
    object_ = nullptr;
    return object;
  }
  explicit operator bool() const { return object_; }

 private:
  Object* object_;
};

// The current Python error as text with its traceback; the error is cleared.
std::string take_error();
std::string text(Object* string);
// Calls module.name() and ignores errors.
void call_quietly(const char* module, const char* name);

}  // namespace lapwing::insitu
