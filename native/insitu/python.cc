#include "python.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "choose.h"

namespace lapwing::insitu {

Python py;

namespace {

std::mutex mutex;
bool attached = false, started = false;
std::atomic<bool> ended{false};
std::string broken;  // why the start failed: a failed start cannot be repeated

std::string find_symbols(void* handle) {
#define LAPWING_FIND(name, result, arguments)                                   \
  py.name = reinterpret_cast<result(*) arguments>(dlsym(handle, #name));        \
  if (!py.name) return "this Python has no " #name;
  LAPWING_PYTHON(LAPWING_FIND)
#undef LAPWING_FIND
  return "";
}

std::string version() {
  std::string full = py.Py_GetVersion();  // "3.11.2 (main, ..."
  return full.substr(0, full.find('.', full.find('.') + 1));
}

bool too_old() {
  int major = 0, minor = 0;
  std::sscanf(py.Py_GetVersion(), "%d.%d", &major, &minor);
  return major != 3 || minor < 11;
}

int note_library(dl_phdr_info* info, size_t, void* path) {
  const char* name = std::strrchr(info->dlpi_name, '/');
  name = name ? name + 1 : info->dlpi_name;
  // libpython3.so only forwards to the real one
  if (std::strncmp(name, "libpython3.", 11) != 0 || std::strncmp(name, "libpython3.so", 13) == 0) return 0;
  *static_cast<std::string*>(path) = info->dlpi_name;
  return 1;
}

// Finds a Python that the process has already loaded: the program's own, or one that a plug-in has loaded privately. The
// symbols of a private one are made global, because extension modules do not link libpython and look for them there.
bool loaded(void** handle) {
  *handle = RTLD_DEFAULT;  // which is NULL
  if (dlsym(RTLD_DEFAULT, "Py_IsInitialized")) return true;
  std::string path;
  dl_iterate_phdr(note_library, &path);
  *handle = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
  return *handle;
}

std::string failure(const Status& status) {
  std::string message = status.message ? status.message : "unknown reason";
  return "Python does not start: " + message + (status.function ? std::string(" (") + status.function + ")" : "");
}

// UTF-8 for every locale: then Python changes neither the locale of the process nor LC_CTYPE in its environment.
std::string prepare() {
  alignas(16) int config[64] = {};
  enum { PARSE_ARGV = 1, ISOLATED, USE_ENVIRONMENT, CONFIGURE_LOCALE, COERCE, COERCE_WARN, UTF8_MODE };
  py.PyPreConfig_InitPythonConfig(config);
  // PyPreConfig has had these members since 3.8; if they have other values, Python uses its defaults.
  if (config[PARSE_ARGV] != 1 || config[ISOLATED] != 0 || config[USE_ENVIRONMENT] != 1 || config[CONFIGURE_LOCALE] != 1 ||
      config[COERCE] != -1 || config[COERCE_WARN] != -1 || config[UTF8_MODE] != -1)
    return "";
  config[CONFIGURE_LOCALE] = config[COERCE] = config[COERCE_WARN] = 0;
  config[UTF8_MODE] = 1;
  Status status = py.Py_PreInitialize(config);
  return py.PyStatus_Exception(status) ? failure(status) : "";
}

// Python finds its virtual environment from the program's name in the argument vector, so no member of PyConfig is needed whose
// offset differs between versions. Py_Initialize would end the process on failure; this function returns.
std::string start(const std::string& program) {
  std::string problem = prepare();
  if (!problem.empty()) return problem;
  alignas(16) unsigned char config[8192] = {};  // PyConfig: 424 bytes in 3.11, 448 in 3.13
  py.PyConfig_InitPythonConfig(config);
  enum { ISOLATED = 1, USE_ENVIRONMENT, DEV_MODE, SIGNAL_HANDLERS };
  int* head = reinterpret_cast<int*>(config);
  // The head of PyConfig has not changed since 3.8. If it does, the caller's guard still restores the handlers.
  if (head[ISOLATED] == 0 && head[USE_ENVIRONMENT] == 1 && head[SIGNAL_HANDLERS] == 1) head[SIGNAL_HANDLERS] = 0;
  char* arguments[] = {const_cast<char*>(program.c_str()), nullptr};
  Status status = py.PyConfig_SetBytesArgv(config, 1, arguments);
  if (!py.PyStatus_Exception(status)) status = py.Py_InitializeFromConfig(config);
  bool failed = py.PyStatus_Exception(status);
  if (failed) problem = failure(status);
  py.PyConfig_Clear(config);
  if (!failed) py.PyEval_SaveThread();
  return problem;
}

std::string attach_once() {
  if (!broken.empty()) return broken;
  void* handle;
  bool present = loaded(&handle);
  if (present) {
    std::string problem = find_symbols(handle);
    if (problem.empty() && too_old()) problem = "the Python in this process is " + version();
    if (!problem.empty()) return problem + ", and 3.11 or later is needed";
    if (py.Py_IsInitialized()) return "";
  }
  Interpreter chosen;
  std::string problem = choose(&chosen);
  if (!problem.empty()) return problem;
  if (!present) {
    handle = dlopen(chosen.library.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!handle) return std::string("cannot load libpython: ") + dlerror();
    problem = find_symbols(handle);
    if (!problem.empty()) return problem;
  }
  if (version() != chosen.version)
    return "the program has libpython " + version() + " loaded, but " + chosen.program + " is Python " + chosen.version +
           "\nhint: set LAPWING_INSITU_PYTHON to an interpreter of version " + version();
  broken = start(chosen.program);
  started = broken.empty();
  return broken;
}

}  // namespace

std::string attach() {
  std::lock_guard<std::mutex> hold(mutex);
  if (attached) return alive() ? "" : "Python has ended in this process";
  std::string problem = attach_once();
  attached = problem.empty();
  return problem;
}

bool alive() { return !ended.load() && py.Py_IsInitialized && py.Py_IsInitialized(); }

bool started_here() { return started; }

void end() { ended.store(true); }

std::string text(Object* string) {
  Ref bytes(py.PyUnicode_AsEncodedString(string, "utf-8", "backslashreplace"));
  const char* characters = bytes ? py.PyBytes_AsString(bytes.get()) : nullptr;
  if (characters) return characters;
  py.PyErr_Clear();
  return "";
}

std::string take_error() {
  Object *type = nullptr, *value = nullptr, *trace = nullptr;
  py.PyErr_Fetch(&type, &value, &trace);
  if (!type) return "unknown Python error";
  py.PyErr_NormalizeException(&type, &value, &trace);
  Ref own_type(type), own_value(value), own_trace(trace);
  Ref traceback(py.PyImport_ImportModule("traceback"));
  Ref format(traceback ? py.PyObject_GetAttrString(traceback.get(), "format_exception") : nullptr);
  // a missing traceback or value is passed as None
  Ref arguments(format ? py.Py_BuildValue(value && trace ? "(OOO)" : value ? "(OOz)" : "(zzz)", type, value, trace) : nullptr);
  Ref lines(arguments ? py.PyObject_CallObject(format.get(), arguments.get()) : nullptr);
  Ref empty(py.Py_BuildValue("s", ""));
  Ref join(empty && lines ? py.PyObject_GetAttrString(empty.get(), "join") : nullptr);
  Ref packed(join ? py.Py_BuildValue("(O)", lines.get()) : nullptr);
  Ref joined(packed ? py.PyObject_CallObject(join.get(), packed.get()) : nullptr);
  std::string message = joined ? text(joined.get()) : "";
  py.PyErr_Clear();
  return message.empty() ? "unknown Python error" : message;
}

void call_quietly(const char* module, const char* name) {
  Ref owner(py.PyImport_ImportModule(module));
  Ref function(owner ? py.PyObject_GetAttrString(owner.get(), name) : nullptr);
  Ref result(function ? py.PyObject_CallObject(function.get(), nullptr) : nullptr);
  py.PyErr_Clear();
}

}  // namespace lapwing::insitu
