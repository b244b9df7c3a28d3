// Stand-in for libhiprtc: that of libnvrtc under AMD's names. It insists on the options that only AMD's compiler knows.
#include "nvrtc.cc"

EXPORT int hiprtcCreateProgram(void** program, const char* source, const char* name, int count, const char** text, const char** names) {
  return nvrtcCreateProgram(program, source, name, count, text, names);
}
EXPORT int hiprtcCompileProgram(void* program, int count, const char** options) {
  bool has_architecture = false, has_lanes = false;
  for (int i = 0; i < count; i++) {
    if (!std::strcmp(options[i], "-default-device") || !std::strncmp(options[i], "-arch", 5)) return refuse(INVALID_INPUT, "%s", options[i]);
    has_architecture = has_architecture || !std::strncmp(options[i], "--offload-arch=gfx", 18);
    has_lanes = has_lanes || !std::strcmp(options[i], "-DLW_WAVE=64") || !std::strcmp(options[i], "-DLW_WAVE=32");
  }
  if (!has_architecture || !has_lanes) return refuse(INVALID_INPUT, "no architecture, or no lanes");
  return nvrtcCompileProgram(program, count, options);
}
EXPORT int hiprtcGetCodeSize(void* program, size_t* size) { return nvrtcGetCUBINSize(program, size); }
EXPORT int hiprtcGetCode(void* program, char* to) { return nvrtcGetCUBIN(program, to); }
EXPORT int hiprtcGetProgramLogSize(void* program, size_t* size) { return nvrtcGetProgramLogSize(program, size); }
EXPORT int hiprtcGetProgramLog(void* program, char* to) { return nvrtcGetProgramLog(program, to); }
EXPORT int hiprtcDestroyProgram(void** program) { return nvrtcDestroyProgram(program); }
