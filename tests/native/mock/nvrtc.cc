// Stand-in for libnvrtc: the "binary" holds the options and the signature of every kernel of the source, so that the
// stand-in driver can read a launch's arguments by name.
//   MOCK_COMPILE_LOG  set: every compilation fails with this log
#include <regex>
#include <sstream>

#include "mock.h"

using namespace mock;

namespace {

constexpr int INVALID_INPUT = 3, COMPILATION = 6;

struct Program {
  std::string name, source, log, binary;
};

// How the driver reads a value of this type: p pointer, q 8 bytes, i 4 bytes, d double, r real number; "" when it is not known.
std::string kind_of(const std::string& type, bool pointer) {
  static const std::map<std::string, std::string> kinds = {
      {"i64", "q"}, {"u64", "q"}, {"long long", "q"}, {"int", "i"}, {"unsigned", "i"}, {"double", "d"}, {"Real", "r"}};
  if (pointer) return "p";
  auto found = kinds.find(type);
  return found == kinds.end() ? "" : found->second;
}

// "const T *h, *tau; i64 room; int n;" -> "p.h/p.tau/q.room/i.n"; "" when a member is not known
std::string members(const std::string& source, const std::string& type) {
  static const std::regex declaration(R"(\s*(?:const\s+)?(\w+(?:\s+\w+)*?)\s*(\**)\s*(\w+)\s*)"), another(R"(\s*(\**)\s*(\w+)\s*)");
  std::smatch body, member;
  if (!std::regex_search(source, body, std::regex("struct " + type + R"(\s*\{([^}]*)\})"))) return "";
  std::string out, text = std::regex_replace(body[1].str(), std::regex("//[^\n]*"), "");
  std::istringstream list(text);
  for (std::string one; std::getline(list, one, ';');) {
    if (one.find_first_not_of(" \n") == std::string::npos) continue;
    std::istringstream names(one);
    std::string of;
    for (std::string name; std::getline(names, name, ',');) {
      if (!std::regex_match(name, member, of.empty() ? declaration : another)) return "";
      bool first = of.empty();
      if (first) of = member[1];
      std::string kind = kind_of(of, member[first ? 2 : 1].length() > 0);
      if (kind.empty()) return "";
      out += (out.empty() ? "" : "/") + kind + "." + member[first ? 3 : 2].str();
    }
  }
  return out;
}

// "const T* a, i64 batch, int, Progress progress" -> "p:a,q:batch,i:_2,p.ticket/p.rows:progress"; "?" for what is not known
std::string signature(const std::string& source, const std::string& parameters) {
  static const std::regex named(R"(\s*(?:const\s+)?(\w+(?:\s+\w+)*?)\s*(\**)\s*(?:__restrict__\s+)?(\w+)\s*)"),
      nameless(R"(\s*(?:const\s+)?(\w+)\s*(\**)\s*)");
  std::string out;
  std::istringstream list(parameters);
  int index = 0;
  for (std::string one; std::getline(list, one, ','); index++) {
    std::smatch found;
    std::string name = "_" + std::to_string(index);
    if (!std::regex_match(one, found, nameless)) {
      if (!std::regex_match(one, found, named)) return "?:" + one;
      name = found[3];
    }
    std::string kind = kind_of(found[1], found[2].length() > 0);
    if (kind.empty()) kind = members(source, found[1]);
    out += (out.empty() ? "" : ",") + (kind.empty() ? "?" : kind) + ":" + name;
  }
  return out;
}

std::string kernels(const std::string& source) {
  static const std::regex kernel(
      R"(extern\s+"C"\s+__global__\s+void\s*(?:__launch_bounds__\s*\([^)]*\))?\s*(\w+)\s*\(([^)]*)\))");
  static std::map<std::string, std::string> known;
  static std::mutex mutex;
  std::lock_guard<std::mutex> hold(mutex);
  std::string& out = known[source];
  if (out.empty())
    for (std::sregex_iterator it(source.begin(), source.end(), kernel), end; it != end; ++it)
      out += "kernel " + (*it)[1].str() + " " + signature(source, (*it)[2]) + "\n";
  return out;
}

}  // namespace

EXPORT int nvrtcVersion(int* major, int* minor) {
  *major = int(number("MOCK_COMPILER_MAJOR", 13));
  *minor = 0;
  return 0;
}

EXPORT int nvrtcCreateProgram(void** program, const char* source, const char* name, int headers, const char* const* text,
                              const char* const* names) {
  if (int status = ordered("nvrtcCreateProgram", INVALID_INPUT)) return status;
  if (!source || !*source || !name) return refuse(INVALID_INPUT, "no source");
  auto* made = new Program{name, source, "", ""};
  for (int i = 0; i < headers; i++) {
    if (!text[i] || !*text[i] || !names[i]) return refuse(INVALID_INPUT, "an empty header");
    made->source += std::string("\n#header ") + names[i] + "\n" + text[i];
  }
  *program = made;
  return 0;
}

EXPORT int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  auto* p = static_cast<Program*>(program);
  std::string all;
  for (int i = 0; i < count; i++) {
    if (options[i][0] != '-' || std::strchr(options[i], ' ')) return refuse(INVALID_INPUT, "option %s", options[i]);
    all += std::string(i ? " " : "") + options[i];
  }
  note("nvrtcCompileProgram name=%s options=%s", p->name.c_str(), std::regex_replace(all, std::regex(" "), "|").c_str());
  if (const char* log = std::getenv("MOCK_COMPILE_LOG")) {
    p->log = log;
    return COMPILATION;
  }
  if (int status = ordered("nvrtcCompileProgram", COMPILATION)) return status;
  std::string body = "name " + p->name + "\noptions " + all + "\n" + kernels(p->source);
  char head[96];
  std::snprintf(head, sizeof head, "MOCKCUBIN %zu %016llx %016llx\n", body.size(),
                (unsigned long long)hash(body.data(), body.size()),
                (unsigned long long)hash(p->source.data(), p->source.size()));
  p->binary = head + body;
  usleep(useconds_t(1000 * number("MOCK_COMPILE_SLEEP", 0)));
  return 0;
}

EXPORT int nvrtcGetCUBINSize(void* program, size_t* size) {
  if (int status = ordered("nvrtcGetCUBINSize", INVALID_INPUT)) return status;
  *size = static_cast<Program*>(program)->binary.size();
  return 0;
}

EXPORT int nvrtcGetCUBIN(void* program, char* to) {
  if (int status = ordered("nvrtcGetCUBIN", INVALID_INPUT)) return status;
  auto& binary = static_cast<Program*>(program)->binary;
  std::memcpy(to, binary.data(), binary.size());
  return 0;
}

EXPORT int nvrtcGetProgramLogSize(void* program, size_t* size) {
  *size = static_cast<Program*>(program)->log.size() + 1;
  return 0;
}

EXPORT int nvrtcGetProgramLog(void* program, char* to) {
  auto& log = static_cast<Program*>(program)->log;
  std::memcpy(to, log.c_str(), log.size() + 1);
  return 0;
}

EXPORT int nvrtcDestroyProgram(void** program) {
  note("nvrtcDestroyProgram");
  delete static_cast<Program*>(*program);
  *program = nullptr;
  return 0;
}
