// What a device program costs when the numbers and kinds of its steps' operands are constants of the kernel and its addresses lie at fixed
// places in the parameters: the steps of `exchange` with packets and of `two-shot`, with every check that a product needs (credit, heads
// with the signature, entries, bounded waits, an abort word, reports), beside the same algorithms without any.
//
//   nvcc -O3 -std=c++17 -arch=sm_90 static.cu -o static && ./static > raw.csv
//
// Ranks are streams of one process, a call is one kernel per rank, calls are nodes of a CUDA graph.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <functional>
#include <vector>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t error = (call);                                                                \
        if (error != cudaSuccess) {                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

typedef unsigned int u32;
typedef unsigned long long u64;
constexpr int RANKS_MAX = 8, GRAPH_RUNS = 21, SLICES_MAX = 132;
constexpr u32 DEPTH = 16, UNIT_BYTES = 4096, SLOT_BYTES = 16 + 2 * UNIT_BYTES * 4;
constexpr u64 QUIET_CYCLES = 40000, SPIN_MAX_NS = 2000000000ull;

struct Report {
    u32 kind, signature, rank, step;
};

// A FIFO of packets between this rank and a peer, both directions.
struct Peer {
    uint4* send;         // Slots in the peer's memory.
    const uint4* receive; // Slots in this rank's.
    u64* credit_there;
    const u64* credit_here;
    u64* entry_there;
    const u64* entry_here;
    u64* counter_there;
    const u64* counter_here;
};

struct Call {
    u64* state;
    const u32* abort;
    Report* reports;
    char *input, *output;
    u64 elements;
    u32 rank, slices, signature, tiles;
    u64 tile_elements;
    Peer peers[RANKS_MAX];
};

__device__ __forceinline__ u64 load_relaxed(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0,[%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_relaxed(u64* p, u64 v) { asm volatile("st.relaxed.gpu.global.u64 [%0],%1;" ::"l"(p), "l"(v) : "memory"); }
__device__ __forceinline__ u64 load_acquire(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.gpu.global.u64 %0,[%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_release(u64* p, u64 v) { asm volatile("st.release.gpu.global.u64 [%0],%1;" ::"l"(p), "l"(v) : "memory"); }
__device__ __forceinline__ uint4 load_packets(const uint4* p) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_packets(uint4* p, uint4 v) {
    asm volatile("st.volatile.global.v4.u32 [%0],{%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ u64 nanoseconds() {
    u64 v;
    asm volatile("mov.u64 %0,%globaltimer;" : "=l"(v));
    return v;
}

__device__ int failed_anywhere;

// A wait that lasts: reports, looks at the abort word and the clock. False if the wait is over.
__device__ __noinline__ bool wait_long(const u32* abort, Report* reports, u64& since, u32 rank, u32 step) {
    u32 aborted;
    asm volatile("ld.relaxed.sys.global.u32 %0,[%1];" : "=r"(aborted) : "l"(abort) : "memory");
    if (!(since >> 63)) {
        since = nanoseconds() | 1ull << 63;
        Report* to = reports + blockIdx.x;
        to->rank = rank, to->step = step, to->kind = 1;
    }
    if (aborted != 0 || nanoseconds() - (since & ~(1ull << 63)) > SPIN_MAX_NS) {
        failed_anywhere = 1;
        return false;
    }
    __nanosleep(100);
    return true;
}
#define GOES_ON(call, since, rank, step) \
    ((!((since) >> 63) && (u64)clock64() - (since) < QUIET_CYCLES) || wait_long((call).abort, (call).reports, since, rank, step))

// Step 0: take input, send to all. Step 1: combine input and all messages, store in output.
template <int N> __global__ void __launch_bounds__(512, 2) exchange(const __grid_constant__ Call call) {
    const u32 slice = blockIdx.x, t = threadIdx.x;
    u64* state = call.state + slice * 16;
    u64 number = load_relaxed(state); // Messages so far, the same in all FIFOs.
    u64 credit = t < N && t != call.rank ? load_relaxed(call.peers[t].credit_here + slice * 4) : ~0ull >> 1;
    float2 mine = {};
    const u64 first = ((u64)slice * blockDim.x + t), step = (u64)call.slices * blockDim.x, pairs = call.elements / 2;
    if (first < pairs) mine = ((const float2*)call.input)[first];
    if (__syncthreads_or(number >= credit + DEPTH)) {
        u64 since = clock64();
        if (t < N && t != call.rank)
            while (number >= load_relaxed(call.peers[t].credit_here + slice * 4) + DEPTH && GOES_ON(call, since, t, 0)) {
            }
        __syncthreads();
    }
    const u32 flag = (u32)number | 0x80000000u;
    const u64 slot = ((u64)slice * DEPTH + number % DEPTH) * SLOT_BYTES / 16;
    if (t < N && t != call.rank) store_packets(call.peers[t].send + slot, make_uint4(call.signature, flag, call.signature, flag));
    u64 k = 0;
    for (u64 i = first; i < pairs; i += step, k++) {
        if (k > 0) mine = ((const float2*)call.input)[i];
        const u64 at = slot + 1 + k * blockDim.x + t;
        uint4 packet = make_uint4(__float_as_uint(mine.x), flag, __float_as_uint(mine.y), flag), got[N];
#pragma unroll
        for (int q = 0; q < N; q++)
            if (q != call.rank) store_packets(call.peers[q].send + at, packet);
        u64 since = clock64();
        for (;;) {
            int missing = -1;
#pragma unroll
            for (int q = 0; q < N; q++)
                if (q != call.rank) got[q] = load_packets(call.peers[q].receive + at);
                else got[q] = packet;
#pragma unroll
            for (int q = 0; q < N; q++)
                if (got[q].y != flag || got[q].w != flag) missing = q;
            if (missing < 0 || !GOES_ON(call, since, missing, 1)) break;
        }
        float2 sum = make_float2(__uint_as_float(got[0].x), __uint_as_float(got[0].z));
#pragma unroll
        for (int q = 1; q < N; q++) sum.x += __uint_as_float(got[q].x), sum.y += __uint_as_float(got[q].z);
        ((float2*)call.output)[i] = sum;
    }
    bool wrong = false;
    if (t < N && t != call.rank) {
        u64 since = clock64();
        uint4 head;
        do head = load_packets(call.peers[t].receive + slot);
        while (head.y != flag && GOES_ON(call, since, t, 1));
        wrong = head.x != call.signature;
    }
    if (__syncthreads_or(wrong)) {
        call.reports[blockIdx.x].kind = 2;
        return;
    }
    if (t < N && t != call.rank) store_relaxed(call.peers[t].credit_there + slice * 4, number + 1);
    if (t == 0) store_relaxed(state, number + 1);
}

// Step 0: wait until all have entered, combine all inputs, store in all outputs, signal. Step 1: wait for all signals. Repeated for each tile.
template <int N> __global__ void __launch_bounds__(512, 2) two_shot(const __grid_constant__ Call call) {
    __shared__ const float4* in[N];
    __shared__ float4* out[N];
    const u32 slice = blockIdx.x, t = threadIdx.x;
    u64* state = call.state + slice * 16;
    const u64 tiles = load_relaxed(state), epoch = (tiles + 1) << 32;
    if (t < N) {
        if (t == call.rank) {
            in[t] = (const float4*)call.input, out[t] = (float4*)call.output;
        } else {
            const Peer& peer = call.peers[t];
            u64 *to = peer.entry_there + slice * 8, input = (u64)call.input, output = (u64)call.output;
            asm volatile("fence.acq_rel.gpu;" ::: "memory");
            store_relaxed(to + 0, epoch | (u32)input), store_relaxed(to + 1, epoch | input >> 32);
            store_relaxed(to + 2, epoch | (u32)output), store_relaxed(to + 3, epoch | output >> 32);
            store_relaxed(to + 4, epoch | call.signature);
            const u64* from = peer.entry_here + slice * 8;
            u64 w[5], since = clock64();
            for (;;) {
#pragma unroll
                for (int i = 0; i < 5; i++) w[i] = load_relaxed(from + i);
                u32 there = 0;
#pragma unroll
                for (int i = 0; i < 5; i++) there += w[i] >> 32 == (epoch >> 32);
                if (there == 5 || !GOES_ON(call, since, t, 0)) break;
            }
            asm volatile("fence.acq_rel.gpu;" ::: "memory");
            if ((u32)w[4] != call.signature) call.reports[blockIdx.x].kind = 2, failed_anywhere = 1;
            in[t] = (const float4*)(w[1] << 32 | (u32)w[0]), out[t] = (float4*)(w[3] << 32 | (u32)w[2]);
        }
    }
    __syncthreads();
    const u64 stride = (u64)call.slices * blockDim.x;
    for (u32 tile = 0; tile < call.tiles; tile++) {
        // Chunk `rank` of the tile, in units of 16 bytes.
        const u64 start = tile * call.tile_elements / 4, length = min(call.tile_elements, call.elements - tile * call.tile_elements) / 4;
        const u64 chunk = (length + N - 1) / N, from = min(chunk * call.rank, length), to = min(from + chunk, length);
        for (u64 i = start + from + (u64)slice * blockDim.x + t; i < start + to; i += stride) {
            float4 v[N];
#pragma unroll
            for (int q = 0; q < N; q++) v[q] = __ldcs(in[q] + i);
#pragma unroll
            for (int q = 1; q < N; q++) v[0].x += v[q].x, v[0].y += v[q].y, v[0].z += v[q].z, v[0].w += v[q].w;
#pragma unroll
            for (int q = 0; q < N; q++) __stcs(out[q] + i, v[0]);
        }
        __syncthreads();
        if (t < N && t != call.rank) {
            const u64 value = tiles + tile + 1;
            store_release(call.peers[t].counter_there + slice * 4, value);
            u64 since = clock64();
            while (load_acquire(call.peers[t].counter_here + slice * 4) < value && GOES_ON(call, since, t, 1)) {
            }
        }
        if (tile + 1 < call.tiles) __syncthreads();
    }
    if (t == 0) store_relaxed(state, tiles + call.tiles);
}

// The same without checks, as in the yardstick.
struct Bare {
    float4* in[RANKS_MAX];
    float4* out[RANKS_MAX];
    uint4* box[RANKS_MAX];
    u32 *flags, *epochs;
};
__device__ void meet(u32* flags, int rank, int ranks, u32 epoch) {
    __syncthreads();
    if (threadIdx.x < ranks) {
        u32* mine = flags + ((size_t)blockIdx.x * RANKS_MAX + threadIdx.x) * RANKS_MAX * 8 + rank * 8;
        u32* theirs = flags + ((size_t)blockIdx.x * RANKS_MAX + rank) * RANKS_MAX * 8 + threadIdx.x * 8;
        asm volatile("st.release.gpu.u32 [%0],%1;" ::"l"(mine), "r"(epoch) : "memory");
        u32 v;
        long long since = clock64();
        do asm volatile("ld.acquire.gpu.u32 %0,[%1];" : "=r"(v) : "l"(theirs) : "memory");
        while ((int)(v - epoch) < 0 && clock64() - since < 4000000000ll);
    }
    __syncthreads();
}
template <int N> __global__ void __launch_bounds__(512) bare_two_shot(Bare p, size_t n4, int rank) {
    u32 e = p.epochs[rank * 1024 + blockIdx.x];
    meet(p.flags, rank, N, e + 1);
    size_t from = n4 / N * rank, to = rank == N - 1 ? n4 : n4 / N * (rank + 1);
    for (size_t i = from + (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < to; i += (size_t)gridDim.x * blockDim.x) {
        float4 v[N];
#pragma unroll
        for (int q = 0; q < N; q++) v[q] = __ldcs(p.in[q] + i);
#pragma unroll
        for (int q = 1; q < N; q++) v[0].x += v[q].x, v[0].y += v[q].y, v[0].z += v[q].z, v[0].w += v[q].w;
#pragma unroll
        for (int q = 0; q < N; q++) __stcs(p.out[q] + i, v[0]);
    }
    meet(p.flags, rank, N, e + 2);
    if (threadIdx.x == 0) p.epochs[rank * 1024 + blockIdx.x] = e + 2;
}
template <int N> __global__ void bare_one_shot(Bare p, int n8, int rank) {
    u32 e = p.epochs[rank * 1024 + blockIdx.x] + 1;
    size_t half = (e & 1) * (size_t)RANKS_MAX * 65536;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n8; i += gridDim.x * blockDim.x) {
        float2 mine = ((float2*)p.in[rank])[i];
        uint4 packet = make_uint4(__float_as_uint(mine.x), e, __float_as_uint(mine.y), e);
#pragma unroll
        for (int q = 0; q < N; q++)
            if (q != rank) store_packets(p.box[q] + half + (size_t)rank * 65536 + i, packet);
        float2 s = make_float2(0, 0);
#pragma unroll
        for (int q = 0; q < N; q++) {
            float2 v = mine;
            if (q != rank) {
                uint4 g;
                long long since = clock64();
                do g = load_packets(p.box[rank] + half + (size_t)q * 65536 + i);
                while ((g.y != e || g.w != e) && clock64() - since < 4000000000ll);
                v = make_float2(__uint_as_float(g.x), __uint_as_float(g.z));
            }
            s.x += v.x, s.y += v.y;
        }
        ((float2*)p.out[rank])[i] = s;
    }
    __syncthreads();
    if (threadIdx.x == 0) p.epochs[rank * 1024 + blockIdx.x] = e;
}

static cudaStream_t streams[RANKS_MAX];
static cudaEvent_t joins[RANKS_MAX], forked;

static float graph_us(int ranks, int chain, const std::function<void(int)>& launch) {
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    CHECK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal));
    CHECK(cudaEventRecord(forked, streams[0]));
    for (int r = 1; r < ranks; r++) CHECK(cudaStreamWaitEvent(streams[r], forked));
    for (int call = 0; call < chain; call++)
        for (int r = 0; r < ranks; r++) launch(r);
    for (int r = 1; r < ranks; r++) {
        CHECK(cudaEventRecord(joins[r], streams[r]));
        CHECK(cudaStreamWaitEvent(streams[0], joins[r]));
    }
    CHECK(cudaStreamEndCapture(streams[0], &graph));
    CHECK(cudaGraphInstantiate(&ready, graph, 0));
    cudaEvent_t began, ended;
    CHECK(cudaEventCreate(&began));
    CHECK(cudaEventCreate(&ended));
    std::vector<float> times;
    for (int run = 0; run < GRAPH_RUNS; run++) {
        float ms;
        CHECK(cudaEventRecord(began, streams[0]));
        CHECK(cudaGraphLaunch(ready, streams[0]));
        CHECK(cudaEventRecord(ended, streams[0]));
        CHECK(cudaEventSynchronize(ended));
        CHECK(cudaEventElapsedTime(&ms, began, ended));
        times.push_back(ms * 1e3f / chain);
    }
    CHECK(cudaGraphExecDestroy(ready));
    CHECK(cudaGraphDestroy(graph));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

template <int N> static void run(int round) {
    size_t top = (size_t)1 << 30;
    Bare bare;
    CHECK(cudaMalloc(&bare.flags, 256 * RANKS_MAX * RANKS_MAX * 8 * 4));
    CHECK(cudaMemset(bare.flags, 0, 256 * RANKS_MAX * RANKS_MAX * 8 * 4));
    CHECK(cudaMalloc(&bare.epochs, RANKS_MAX * 1024 * 4));
    CHECK(cudaMemset(bare.epochs, 0, RANKS_MAX * 1024 * 4));
    Call calls[RANKS_MAX] = {}, windows[RANKS_MAX] = {};
    u32* abort;
    CHECK(cudaHostAlloc(&abort, 4096, cudaHostAllocMapped));
    *abort = 0;
    Report* reports;
    CHECK(cudaHostAlloc(&reports, RANKS_MAX * 256 * sizeof(Report), cudaHostAllocMapped));
    const size_t fifo = (size_t)SLICES_MAX * DEPTH * SLOT_BYTES, words = SLICES_MAX * 8 * 8;
    char *slots[RANKS_MAX], *control[RANKS_MAX], *state[RANKS_MAX];
    for (int r = 0; r < N; r++) {
        CHECK(cudaMalloc(&bare.in[r], top));
        CHECK(cudaMalloc(&bare.out[r], top));
        CHECK(cudaMalloc(&bare.box[r], 2ull * RANKS_MAX * 65536 * 16));
        CHECK(cudaMemset(bare.box[r], 0, 2ull * RANKS_MAX * 65536 * 16));
        CHECK(cudaMalloc(&slots[r], N * fifo));
        CHECK(cudaMemset(slots[r], 0, N * fifo));
        CHECK(cudaMalloc(&control[r], N * 3 * words));
        CHECK(cudaMemset(control[r], 0, N * 3 * words));
        CHECK(cudaMalloc(&state[r], 2 * SLICES_MAX * 128));
        CHECK(cudaMemset(state[r], 0, 2 * SLICES_MAX * 128));
        std::vector<float> h(1 << 20, r + 1.f);
        for (size_t o = 0; o < top; o += h.size() * 4) CHECK(cudaMemcpy((char*)bare.in[r] + o, h.data(), h.size() * 4, cudaMemcpyHostToDevice));
    }
    for (int r = 0; r < N; r++) {
        Call& call = calls[r];
        call.state = (u64*)state[r], call.abort = abort, call.reports = reports + r * 256;
        call.input = (char*)bare.in[r], call.output = (char*)bare.out[r], call.rank = r, call.signature = 1234567;
        for (int q = 0; q < N; q++) {
            Peer& peer = call.peers[q];
            peer.send = (uint4*)(slots[q] + r * fifo), peer.receive = (uint4*)(slots[r] + q * fifo);
            peer.credit_there = (u64*)(control[q] + r * words), peer.credit_here = (u64*)(control[r] + q * words);
            peer.entry_there = (u64*)(control[q] + (N + r) * words), peer.entry_here = (u64*)(control[r] + (N + q) * words);
            peer.counter_there = (u64*)(control[q] + (2 * N + r) * words), peer.counter_here = (u64*)(control[r] + (2 * N + q) * words);
        }
        windows[r] = call;
        windows[r].state = (u64*)(state[r] + SLICES_MAX * 128);
    }
    auto check = [&](size_t bytes) {
        for (int r = 0; r < N; r++)
            for (size_t at : {(size_t)0, (size_t)(bytes / 8 * 4), bytes - 4}) {
                float got;
                CHECK(cudaMemcpy(&got, (char*)bare.out[r] + at, 4, cudaMemcpyDeviceToHost));
                if (got != N * (N + 1) / 2) return "WRONG";
            }
        for (int r = 0; r < N; r++) CHECK(cudaMemset(bare.out[r], 0, bytes));
        CHECK(cudaDeviceSynchronize());
        return "right";
    };
    for (size_t bytes : {(size_t)8, (size_t)4096, (size_t)65536, (size_t)262144}) {
        int pairs = bytes / 8, threads = std::min(512, std::max(32, pairs)), blocks = std::min(132 / N, std::max(1, (pairs + threads - 1) / threads));
        float us = graph_us(N, 50, [&](int r) { bare_one_shot<N><<<blocks, threads, 0, streams[r]>>>(bare, pairs, r); });
        printf("packets bare,%d,%zu,%d,%d,%.2f,%s\n", N, bytes, blocks, round, us, check(bytes));
        if ((pairs + blocks * threads - 1) / (blocks * threads) > 4) continue;
        for (int r = 0; r < N; r++) calls[r].elements = bytes / 4, calls[r].slices = blocks;
        us = graph_us(N, 50, [&](int r) { exchange<N><<<blocks, threads, 0, streams[r]>>>(calls[r]); });
        printf("packets static,%d,%zu,%d,%d,%.2f,%s\n", N, bytes, blocks, round, us, check(bytes));
    }
    for (size_t bytes : {(size_t)65536, (size_t)1 << 20, (size_t)16 << 20, (size_t)64 << 20, (size_t)1 << 30})
        for (int total : {132, 264}) {
            int blocks = total / N, chain = bytes > (64 << 20) ? 2 : bytes > (1 << 20) ? 10 : 50;
            while (blocks > 1 && (size_t)blocks * 512 * 16 * N > bytes * 2) blocks /= 2;
            float us = graph_us(N, chain, [&](int r) { bare_two_shot<N><<<blocks, 512, 0, streams[r]>>>(bare, bytes / 16, r); });
            printf("memory bare,%d,%zu,%d,%d,%.2f,%s\n", N, bytes, blocks, round, us, check(bytes));
            for (int r = 0; r < N; r++) {
                windows[r].elements = bytes / 4, windows[r].slices = blocks, windows[r].tile_elements = (64 << 20) / N / 4;
                windows[r].tiles = (bytes / 4 + windows[r].tile_elements - 1) / windows[r].tile_elements;
            }
            us = graph_us(N, chain, [&](int r) { two_shot<N><<<blocks, 512, 0, streams[r]>>>(windows[r]); });
            printf("memory static,%d,%zu,%d,%d,%.2f,%s\n", N, bytes, blocks, round, us, check(bytes));
        }
    fflush(stdout);
    for (int r = 0; r < N; r++) {
        cudaFree(bare.in[r]), cudaFree(bare.out[r]), cudaFree(bare.box[r]);
        cudaFree(slots[r]), cudaFree(control[r]), cudaFree(state[r]);
    }
    cudaFree(bare.flags), cudaFree(bare.epochs), cudaFreeHost(abort), cudaFreeHost(reports);
}

int main() {
    for (int r = 0; r < RANKS_MAX; r++) {
        CHECK(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&joins[r], cudaEventDisableTiming));
    }
    CHECK(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
    puts("form,ranks,bytes,blocks,round,us,result");
    for (int round = 0; round < 3; round++) run<2>(round), run<4>(round), run<8>(round);
    return 0;
}
