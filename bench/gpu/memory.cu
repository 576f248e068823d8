// How ranks reach each other's memory: what handles, attributes and mappings exist, what they cost, and what survives what.
// Two processes (parent, child) on one GPU that pass descriptors over a socket. Prints one `key,value,unit` row per fact.
//   nvcc -O3 -std=c++17 -arch=sm_90 memory.cu -o memory -lcuda && ./memory
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <signal.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CK(x) do { CUresult e_ = (x); if (e_ != CUDA_SUCCESS) { const char* n_; cuGetErrorName(e_, &n_); \
    printf("failed,%s line %d: %s,\n", #x, __LINE__, n_); fflush(stdout); exit(1); } } while (0)
#define TRY(key, x) do { CUresult e_ = (x); const char* n_; cuGetErrorName(e_, &n_); printf("%s,%s,result\n", key, n_); } while (0)

static double now_us() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
template <class F> static double median_us(int times, F work) {
    std::vector<double> took;
    for (int i = 0; i < times; i++) { double from = now_us(); work(); took.push_back(now_us() - from); }
    std::sort(took.begin(), took.end());
    return took[took.size() / 2];
}
static void say(const char* key, double value, const char* unit) { printf("%s,%.3f,%s\n", key, value, unit); fflush(stdout); }

static void send_fd(int socket, int fd) {
    char byte = 0; iovec part{&byte, 1}; alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{}; message.msg_iov = &part; message.msg_iovlen = 1; message.msg_control = space; message.msg_controllen = sizeof space;
    cmsghdr* header = CMSG_FIRSTHDR(&message); header->cmsg_level = SOL_SOCKET; header->cmsg_type = SCM_RIGHTS; header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(socket, &message, 0) != 1) { perror("sendmsg"); exit(1); }
}
static int receive_fd(int socket) {
    char byte; iovec part{&byte, 1}; alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))];
    msghdr message{}; message.msg_iov = &part; message.msg_iovlen = 1; message.msg_control = space; message.msg_controllen = sizeof space;
    if (recvmsg(socket, &message, 0) != 1) { perror("recvmsg"); exit(1); }
    int fd; memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd); return fd;
}
template <class T> static void put(int socket, const T& value) { if (write(socket, &value, sizeof value) != (ssize_t)sizeof value) exit(1); }
template <class T> static T take(int socket) { T value; if (read(socket, &value, sizeof value) != (ssize_t)sizeof value) exit(1); return value; }

static CUmemAllocationProp prop(bool shareable) {
    CUmemAllocationProp prop{}; prop.type = CU_MEM_ALLOCATION_TYPE_PINNED; prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    if (shareable) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return prop;
}
static void map(CUdeviceptr at, size_t bytes, CUmemGenericAllocationHandle handle) {
    CK(cuMemMap(at, bytes, 0, handle, 0));
    CUmemAccessDesc access{}; access.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}; access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CK(cuMemSetAccess(at, bytes, &access, 1));
}
static unsigned long long buffer_id(CUdeviceptr at) {
    unsigned long long id = 0; CK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at)); return id;
}
static int flag(CUpointer_attribute which, CUdeviceptr at) { int value = 0; CK(cuPointerGetAttribute(&value, which, at)); return value; }

// One thread of each process: waits for its turn, passes it on. Bounded by the clock.
__global__ void ping_pong(volatile unsigned* word, unsigned parity, unsigned rounds, unsigned* done) {
    long long from = clock64();
    for (unsigned turn = parity; turn < 2 * rounds; turn += 2) {
        while (*word != turn) if (clock64() - from > 8000000000ll) return;
        __threadfence_system();
        *word = turn + 1;
        __threadfence_system();
    }
    *done = 1;
}

constexpr size_t BYTES = 64 << 20;
constexpr unsigned ROUNDS = 1000;

static void host_round_trip(const char* key, unsigned* device, unsigned parity, bool prints) {
    unsigned* done; cudaMalloc(&done, 4); cudaMemset(done, 0, 4);
    double from = now_us();
    ping_pong<<<1, 1>>>(device, parity, ROUNDS, done);
    cudaError_t error = cudaDeviceSynchronize();
    double took = now_us() - from;
    unsigned ended = 0; cudaMemcpy(&ended, done, 4, cudaMemcpyDeviceToHost);
    if (prints) { if (error == cudaSuccess && ended) say(key, took / ROUNDS, "us a round trip"); else printf("%s,did not end (%s),\n", key, cudaGetErrorString(error)); fflush(stdout); }
}

static void child(int socket, void* host, bool mps) {
    CK(cuInit(0)); CUcontext context; CUdevice device; CK(cuDeviceGet(&device, 0)); CK(cuDevicePrimaryCtxRetain(&context, device)); CK(cuCtxSetCurrent(context));
    // VMM memory of the parent, imported from a descriptor.
    int fd = receive_fd(socket);
    CUmemGenericAllocationHandle handle; CUdeviceptr at;
    double from = now_us(); CK(cuMemImportFromShareableHandle(&handle, (void*)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)); say("import of a descriptor", now_us() - from, "us");
    CK(cuMemAddressReserve(&at, BYTES, 0, 0, 0)); from = now_us(); map(at, BYTES, handle); say("map and access of imported memory, 64 MiB", now_us() - from, "us");
    say("buffer id of imported memory", buffer_id(at), "id");
    CK(cuMemsetD32(at, 0xabcd0001, BYTES / 4)); CK(cuCtxSynchronize()); put(socket, 1);
    // Legacy IPC.
    auto ipc = take<CUipcMemHandle>(socket); CUdeviceptr legacy; from = now_us();
    CK(cuIpcOpenMemHandle(&legacy, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)); say("open of an IPC handle", now_us() - from, "us");
    say("buffer id of memory opened by IPC", buffer_id(legacy), "id");
    CK(cuMemsetD32(legacy, 0xabcd0002, BYTES / 4)); CK(cuCtxSynchronize()); put(socket, 1);
    // Opening the same handle twice.
    CUdeviceptr again; TRY("open of the same IPC handle again", cuIpcOpenMemHandle(&again, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)); fflush(stdout);
    // Host memory that both registered.
    CK(cuMemHostRegister(host, 4096, CU_MEMHOSTREGISTER_DEVICEMAP)); CUdeviceptr word; CK(cuMemHostGetDevicePointer(&word, host, 0));
    put(socket, 1); take<int>(socket);
    if (mps) { host_round_trip("", (unsigned*)word, 1, false); host_round_trip("", (unsigned*)(at), 1, false); }
    take<int>(socket);
    kill(getpid(), SIGKILL);  // with mappings open, no kernel running
}

int main(int count, char** arguments) {
    bool mps = count > 1 && !strcmp(arguments[1], "mps");
    int pair[2]; if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 1;
    int memfd = memfd_create("words", 0); if (ftruncate(memfd, 4096)) return 1;
    void* host = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0); memset(host, 0, 4096);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) { close(pair[0]); child(pair[1], host, mps); }
    close(pair[1]); int socket = pair[0];
    CK(cuInit(0)); CUcontext context; CUdevice device; CK(cuDeviceGet(&device, 0)); CK(cuDevicePrimaryCtxRetain(&context, device)); CK(cuCtxSetCurrent(context));
    printf("mode,%s,\n", mps ? "MPS" : "no MPS");

    CUmemAllocationProp shareable = prop(true); size_t least; CK(cuMemGetAllocationGranularity(&least, &shareable, CU_MEM_ALLOC_GRANULARITY_MINIMUM)); say("granularity, least", least, "B");
    CK(cuMemGetAllocationGranularity(&least, &shareable, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)); say("granularity, recommended", least, "B");
    CUmemGenericAllocationHandle handle; double from = now_us(); CK(cuMemCreate(&handle, BYTES, &shareable, 0)); say("create, 64 MiB", now_us() - from, "us");
    CUdeviceptr at; CK(cuMemAddressReserve(&at, BYTES, 0, 0, 0)); from = now_us(); map(at, BYTES, handle); say("map and access, 64 MiB", now_us() - from, "us");
    int fd; from = now_us(); CK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)); say("export as a descriptor", now_us() - from, "us");
    send_fd(socket, fd); take<int>(socket);
    unsigned seen; CK(cuMemcpyDtoH(&seen, at + BYTES - 4, 4)); say("the child's write is seen through VMM", seen == 0xabcd0001, "bool");

    CUdeviceptr legacy; CK(cuMemAlloc(&legacy, BYTES)); CUipcMemHandle ipc; from = now_us(); CK(cuIpcGetMemHandle(&ipc, legacy)); say("IPC handle of cuMemAlloc", now_us() - from, "us");
    put(socket, ipc); take<int>(socket); CK(cuMemcpyDtoH(&seen, legacy + BYTES - 4, 4)); say("the child's write is seen through IPC", seen == 0xabcd0002, "bool");
    TRY("IPC handle of VMM memory", cuIpcGetMemHandle(&ipc, at));

    say("legacy IPC capable, cuMemAlloc", flag(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, legacy), "bool");
    say("legacy IPC capable, VMM", flag(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at), "bool");
    say("allowed handle types, VMM", flag(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at), "bits (1: descriptor, 8: fabric)");
    CUmemGenericAllocationHandle kept; TRY("retain the handle by address, VMM", cuMemRetainAllocationHandle(&kept, (void*)(at + 4096)));
    say("retained handle is the same number", kept == handle, "bool");
    int second; TRY("export of a retained handle", cuMemExportToShareableHandle(&second, kept, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    TRY("retain the handle by address, cuMemAlloc", cuMemRetainAllocationHandle(&kept, (void*)legacy));
    CUmemAllocationProp alone = prop(false); CUmemGenericAllocationHandle closed; CK(cuMemCreate(&closed, BYTES, &alone, 0));
    TRY("export of memory made without a handle type", cuMemExportToShareableHandle(&second, closed, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));

    // Identity: the same address with other memory behind it.
    unsigned long long first = buffer_id(at); say("buffer id, VMM", first, "id");
    CK(cuMemUnmap(at, BYTES)); map(at, BYTES, closed); say("buffer id, another handle at the same address", buffer_id(at), "id");
    CK(cuMemUnmap(at, BYTES)); map(at, BYTES, handle); say("buffer id, the first handle mapped again", buffer_id(at), "id");
    first = buffer_id(legacy); say("buffer id, cuMemAlloc", first, "id"); CUdeviceptr before = legacy; CK(cuMemFree(legacy)); CK(cuMemAlloc(&legacy, BYTES));
    say("cuMemAlloc after cuMemFree gives the same address", legacy == before, "bool"); say("buffer id, cuMemAlloc after cuMemFree", buffer_id(legacy), "id");
    // Two handles mapped side by side: is it one range or two?
    CUdeviceptr wide; CK(cuMemAddressReserve(&wide, 2 * BYTES, 0, 0, 0)); map(wide, BYTES, closed); map(wide + BYTES, BYTES, handle);
    CUdeviceptr base; size_t size; CK(cuMemGetAddressRange(&base, &size, wide + BYTES + 64)); say("two handles side by side: range of an address in the second starts at", (double)(base - wide) / BYTES, "handles");
    say("  and is long", (double)size / BYTES, "handles"); say("buffer id, first of two", buffer_id(wide), "id"); say("buffer id, second of two", buffer_id(wide + BYTES), "id");

    // What a lookup costs a call.
    say("one attribute (BUFFER_ID)", 1e3 * median_us(2001, [&] { buffer_id(legacy); }), "ns");
    unsigned long long id; CUdeviceptr start; size_t length; unsigned kind; CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE}; void* where[] = {&id, &start, &length, &kind};
    say("four attributes at once, cuMemAlloc", 1e3 * median_us(2001, [&] { CK(cuPointerGetAttributes(4, which, where, legacy)); }), "ns");
    say("four attributes at once, VMM", 1e3 * median_us(2001, [&] { CK(cuPointerGetAttributes(4, which, where, at)); }), "ns");
    say("retain and release by address, VMM", 1e3 * median_us(2001, [&] { CK(cuMemRetainAllocationHandle(&kept, (void*)at)); CK(cuMemRelease(kept)); }), "ns");
    // Unmapping while a kernel spins: does it wait?
    from = now_us(); CK(cuMemHostRegister(host, 4096, CU_MEMHOSTREGISTER_DEVICEMAP)); say("register 4 KiB of shared host memory", now_us() - from, "us");
    CUdeviceptr word; CK(cuMemHostGetDevicePointer(&word, host, 0));
    take<int>(socket); CK(cuMemsetD32(at, 0, 16)); CK(cuCtxSynchronize()); put(socket, 1);
    if (mps) { host_round_trip("flag in registered host memory, two processes", (unsigned*)word, 0, true); host_round_trip("flag in VMM memory, two processes", (unsigned*)at, 0, true); }

    put(socket, 1); int status; waitpid(pid, &status, 0);
    CK(cuMemsetD32(at, 7, 16)); TRY("use of shared memory after the child was killed (no kernel running)", cuCtxSynchronize());

    // Calls while a kernel of this context spins on a host word, for 50 ms at most.
    unsigned* words = (unsigned*)host; unsigned* done; cudaMalloc(&done, 4);
    auto beside = [&](const char* key, auto work) {
        words[0] = 99; cudaStream_t stream; cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); ping_pong<<<1, 1, 0, stream>>>((unsigned*)word, 0, 1, done);
        usleep(2000); double start = now_us();
        pid_t waker = fork(); if (waker == 0) { usleep(50000); words[0] = 0; _exit(0); }
        work(); double took = now_us() - start; waitpid(waker, nullptr, 0); cudaStreamSynchronize(stream); cudaStreamDestroy(stream); say(key, took / 1e3, "ms beside a kernel that spins 50 ms");
    };
    CUmemGenericAllocationHandle extra; CUdeviceptr place; CK(cuMemAddressReserve(&place, BYTES, 0, 0, 0));
    beside("cuMemCreate + map + access", [&] { CK(cuMemCreate(&extra, BYTES, &shareable, 0)); map(place, BYTES, extra); });
    beside("cuMemUnmap + release", [&] { CK(cuMemUnmap(place, BYTES)); CK(cuMemRelease(extra)); });
    beside("cuMemAlloc", [&] { CK(cuMemAlloc(&base, BYTES)); });
    beside("cuMemFree", [&] { CK(cuMemFree(base)); });
    beside("cuMemAllocAsync + cuMemFreeAsync", [&] { CUstream stream; CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)); CK(cuMemAllocAsync(&base, BYTES, stream)); CK(cuMemFreeAsync(base, stream)); CK(cuStreamSynchronize(stream)); CK(cuStreamDestroy(stream)); });
    void* other = mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    beside("cuMemHostRegister", [&] { CK(cuMemHostRegister(other, 1 << 20, CU_MEMHOSTREGISTER_DEVICEMAP)); });
    beside("cuMemHostUnregister", [&] { CK(cuMemHostUnregister(other)); });
    return 0;
}
