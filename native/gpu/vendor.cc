#include "gpu/vendor.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpu/hip.h"

namespace lapwing::vendor {
namespace {

std::mutex mutex;
// Each vendor's rows, and which of its libraries were found. The driver that starts first decides which of them table() gives.
struct Column {
  Table symbols;
  bool found[N_LIBRARIES] = {};
};
Column nvidia, amd;
std::atomic<Column*> column{&nvidia};
std::string paths_first, paths_last, paths_of_copies, amd_first, amd_last;
std::vector<SolverCopy> copies;  // what the search for the newest solver saw
thread_local bool pretending = false;
thread_local unsigned pretended_shared = 0;

template <class Result, class... Arguments>
void do_nothing(Result (*&call)(Arguments...)) {
  call = [](Arguments...) { return Result(0); };
}

int give_handle(void** handle) {
  static char any;
  *handle = &any;
  return 0;
}

// Functions that only succeed; where a result is used before it is checked, it is a harmless one.
Table make_pretended() {
  Table made;
#define LAPWING_NOTHING(of, name, symbol, result, arguments) do_nothing(made.name);
  LAPWING_VENDOR(LAPWING_NOTHING)
#undef LAPWING_NOTHING
  made.context_current = made.solver_create = made.solver_params = made.newest_create =
      made.newest_params = made.blas_create = give_handle;
  made.stream_context = [](void*, void** context) { return give_handle(context); };
  made.copy_to_host = [](void* to, uint64_t, size_t bytes, void*) {
    std::memset(to, 0, bytes);
    return 0;
  };
  made.launch = [](void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, void*, void**, void**) {
    pretended_shared = std::max(pretended_shared, shared);
    return 0;
  };
  made.launch_together = [](void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, void*, void**) {
    pretended_shared = std::max(pretended_shared, shared);
    return 0;
  };
  made.memory_info = [](size_t* free, size_t* total) {
    *free = *total = size_t(1) << 36;
    return 0;
  };
  return made;
}

const std::vector<const char*> NAMES[N_LIBRARIES] = {
    {"libcuda.so.1"},
    {"libcusolver.so.12", "libcusolver.so.11"},
    {"libcusolver.so.12", "libcusolver.so.11"},
    {"libcusolver.so.12", "libcusolver.so.11"},
    {"libcusolver.so.12", "libcusolver.so.11"},
    {"libcusolver.so.12", "libcusolver.so.11"},
    {"libcublas.so.13", "libcublas.so.12"},
    {"libcublas.so.13", "libcublas.so.12"},
    {"libnvrtc.so.13", "libnvrtc.so.12"},
};

std::vector<std::string> split(const std::string& folders) {
  std::vector<std::string> parts;
  for (size_t start = 0, end; start < folders.size(); start = end + 1) {
    end = std::min(folders.find(':', start), folders.size());
    if (end > start) parts.push_back(folders.substr(start, end - start));
  }
  return parts;
}

void* open_in(const std::string& folders, Library library) {
  for (const std::string& folder : split(folders))
    for (const char* name : NAMES[library])
      if (void* handle = dlopen((folder + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  return nullptr;
}

void* open(Library library) {
  if (void* handle = open_in(paths_first, library)) return handle;
  // A framework may have loaded it already: share that copy.
  for (const char* name : NAMES[library])
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return handle;
  for (const char* name : NAMES[library])
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return handle;
  return open_in(paths_last, library);
}

// "libcusolver.so.12" -> "libcusolver": another version of it may be the one that was opened.
std::string library_of(const char* name) { return std::string(name).substr(0, std::string(name).find('.')); }

// ---- the newest solver -----------------------------------------------------------------------------------------------------

// The first version that was measured: spectra in two stages, 1.3 to 4.5 times as fast as 12.0.4 from n = 8192 on.
constexpr int FIRST_NEWEST = 12305;

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version / 100 % 10) + "." + std::to_string(version % 100);
}

std::string real_path(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  const std::string text = real ? real : path;
  std::free(real);
  return text;
}

std::string path_of(void* symbol) {
  Dl_info info{};
  return dladdr(symbol, &info) && info.dli_fname ? real_path(info.dli_fname) : "";
}

// Opens a copy by its absolute path, which leaves copies of the same name in this process alone. nullptr: see its problem.
void* open_copy(SolverCopy& copy) {
  void* handle = dlopen(copy.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* text = dlerror();
    copy.problem = std::string("it cannot be loaded: ") + (text ? text : "no reason is known");
    return nullptr;
  }
  auto* version = reinterpret_cast<int (*)(int*)>(dlsym(handle, "cusolverGetVersion"));
  if (!version || version(&copy.version) || !dlsym(handle, "cusolverDnSetAdvOptions") || !dlsym(handle, "cusolverDnXsyevd")) {
    copy.problem = "it lacks functions that are needed";
    dlclose(handle);
    return nullptr;
  }
  return handle;
}

// The newest copy that loads and was measured to be faster, which may be the ordinary one; the rest of `copies` says why not.
void* open_newest() {
  copies.clear();
  SolverCopy ordinary{path_of(reinterpret_cast<void*>(nvidia.symbols.solver_create)), 0, "", true};
  nvidia.symbols.solver_version(&ordinary.version);
  copies.push_back(ordinary);
  for (const std::string* folders : {&paths_first, &paths_of_copies, &paths_last})
    for (const std::string& folder : split(*folders))
      for (const char* name : NAMES[newest_solver]) {
        const std::string path = folder + "/" + name;
        if (access(path.c_str(), R_OK)) continue;
        const auto same = [&](const SolverCopy& copy) { return copy.path == real_path(path); };
        if (std::none_of(copies.begin(), copies.end(), same)) copies.push_back({real_path(path), 0, "", false});
      }
  void* best = nullptr;
  SolverCopy* used = nullptr;
  for (SolverCopy& copy : copies) {
    void* handle = open_copy(copy);
    if (!handle) continue;
    if (copy.version < FIRST_NEWEST)
      copy.problem = "it is older than " + version_text(FIRST_NEWEST) + ", from which on spectra are faster";
    else if (used && copy.version <= used->version)
      copy.problem = "another copy is as new";
    if (!copy.problem.empty()) {
      dlclose(handle);
      continue;
    }
    if (used) {
      used->problem = "another copy is newer";
      dlclose(best);
    }
    used = &copy, best = handle;
  }
  return best;
}

// "" when the driver starts and sees a GPU.
std::string start(const Table& symbols, const char* maker) {
  int count = 0;
  if (symbols.init(0) || symbols.device_count(&count)) return std::string("the ") + maker + " driver does not start";
  return count ? "" : std::string("the ") + maker + " driver sees no GPU";
}

std::string load_nvidia(Library library) {
  void* handle = library == newest_solver ? (nvidia.found[solver] ? open_newest() : nullptr) : open(library);
  if (!handle && library == newest_solver) return "there is no copy of cuSOLVER " + version_text(FIRST_NEWEST) + " or newer";
  if (!handle) return std::string(NAMES[library][0]) + " was not found";
#define LAPWING_FIND(of, name, symbol, result, arguments)                               \
  if (of == library) {                                                                  \
    nvidia.symbols.name = reinterpret_cast<result(*) arguments>(dlsym(handle, symbol)); \
    if (!nvidia.symbols.name) return library_of(NAMES[library][0]) + " has no " + symbol;  \
  }
  LAPWING_VENDOR(LAPWING_FIND)
#undef LAPWING_FIND
  return library == driver ? start(nvidia.symbols, "NVIDIA") : "";
}

// ---- AMD's libraries -------------------------------------------------------------------------------------------------

// Names without their versions: several are in use, and frameworks bring copies with names of their own.
const char* amd_name(Library library) {
  switch (library) {
    case driver: return "libamdhip64";
    case compiler: return "libhiprtc";
    case blas: case dense_blas: return "librocblas";
    default: return "librocsolver";
  }
}

// The path of a library in this process whose file name begins with `name`, "" where there is none.
std::string loaded_path(const char* name) {
  struct Search {
    std::string start, path;
  } search{name, ""};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* s = static_cast<Search*>(data);
        const std::string path = info->dlpi_name ? info->dlpi_name : "";
        const std::string file = path.substr(path.rfind('/') + 1);
        const char next = file.size() > s->start.size() ? file[s->start.size()] : 0;
        // a name of its own may follow a dash; libhiprtc-builtins is another library
        const bool same = next == '.' || (next == '-' && file.find("-builtins") == std::string::npos);
        if (file.compare(0, s->start.size(), s->start) == 0 && same) s->path = path;
        return int(!s->path.empty());
      },
      &search);
  return search.path;
}

void* open_amd_in(const std::string& folders, const char* name) {
  for (const std::string& folder : split(folders))
    for (const char* version : {".so.7", ".so.6", ".so.5", ".so.4", ".so.0", ".so"})
      if (void* handle = dlopen((folder + (folder.empty() ? "" : "/") + name + version).c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  return nullptr;
}

// The copy that this process has, else one beside the driver, for all of them must fit together, else what is installed.
void* open_amd(Library library) {
  const char* name = amd_name(library);
  if (void* handle = open_amd_in(amd_first, name)) return handle;
  const std::string path = loaded_path(name), driver_path = library == driver ? "" : loaded_path(amd_name(driver));
  if (!path.empty())
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD)) return handle;
  if (!driver_path.empty())
    if (void* handle = open_amd_in(driver_path.substr(0, driver_path.rfind('/')), name)) return handle;
  for (const char* version : {".so.7", ".so.6", ".so.5", ".so.4", ".so.0", ".so"})
    if (void* handle = dlopen((std::string(name) + version).c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  if (void* handle = open_amd_in(amd_last, name)) return handle;
  // older drivers hold the compiler themselves
  return library == compiler ? open_amd(driver) : nullptr;
}

std::string load_amd(Library library) {
  if (library == newest_solver) return "AMD's solver has one copy for all routines";
  if (library == eig_solver) return "rocSOLVER has no eigenvalues of general matrices";
  // rocSOLVER's handles and workspaces are rocBLAS's
  if ((library == solver || library == many_solver || library == dense_solver) && !amd.found[blas]) {
    const std::string reason = load_amd(blas);
    if (!reason.empty()) return reason;
    amd.found[blas] = true;
  }
  void* handle = open_amd(library);
  if (!handle) return std::string(amd_name(library)) + ".so was not found";
  const std::string reason = hip::fill(library, handle, &amd.symbols);
  if (!reason.empty()) return std::string(amd_name(library)) + ": " + reason;
  return library == driver ? start(amd.symbols, "AMD") : "";
}

// ---- which vendor ----------------------------------------------------------------------------------------------------

bool exists(const char* path) { return access(path, F_OK) == 0; }

// AMD's driver is not opened on a machine without one of its GPUs, unless this process has it or the user names its folder.
bool may_be_amd() {
  return !amd_first.empty() || !loaded_path(amd_name(driver)).empty() || exists("/dev/kfd") || exists("/dev/dxg");
}

// What this process has loaded decides, then what is installed.
std::string load_driver() {
  const bool nvidia_loaded = !loaded_path("libcuda").empty(), amd_loaded = !loaded_path(amd_name(driver)).empty();
  const bool amd_first_asked = ((amd_loaded && !nvidia_loaded) || !amd_first.empty()) && paths_first.empty();
  std::string reasons[2];
  for (const bool is_amd : {amd_first_asked, !amd_first_asked}) {
    if (is_amd && !may_be_amd()) continue;
    reasons[is_amd] = is_amd ? load_amd(driver) : load_nvidia(driver);
    if (!reasons[is_amd].empty()) continue;
    column = is_amd ? &amd : &nvidia;
    return "";
  }
  // a driver that was found and does not work says more than one that is absent
  const bool absent[] = {reasons[0].find("was not found") != std::string::npos, reasons[1].find("was not found") != std::string::npos};
  if (absent[0] && absent[1]) return "neither libcuda.so.1 nor libamdhip64.so was found";
  return absent[0] && !reasons[1].empty() ? reasons[1] : reasons[0];
}

std::string load(Library library) {
  if (library == driver) return load_driver();
  if (!nvidia.found[driver] && !amd.found[driver] && may_be_amd())  // whose library it is, the driver decides
    column.load()->found[driver] = load_driver().empty();
  return column == &amd ? load_amd(library) : load_nvidia(library);
}

}  // namespace

bool is_amd() { return column == &amd; }

const char* missing(Library library) {
  if (pretending) return library == newest_solver ? "it is not asked for" : nullptr;
  if (library == newest_solver)
    if (const char* reason = missing(solver)) return reason;
  std::lock_guard<std::mutex> hold(mutex);
  if (column.load()->found[library]) return nullptr;
  // the folders are searched once: opening copies takes time
  if (library == newest_solver && !copies.empty()) return "there is no newer copy of cuSOLVER";
  static bool old_solver = false;  // what a library that is there lacks, it will lack tomorrow
  if (library == many_solver && old_solver) return "this solver library cannot take several matrices together";
  // Asked again after a failure it looks again: a framework may have loaded the library since.
  static thread_local std::string reason;
  reason = load(library);
  Column& now = *column;
  old_solver = old_solver || (library == many_solver && !reason.empty() && now.found[solver]);
  now.found[library] = reason.empty();
  return now.found[library] ? nullptr : reason.c_str();
}

const Table& table() {
  if (!pretending) return column.load(std::memory_order_relaxed)->symbols;
  static const Table pretended = make_pretended();
  return pretended;
}

const Table* compiler_for(const std::string& architecture, std::string* reason) {
  Column& of = architecture.compare(0, 3, "gfx") == 0 ? amd : nvidia;
  std::lock_guard<std::mutex> hold(mutex);
  if (!of.found[compiler]) *reason = &of == &amd ? load_amd(compiler) : load_nvidia(compiler);
  of.found[compiler] = of.found[compiler] || reason->empty();
  return of.found[compiler] ? &of.symbols : nullptr;
}

Pretence::Pretence() {
  pretending = true;
  pretended_shared = 0;
}
unsigned Pretence::largest_shared() const { return pretended_shared; }
Pretence::~Pretence() { pretending = false; }

void set_paths(const char* first, const char* last, const char* copy_folders) {
  std::lock_guard<std::mutex> hold(mutex);
  paths_of_copies = copy_folders;
  if (!nvidia.found[newest_solver]) copies.clear();
  paths_first = first;
  paths_last = last;
}

void set_amd_paths(const char* first, const char* last) {
  std::lock_guard<std::mutex> hold(mutex);
  amd_first = first;
  amd_last = last;
}

void reject_newest(const char* reason) {
  std::lock_guard<std::mutex> hold(mutex);
  nvidia.found[newest_solver] = false;
  for (SolverCopy& copy : copies)
    if (copy.problem.empty()) copy.problem = reason;
}

std::vector<SolverCopy> solver_copies() {
  missing(newest_solver);
  std::lock_guard<std::mutex> hold(mutex);
  return copies;
}

}  // namespace lapwing::vendor
