// Stand-in for libnvrtc: the "binary" holds the options and the signature of every kernel of the source, so that the
// stand-in driver can read a launch's arguments by name.
//   MOCK_COMPILE_LOG  set: every compilation fails with this log
//   MOCK_EMULATE      folder: sources are compiled into it as host code (MOCK_EMULATOR: the emulator.h that runs them)
//   MOCK_EMULATE_ALL  1: those too that have a twin in kernels.h
//   MOCK_WAVE         lanes that run in step, 32 or 64
//   MOCK_CHECK        races: each access to shared memory is checked; memory: with ASan and UBSan
//   MOCK_PATCH        a file: name, before, after, with lines ==== between
#include <sys/stat.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "mock.h"

using namespace mock;

namespace {

constexpr int INVALID_INPUT = 3, COMPILATION = 6;

struct Program {
  std::string name, source, log, binary;
  std::map<std::string, std::string> files;  // the source and its headers
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

const std::regex KERNEL(
    R"(extern\s+"C"\s+__global__\s+void\s*(?:__launch_bounds__\s*\([^)]*\))?\s*(\w+)\s*\(([^)]*)\))");

std::string kernels(const std::string& source) {
  static std::map<std::string, std::string> known;
  static std::mutex mutex;
  std::lock_guard<std::mutex> hold(mutex);
  std::string& out = known[source];
  if (out.empty())
    for (std::sregex_iterator it(source.begin(), source.end(), KERNEL), end; it != end; ++it)
      out += "kernel " + (*it)[1].str() + " " + signature(source, (*it)[2]) + "\n";
  return out;
}

// Puts `after` in place of `before`, which the file "MOCK_PATCH" names for one source or header: a mistake that tests look for.
void spoil(const std::string& name, std::string* text) {
  const char* path = std::getenv("MOCK_PATCH");
  if (!path) return;
  std::ifstream file(path);
  std::stringstream all;
  all << file.rdbuf();
  const std::string patch = all.str(), mark = "\n====\n";
  const size_t one = patch.find(mark), two = patch.find(mark, one + mark.size());
  if (patch.substr(0, one) != name) return;
  const std::string before = patch.substr(one + mark.size(), two - one - mark.size());
  const size_t at = text->find(before);
  if (at == std::string::npos)
    *text += "\n#error the patch does not fit\n";
  else
    text->replace(at, before.size(), patch.substr(two + mark.size()));
}

// The library that runs the program on the host; "" where tests want the twin in kernels.h.
std::string emulated(const Program& p, const std::string& options, uint64_t key) {
  const char* folder = std::getenv("MOCK_EMULATE");
  const std::string stem = p.name.substr(0, p.name.find('.')), check = text_of("MOCK_CHECK"), wave = text_of("MOCK_WAVE", "32");
  static const std::regex runs("\\w*block\\w*|solve_lanes|eigh|eigh_vectors|pos_inverse|qr_panel|qr_moves|lstsq\\w*|svd_gram|svd_bidiagonal|eig|eig_give|lapack_form|eigh_panel|divide\\w*|tridiagonal\\w*|two_stage\\w*");
  if (!folder || !(number("MOCK_EMULATE_ALL", 0) || std::regex_match(stem, runs))) return "";
  const std::string place = std::string(folder) + "/" + std::to_string(key) + "-" + wave + check, library = place + ".so";
  if (!access(library.c_str(), R_OK)) return library;
  mkdir(place.c_str(), 0700);
  // blocks that wait for each other: teams, and all blocks of a launch in the tiled factorisation and in two stages
  const std::string together = stem == "tiled" || stem.rfind("two_stage", 0) == 0 ? "0" : "1";
  for (auto [name, text] : p.files) {
    spoil(name, &text);
    static const std::regex dynamic(R"(extern __shared__ (?:__align__\(16\) )?(\w+) (\w+)\[\];)");
    text = std::regex_replace(text, dynamic, "static $1* const $2 = reinterpret_cast<$1*>(emulator::memory);");
    // beside each kernel, so that those which the options leave out are left out here too
    text = std::regex_replace(text, KERNEL, "extern \"C\" void $1($2);\nstatic emulator::Registered<$1> registered_$1(\"$1\");\n$&");
    if (name == p.name)  // without names for other files, so that shared memory of inline functions gets its section too
      text = "namespace {\n#line 1\n" + text + "\n}\n#ifdef LW_TEAM\nconstexpr unsigned team_of_blocks = LW_TEAM;\n#else\nconstexpr unsigned team_of_blocks = " + together + ";\n#endif\n"
              "extern \"C\" const char* emulate_fault() { return emulator::state->text; }\n"
              "extern \"C\" int emulate(const char* name, void** arguments, unsigned blocks, unsigned rows, unsigned threads, "
              "unsigned shared) {\n  return emulator::run(name, arguments, blocks, rows, threads, shared, team_of_blocks);\n}\n";
    std::ofstream(place + "/" + name) << text;
  }
  std::istringstream words(options);
  std::string flags = " -DLW_WAVE=" + wave;
  for (std::string word; words >> word;)
    if (word.rfind("-D", 0) == 0) flags += " " + word;
  if (wave == "64") flags += " -DLW_MATRIX=64";
  // instrumented for a tool that is not linked: emulator.h has the functions that are called
  if (check == "races") flags += " -DEMULATE_RACES -fsanitize=thread";
  std::string link;
  if (check == "memory") link = " -fsanitize=address,undefined -fno-sanitize-recover=all", flags += link + " -fsanitize-sections=lw_shared";
  const std::string own = place + "/" + std::to_string(getpid()), header = std::getenv("MOCK_EMULATOR");
  // without -fno-gnu-unique all libraries of a process would share the first one's kernels and memory
  const std::string command = "c++ -x c++ -std=c++17 -O1 -g1 -w -fno-strict-aliasing -fno-gnu-unique -fPIC -c -include " + header + flags + " -o " +
                              own + ".o " + place + "/" + p.name + " && c++ -shared" + link + " -o " + own + ".so " + own +
                              ".o && mv " + own + ".so " + library;
  return std::system(command.c_str()) ? "failed" : library;
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
  auto* made = new Program{name, source, "", "", {{name, source}}};
  for (int i = 0; i < headers; i++) {
    if (!text[i] || !*text[i] || !names[i]) return refuse(INVALID_INPUT, "an empty header");
    made->files[names[i]] = text[i];
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
  const std::string whole = body + p->source;
  body += "emulated " + emulated(*p, all, hash(whole.data(), whole.size())) + "\n";
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
