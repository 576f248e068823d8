// Runs kernels on one thread of the host: a fiber for each of their threads, all of them resident, switched in an order that a seed
// determines. Thread sanitizers take each fiber for a thread, and a switch for no synchronisation.
#include <deque>
#include <memory>
#include <vector>

#include <ucontext.h>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#else
inline void* __tsan_get_current_fiber() { return nullptr; }
inline void* __tsan_create_fiber(unsigned) { return nullptr; }
inline void __tsan_destroy_fiber(void*) {}
inline void __tsan_switch_to_fiber(void*, unsigned) {}
inline void __tsan_acquire(void*) {}
inline void __tsan_release(void*) {}
constexpr unsigned __tsan_switch_to_fiber_no_sync = 1;
#endif

namespace weft {

constexpr u64 STACK_BYTES = 64 << 10;
constexpr u64 SWITCH_NS = 100;
constexpr u32 SLOW_DRAWS = 2; // A fiber of the slow stream runs if so many draws find no other.

// A kernel of a rank. Those of one stream run one after the other.
struct Launch {
    void (*enter)(Host*, const Call*, void* shared);
    const Call* call;
    u32 blocks, threads, shared_bytes, stream;
};

struct Grid {
    const Launch* launch;
    u32 running; // Fibers.
};

struct Fiber;

struct BlockOfFibers {
    std::vector<Words> shared;
    std::vector<Fiber*> waiting; // At the barrier.
    bool any = false, result = false;
};

struct Fiber {
    Grid* grid;
    BlockOfFibers* mates;
    u32 block, thread;
    std::unique_ptr<u8[]> stack{new u8[STACK_BYTES]};
    ucontext_t context{};
    void* identity = __tsan_create_fiber(0);
    ~Fiber() { __tsan_destroy_fiber(identity); }
};

class Scheduler : public Host {
    std::deque<Grid> grids;
    std::deque<BlockOfFibers> mates;
    std::deque<Fiber> fibers;
    std::deque<Fiber*> ready;
    Fiber* current = nullptr;
    ucontext_t context{};
    void* identity = __tsan_get_current_fiber();
    u32 slow; // A stream, or none.

    void start(const Launch& launch) {
        grids.push_back({&launch, launch.blocks * launch.threads});
        for (u32 index = 0; index < launch.blocks; index++) {
            mates.emplace_back().shared.resize(launch.shared_bytes / sizeof(Words) + 1);
            for (u32 number = 0; number < launch.threads; number++) {
                Fiber& fiber = fibers.emplace_back(&grids.back(), &mates.back(), index, number);
                getcontext(&fiber.context);
                fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = STACK_BYTES;
                makecontext(&fiber.context, enter, 0);
                ready.push_back(&fiber);
            }
        }
    }

    static void enter() {
        Scheduler& all = *(Scheduler*)host;
        const Fiber& fiber = *all.current;
        const Launch& launch = *fiber.grid->launch;
        launch.enter(&all, launch.call, fiber.mates->shared.data());
        fiber.grid->running--;
        all.suspend(0);
    }

    // Runs the scheduler; the fiber continues when it is chosen.
    void suspend(unsigned flags) {
        Fiber& fiber = *current;
        __tsan_switch_to_fiber(identity, flags);
        swapcontext(&fiber.context, &context);
    }

    static void yield_now(Host& host) {
        Scheduler& all = (Scheduler&)host;
        all.ready.push_back(all.current);
        all.suspend(__tsan_switch_to_fiber_no_sync);
    }

    static bool meet_now(Host& host, bool value) {
        Scheduler& all = (Scheduler&)host;
        BlockOfFibers& mates = *all.current->mates;
        mates.any = mates.any || value;
        __tsan_release(&mates);
        mates.waiting.push_back(all.current);
        if (mates.waiting.size() == all.threads) {
            mates.result = mates.any, mates.any = false;
            all.ready.insert(all.ready.end(), mates.waiting.begin(), mates.waiting.end());
            mates.waiting.clear();
        }
        all.suspend(__tsan_switch_to_fiber_no_sync);
        __tsan_acquire(&mates);
        return mates.result;
    }

    Fiber* choose() {
        for (u32 draw = 0; random != 0 && draw < SLOW_DRAWS; draw++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            std::swap(ready.front(), ready[(random >> 8) % ready.size()]);
            if (ready.front()->grid->launch->stream != slow) break;
        }
        Fiber* fiber = ready.front();
        ready.pop_front();
        return fiber;
    }

public:
    Scheduler(u64 seed, u32 slow) : Host{0, 0, 0, 0, seed * 0x9e3779b97f4a7c15ull, yield_now, meet_now}, slow(slow) {}

    void run(const Launch* launches, u32 count) {
        std::vector<bool> is_started(count);
        auto start_next = [&](u32 stream) {
            for (u32 i = 0; i < count; i++)
                if (!is_started[i] && launches[i].stream == stream) return is_started[i] = true, start(launches[i]);
        };
        for (u32 i = 0; i < count; i++) {
            bool is_first = true;
            for (u32 before = 0; before < i; before++) is_first = is_first && launches[before].stream != launches[i].stream;
            if (is_first) start_next(launches[i].stream);
        }
        while (!ready.empty()) {
            current = choose();
            thread = current->thread, block = current->block, threads = current->grid->launch->threads;
            time += SWITCH_NS;
            __tsan_switch_to_fiber(current->identity, __tsan_switch_to_fiber_no_sync);
            swapcontext(&context, &current->context);
            if (current->grid->running == 0) start_next(current->grid->launch->stream);
        }
    }
};

} // namespace weft

// Without a seed, fibers run in turn and are switched when they wait.
extern "C" void weft_host_run(const weft::Launch* launches, unsigned count, unsigned long long seed, unsigned slow) {
    weft::Scheduler all(seed, slow);
    weft::host = &all;
    all.run(launches, count);
}

extern "C" void weft_host_enter(weft::Host* host, const weft::Call* call, void* shared) {
    weft::host = host;
    weft::run(*call, *(weft::Shared*)shared);
}

extern "C" unsigned weft_host_shared_bytes() { return sizeof(weft::Shared); }

extern "C" unsigned weft_host_sizes(unsigned* sizes) {
    using namespace weft;
    unsigned all[] = {sizeof(Operand), sizeof(Poll), sizeof(Post), sizeof(Step), sizeof(Fifo), sizeof(View), sizeof(Lane), sizeof(CallHeader), sizeof(Report), sizeof(Trace)};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) sizes[i] = all[i];
    return sizeof all / sizeof *all;
}
