// A stand-in for libnvrtc.so.13, which compiles everything to the same few bytes.

#include <cstddef>
#include <cstring>

static const char CUBIN[] = "the kernel of a stand-in";

extern "C" {

int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, 0; }
const char* nvrtcGetErrorString(int) { return "an error of the stand-in"; }
int nvrtcGetNumSupportedArchs(int* count) { return *count = 1, 0; }
int nvrtcGetSupportedArchs(int* architectures) { return *architectures = 90, 0; }
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*, const char* const*) { return *program = (void*)1, 0; }
int nvrtcDestroyProgram(void** program) { return *program = nullptr, 0; }
int nvrtcCompileProgram(void*, int, const char* const*) { return 0; }
int nvrtcGetProgramLogSize(void*, size_t* bytes) { return *bytes = 1, 0; }
int nvrtcGetProgramLog(void*, char* log) { return *log = 0, 0; }
int nvrtcGetCUBINSize(void*, size_t* bytes) { return *bytes = sizeof CUBIN, 0; }
int nvrtcGetCUBIN(void*, char* cubin) { return memcpy(cubin, CUBIN, sizeof CUBIN), 0; }

} // extern "C"
