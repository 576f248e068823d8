// What a call costs before its first instruction runs: a program that travels in the kernel's parameters against one in memory.
//
// 1. "launch": the host's time for one launch (median of many in a row, no wait between), and the time from the launch to the end of a
//    kernel that reads its last parameter word and writes it to memory (launch, then wait for the stream), by bytes of parameters and
//    blocks; plain and cooperative launches.
// 2. "copy": the same where the program is copied to device memory first (cudaMemcpyAsync from pinned memory, then a launch with a pointer).
// 3. "graph": the same launch captured and replayed.
//
//   nvcc -O3 -std=c++17 -arch=sm_90 launch.cu -o launch && ./launch > raw.csv
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <vector>

#define CHECK(call)                                                                                                   \
    do {                                                                                                              \
        cudaError_t error = (call);                                                                                   \
        if (error != cudaSuccess) {                                                                                   \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));                            \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

constexpr int THREADS = 512, RUNS = 2000;

template <int BYTES> struct Program {
    uint32_t words[BYTES / 4];
};

// Every thread reads a word that depends on its index, as lanes read their own steps.
template <int BYTES> __global__ void __launch_bounds__(THREADS) run(const __grid_constant__ Program<BYTES> program, uint32_t* out) {
    uint32_t word = program.words[(blockIdx.x * 7 + threadIdx.x / 32) % (BYTES / 4)];
    if (threadIdx.x == 0) out[blockIdx.x] = word + program.words[BYTES / 4 - 1];
}

__global__ void __launch_bounds__(THREADS) run_from_memory(const uint32_t* words, int count, uint32_t* out) {
    uint32_t word = words[(blockIdx.x * 7 + threadIdx.x / 32) % count];
    if (threadIdx.x == 0) out[blockIdx.x] = word + words[count - 1];
}

double now_us() {
    using namespace std::chrono;
    return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double>& times) {
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
}

// Host time of a launch, and time until its result is there.
template <typename Launch> void measure(const char* what, int bytes, int blocks, cudaStream_t stream, Launch launch) {
    for (int warm = 0; warm < 50; warm++) launch();
    CHECK(cudaStreamSynchronize(stream));
    std::vector<double> host, whole;
    for (int run = 0; run < RUNS; run++) {
        double began = now_us();
        launch();
        host.push_back(now_us() - began);
        CHECK(cudaStreamSynchronize(stream));
        whole.push_back(now_us() - began);
    }
    // In a row, without a wait: what a stream of calls costs each.
    double began = now_us();
    for (int run = 0; run < RUNS; run++) launch();
    CHECK(cudaStreamSynchronize(stream));
    double each = (now_us() - began) / RUNS;
    printf("%s,%d,%d,%.2f,%.2f,%.2f\n", what, bytes, blocks, median(host), median(whole), each);
    fflush(stdout);
}

template <int BYTES> void with_bytes(cudaStream_t stream, uint32_t* out, uint32_t* device, uint32_t* pinned) {
    static Program<BYTES> program;
    for (size_t word = 0; word < BYTES / 4; word++) program.words[word] = word;
    for (int blocks : {1, 8, 32, 132}) {
        measure("parameters", BYTES, blocks, stream, [&] { run<BYTES><<<blocks, THREADS, 0, stream>>>(program, out); });
        void* arguments[] = {&program, &out};
        measure("cooperative", BYTES, blocks, stream, [&] {
            CHECK(cudaLaunchCooperativeKernel((void*)run<BYTES>, dim3(blocks), dim3(THREADS), arguments, 0, stream));
        });
        measure("copied", BYTES, blocks, stream, [&] {
            CHECK(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream));
            run_from_memory<<<blocks, THREADS, 0, stream>>>(device, BYTES / 4, out);
        });
        measure("pinned", BYTES, blocks, stream, [&] { run_from_memory<<<blocks, THREADS, 0, stream>>>(pinned, BYTES / 4, out); });
        measure("resident", BYTES, blocks, stream, [&] { run_from_memory<<<blocks, THREADS, 0, stream>>>(device, BYTES / 4, out); });
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        run<BYTES><<<blocks, THREADS, 0, stream>>>(program, out);
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaGraphInstantiate(&executable, graph, 0));
        measure("graph", BYTES, blocks, stream, [&] { CHECK(cudaGraphLaunch(executable, stream)); });
        CHECK(cudaGraphExecDestroy(executable));
        CHECK(cudaGraphDestroy(graph));
        CHECK(cudaGetLastError());
    }
}

int main() {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint32_t *out, *device, *pinned;
    CHECK(cudaMalloc(&out, 4096));
    CHECK(cudaMalloc(&device, 65536));
    CHECK(cudaMallocHost(&pinned, 65536));
    for (int word = 0; word < 65536 / 4; word++) pinned[word] = word;
    CHECK(cudaMemcpy(device, pinned, 65536, cudaMemcpyHostToDevice));
    printf("program,bytes,blocks,host_us,whole_us,in_a_row_us\n");
    with_bytes<64>(stream, out, device, pinned);
    with_bytes<512>(stream, out, device, pinned);
    with_bytes<1024>(stream, out, device, pinned);
    with_bytes<2048>(stream, out, device, pinned);
    with_bytes<3840>(stream, out, device, pinned);
    with_bytes<8192>(stream, out, device, pinned);
    with_bytes<16384>(stream, out, device, pinned);
    with_bytes<32000>(stream, out, device, pinned);
}
