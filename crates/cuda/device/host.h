// The instructions of memory.h for a CPU, so that tests run the device code as threads: one for each thread of a block.
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

#define WEFT_DEVICE inline
#define WEFT_COLD inline
#define WEFT_NO_UNROLL

namespace weft {

// The barrier of a block, and whether a thread brought `true` to each of its last phases.
struct Barrier {
    std::barrier<> threads;
    std::atomic<bool> any[3] = {};
    explicit Barrier(u32 count) : threads(count) {}
};
struct Thread {
    u32 thread, threads, block;
    Barrier* barrier;
    u64 phase;
    u64 random; // Not 0 if the thread gives its core away now and then, in an order that depends on this number.
};
inline thread_local Thread current;

// Other threads run between any two accesses, in an order that is different with each seed.
inline void disturb() {
    if (current.random == 0) return;
    current.random ^= current.random << 13, current.random ^= current.random >> 7, current.random ^= current.random << 17;
    if (current.random % 8 == 0) std::this_thread::yield();
}

inline u32 thread_index() { return current.thread; }
inline u32 thread_count() { return current.threads; }
inline u32 block_index() { return current.block; }
inline bool barrier_or(bool value) {
    Barrier& barrier = *current.barrier;
    const u64 phase = current.phase++;
    if (value) barrier.any[phase % 3] = true;
    barrier.threads.arrive_and_wait();
    // All have read the phase before, which is the next but one to be used.
    if (current.thread == 0) barrier.any[(phase + 2) % 3] = false;
    return barrier.any[phase % 3];
}
inline void barrier() { barrier_or(false); }

template <class T> inline std::atomic_ref<T> atomic(const T* at) {
    disturb();
    return std::atomic_ref<T>(*const_cast<T*>(at));
}

inline u64 load_acquire(const u64* from) { return atomic(from).load(std::memory_order_acquire); }
inline void store_release(u64* to, u64 value) { atomic(to).store(value, std::memory_order_release); }
inline u64 load_relaxed(const u64* from) { return atomic(from).load(std::memory_order_relaxed); }
inline void store_relaxed(u64* to, u64 value) { atomic(to).store(value, std::memory_order_relaxed); }
// Thread sanitizers do not know fences: entries are loaded and stored with the order that the fences give them.
inline u64 load_entry(const u64* from) { return load_acquire(from); }
inline void store_entry(u64* to, u64 value) { store_release(to, value); }
inline void fence_release() {}
inline void fence_acquire() {}
inline u64 add_relaxed(u64* to, u64 value) { return atomic(to).fetch_add(value, std::memory_order_relaxed); }
inline u64 exchange(u64* to, u64 value) { return atomic(to).exchange(value, std::memory_order_relaxed); }
inline u32 load_host(const u32* from) { return atomic(from).load(std::memory_order_relaxed); }
inline void store_host(u32* to, u32 value) { atomic(to).store(value, std::memory_order_release); }

// A packet is 8 bytes here too; its flag tells nothing about other memory.
inline Words load_packets(const Words* from) {
    Words words;
    for (u32 half = 0; half < 2; half++) {
        u64 packet = atomic((const u64*)from + half).load(std::memory_order_relaxed);
        std::memcpy(words.word + 2 * half, &packet, sizeof packet);
    }
    return words;
}
inline void store_packets(Words* to, Words words) {
    for (u32 half = 0; half < 2; half++) {
        u64 packet;
        std::memcpy(&packet, words.word + 2 * half, sizeof packet);
        atomic((u64*)to + half).store(packet, std::memory_order_relaxed);
    }
}
inline Words load_anywhere(const void* from) { return *(const Words*)from; }
inline Words load_streamed(const Words* from) { return *from; }
inline void store_streamed(Words* to, Words words) { *to = words; }

inline u64 nanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
// A poll that fails gives the core to another thread: there are more threads than cores.
inline u64 cycles() {
    std::this_thread::yield();
    return 2 * nanoseconds();
}
inline void pause() { std::this_thread::yield(); }

} // namespace weft
