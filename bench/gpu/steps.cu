// What does it cost to run a plan on a GPU as data instead of as a kernel written for it?
//
// An all-reduce of N ranks on one GPU (a rank is a stream, a call is one kernel per rank) in three forms, as nodes of a CUDA graph:
//   fixed    the algorithm written out in the kernel
//   params   steps interpreted from a program in the kernel parameters
//   global   steps interpreted from a program in device memory
// and, for the interpreted forms, with the checks that a product needs: every spin polls the clock, and after 20 us an abort word in
// host memory; flags carry a sequence and the call's signature. Also: what parameters cost a launch, what the scope of a flag costs,
// and 16-byte packets (8 bytes of data) beside 128-byte packets (120 bytes of data).
//
//   nvcc -O3 -std=c++17 -arch=sm_90 steps.cu -o steps && ./steps > raw.csv
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <functional>
#include <vector>

#define CHECK(call)                                                                                                   \
    do {                                                                                                              \
        cudaError_t error = (call);                                                                                   \
        if (error != cudaSuccess) {                                                                                   \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));                            \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

constexpr int RANKS_MAX = 8, STEPS_MAX = 4, BLOCKS_MAX = 132, GRAPH_RUNS = 15;
constexpr size_t BOX_PACKETS = 1 << 17, BYTES_MAX = (size_t)1 << 30;
constexpr long long SPIN_MAX_CYCLES = 4000000000ll, POLL_AFTER_CYCLES = 40000;

enum Kind : uint32_t { PUSH_PACKETS, REDUCE_PACKETS, MEET, REDUCE_MEMORY, PUSH_LINES, REDUCE_LINES };

// Inputs and outputs are addresses: a rank's buffers, or the boxes into which its peers put packets.
struct Step {
    Kind kind;
    uint32_t inputs, outputs;
    uint64_t first, last; // in units of the kind: packets, or 16 bytes
    void* in[RANKS_MAX];
    void* out[RANKS_MAX];
};

struct Program {
    uint32_t steps, rank, ranks, signature;
    uint64_t tile; // units of 16 bytes after which all ranks meet within a REDUCE_MEMORY; 0 for never
    unsigned* flags;      // of all ranks and blocks
    unsigned* epochs;     // of this rank, one per block
    const unsigned* abort; // in host memory
    Step step[STEPS_MAX];
};

__device__ unsigned load_acquire(const unsigned* p) {
    unsigned v;
    asm volatile("ld.acquire.gpu.u32 %0,[%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ unsigned load_acquire_sys(const unsigned* p) {
    unsigned v;
    asm volatile("ld.acquire.sys.u32 %0,[%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ void store_release(unsigned* p, unsigned v) {
    asm volatile("st.release.gpu.u32 [%0],%1;" ::"l"(p), "r"(v) : "memory");
}
__device__ void store_release_sys(unsigned* p, unsigned v) {
    asm volatile("st.release.sys.u32 [%0],%1;" ::"l"(p), "r"(v) : "memory");
}
__device__ uint4 load_packet(const uint4* p) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
__device__ void store_packet(uint4* p, uint4 v) {
    asm volatile("st.volatile.global.v4.u32 [%0],{%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
}

// Whether a spin goes on: bounded, and with checks it looks at the abort word once it has taken 20 us.
template <bool CHECKED> __device__ bool goes_on(long long since, const unsigned* abort) {
    long long spent = clock64() - since;
    if (CHECKED && spent > POLL_AFTER_CYCLES && load_acquire_sys(abort) != 0) return false;
    return spent < SPIN_MAX_CYCLES;
}

// Block b of every rank meets block b of every other.
template <bool CHECKED, bool SYS> __device__ void meet(const Program& p, unsigned epoch) {
    __syncthreads();
    if (threadIdx.x < p.ranks) {
        size_t block = (size_t)blockIdx.x * RANKS_MAX * RANKS_MAX * 8;
        unsigned* mine = p.flags + block + threadIdx.x * RANKS_MAX * 8 + p.rank * 8;
        unsigned* theirs = p.flags + block + p.rank * RANKS_MAX * 8 + threadIdx.x * 8;
        SYS ? store_release_sys(mine, epoch) : store_release(mine, epoch);
        long long since = clock64();
        while ((int)((SYS ? load_acquire_sys(theirs) : load_acquire(theirs)) - epoch) < 0 && goes_on<CHECKED>(since, p.abort)) {
        }
    }
    __syncthreads();
}

__device__ void add(float4& s, const float4& v) { s.x += v.x, s.y += v.y, s.z += v.z, s.w += v.w; }

// With UNROLL 0 the addresses are read from the step in every iteration; else they are held in registers, and UNROLL iterations are
// in flight at once.
template <int N, int UNROLL> __device__ void reduce_memory(const Step& s) {
    size_t stride = (size_t)gridDim.x * blockDim.x, i = s.first + (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if constexpr (UNROLL > 0) {
        const float4* in[N];
        float4* out[N];
#pragma unroll
        for (int q = 0; q < N; q++) in[q] = (const float4*)s.in[q], out[q] = (float4*)s.out[q];
        const size_t last = s.last;
        for (; i + (UNROLL - 1) * stride < last; i += UNROLL * stride) {
            float4 v[UNROLL][N];
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
#pragma unroll
                for (int q = 0; q < N; q++) v[u][q] = __ldcs(in[q] + i + u * stride);
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
#pragma unroll
                for (int q = 1; q < N; q++) add(v[u][0], v[u][q]);
#pragma unroll
                for (int q = 0; q < N; q++) __stcs(out[q] + i + u * stride, v[u][0]);
            }
        }
    }
    for (; i < s.last; i += stride) {
        float4 v[N];
#pragma unroll
        for (int q = 0; q < N; q++) v[q] = __ldcs((const float4*)s.in[q] + i);
#pragma unroll
        for (int q = 1; q < N; q++) add(v[0], v[q]);
#pragma unroll
        for (int q = 0; q < N; q++) __stcs((float4*)s.out[q] + i, v[0]);
    }
}

// A packet: 4 bytes, flag, 4 bytes, flag. `half` alternates, so that a box is not written while a peer still reads it.
template <int N> __device__ void push_packets(const Step& s, unsigned flag, size_t half) {
    for (size_t i = s.first + blockIdx.x * blockDim.x + threadIdx.x; i < s.last; i += gridDim.x * blockDim.x) {
        float2 mine = ((const float2*)s.in[0])[i];
        uint4 packet = make_uint4(__float_as_uint(mine.x), flag, __float_as_uint(mine.y), flag);
#pragma unroll
        for (int q = 0; q < N - 1; q++) store_packet((uint4*)s.out[q] + half + i, packet);
    }
}

template <int N, bool CHECKED>
__device__ void reduce_packets(const Program& p, const Step& s, unsigned flag, size_t half) {
    for (size_t i = s.first + blockIdx.x * blockDim.x + threadIdx.x; i < s.last; i += gridDim.x * blockDim.x) {
        float2 sum = ((const float2*)s.in[0])[i];
#pragma unroll
        for (int q = 1; q < N; q++) {
            uint4 g;
            long long since = clock64();
            do g = load_packet((const uint4*)s.in[q] + half + i);
            while ((g.y != flag || g.w != flag) && goes_on<CHECKED>(since, p.abort));
            sum.x += __uint_as_float(g.x), sum.y += __uint_as_float(g.z);
        }
        ((float2*)s.out[0])[i] = sum;
    }
}

// A line: eight threads move 128 bytes, of which the last thread's second half is the flag. Threads of a warp load and store it
// together, so that it is whole when its flag is there.
template <int N> __device__ void push_lines(const Step& s, unsigned flag, size_t half) {
    size_t lines = (s.last - s.first + 14) / 15, stride = (size_t)gridDim.x * blockDim.x / 8; // 15 pairs of floats in a line
    size_t rounds = (lines + stride - 1) / stride, at = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 8;
    unsigned part = threadIdx.x % 8;
    for (size_t round = 0; round < rounds; round++, at += stride) {
        size_t pair = s.first + at * 15 + part * 2;
        const float2* in = (const float2*)s.in[0];
        float2 a = pair < s.last ? in[pair] : make_float2(0, 0);
        float2 b = part < 7 && pair + 1 < s.last ? in[pair + 1] : make_float2(__uint_as_float(flag), __uint_as_float(flag));
        uint4 packet = make_uint4(__float_as_uint(a.x), __float_as_uint(a.y), __float_as_uint(b.x), __float_as_uint(b.y));
        __syncwarp();
        if (at < lines)
#pragma unroll
            for (int q = 0; q < N - 1; q++) store_packet((uint4*)s.out[q] + half + at * 8 + part, packet);
    }
}

template <int N, bool CHECKED>
__device__ void reduce_lines(const Program& p, const Step& s, unsigned flag, size_t half) {
    size_t lines = (s.last - s.first + 14) / 15, stride = (size_t)gridDim.x * blockDim.x / 8;
    size_t rounds = (lines + stride - 1) / stride, at = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 8;
    unsigned part = threadIdx.x % 8;
    for (size_t round = 0; round < rounds; round++, at += stride) {
        size_t pair = s.first + at * 15 + part * 2;
        bool first = pair < s.last, second = part < 7 && pair + 1 < s.last;
        const float2* in = (const float2*)s.in[0];
        float2 a = first ? in[pair] : make_float2(0, 0), b = second ? in[pair + 1] : make_float2(0, 0);
#pragma unroll
        for (int q = 1; q < N; q++) {
            uint4 g;
            long long since = clock64();
            bool is_there;
            do {
                g = at < lines ? load_packet((const uint4*)s.in[q] + half + at * 8 + part) : make_uint4(0, 0, flag, flag);
                is_there = part != 7 || g.z == flag;
            } while (__any_sync(0xffffffff, !is_there) && __any_sync(0xffffffff, goes_on<CHECKED>(since, p.abort)));
            a.x += __uint_as_float(g.x), a.y += __uint_as_float(g.y);
            b.x += __uint_as_float(g.z), b.y += __uint_as_float(g.w);
        }
        float2* out = (float2*)s.out[0];
        if (first) out[pair] = a;
        if (second) out[pair + 1] = b;
    }
}

template <int N, bool CHECKED, bool SYS, int UNROLL> __device__ void interpret(const Program& p) {
    unsigned epoch = p.epochs[blockIdx.x];
    unsigned flag = CHECKED ? (epoch + 1) ^ p.signature : epoch + 1;
    size_t half = (epoch + 1 & 1) * RANKS_MAX * BOX_PACKETS;
    unsigned meetings = epoch;
    for (uint32_t at = 0; at < p.steps; at++) {
        const Step& s = p.step[at];
        switch (s.kind) {
        case PUSH_PACKETS: push_packets<N>(s, flag, half); break;
        case REDUCE_PACKETS: reduce_packets<N, CHECKED>(p, s, flag, half); break;
        case PUSH_LINES: push_lines<N>(s, flag, half); break;
        case REDUCE_LINES: reduce_lines<N, CHECKED>(p, s, flag, half); break;
        case MEET: meet<CHECKED, SYS>(p, ++meetings); break;
        case REDUCE_MEMORY:
            if (p.tile == 0) {
                reduce_memory<N, UNROLL>(s);
            } else {
                Step part = s;
                for (uint64_t at = s.first; at < s.last; at += p.tile) {
                    if (at > s.first) meet<CHECKED, SYS>(p, ++meetings);
                    part.first = at, part.last = at + p.tile < s.last ? at + p.tile : s.last;
                    reduce_memory<N, UNROLL>(part);
                }
            }
            break;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) p.epochs[blockIdx.x] = meetings == epoch ? epoch + 1 : meetings;
}

template <int N, bool CHECKED, bool SYS, int UNROLL = 0> __global__ void __launch_bounds__(512) by_params(const __grid_constant__ Program p) {
    interpret<N, CHECKED, SYS, UNROLL>(p);
}
template <int N, bool CHECKED, int UNROLL = 0> __global__ void __launch_bounds__(512) by_global(const Program* p) {
    interpret<N, CHECKED, false, UNROLL>(*p);
}
// The same algorithms written out. Packets: what was sent is still in a register when the others' arrive.
template <int N> __global__ void __launch_bounds__(512) fixed_packets(const __grid_constant__ Program p) {
    unsigned flag = p.epochs[blockIdx.x] + 1;
    size_t half = (flag & 1) * RANKS_MAX * BOX_PACKETS;
    const Step &push = p.step[0], &reduce = p.step[1];
    for (size_t i = push.first + blockIdx.x * blockDim.x + threadIdx.x; i < push.last; i += gridDim.x * blockDim.x) {
        float2 sum = ((const float2*)push.in[0])[i];
        uint4 packet = make_uint4(__float_as_uint(sum.x), flag, __float_as_uint(sum.y), flag);
#pragma unroll
        for (int q = 0; q < N - 1; q++) store_packet((uint4*)push.out[q] + half + i, packet);
#pragma unroll
        for (int q = 1; q < N; q++) {
            uint4 g;
            long long since = clock64();
            do g = load_packet((const uint4*)reduce.in[q] + half + i);
            while ((g.y != flag || g.w != flag) && clock64() - since < SPIN_MAX_CYCLES);
            sum.x += __uint_as_float(g.x), sum.y += __uint_as_float(g.z);
        }
        ((float2*)reduce.out[0])[i] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) p.epochs[blockIdx.x] = flag;
}
template <int N> __global__ void __launch_bounds__(512) fixed_memory(const __grid_constant__ Program p) {
    unsigned epoch = p.epochs[blockIdx.x];
    meet<false, false>(p, epoch + 1);
    reduce_memory<N, 0>(p.step[1]);
    meet<false, false>(p, epoch + 2);
    if (threadIdx.x == 0) p.epochs[blockIdx.x] = epoch + 2;
}
template <int BYTES> struct Padding {
    char bytes[BYTES];
};
template <int BYTES> __global__ void empty(const __grid_constant__ Padding<BYTES>) {}

static cudaStream_t streams[RANKS_MAX];
static cudaEvent_t joins[RANKS_MAX], forked;

// The median time of a call in a graph of `chain` calls on `ranks` streams, in microseconds.
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

struct Ranks {
    char *in[RANKS_MAX], *out[RANKS_MAX];
    uint4* box[RANKS_MAX];
    unsigned *flags, *epochs, *abort;
    Program* programs; // in device memory
};

static size_t half_box() { return (size_t)RANKS_MAX * BOX_PACKETS; }
static constexpr size_t FLAG_BYTES = (size_t)BLOCKS_MAX * RANKS_MAX * RANKS_MAX * 8 * 4;

static void clear(const Ranks& all, int ranks) {
    CHECK(cudaMemset(all.flags, 0, FLAG_BYTES));
    CHECK(cudaMemset(all.epochs, 0, RANKS_MAX * BLOCKS_MAX * 4));
    for (int r = 0; r < ranks; r++) {
        CHECK(cudaMemset(all.box[r], 0, 2 * half_box() * sizeof(uint4)));
        CHECK(cudaMemset(all.out[r], 0xff, 1 << 20));
    }
    CHECK(cudaDeviceSynchronize());
}

static Program program(const Ranks& all, int ranks, int rank, Kind first, size_t bytes) {
    Program p = {};
    p.rank = rank, p.ranks = ranks, p.signature = 0x5eed0000, p.flags = all.flags;
    p.epochs = all.epochs + rank * BLOCKS_MAX, p.abort = all.abort;
    if (first == MEET) {
        p.steps = 3;
        p.step[0].kind = p.step[2].kind = MEET;
        Step& s = p.step[1];
        size_t units = bytes / 16;
        s.kind = REDUCE_MEMORY, s.inputs = s.outputs = ranks;
        s.first = units * rank / ranks, s.last = units * (rank + 1) / ranks;
        for (int q = 0; q < ranks; q++) s.in[q] = all.in[q], s.out[q] = all.out[q];
        return p;
    }
    p.steps = 2;
    Step &push = p.step[0], &reduce = p.step[1];
    push.kind = first, reduce.kind = first == PUSH_PACKETS ? REDUCE_PACKETS : REDUCE_LINES;
    push.first = reduce.first = 0, push.last = reduce.last = bytes / 8;
    push.inputs = reduce.outputs = 1, push.outputs = ranks - 1, reduce.inputs = ranks;
    push.in[0] = reduce.in[0] = all.in[rank], reduce.out[0] = all.out[rank];
    for (int q = 0, at = 0; q < ranks; q++)
        if (q != rank) {
            push.out[at] = all.box[q] + rank * BOX_PACKETS;
            reduce.in[1 + at++] = all.box[rank] + q * BOX_PACKETS;
        }
    return p;
}

template <int N> static void measure(const Ranks& all, int round) {
    struct Form {
        const char* name;
        Kind kind;
        std::function<void(const Program&, const Program*, int, int, cudaStream_t)> launch;
        size_t tile = 0; // bytes of a rank's buffer
    };
    const Form forms[] = {
        {"packets fixed", PUSH_PACKETS, [](auto& p, auto*, int b, int t, auto s) { fixed_packets<N><<<b, t, 0, s>>>(p); }},
        {"packets params", PUSH_PACKETS, [](auto& p, auto*, int b, int t, auto s) { by_params<N, false, false><<<b, t, 0, s>>>(p); }},
        {"packets params checked", PUSH_PACKETS, [](auto& p, auto*, int b, int t, auto s) { by_params<N, true, false><<<b, t, 0, s>>>(p); }},
        {"packets global checked", PUSH_PACKETS, [](auto&, auto* p, int b, int t, auto s) { by_global<N, true><<<b, t, 0, s>>>(p); }},
        {"lines params checked", PUSH_LINES, [](auto& p, auto*, int b, int t, auto s) { by_params<N, true, false><<<b, t, 0, s>>>(p); }},
        {"memory fixed", MEET, [](auto& p, auto*, int b, int t, auto s) { fixed_memory<N><<<b, t, 0, s>>>(p); }},
        {"memory params checked", MEET, [](auto& p, auto*, int b, int t, auto s) { by_params<N, true, false><<<b, t, 0, s>>>(p); }},
        {"memory params checked sys", MEET, [](auto& p, auto*, int b, int t, auto s) { by_params<N, true, true><<<b, t, 0, s>>>(p); }},
        {"memory params checked held", MEET, [](auto& p, auto*, int b, int t, auto s) { by_params<N, true, false, 1><<<b, t, 0, s>>>(p); }},
        {"memory params checked held 2", MEET, [](auto& p, auto*, int b, int t, auto s) { by_params<N, true, false, 2><<<b, t, 0, s>>>(p); }},
        {"memory params checked held tiles of 8 MiB", MEET, [](auto& p, auto*, int b, int t, auto s) { by_params<N, true, false, 1><<<b, t, 0, s>>>(p); }, 8 << 20},
        {"memory params checked held tiles of 32 MiB", MEET, [](auto& p, auto*, int b, int t, auto s) { by_params<N, true, false, 1><<<b, t, 0, s>>>(p); }, 32 << 20},
        {"memory params checked held 2 tiles of 32 MiB", MEET, [](auto& p, auto*, int b, int t, auto s) { by_params<N, true, false, 2><<<b, t, 0, s>>>(p); }, 32 << 20},
        {"memory global checked held", MEET, [](auto&, auto* p, int b, int t, auto s) { by_global<N, true, 1><<<b, t, 0, s>>>(p); }},
        {"memory global checked", MEET, [](auto&, auto* p, int b, int t, auto s) { by_global<N, true><<<b, t, 0, s>>>(p); }},
    };
    for (size_t bytes : {(size_t)8, (size_t)1024, (size_t)4096, (size_t)16384, (size_t)65536, (size_t)262144, (size_t)1 << 20,
                         (size_t)16 << 20, (size_t)64 << 20, BYTES_MAX}) {
        for (const Form& form : forms) {
            bool packets = form.kind != MEET;
            if ((packets ? bytes > 262144 : bytes < 16384) || bytes < form.tile) continue;
            size_t threads = form.kind == PUSH_LINES ? (bytes / 8 + 14) / 15 * 8 : packets ? bytes / 8 : bytes / 16 / N;
            int t = (int)std::min<size_t>(512, std::max<size_t>(32, (threads + 31) / 32 * 32));
            int b = (int)std::min<size_t>(BLOCKS_MAX / N, std::max<size_t>(1, (threads + t - 1) / t));
            Program p[N];
            for (int r = 0; r < N; r++) p[r] = program(all, N, r, form.kind, bytes), p[r].tile = form.tile / 16 / N;
            CHECK(cudaMemcpy(all.programs, p, sizeof p, cudaMemcpyHostToDevice));
            clear(all, N);
            float us = graph_us(N, bytes > (64 << 20) ? 2 : bytes > (1 << 20) ? 10 : 50,
                                [&](int r) { form.launch(p[r], all.programs + r, b, t, streams[r]); });
            std::vector<float> got(std::min<size_t>(bytes, 1 << 20) / 4);
            size_t wrong = 0;
            for (int r = 0; r < N; r++) {
                CHECK(cudaMemcpy(got.data(), all.out[r], got.size() * 4, cudaMemcpyDeviceToHost));
                for (size_t i = 0; i < got.size(); i++) wrong += got[i] != (float)(N * (N + 1) / 2 + N * (int)(i % 97));
            }
            printf("%d,%d,%s,%zu,%d,%d,%.3f,%zu\n", round, N, form.name, bytes, b, t, us, wrong);
            fflush(stdout);
        }
    }
}

template <int BYTES> static void launches(int round) {
    Padding<BYTES> padding = {};
    float us = graph_us(1, 200, [&](int) { empty<BYTES><<<1, 32, 0, streams[0]>>>(padding); });
    printf("%d,1,empty kernel %d bytes of parameters,0,1,32,%.3f,0\n", round, BYTES, us);
}

int main() {
    for (int r = 0; r < RANKS_MAX; r++) {
        CHECK(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&joins[r], cudaEventDisableTiming));
    }
    CHECK(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
    Ranks all;
    CHECK(cudaMalloc(&all.flags, FLAG_BYTES));
    CHECK(cudaMalloc(&all.epochs, RANKS_MAX * BLOCKS_MAX * 4));
    CHECK(cudaMalloc(&all.programs, RANKS_MAX * sizeof(Program)));
    CHECK(cudaHostAlloc(&all.abort, 4096, cudaHostAllocMapped));
    *all.abort = 0;
    for (int r = 0; r < RANKS_MAX; r++) {
        CHECK(cudaMalloc(&all.in[r], BYTES_MAX));
        CHECK(cudaMalloc(&all.out[r], BYTES_MAX));
        CHECK(cudaMalloc(&all.box[r], 2 * half_box() * sizeof(uint4)));
        std::vector<float> values(BYTES_MAX / 4);
        for (size_t i = 0; i < values.size(); i++) values[i] = (float)(r + 1 + (int)(i % 97));
        CHECK(cudaMemcpy(all.in[r], values.data(), BYTES_MAX, cudaMemcpyHostToDevice));
    }
    printf("round,ranks,form,bytes,blocks,threads,time_us,wrong\n");
    for (int round = 0; round < 3; round++) {
        launches<8>(round), launches<256>(round), launches<1024>(round), launches<4000>(round);
        measure<2>(all, round), measure<4>(all, round), measure<8>(all, round);
    }
    return 0;
}
