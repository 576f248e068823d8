// How close does an interpreter of steps come to a bare kernel for the collectives other than all-reduce?
//
// N ranks on one GPU, a rank is a stream, a call is one kernel per rank. Each rank's program is a list of steps in the kernel parameters; a
// step reads up to N inputs, adds them, and writes up to N outputs. Ranks meet before the first step, after the last and after each tile. The
// arrangements touch every input byte and every output byte once:
//   broadcast       rank r reads part r of the root's input and writes it to all outputs
//   all-gather      rank r writes its input to part r of all outputs
//   reduce          rank r adds part r of all inputs into the root's output
//   reduce-scatter  rank r adds part r of all inputs into its output
//   all-reduce      rank r adds part r of all inputs into all outputs
//   all-to-all      rank r reads its part of each input (pull), or writes its parts to all outputs (push)
// D is the full buffer of a rank. "bare" is one kernel without synchronisation over all ranks' buffers (limits.cu), measured in turn with the others.
//
//   nvcc -O3 -std=c++17 -arch=sm_90 moves.cu -o moves && ./moves > raw.csv
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <functional>
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

constexpr int RANKS_MAX = 8, THREADS = 512, RUNS = 5, BLOCKS_MAX = 264;
constexpr long long SPIN_MAX_CYCLES = 4000000000ll, POLL_AFTER_CYCLES = 40000;

struct Step {
    const float4* in[RANKS_MAX];
    float4* out[RANKS_MAX];
    size_t count; // of 16 bytes
};
struct Program {
    uint32_t steps, rank, ranks;
    uint32_t blocked; // 1: a block takes a range of a tile; 0: blocks take turns, as one wide stride
    uint32_t interleaved; // 1: a rank's part is its share of every tile of the whole buffer; 0: a range of the buffer
    uint32_t meets;       // whether ranks meet after each tile
    size_t tile;      // of 16 bytes, over all steps; 0: no meeting within
    unsigned *flags, *epochs;
    const unsigned* abort;
    Step step[RANKS_MAX];
};

__device__ unsigned load_acquire(const unsigned* p) { unsigned v; asm volatile("ld.acquire.gpu.u32 %0,[%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
__device__ unsigned load_acquire_sys(const unsigned* p) { unsigned v; asm volatile("ld.acquire.sys.u32 %0,[%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
__device__ void store_release(unsigned* p, unsigned v) { asm volatile("st.release.gpu.u32 [%0],%1;" ::"l"(p), "r"(v) : "memory"); }

__device__ void meet(const Program& p, unsigned epoch) {
    __syncthreads();
    if (threadIdx.x < p.ranks) {
        size_t block = (size_t)blockIdx.x * RANKS_MAX * RANKS_MAX * 8;
        store_release(p.flags + block + threadIdx.x * RANKS_MAX * 8 + p.rank * 8, epoch);
        unsigned* theirs = p.flags + block + p.rank * RANKS_MAX * 8 + threadIdx.x * 8;
        long long since = clock64();
        while ((int)(load_acquire(theirs) - epoch) < 0) {
            long long spent = clock64() - since;
            if (spent > SPIN_MAX_CYCLES || (spent > POLL_AFTER_CYCLES && load_acquire_sys(p.abort))) break;
        }
    }
    __syncthreads();
}

template <int IN, int OUT, int UNROLL> __device__ void run(const Step& s, size_t first, size_t last, size_t shift, bool blocked) {
    size_t stride = (size_t)gridDim.x * THREADS, i = first + (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (blocked) {
        size_t share = ((last - first) / gridDim.x + THREADS) / THREADS * THREADS;
        i = first + blockIdx.x * share + threadIdx.x;
        last = min(last, first + (blockIdx.x + 1) * share);
        stride = THREADS;
    }
    const float4* in[IN];
    float4* out[OUT];
#pragma unroll
    for (int q = 0; q < IN; q++) in[q] = s.in[q] + shift;
#pragma unroll
    for (int q = 0; q < OUT; q++) out[q] = s.out[q] + shift;
    for (; i + (UNROLL - 1) * stride < last; i += UNROLL * stride) {
        float4 v[UNROLL][IN];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int q = 0; q < IN; q++) v[u][q] = __ldcs(in[q] + i + u * stride);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
#pragma unroll
            for (int q = 1; q < IN; q++) v[u][0].x += v[u][q].x, v[u][0].y += v[u][q].y, v[u][0].z += v[u][q].z, v[u][0].w += v[u][q].w;
#pragma unroll
            for (int q = 0; q < OUT; q++) __stcs(out[q] + i + u * stride, v[u][0]);
        }
    }
    for (; i < last; i += stride) {
        float4 sum = __ldcs(in[0] + i);
#pragma unroll
        for (int q = 1; q < IN; q++) { float4 v = __ldcs(in[q] + i); sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }
#pragma unroll
        for (int q = 0; q < OUT; q++) __stcs(out[q] + i, sum);
    }
}

template <int IN, int OUT, int UNROLL> __global__ void __launch_bounds__(THREADS) interpret(const __grid_constant__ Program p) {
    unsigned epoch = p.epochs[blockIdx.x];
    meet(p, ++epoch);
    size_t tile = p.tile ? p.tile : p.step[0].count;
    for (size_t first = 0; first < p.step[0].count; first += tile) {
        if (first && p.meets) meet(p, ++epoch);
        size_t shift = p.interleaved ? first * (p.ranks - 1) + p.rank * tile : 0;
        for (uint32_t at = 0; at < p.steps; at++) run<IN, OUT, UNROLL>(p.step[at], first, min(first + tile, p.step[0].count), shift, p.blocked);
    }
    meet(p, ++epoch);
    if (threadIdx.x == 0) p.epochs[blockIdx.x] = epoch;
}

// Bare kernels, over all ranks' buffers, without synchronisation.
struct All { const float4* in[RANKS_MAX]; float4* out[RANKS_MAX]; };
template <int IN, int OUT> __global__ void __launch_bounds__(THREADS) combine(All all, size_t first, size_t count) {
    for (size_t at = first + (size_t)blockIdx.x * THREADS + threadIdx.x; at < first + count; at += (size_t)gridDim.x * THREADS) {
        float4 sum = all.in[0][at];
#pragma unroll
        for (int q = 1; q < IN; q++) { float4 v = all.in[q][at]; sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }
#pragma unroll
        for (int q = 0; q < OUT; q++) all.out[q][at] = sum;
    }
}
template <int N, bool TO_ALL> __global__ void __launch_bounds__(THREADS) move(All all, size_t part) {
    for (size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x; at < part * N; at += (size_t)gridDim.x * THREADS) {
        size_t from = at / part, place = at % part;
        if (TO_ALL) {
            float4 value = all.in[from][place];
#pragma unroll
            for (int q = 0; q < N; q++) all.out[q][from * part + place] = value;
        } else {
#pragma unroll
            for (int q = 0; q < N; q++) all.out[q][from * part + place] = all.in[from][q * part + place];
        }
    }
}

static bool only_bare;
static cudaStream_t streams[RANKS_MAX];
static cudaEvent_t joins[RANKS_MAX], forked;
static float graph_us(int ranks, int chain, const std::function<void(int)>& launch) {
    cudaGraph_t graph; cudaGraphExec_t ready;
    CHECK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal)); CHECK(cudaEventRecord(forked, streams[0]));
    for (int r = 1; r < ranks; r++) CHECK(cudaStreamWaitEvent(streams[r], forked));
    for (int call = 0; call < chain; call++) for (int r = 0; r < ranks; r++) launch(r);
    for (int r = 1; r < ranks; r++) { CHECK(cudaEventRecord(joins[r], streams[r])); CHECK(cudaStreamWaitEvent(streams[0], joins[r])); }
    CHECK(cudaStreamEndCapture(streams[0], &graph)); CHECK(cudaGraphInstantiate(&ready, graph, 0));
    cudaEvent_t began, ended; CHECK(cudaEventCreate(&began)); CHECK(cudaEventCreate(&ended));
    std::vector<float> times;
    for (int run = 0; run < RUNS; run++) {
        float ms; CHECK(cudaEventRecord(began, streams[0])); CHECK(cudaGraphLaunch(ready, streams[0])); CHECK(cudaEventRecord(ended, streams[0]));
        CHECK(cudaEventSynchronize(ended)); CHECK(cudaEventElapsedTime(&ms, began, ended)); times.push_back(ms * 1e3f / chain);
    }
    CHECK(cudaGraphExecDestroy(ready)); CHECK(cudaGraphDestroy(graph));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

template <int N> struct Bench {
    float4 *in[N], *out[N];
    unsigned *flags, *epochs, *abort;
    enum What { BROADCAST, ALL_GATHER, REDUCE, REDUCE_SCATTER, PULL, PUSH, ALL_REDUCE };

    Program program(What what, int rank, size_t count, size_t tile, bool blocked, bool interleaved = false, bool meets = true) {
        Program p = {};
        p.rank = rank, p.ranks = N, p.flags = flags, p.epochs = epochs + rank * BLOCKS_MAX, p.abort = abort, p.blocked = blocked, p.interleaved = interleaved, p.meets = meets;
        size_t part = count / N;
        p.steps = what == PULL || what == PUSH ? N : 1;
        for (uint32_t at = 0; at < p.steps; at++) {
            Step& s = p.step[at];
            s.count = part;
            int peer = (rank + at) % N; // every rank begins with another peer
            for (int q = 0; q < N; q++) {
                s.in[q] = in[q] + rank * part;
                s.out[q] = out[q] + rank * part;
                if (interleaved) s.in[q] = in[q], s.out[q] = out[q];
            }
            if (what == BROADCAST) s.in[0] = in[0] + (interleaved ? 0 : rank * part);
            if (what == ALL_GATHER) s.in[0] = in[rank];
            if (what == REDUCE) s.out[0] = out[0] + (interleaved ? 0 : rank * part);
            if (what == REDUCE_SCATTER) s.out[0] = out[rank];
            if (what == PULL) s.in[0] = in[peer] + rank * part, s.out[0] = out[rank] + peer * part;
            if (what == PUSH) s.in[0] = in[rank] + peer * part, s.out[0] = out[peer] + rank * part;
        }
        p.tile = tile / 16 / N / p.steps;
        return p;
    }
    // Blocks wait for each other, so all of them have to be resident: registers decide how many are.
    bool fits(What what, int blocks, int unroll) {
        int each = 0;
#define ASK(I, O) (unroll == 1 ? cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, interpret<I, O, 1>, THREADS, 0) : unroll == 2 ? cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, interpret<I, O, 2>, THREADS, 0) : cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, interpret<I, O, 4>, THREADS, 0))
        if (what == BROADCAST || what == ALL_GATHER) CHECK(ASK(1, N));
        else if (what == REDUCE || what == REDUCE_SCATTER) CHECK(ASK(N, 1));
        else if (what == ALL_REDUCE) CHECK(ASK(N, N));
        else CHECK(ASK(1, 1));
        return each * 132 >= blocks;
    }
    void launch(What what, const Program& p, int blocks, int unroll, int r) {
#define BY(I, O) (unroll == 1 ? interpret<I, O, 1><<<blocks, THREADS, 0, streams[r]>>>(p) : unroll == 2 ? interpret<I, O, 2><<<blocks, THREADS, 0, streams[r]>>>(p) : interpret<I, O, 4><<<blocks, THREADS, 0, streams[r]>>>(p))
        if (what == BROADCAST || what == ALL_GATHER) BY(1, N);
        else if (what == REDUCE || what == REDUCE_SCATTER) BY(N, 1);
        else if (what == ALL_REDUCE) BY(N, N);
        else BY(1, 1);
    }
    // The first and last element of what each rank should have. Inputs: element i of rank r is r + 1.
    long wrong(What what, size_t count) {
        long bad = 0;
        size_t part = count / N;
        for (int r = 0; r < N; r++)
            for (int q = 0; q < N; q++) {
                float expected = what == BROADCAST ? 1 : what == ALL_GATHER || what == PULL || what == PUSH ? q + 1 : N * (N + 1) / 2;
                if ((what == REDUCE && r != 0) || (what == REDUCE_SCATTER && q != 0)) continue;
                float4 ends[2];
                CHECK(cudaMemcpy(ends, out[r] + q * part, 16, cudaMemcpyDeviceToHost)); CHECK(cudaMemcpy(ends + 1, out[r] + (q + 1) * part - 1, 16, cudaMemcpyDeviceToHost));
                bad += (ends[0].x != expected) + (ends[1].w != expected);
            }
        return bad;
    }
    void run() {
        const size_t most = (size_t)1 << 30;
        CHECK(cudaMalloc(&flags, BLOCKS_MAX * RANKS_MAX * RANKS_MAX * 32)); CHECK(cudaMemset(flags, 0, BLOCKS_MAX * RANKS_MAX * RANKS_MAX * 32));
        CHECK(cudaMalloc(&epochs, RANKS_MAX * BLOCKS_MAX * 4)); CHECK(cudaMemset(epochs, 0, RANKS_MAX * BLOCKS_MAX * 4));
        CHECK(cudaHostAlloc(&abort, 4, cudaHostAllocMapped)); *abort = 0;
        std::vector<float> fill(1 << 20);
        All all;
        for (int r = 0; r < N; r++) {
            CHECK(cudaMalloc(&in[r], most)); CHECK(cudaMalloc(&out[r], most));
            std::fill(fill.begin(), fill.end(), r + 1.f);
            for (size_t at = 0; at < most; at += fill.size() * 4) CHECK(cudaMemcpy((char*)in[r] + at, fill.data(), fill.size() * 4, cudaMemcpyHostToDevice));
            all.in[r] = in[r], all.out[r] = out[r];
        }
        const char* names[] = {"broadcast", "all_gather", "reduce", "reduce_scatter", "all_to_all pull", "all_to_all push", "all_reduce"};
        for (size_t bytes : {(size_t)64 << 20, most}) // element ranges are whole: both are multiples of all tiles
            for (What what : {BROADCAST, ALL_GATHER, REDUCE, REDUCE_SCATTER, PULL, PUSH, ALL_REDUCE}) {
                size_t count = bytes / 16;
                int chain = bytes > (64 << 20) ? 1 : 5;
                for (int blocks : {132, 264}) {
                    float us = graph_us(1, chain, [&](int) {
                        if (what == BROADCAST) combine<1, N><<<blocks, THREADS, 0, streams[0]>>>(all, 0, count);
                        if (what == ALL_GATHER) move<N, true><<<blocks, THREADS, 0, streams[0]>>>(all, count / N);
                        if (what == REDUCE) combine<N, 1><<<blocks, THREADS, 0, streams[0]>>>(all, 0, count);
                        if (what == REDUCE_SCATTER) for (int r = 0; r < N; r++) { All own = all; own.out[0] = out[r] - count / N * r; combine<N, 1><<<blocks, THREADS, 0, streams[0]>>>(own, count / N * r, count / N); }
                        if (what == ALL_REDUCE) combine<N, N><<<blocks, THREADS, 0, streams[0]>>>(all, 0, count);
                        if (what == PULL || what == PUSH) move<N, false><<<blocks, THREADS, 0, streams[0]>>>(all, count / N);
                    });
                    printf("%s,%d,%zu,bare,%d,,,,%.2f,\n", names[what], N, bytes, blocks, us);
                }
                if (only_bare) continue;
                // Every way of working through the parts for up to 4 ranks, where parts are ranges; fewer for 8, and where parts are interleaved.
                struct Way { bool interleaved, meets, blocked; size_t tile; };
                std::vector<Way> ways;
                for (size_t mib : {0, 4, 8, 16, 32})
                    for (bool blocked : {false, true}) {
                        if (mib << 20 >= bytes || (N == 8 && (mib == 0 || mib == 32)) || (mib == 4 && N < 8)) continue;
                        ways.push_back({false, true, blocked, mib << 20});
                    }
                if (what == BROADCAST || what == REDUCE || what == ALL_REDUCE)
                    for (size_t mib : {2, 8, 32})
                        for (bool meets : {false, true}) ways.push_back({true, meets, false, mib << 20});
                for (int blocks : {132, 264}) for (int unroll : {1, 2, 4}) for (Way way : ways) {
                    if (!fits(what, blocks, unroll)) continue;
                    for (int r = 0; r < N; r++) CHECK(cudaMemset(out[r], 0xff, bytes));
                    float us = graph_us(N, chain, [&](int r) { launch(what, program(what, r, count, way.tile, way.blocked, way.interleaved, way.meets), blocks / N, unroll, r); });
                    printf("%s,%d,%zu,%s%s,%d,%d,%zu,%d,%.2f,%ld\n", names[what], N, bytes, way.interleaved ? "interleaved" : "ranges", way.meets ? "" : " without meetings", blocks, unroll, way.tile >> 20, way.blocked, us, wrong(what, count));
                }
                fflush(stdout);
            }
        for (int r = 0; r < N; r++) { cudaFree(in[r]); cudaFree(out[r]); }
    }
};

// ./moves 8 bare: only the bare kernels, of 8 ranks.
int main(int count, char** arguments) {
    only_bare = count > 2;
    for (int r = 0; r < RANKS_MAX; r++) { CHECK(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking)); CHECK(cudaEventCreateWithFlags(&joins[r], cudaEventDisableTiming)); }
    CHECK(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
    printf("collective,ranks,bytes,form,blocks,unroll,tile_mib,blocked,us,wrong\n");
    static Bench<2> two; static Bench<4> four; static Bench<8> eight;
    int only = count > 1 ? atoi(arguments[1]) : 0;
    if (!only || only == 8) eight.run();
    if (!only || only == 4) four.run();
    if (!only || only == 2) two.run();
}
