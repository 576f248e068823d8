// Runs kernels on one thread of the host: a fiber for each of their threads, all of them resident, switched in an order that a seed
// determines. With WEFT_SANITIZED, a thread sanitizer takes each fiber for a thread, and a switch for no synchronisation; it does not look
// at the scheduler, which is compiled without it.
#include <cstdio>
#include <deque>
#include <memory>
#include <vector>

#include <ucontext.h>

#ifdef WEFT_SANITIZED
#include <sanitizer/tsan_interface.h>
#else
inline void* __tsan_get_current_fiber() { return nullptr; }
inline void* __tsan_create_fiber(unsigned) { return nullptr; }
inline void __tsan_destroy_fiber(void*) {}
inline void __tsan_set_fiber_name(void*, const char*) {}
inline void __tsan_switch_to_fiber(void*, unsigned) {}
inline void __tsan_acquire(void*) {}
inline void __tsan_release(void*) {}
constexpr unsigned __tsan_switch_to_fiber_no_sync = 1;
#endif

namespace weft {

constexpr uint64_t STACK_BYTES = 64 << 10;
constexpr uint64_t SWITCH_NS = 100;
constexpr uint32_t SLOW_DRAWS = 2; // A fiber of the slow stream runs if so many draws find no other.

struct Grid {
    const Launch* launch;
    uint32_t running; // Fibers.
};

struct Fiber;

struct BlockOfFibers {
    std::vector<__int128> shared;
    std::vector<Fiber*> waiting; // At the barrier.
    bool any = false, result = false;
};

struct Fiber {
    Grid* grid;
    BlockOfFibers* mates;
    uint32_t block, thread;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    ucontext_t context{};
    void* identity = __tsan_create_fiber(0);
    ~Fiber() { __tsan_destroy_fiber(identity); }
};

// Why a fiber was suspended.
enum class Request { YIELD, MEET, END };

class Scheduler : public Host {
    std::deque<Grid> grids;
    std::deque<BlockOfFibers> mates;
    std::deque<Fiber> fibers;
    std::deque<Fiber*> ready;
    Fiber* current = nullptr;
    Request request = Request::END;
    ucontext_t context{};
    void* identity = __tsan_get_current_fiber();
    uint64_t random; // Not 0 if the order is drawn.
    uint32_t slow;   // A stream, or none.

    uint64_t draw() { return random ^= random << 13, random ^= random >> 7, random ^= random << 17; }

    void start(const Launch& launch) {
        grids.push_back({&launch, launch.blocks * launch.threads});
        for (uint32_t index = 0; index < launch.blocks; index++) {
            mates.emplace_back().shared.resize(launch.shared_bytes / sizeof(__int128) + 1);
            for (uint32_t number = 0; number < launch.threads; number++) {
                Fiber& fiber = fibers.emplace_back(&grids.back(), &mates.back(), index, number);
                getcontext(&fiber.context);
                fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = STACK_BYTES;
                makecontext(&fiber.context, enter, 0);
                char name[64];
                snprintf(name, sizeof name, "%u/%u/%u", launch.stream, index, number);
                __tsan_set_fiber_name(fiber.identity, name);
                ready.push_back(&fiber);
            }
        }
    }

    static void enter() {
        Scheduler& all = *running;
        const Fiber& fiber = *all.current;
        fiber.grid->launch->enter(fiber.grid->launch->call, fiber.mates->shared.data());
        all.suspend(Request::END, 0);
    }

    // Runs the scheduler; the fiber continues when it is chosen.
    void suspend(Request of_fiber, unsigned flags) {
        Fiber& fiber = *current;
        request = of_fiber;
        __tsan_switch_to_fiber(identity, flags);
        swapcontext(&fiber.context, &context);
    }

    static void yield_now(Host& host) { ((Scheduler&)host).suspend(Request::YIELD, __tsan_switch_to_fiber_no_sync); }

    static void disturb_now(Host& host) {
        Scheduler& all = (Scheduler&)host;
        if (all.random != 0 && all.draw() % 8 == 0) yield_now(host);
    }

    static bool meet_now(Host& host, bool value) {
        Scheduler& all = (Scheduler&)host;
        BlockOfFibers& mates = *all.current->mates;
        mates.any = mates.any || value;
        __tsan_release(&mates);
        all.suspend(Request::MEET, __tsan_switch_to_fiber_no_sync);
        __tsan_acquire(&mates);
        return mates.result;
    }

    void meet(BlockOfFibers& mates) {
        mates.waiting.push_back(current);
        if (mates.waiting.size() < threads) return;
        mates.result = mates.any, mates.any = false;
        ready.insert(ready.end(), mates.waiting.begin(), mates.waiting.end());
        mates.waiting.clear();
    }

    Fiber* choose() {
        for (uint32_t draws = 0; random != 0 && draws < SLOW_DRAWS; draws++) {
            std::swap(ready.front(), ready[(draw() >> 8) % ready.size()]);
            if (ready.front()->grid->launch->stream != slow) break;
        }
        Fiber* fiber = ready.front();
        ready.pop_front();
        return fiber;
    }

public:
    static inline thread_local Scheduler* running;

    Scheduler(uint64_t seed, uint32_t slow) : Host{0, 0, 0, 0, yield_now, disturb_now, meet_now}, random(seed * 0x9e3779b97f4a7c15ull), slow(slow) {}

    // Returns whether all fibers have ended; others wait at a barrier for ones that have.
    bool run(const Launch* launches, uint32_t count) {
        for (uint32_t i = 0; i < count; i++) launches[i].attach(this);
        std::vector<bool> is_started(count);
        auto start_next = [&](uint32_t stream) {
            for (uint32_t i = 0; i < count; i++)
                if (!is_started[i] && launches[i].stream == stream) return is_started[i] = true, start(launches[i]);
        };
        for (uint32_t i = 0; i < count; i++) {
            bool is_first = true;
            for (uint32_t before = 0; before < i; before++) is_first = is_first && launches[before].stream != launches[i].stream;
            if (is_first) start_next(launches[i].stream);
        }
        while (!ready.empty()) {
            current = choose();
            thread = current->thread, block = current->block, threads = current->grid->launch->threads;
            time += SWITCH_NS;
            __tsan_switch_to_fiber(current->identity, __tsan_switch_to_fiber_no_sync);
            swapcontext(&context, &current->context);
            Grid& grid = *current->grid;
            if (request == Request::YIELD) ready.push_back(current);
            else if (request == Request::MEET) meet(*current->mates);
            else if (--grid.running == 0) start_next(grid.launch->stream);
        }
        bool has_ended = grids.size() == count;
        for (const Grid& grid : grids) has_ended = has_ended && grid.running == 0;
        return has_ended;
    }
};

} // namespace weft

// Without a seed, fibers run in turn and are switched when they wait.
extern "C" bool weft_host_run(const weft::Launch* launches, unsigned count, unsigned long long seed, unsigned slow) {
    weft::Scheduler all(seed, slow);
    weft::Scheduler::running = &all;
    return all.run(launches, count);
}
