// N threads that each launch one empty kernel, again and again: what launches of N ranks cost without any communication.
//
//   nvcc -O3 -std=c++17 -arch=sm_90 launch_threads.cu -o launch_threads && ./launch_threads > raw.csv
//
// "threads": each thread launches on a stream of its own; "one thread": one thread launches on all streams in turn. Microseconds per round
// of N launches: the median, the least and the largest of the runs.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <thread>
#include <vector>

#define CHECK(call)                                                                                                   \
    do {                                                                                                              \
        cudaError_t error = (call);                                                                                   \
        if (error != cudaSuccess) {                                                                                   \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));                            \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

constexpr int ROUNDS = 2000, RUNS = 9;

// The parameters of a call.
struct Call {
    char bytes[4096];
};
__global__ void empty(const __grid_constant__ Call call) {}

double now_us() {
    using namespace std::chrono;
    return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

double by_threads(std::vector<cudaStream_t>& streams) {
    std::atomic<size_t> ready = 0;
    std::vector<std::thread> threads;
    std::atomic<double> began = 0;
    for (auto stream : streams)
        threads.emplace_back([&, stream] {
            static Call call;
            empty<<<1, 32, 0, stream>>>(call);
            CHECK(cudaStreamSynchronize(stream));
            if (++ready == streams.size()) began = now_us();
            while (ready < streams.size() || began == 0) {}
            for (int round = 0; round < ROUNDS; round++) empty<<<1, 32, 0, stream>>>(call);
            CHECK(cudaStreamSynchronize(stream));
        });
    for (auto& thread : threads) thread.join();
    return (now_us() - began) / ROUNDS;
}

double by_one(std::vector<cudaStream_t>& streams) {
    static Call call;
    double began = now_us();
    for (int round = 0; round < ROUNDS; round++)
        for (auto stream : streams) empty<<<1, 32, 0, stream>>>(call);
    CHECK(cudaDeviceSynchronize());
    return (now_us() - began) / ROUNDS;
}

int main() {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    printf("by,launches,us,us_min,us_max\n");
    for (int count : {2, 4, 8}) {
        std::vector<cudaStream_t> streams(count);
        for (auto& stream : streams) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (int way = 0; way < 2; way++) {
            std::vector<double> times;
            for (int run = 0; run <= RUNS; run++) times.push_back(way == 0 ? by_threads(streams) : by_one(streams));
            times.erase(times.begin());
            std::sort(times.begin(), times.end());
            printf("%s,%d,%.2f,%.2f,%.2f\n", way == 0 ? "threads" : "one thread", count, times[RUNS / 2], times.front(), times.back());
        }
    }
    return 0;
}
