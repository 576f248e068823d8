// Which calls of the driver wait for a kernel that spins, and whether launches of other threads wait meanwhile. Ranks that are threads of one
// process share a context: a call that waits for another rank's kernel, which waits for this rank, never returns.
//
//   nvcc -O3 -std=c++17 -arch=sm_90 -cubin -o kernels.cubin static.cu && nvcc -O3 -std=c++17 -arch=sm_90 blocking.cu -o blocking -lcuda
//   ./blocking kernels.cubin > lazy.csv && CUDA_MODULE_LOADING=EAGER ./blocking kernels.cubin > eager.csv
//
// For each call: milliseconds beside a kernel that spins 100 ms, and the longest launch of an empty kernel by another thread in that time.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <cuda_runtime.h>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>
#include <vector>

#define CHECK(call)                                                                                                   \
    do {                                                                                                              \
        int error = (int)(call);                                                                                      \
        if (error != 0) {                                                                                             \
            fprintf(stderr, "%s:%d: error %d\n", __FILE__, __LINE__, error);                                          \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

// Ends when the host says so, or after about a second.
__global__ void spin(volatile int* stop) {
    for (long long since = clock64(); *stop == 0 && clock64() - since < 2000000000ll;) {}
}
__global__ void empty() {}

double now_ms() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

static volatile int* stop;
static cudaStream_t spinning, other;

static std::function<void()> meanwhile = [] { empty<<<1, 1, 0, other>>>(); };

void beside(const char* what, const std::function<void()>& call) {
    *stop = 0;
    spin<<<1, 1, 0, spinning>>>((int*)stop);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<bool> done = false;
    double longest = 0;
    std::thread waker([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        *stop = 1;
    });
    std::thread launcher([&] {
        while (!done) {
            double began = now_ms();
            meanwhile();
            longest = std::max(longest, now_ms() - began);
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
    });
    double began = now_ms();
    call();
    double took = now_ms() - began;
    done = true;
    waker.join(), launcher.join();
    CHECK(cudaDeviceSynchronize());
    printf("\"%s\",%.2f,%.2f\n", what, took, longest);
    fflush(stdout);
}

// A copy behind the kernel that spins, and another one on another stream: milliseconds until the second has ended.
enum Kind { TO_HOST, FROM_HOST, ON_DEVICE, FILL, KINDS };
static const char* names_of[KINDS] = {"to host", "from host", "on device", "fill"};
void enqueue(Kind kind, char* device, char* pinned, size_t bytes, cudaStream_t stream) {
    switch (kind) {
    case TO_HOST: CHECK(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream)); break;
    case FROM_HOST: CHECK(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream)); break;
    case ON_DEVICE: CHECK(cudaMemcpyAsync(device, device + bytes, bytes, cudaMemcpyDeviceToDevice, stream)); break;
    default: CHECK(cudaMemsetAsync(device, 1, bytes, stream));
    }
}
void copies(size_t bytes) {
    char *device, *pinned;
    CHECK(cudaMalloc(&device, 4 * bytes));
    CHECK(cudaHostAlloc((void**)&pinned, 2 * bytes, 0));
    for (int first = 0; first < KINDS; first++)
        for (int second = 0; second < KINDS; second++) {
            char what[99];
            snprintf(what, sizeof what, "%s behind a copy %s of %zu bytes", names_of[second], names_of[first], bytes);
            beside(what, [&] {
                enqueue((Kind)first, device, pinned, bytes, spinning);
                enqueue((Kind)second, device + 2 * bytes, pinned + bytes, bytes, other);
                CHECK(cudaStreamSynchronize(other));
            });
        }
    CHECK(cudaFree(device));
    CHECK(cudaFreeHost(pinned));
}

// Copies behind kernels that spin on several streams, and another one on its own stream.
void crowd(int streams) {
    const size_t bytes = 1 << 16;
    char* device;
    CHECK(cudaMalloc(&device, 4 * bytes));
    std::vector<cudaStream_t> waiting(streams);
    for (auto& stream : waiting) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int rounds : {1, 100}) {
        char what[99];
        snprintf(what, sizeof what, "on device behind %d x %d copies on device", streams, rounds);
        beside(what, [&] {
            for (auto stream : waiting) {
                spin<<<1, 1, 0, stream>>>((int*)stop);
                for (int round = 0; round < rounds; round++) {
                    enqueue(ON_DEVICE, device, nullptr, bytes, stream);
                    empty<<<1, 1, 0, stream>>>();
                }
            }
            enqueue(ON_DEVICE, device + 2 * bytes, nullptr, bytes, other);
            CHECK(cudaStreamSynchronize(other));
        });
    }
    for (auto& stream : waiting) CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(device));
}

int main(int argc, char** argv) {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    CHECK(cudaSetDevice(0));
    CHECK(cudaHostAlloc((void**)&stop, 4, cudaHostAllocMapped));
    CHECK(cudaStreamCreateWithFlags(&spinning, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    *stop = 1;
    spin<<<1, 1, 0, spinning>>>((int*)stop);
    empty<<<1, 1, 0, other>>>();
    CHECK(cudaDeviceSynchronize());
    std::ifstream file(argv[1], std::ios::binary);
    std::vector<char> cubin((std::istreambuf_iterator<char>(file)), {});
    printf("call,ms,longest_launch_ms\n");
    // The kernels of the cubin, by name.
    CUmodule first;
    CHECK(cuModuleLoadData(&first, cubin.data()));
    unsigned count = 0;
    CHECK(cuModuleGetFunctionCount(&count, first));
    std::vector<CUfunction> functions(count);
    CHECK(cuModuleEnumerateFunctions(functions.data(), count, first));
    std::vector<const char*> names(count);
    for (unsigned i = 0; i < count; i++) CHECK(cuFuncGetName(&names[i], functions[i]));
    for (int round = 0; round < 8; round++) {
        CUmodule module;
        CUfunction function;
        int value;
        beside("module load", [&] { CHECK(cuModuleLoadData(&module, cubin.data())); });
        beside("get function", [&] { CHECK(cuModuleGetFunction(&function, module, names[round % count])); });
        beside("function attribute", [&] { CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, function)); });
        beside("occupancy", [&] { CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, function, 512, 0)); });
        beside("function load", [&] { CHECK(cuFuncLoad(function)); });
        if (round == 7) beside("module unload", [&] { CHECK(cuModuleUnload(module)); });
    }
    copies(1 << 12);
    copies(1 << 20);
    for (int streams : {1, 2, 3, 4, 8}) crowd(streams);
    CUdeviceptr memory;
    cudaStream_t stream;
    cudaEvent_t event;
    void* host;
    std::vector<char> pageable(1 << 20);
    beside("cuMemAlloc 64 MiB", [&] { CHECK(cuMemAlloc(&memory, 64 << 20)); });
    beside("copy 1 MiB from pageable memory, other stream", [&] { CHECK(cudaMemcpyAsync((void*)memory, pageable.data(), 1 << 20, cudaMemcpyHostToDevice, other)); CHECK(cudaStreamSynchronize(other)); });
    beside("copy 4 B to pageable memory, behind the kernel", [&] { CHECK(cudaMemcpyAsync(pageable.data(), (void*)memory, 4, cudaMemcpyDeviceToHost, spinning)); });
    beside("copy 1 MiB to pageable memory, behind the kernel", [&] { CHECK(cudaMemcpyAsync(pageable.data(), (void*)memory, 1 << 20, cudaMemcpyDeviceToHost, spinning)); });
    beside("copy 1 MiB from pageable memory, behind the kernel", [&] { CHECK(cudaMemcpyAsync((void*)memory, pageable.data(), 1 << 20, cudaMemcpyHostToDevice, spinning)); });
    // The other thread copies between pageable memory and an idle stream instead of launching.
    std::vector<char> more(1 << 20);
    auto launching = meanwhile;
    for (bool reads : {false, true}) {
        meanwhile = [&] {
            if (reads) CHECK(cudaMemcpyAsync(more.data(), (void*)(memory + (1 << 20)), 1 << 20, cudaMemcpyDeviceToHost, other));
            else CHECK(cudaMemcpyAsync((void*)(memory + (1 << 20)), more.data(), 1 << 20, cudaMemcpyHostToDevice, other));
        };
        const char* what = reads ? "copy 1 MiB to pageable memory, behind the kernel; others copy to it" : "copy 1 MiB to pageable memory, behind the kernel; others copy from it";
        beside(what, [&] { CHECK(cudaMemcpyAsync(pageable.data(), (void*)memory, 1 << 20, cudaMemcpyDeviceToHost, spinning)); });
    }
    meanwhile = launching;
    beside("cuMemFree", [&] { CHECK(cuMemFree(memory)); });
    beside("stream create", [&] { CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); });
    beside("stream destroy", [&] { CHECK(cudaStreamDestroy(stream)); });
    beside("event create", [&] { CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)); });
    beside("event destroy", [&] { CHECK(cudaEventDestroy(event)); });
    beside("host alloc 1 MiB", [&] { CHECK(cudaHostAlloc(&host, 1 << 20, cudaHostAllocMapped)); });
    beside("host free", [&] { CHECK(cudaFreeHost(host)); });
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    CHECK(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 100; i++) empty<<<1, 1, 0, other>>>();
    CHECK(cudaStreamEndCapture(other, &graph));
    beside("graph instantiate", [&] { CHECK(cudaGraphInstantiate(&ready, graph, 0)); });
    beside("graph upload", [&] { CHECK(cudaGraphUpload(ready, other)); });
    beside("graph launch", [&] { CHECK(cudaGraphLaunch(ready, other)); });
    beside("graph destroy", [&] { CHECK(cudaGraphExecDestroy(ready)); });
    beside("event synchronize, spinning stream", [&] { CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)); CHECK(cudaEventRecord(event, spinning)); CHECK(cudaEventSynchronize(event)); });
    beside("stream synchronize, spinning stream", [&] { CHECK(cudaStreamSynchronize(spinning)); });
    beside("context synchronize", [&] { CHECK(cudaDeviceSynchronize()); });
    return 0;
}
