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

// "unsigned long long* ticket; int* rows;" -> "ticket/rows"; "" when a member is not a pointer
std::string members(const std::string& source, const std::string& type) {
  std::smatch body, member;
  if (!std::regex_search(source, body, std::regex("struct " + type + R"(\s*\{([^}]*)\})"))) return "";
  std::string out, text = std::regex_replace(body[1].str(), std::regex("//[^\n]*"), "");
  std::istringstream list(text);
  for (std::string one; std::getline(list, one, ';');) {
    if (one.find_first_not_of(" \n") == std::string::npos) continue;
    if (!std::regex_match(one, member, std::regex(R"([\s\w]*\*\s*(\w+)\s*)"))) return "";
    out += (out.empty() ? "" : "/") + member[1].str();
  }
  return out;
}

// "const T* a, i64 batch, int n, Progress progress" -> "p:a,q:batch,i:n,ticket/rows:progress"; "?" for what is not known
std::string signature(const std::string& source, const std::string& parameters) {
  static const std::regex parameter(R"(\s*(?:const\s+)?(\w+(?:\s+\w+)*?)\s*(\**)\s*(?:__restrict__\s+)?(\w+)\s*)");
  std::string out;
  std::istringstream list(parameters);
  for (std::string one; std::getline(list, one, ',');) {
    std::smatch found;
    if (!std::regex_match(one, found, parameter)) return "?:" + one;
    std::string type = found[1], kind;
    if (found[2].length())
      kind = "p";
    else if (type == "i64" || type == "long long")
      kind = "q";
    else if (type == "int" || type == "unsigned")
      kind = "i";
    else
      kind = members(source, type);
    out += (out.empty() ? "" : ",") + (kind.empty() ? "?" : kind) + ":" + found[3].str();
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
