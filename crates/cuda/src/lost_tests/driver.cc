// A stand-in for libcuda.so.1 with one GPU, whose memory is host memory. It runs no kernels. After `stand_in_lose`, calls fail as they do in a
// process whose context is lost. After `stand_in_set`, some behave as they do beside a capture, without memory, or behind a kernel that waits.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

static std::atomic<int> lost{0};
static std::atomic<uintptr_t> handles{1};
static thread_local void* stack[16];
static thread_local int depth = 0;

// What the tests set.
enum Setting {
    CAPTURING, // A stream is captured in global mode.
    BUSY,      // The kernels of all streams wait.
    BLOCKS,    // Blocks that a multiprocessor runs at once, for the thread that sets it; 8 before.
    FULL,      // The GPU has no memory, for the thread that sets it.
    SETTINGS,
};
// What they ask.
enum Count {
    INVALIDATED, // Calls that have ended the capture.
    LAUNCHED,
    COUNTS,
};
static std::atomic<int> settings[SETTINGS], counts[COUNTS];
static thread_local int is_full = 0, blocks = 8;
static thread_local int mode = 0;
static std::mutex allocating;
static std::map<uint64_t, size_t> allocated;

constexpr int UNSUPPORTED = 801, OUT_OF_MEMORY = 2, CAPTURE_UNSUPPORTED = 900, NOT_READY = 600, RELAXED = 2;
constexpr size_t UNIT = 1 << 16;
static void* const CAPTURED = (void*)0xc0de; // A stream of the program that is always captured.

// The result of a call that ends captures in every mode, or unless the thread has relaxed its own.
static int beside_capture(bool always) {
    if (settings[CAPTURING] == 0 || (!always && mode == RELAXED)) return lost;
    return counts[INVALIDATED]++, CAPTURE_UNSUPPORTED;
}
static int when_idle() {
    while (settings[BUSY] != 0) usleep(1000);
    return lost;
}

extern "C" {

void stand_in_lose(int code) { lost = code; }
void stand_in_set(int setting, int value) {
    settings[setting] = value;
    if (setting == FULL) is_full = value;
    if (setting == BLOCKS) blocks = value;
}
int stand_in_count(int count) { return counts[count]; }

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int) { return *device = 0, 0; }
int cuDeviceGetName(char* name, int bytes, int) { return strncpy(name, "stand-in", bytes), 0; }
int cuDeviceGetUuid_v2(void* uuid, int) { return memset(uuid, 7, 16), 0; }
int cuDeviceGetPCIBusId(char* name, int bytes, int) { return strncpy(name, "0000:01:00.0", bytes), 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = 1 << 30, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
    case 16: *value = 132; break;  // Multiprocessors.
    case 39: *value = 2048; break; // Threads of one.
    case 75: *value = 9; break;    // The architecture.
    case 102: case 103: *value = 1; break; // Memory apart from addresses, file descriptors of it.
    case 133: *value = getenv("STAND_IN_MPS") != nullptr; break;
    default: *value = 0;
    }
    return 0;
}
int cuDeviceCanAccessPeer(int* can, int, int) { return *can = 0, 0; }
int cuDeviceGetP2PAttribute(int* value, int, int, int) { return *value = 0, 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = (void*)1, (int)lost; }
int cuDevicePrimaryCtxRelease_v2(int) { return lost; }
int cuCtxGetDevice(int* device) { return *device = 0, 0; }
int cuCtxGetCurrent(void** context) { return *context = depth > 0 ? stack[depth - 1] : nullptr, 0; }
int cuCtxSetCurrent(void* context) { return depth = depth > 0 ? depth : 1, stack[depth - 1] = context, 0; }
int cuCtxPushCurrent_v2(void* context) { return stack[depth++] = context, 0; }
int cuCtxPopCurrent_v2(void** context) { return *context = stack[--depth], 0; }
int cuCtxSynchronize() {
    const int code = beside_capture(true);
    return code != 0 ? code : when_idle();
}
int cuCtxGetStreamPriorityRange(int* lowest, int* highest) { return *lowest = 0, *highest = -5, (int)lost; }
int cuStreamCreateWithPriority(void** stream, unsigned, int) { return *stream = (void*)(handles++ * 16), (int)lost; }
int cuStreamDestroy_v2(void*) { return lost; }
int cuStreamSynchronize(void*) { return lost; }
int cuStreamQuery(void*) { return lost; }
int cuStreamWaitEvent(void*, void*, unsigned) { return lost; }
int cuStreamIsCapturing(void* stream, int* status) { return *status = stream == CAPTURED, (int)lost; }
int cuThreadExchangeStreamCaptureMode(int* new_mode) {
    const int before = mode;
    return mode = *new_mode, *new_mode = before, 0;
}
int cuEventCreate(void** event, unsigned) { return *event = (void*)(handles++ * 16), (int)lost; }
int cuEventDestroy_v2(void*) { return lost; }
int cuEventRecord(void*, void*) { return lost; }
int cuEventQuery(void*) { return settings[BUSY] != 0 ? NOT_READY : beside_capture(false); }
int cuEventSynchronize(void*) { return when_idle(), beside_capture(false); }
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    if (is_full) return OUT_OF_MEMORY;
    *address = (uint64_t)calloc(1, bytes);
    std::lock_guard guard(allocating);
    allocated[*address] = bytes;
    return beside_capture(false);
}
int cuMemFree_v2(uint64_t address) {
    if (lost) return lost;
    std::lock_guard guard(allocating);
    allocated.erase(address);
    return free((void*)address), beside_capture(false);
}
// What was allocated: its kind, GPU, number, start and length, and whether processes can share it. Other addresses have no kind.
int cuPointerGetAttributes(unsigned count, int*, void** values, uint64_t address) {
    std::lock_guard guard(allocating);
    auto after = allocated.upper_bound(address);
    if (after == allocated.begin()) return 0;
    const auto [start, bytes] = *std::prev(after);
    if (address >= start + bytes) return 0;
    const uint64_t found[] = {2, 0, start, start, bytes, 0, 0};
    const size_t lengths[] = {4, 4, 8, 8, 8, 4, 4};
    for (unsigned i = 0; i < count && i < 7; i++) memcpy(values[i], &found[i], lengths[i]);
    return 0;
}
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void*) { return lost ? (int)lost : (memcpy((void*)to, (void*)from, bytes), 0); }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) { return lost ? (int)lost : (memcpy((void*)to, from, bytes), 0); }
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void*) { return lost ? (int)lost : (memcpy(to, (void*)from, bytes), 0); }
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void*) { return lost ? (int)lost : (memset((void*)to, value, bytes), 0); }
int cuMemHostAlloc(void** address, size_t bytes, unsigned) { return *address = calloc(1, bytes), (int)lost; }
int cuMemFreeHost(void* address) { return lost ? (int)lost : (free(address), 0); }
int cuMemHostRegister_v2(void*, size_t, unsigned) { return beside_capture(false); }
int cuMemHostUnregister(void*) { return beside_capture(false); }
int cuMemHostGetDevicePointer_v2(uint64_t* device, void* host, unsigned) { return *device = (uint64_t)host, (int)lost; }
int cuMemGetAllocationGranularity(size_t* bytes, const void*, int) { return *bytes = UNIT, 0; }
int cuMemCreate(uint64_t* handle, size_t bytes, const void*, unsigned long long) {
    if (lost) return lost;
    if (is_full) return OUT_OF_MEMORY;
    const int memory = memfd_create("stand-in", 0);
    if (memory < 0 || ftruncate(memory, bytes) != 0) return 2;
    return *handle = memory, 0;
}
int cuMemRelease(uint64_t handle) { return close((int)handle), (int)lost; }
int cuMemExportToShareableHandle(int* descriptor, uint64_t handle, int, unsigned long long) { return *descriptor = dup((int)handle), (int)lost; }
int cuMemImportFromShareableHandle(uint64_t* handle, void* descriptor, int) { return *handle = dup((int)(intptr_t)descriptor), (int)lost; }
int cuMemAddressReserve(uint64_t* address, size_t bytes, size_t, uint64_t, unsigned long long) {
    if (lost) return lost;
    void* found = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return *address = (uint64_t)found, found == MAP_FAILED ? 2 : 0;
}
int cuMemAddressFree(uint64_t address, size_t bytes) { return munmap((void*)address, bytes), (int)lost; }
int cuMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long) {
    void* found = mmap((void*)address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int)handle, offset);
    return found == MAP_FAILED ? 2 : (int)lost;
}
int cuMemUnmap(uint64_t address, size_t bytes) {
    mmap((void*)address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return lost;
}
int cuMemSetAccess(uint64_t, size_t, const void*, size_t) { return lost; }
int cuMemGetAccess(unsigned long long* flags, const void*, uint64_t) { return *flags = 3, (int)lost; }
int cuModuleLoadData(void** module, const void*) { return *module = (void*)(handles++ * 16), beside_capture(false); }
int cuModuleUnload(void*) { return beside_capture(false); }
int cuModuleGetFunction(void** function, void*, const char*) { return *function = (void*)(handles++ * 16), (int)lost; }
int cuFuncGetAttribute(int* value, int, void*) { return *value = 1, (int)lost; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* value, void*, int, size_t) { return *value = blocks, (int)lost; }
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) { return counts[LAUNCHED]++, (int)lost; }
int cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR_OF_STAND_IN", 0; }
int cuGetErrorString(int, const char** text) { return *text = "the stand-in is lost", 0; }

#define UNUSED(name) int name() { return UNSUPPORTED; }
UNUSED(cuCtxEnablePeerAccess) UNUSED(cuStreamBeginCapture_v2) UNUSED(cuStreamEndCapture) UNUSED(cuGraphInstantiateWithFlags)
UNUSED(cuGraphDestroy) UNUSED(cuGraphExecDestroy) UNUSED(cuGraphLaunch)
UNUSED(cuFuncSetAttribute) UNUSED(cuLaunchKernelEx) UNUSED(cuMemGetInfo_v2) UNUSED(cuMemsetD32Async) UNUSED(cuMemRetainAllocationHandle)
UNUSED(cuMemGetAllocationPropertiesFromHandle) UNUSED(cuMemGetAddressRange_v2) UNUSED(cuIpcGetMemHandle)
UNUSED(cuIpcOpenMemHandle_v2) UNUSED(cuIpcCloseMemHandle) UNUSED(cuEventElapsedTime)

} // extern "C"
