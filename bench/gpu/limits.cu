// What a GPU can do at most for each collective between ranks that share it, and through host memory where ranks cannot reach each other.
//
// 1. "one touch": a kernel that reads every input byte of a collective of N ranks once and writes every output byte once, with no
//    synchronisation. D is the full buffer of a rank. Bytes moved: all-reduce and all-to-all 2ND, reduce and reduce-scatter (N+1)D and
//    ND + D, all-gather ND + D read (each rank reads D/N, writes D), broadcast D + ND.
// 2. "host": kernels that write to and read from pinned host memory, by blocks; both at once, as a staged exchange does.
// 3. "host flag": the round trip of a flag between two kernels through pinned host memory, and through device memory.
//
//   nvcc -O3 -std=c++17 -arch=sm_90 limits.cu -o limits && ./limits > raw.csv
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <string>
#include <vector>

#define CHECK(call)                                                                                                   \
    do {                                                                                                              \
        cudaError_t error = (call);                                                                                   \
        if (error != cudaSuccess) {                                                                                   \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));                            \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

constexpr int RANKS_MAX = 8, THREADS = 512, RUNS = 15;
constexpr long long SPIN_MAX_CYCLES = 2000000000ll;

struct Buffers {
    const float4* in[RANKS_MAX];
    float4* out[RANKS_MAX];
};

// Element i of every output becomes the sum of element i of all inputs.
template <int INPUTS, int OUTPUTS> __global__ void __launch_bounds__(THREADS) combine(Buffers buffers, size_t first, size_t count) {
    size_t stride = (size_t)gridDim.x * THREADS;
    for (size_t at = first + (size_t)blockIdx.x * THREADS + threadIdx.x; at < first + count; at += stride) {
        float4 sum = buffers.in[0][at];
#pragma unroll
        for (int rank = 1; rank < INPUTS; rank++) {
            float4 more = buffers.in[rank][at];
            sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
        }
#pragma unroll
        for (int rank = 0; rank < OUTPUTS; rank++) buffers.out[rank][at] = sum;
    }
}

// All-gather: part r of every output is rank r's part. All-to-all: part r of output s is part s of input r. Parts in one sweep each.
template <int RANKS, bool TO_ALL> __global__ void __launch_bounds__(THREADS) move(Buffers buffers, size_t part) {
    size_t stride = (size_t)gridDim.x * THREADS;
    for (size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x; at < part * RANKS; at += stride) {
        size_t from = at / part, place = at % part;
        if (TO_ALL) {
            float4 value = buffers.in[from][place];
#pragma unroll
            for (int rank = 0; rank < RANKS; rank++) buffers.out[rank][from * part + place] = value;
        } else {
#pragma unroll
            for (int rank = 0; rank < RANKS; rank++) buffers.out[rank][from * part + place] = buffers.in[from][rank * part + place];
        }
    }
}

__global__ void __launch_bounds__(THREADS) copy(const float4* in, float4* out, size_t count) {
    size_t stride = (size_t)gridDim.x * THREADS;
    for (size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x; at < count; at += stride) out[at] = in[at];
}

// Waits for odd or even counts of a flag and answers with the next.
__global__ void ping(uint32_t* mine, uint32_t* theirs, uint32_t rounds, bool starts) {
    long long began = clock64();
    for (uint32_t round = 1; round <= rounds; round++) {
        if (starts) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(theirs), "r"(round) : "memory");
        uint32_t found;
        do {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(mine) : "memory");
        } while (found != round && clock64() - began < SPIN_MAX_CYCLES);
        if (!starts) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(theirs), "r"(round) : "memory");
    }
}

template <class Work> double median_us(Work work) {
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin)); CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int run = 0; run < RUNS + 2; run++) {
        CHECK(cudaEventRecord(begin));
        work();
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (run >= 2) times.push_back(ms * 1000);
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
}

void row(const char* what, int ranks, size_t bytes, int blocks, double moved, double us) {
    printf("%s,%d,%zu,%d,%.0f,%.2f,%.1f\n", what, ranks, bytes, blocks, moved, us, moved / us / 1000);
    fflush(stdout);
}

template <int N> void collectives(Buffers buffers, size_t bytes, int blocks) {
    size_t count = bytes / sizeof(float4);
    double d = (double)bytes;
    row("all_reduce", N, bytes, blocks, 2 * N * d, median_us([&] { combine<N, N><<<blocks, THREADS>>>(buffers, 0, count); }));
    row("reduce", N, bytes, blocks, (N + 1) * d, median_us([&] { combine<N, 1><<<blocks, THREADS>>>(buffers, 0, count); }));
    row("broadcast", N, bytes, blocks, (N + 1) * d, median_us([&] { combine<1, N><<<blocks, THREADS>>>(buffers, 0, count); }));
    row("reduce_scatter", N, bytes, blocks, (N + 1) * d, median_us([&] {
            for (int rank = 0; rank < N; rank++) {
                Buffers own = buffers;
                own.out[0] = buffers.out[rank];
                combine<N, 1><<<blocks, THREADS>>>(own, count / N * rank, count / N);
            }
        }));
    row("all_gather", N, bytes, blocks, (N + 1) * d, median_us([&] { move<N, true><<<blocks, THREADS>>>(buffers, count / N); }));
    row("all_to_all", N, bytes, blocks, 2 * N * d, median_us([&] { move<N, false><<<blocks, THREADS>>>(buffers, count / N); }));
}

int main() {
    printf("what,ranks,bytes,blocks,bytes_moved,us,gb_per_s\n");
    const size_t most = (size_t)1 << 30;
    Buffers buffers;
    for (int rank = 0; rank < RANKS_MAX; rank++) {
        void *in, *out;
        CHECK(cudaMalloc(&in, most)); CHECK(cudaMalloc(&out, most));
        CHECK(cudaMemset(in, 0, most)); CHECK(cudaMemset(out, 0, most));
        buffers.in[rank] = (const float4*)in, buffers.out[rank] = (float4*)out;
    }
    for (size_t bytes : {(size_t)1 << 20, (size_t)16 << 20, (size_t)64 << 20, most})
        for (int blocks : {66, 132, 264}) {
            size_t count = bytes / sizeof(float4);
            row("copy", 1, bytes, blocks, 2.0 * bytes, median_us([&] { copy<<<blocks, THREADS>>>(buffers.in[0], buffers.out[0], count); }));
            collectives<2>(buffers, bytes, blocks), collectives<4>(buffers, bytes, blocks), collectives<8>(buffers, bytes, blocks);
        }
    // Host memory that the GPU maps.
    const size_t staged = (size_t)64 << 20;
    void *host, *other;
    CHECK(cudaHostAlloc(&host, staged, cudaHostAllocMapped)); CHECK(cudaHostAlloc(&other, staged, cudaHostAllocMapped));
    cudaStream_t streams[2];
    CHECK(cudaStreamCreateWithFlags(&streams[0], cudaStreamNonBlocking)); CHECK(cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking));
    for (int blocks : {1, 2, 4, 8, 16, 32, 64}) {
        size_t count = staged / sizeof(float4);
        row("host_write", 1, staged, blocks, staged, median_us([&] { copy<<<blocks, THREADS>>>(buffers.in[0], (float4*)host, count); }));
        row("host_read", 1, staged, blocks, staged, median_us([&] { copy<<<blocks, THREADS>>>((const float4*)host, buffers.out[0], count); }));
        cudaEvent_t begun, done;
        CHECK(cudaEventCreate(&begun)); CHECK(cudaEventCreate(&done));
        row("host_both_ways", 1, staged, blocks, 2.0 * staged, median_us([&] {
                CHECK(cudaEventRecord(begun)); CHECK(cudaStreamWaitEvent(streams[0], begun)); CHECK(cudaStreamWaitEvent(streams[1], begun));
                copy<<<blocks, THREADS, 0, streams[0]>>>(buffers.in[0], (float4*)host, count);
                copy<<<blocks, THREADS, 0, streams[1]>>>((const float4*)other, buffers.out[0], count);
                for (cudaStream_t stream : streams) {
                    CHECK(cudaEventRecord(done, stream));
                    CHECK(cudaStreamWaitEvent(0, done));
                }
            }));
    }
    row("memcpy_to_host", 1, staged, 0, staged, median_us([&] { CHECK(cudaMemcpyAsync(host, buffers.in[0], staged, cudaMemcpyDeviceToHost)); }));
    row("memcpy_to_device", 1, staged, 0, staged, median_us([&] { CHECK(cudaMemcpyAsync(buffers.out[0], host, staged, cudaMemcpyHostToDevice)); }));
    // Flags: a round trip is two hops.
    const uint32_t rounds = 2000;
    for (bool is_host : {false, true}) {
        uint32_t* flags;
        if (is_host) CHECK(cudaHostAlloc((void**)&flags, 4096, cudaHostAllocMapped));
        else CHECK(cudaMalloc((void**)&flags, 4096));
        std::vector<double> times;
        for (int run = 0; run < 7; run++) {
            CHECK(cudaMemset(flags, 0, 4096));
            CHECK(cudaDeviceSynchronize());
            cudaEvent_t begin, end;
            CHECK(cudaEventCreate(&begin)); CHECK(cudaEventCreate(&end));
            ping<<<1, 1, 0, streams[1]>>>(flags, flags + 64, rounds, false);
            CHECK(cudaEventRecord(begin, streams[0]));
            ping<<<1, 1, 0, streams[0]>>>(flags + 64, flags, rounds, true);
            CHECK(cudaEventRecord(end, streams[0]));
            CHECK(cudaDeviceSynchronize());
            float ms;
            CHECK(cudaEventElapsedTime(&ms, begin, end));
            times.push_back(ms * 1000 / rounds);
        }
        std::sort(times.begin(), times.end());
        row(is_host ? "flag_round_trip_host" : "flag_round_trip_device", 2, 4, 1, 8, times[times.size() / 2]);
    }
}
