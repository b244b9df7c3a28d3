#include "choose.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

extern char** environ;

namespace lapwing::insitu {
namespace {

// The interpreter itself knows its paths best: start-up scripts, conda, pyenv and user sites all differ. An answer also shows
// that it starts in this environment.
const char* const QUESTION = R"(
import importlib.util as u, os, sys, sysconfig as s
sys.path[:] = [p for p in sys.path if p]  # an embedded interpreter does not have the current folder, as -c does
v = '%d.%d' % sys.version_info[:2]
n = 'libpython' + v + getattr(sys, 'abiflags', '') + '.so'
d = [s.get_config_var('LIBDIR'), s.get_config_var('LIBPL')]
d += [os.path.join(p, l) for p in (sys.base_prefix, sys.base_exec_prefix) for l in ('lib', 'lib64')]
f = [os.path.join(x, y) for x in d if x for y in (n + '.1.0', n)]
f = [x for x in f if os.path.isfile(x)]
print('lapwing-insitu-python', v, f[0] if f else '', sys.executable, 'yes' if u.find_spec('lapwing') else 'no', sep='\n')
)";
const char MARK[] = "lapwing-insitu-python\n";
const int PATIENCE_MS = 60000;  // the file system of a cluster can be slow

// True at the end of the output, false if nothing arrives for too long.
bool read_all(int descriptor, std::string* all) {
  char piece[4096];
  for (;;) {
    pollfd wait{descriptor, POLLIN, 0};
    int ready = poll(&wait, 1, PATIENCE_MS);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    ssize_t count = read(descriptor, piece, sizeof piece);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return true;
    all->append(piece, count);
  }
}

// posix_spawn, not fork: it copies no pages and runs no fork handlers, which can break MPI libraries.
std::string ask(const std::string& program) {
  std::string answer;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return answer;
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, ends[1], 1);
  posix_spawn_file_actions_adddup2(&files, ends[1], 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, every, child, pending, before;
  sigemptyset(&none);
  sigfillset(&every);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &every);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  // the solver's own SIGCHLD handler must not see this child
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, &child, &before);

  const char* arguments[] = {program.c_str(), "-c", QUESTION, nullptr};
  pid_t pid = 0;
  int failed = posix_spawnp(&pid, program.c_str(), &files, &attributes, const_cast<char* const*>(arguments), environ);
  close(ends[1]);
  if (failed) {
    answer = std::strerror(failed);
  } else {
    if (!read_all(ends[0], &answer)) kill(pid, SIGKILL);
    // if SIGCHLD is ignored there is no child to wait for; only the answer matters
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    timespec now{0, 0};
    if (!sigismember(&pending, SIGCHLD)) sigtimedwait(&child, nullptr, &now);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  close(ends[0]);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return answer;
}

std::string next_line(const std::string& from, size_t* at) {
  size_t end = from.find('\n', *at);
  if (end == std::string::npos) end = from.size();
  std::string line = from.substr(*at, end - *at);
  *at = end < from.size() ? end + 1 : end;
  return line;
}

std::string last_line(std::string from) {
  while (!from.empty() && from.back() == '\n') from.pop_back();
  return from.substr(from.rfind('\n') + 1);
}

// "" if the interpreter can be used, else what it lacks.
std::string examine(const std::string& program, Interpreter* interpreter) {
  std::string answer = ask(program);
  size_t at = answer.find(MARK);
  if (at == std::string::npos) {
    std::string said = last_line(answer);
    return said.empty() ? "does not run" : "does not run: " + said;
  }
  at += sizeof MARK - 1;
  interpreter->version = next_line(answer, &at);
  interpreter->library = next_line(answer, &at);
  interpreter->program = next_line(answer, &at);
  bool has_lapwing = next_line(answer, &at) == "yes";
  int major = 0, minor = 0;
  std::sscanf(interpreter->version.c_str(), "%d.%d", &major, &minor);
  if (major != 3 || minor < 11) return "is Python " + interpreter->version + ", and 3.11 or later is needed";
  if (!has_lapwing) return "has no lapwing installed";
  if (interpreter->library.empty())
    return "is a static build: it has no libpython" + interpreter->version + ".so to load into a solver\n" +
           "hint: install one (Debian: libpython" + interpreter->version + "; conda and pyenv with --enable-shared have it), " +
           "or let Python drive the solver";
  return "";
}

bool exists(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

// .../lib/python3.11/site-packages/lapwing/liblapwing_insitu.so -> .../bin/python3.11; "" in a source tree
std::string installed_for() {
  Dl_info info;
  static const char here = 0;
  if (!dladdr(&here, &info) || !info.dli_fname) return "";
  char* resolved = realpath(info.dli_fname, nullptr);
  std::string path = resolved ? resolved : info.dli_fname;
  std::free(resolved);
  for (const char* folder : {"/lib/python3.", "/lib64/python3."}) {
    size_t at = path.rfind(folder);
    if (at == std::string::npos) continue;
    size_t name = path.find("python3.", at);
    std::string python = path.substr(name, path.find('/', name) - name);
    for (const std::string& prefix : {path.substr(0, at), std::string("/usr")})
      if (exists(prefix + "/bin/" + python)) return prefix + "/bin/" + python;
    return python;  // a user site: search the PATH for its name
  }
  return "";
}

}  // namespace

std::string choose(Interpreter* chosen) {
  std::vector<std::string> programs;
  const char* named = std::getenv("LAPWING_INSITU_PYTHON");
  const char* environment = std::getenv("VIRTUAL_ENV");
  if (named && *named) {
    struct stat kind;
    bool folder = stat(named, &kind) == 0 && S_ISDIR(kind.st_mode);
    programs.push_back(folder ? std::string(named) + "/bin/python" : named);
  } else {
    if (environment && *environment) programs.push_back(std::string(environment) + "/bin/python");
    std::string own = installed_for();
    if (!own.empty()) programs.push_back(own);
    programs.push_back("python3");
  }
  std::string reasons;
  for (const std::string& program : programs) {
    std::string lack = examine(program, chosen);
    if (lack.empty()) {
      if (!reasons.empty()) std::fprintf(stderr, "[lapwing.insitu] using %s:%s\n", chosen->program.c_str(), reasons.c_str());
      return "";
    }
    reasons += "\n  " + program + " " + lack;
  }
  return "no usable Python:" + reasons + "\nhint: set LAPWING_INSITU_PYTHON=/path/to/python";
}

}  // namespace lapwing::insitu
