// The kernel as a function of the host: a thread for each thread of a block, all of them running at once.
#include <memory>
#include <vector>

extern "C" void weft_host_run(const weft::Call* call, unsigned blocks, unsigned threads, unsigned long long seed) {
    using namespace weft;
    std::vector<std::thread> running;
    std::vector<std::unique_ptr<Barrier>> barriers;
    std::vector<std::unique_ptr<Shared>> shared;
    for (u32 block = 0; block < blocks; block++) {
        barriers.push_back(std::make_unique<Barrier>(threads));
        shared.push_back(std::make_unique<Shared>());
        for (u32 thread = 0; thread < threads; thread++)
            running.emplace_back([=, barrier = barriers[block].get(), memory = shared[block].get()] {
                u64 random = seed == 0 ? 0 : (seed + 1) * 0x9e3779b97f4a7c15ull ^ (u64)(block * threads + thread + 1) << 32;
                current = {thread, threads, block, barrier, 0, random};
                run(*call, *memory);
            });
    }
    for (std::thread& each : running) each.join();
}

extern "C" unsigned weft_host_sizes(unsigned* sizes) {
    using namespace weft;
    unsigned all[] = {sizeof(Operand), sizeof(Poll), sizeof(Post), sizeof(Step), sizeof(Fifo), sizeof(View), sizeof(Lane), sizeof(CallHeader), sizeof(Report), sizeof(Trace)};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) sizes[i] = all[i];
    return sizeof all / sizeof *all;
}
