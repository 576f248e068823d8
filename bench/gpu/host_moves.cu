// How fast kernels move pinned host memory: the limit of calls between GPUs that cannot access each other.
//
//     nvcc -O3 -arch=native -std=c++17 bench/gpu/host_moves.cu -o host_moves && ./host_moves > raw.csv
//
// Each block copies units of 16 KiB: `read` from host to GPU memory, `write` back, `both` at once (half of the blocks each), `relay` from
// host to host memory, as a rank of a ring does. Where the column `pollers` is 1, one more warp of every block polls a word in host memory all
// the while, after a pause of `sleep_ns` each time. Prints GB/s in each direction; the fastest of five runs.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(CALL) \
    do { \
        cudaError_t error = CALL; \
        if (error != cudaSuccess) { \
            fprintf(stderr, "%s: %s\n", #CALL, cudaGetErrorString(error)); \
            exit(1); \
        } \
    } while (0)

enum Mode { READ, WRITE, BOTH, RELAY };
constexpr int THREADS = 512, UNIT = 2 * THREADS; // Of 16 bytes.

__device__ __forceinline__ void copy(const uint4 *from, uint4 *to, size_t unit) {
    const uint4 a = __ldcs(from + unit * UNIT + threadIdx.x), b = __ldcs(from + unit * UNIT + THREADS + threadIdx.x);
    __stcs(to + unit * UNIT + threadIdx.x, a), __stcs(to + unit * UNIT + THREADS + threadIdx.x, b);
}

// Half of the host memory is read, the other half written; so is GPU memory.
__global__ void move(Mode mode, uint4 *host, uint4 *gpu, size_t units, const volatile unsigned *word, unsigned *done, int polls, unsigned sleep_ns) {
    if (threadIdx.x >= THREADS) {
        if (!polls) return;
        // Bounded: until this block has copied all, at most a second.
        const long long end = clock64() + 2000000000ll;
        while (*(volatile unsigned *)(done + blockIdx.x) == 0 && clock64() < end) {
            (void)*word;
            if (sleep_ns > 0) __nanosleep(sleep_ns);
        }
        return;
    }
    const size_t half = units * UNIT;
    const bool writes = mode == WRITE || (mode == BOTH && blockIdx.x % 2 == 1);
    const unsigned first = mode == BOTH ? blockIdx.x / 2 : blockIdx.x, blocks = mode == BOTH ? gridDim.x / 2 : gridDim.x;
    for (size_t unit = first; unit < units; unit += blocks) {
        if (mode == RELAY) copy(host, host + half, unit);
        else if (writes) copy(gpu + half, host + half, unit);
        else copy(host, gpu, unit);
    }
    asm volatile("bar.sync 1, 512;" ::: "memory");
    if (threadIdx.x == 0) *(volatile unsigned *)(done + blockIdx.x) = 1;
}

int main() {
    const size_t bytes = 256 << 20, units = bytes / (UNIT * 16);
    uint4 *host, *gpu;
    unsigned *word, *done;
    CHECK(cudaHostAlloc(&host, 2 * bytes, cudaHostAllocMapped));
    CHECK(cudaHostAlloc(&word, 4096, cudaHostAllocMapped));
    CHECK(cudaMalloc(&gpu, 2 * bytes));
    CHECK(cudaMalloc(&done, 4096));
    CHECK(cudaMemset(gpu, 1, 2 * bytes));
    for (size_t at = 0; at < 2 * bytes / 16; at++) host[at] = make_uint4(at, 1, 2, 3);
    *word = 0;
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    const char *names[] = {"read", "write", "both", "relay"};
    printf("mode,blocks,pollers,sleep_ns,gb_per_s_each_way\n");
    for (int mode = 0; mode < 4; mode++)
        for (int blocks : {32, 66, 132, 264})
            for (int polls : {-1, 0, 500, 2000}) {
                float best = 1e9;
                for (int run = 0; run < 5; run++) {
                    CHECK(cudaMemset(done, 0, 4096));
                    CHECK(cudaEventRecord(begin));
                    move<<<blocks, THREADS + 32>>>((Mode)mode, host, gpu, units, word, done, polls >= 0, polls > 0 ? polls : 0);
                    CHECK(cudaEventRecord(end));
                    CHECK(cudaEventSynchronize(end));
                    CHECK(cudaGetLastError());
                    float ms;
                    CHECK(cudaEventElapsedTime(&ms, begin, end));
                    if (ms < best) best = ms;
                }
                printf("%s,%d,%d,%d,%.1f\n", names[mode], blocks, polls >= 0, polls > 0 ? polls : 0, bytes / best / 1e6);
            }
    return 0;
}
