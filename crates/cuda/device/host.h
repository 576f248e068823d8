// The instructions of memory.h for a CPU, so that tests run the device code without a GPU. Every thread of a block is a fiber; host.cc
// switches between them.
#include <atomic>
#include <cstdint>
#include <cstring>

#define WEFT_DEVICE inline
#define WEFT_COLD inline
#define WEFT_NO_UNROLL

namespace weft {

// What the device code sees of the scheduler.
struct Host {
    u32 thread, threads, block; // Of the fiber that runs.
    u64 time;                   // Nanoseconds; it passes with every switch.
    u64 random;                 // Not 0 if fibers are switched at random.
    void (*yield)(Host&);       // Runs other fibers.
    bool (*meet)(Host&, bool);  // The barrier of a block; returns whether a thread brought `true`.
};
inline thread_local Host* host;

// Other fibers run between any two accesses, in an order that is different with each seed.
inline void disturb() {
    u64& random = host->random;
    if (random == 0) return;
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    if (random % 8 == 0) host->yield(*host);
}

inline u32 thread_index() { return host->thread; }
inline u32 thread_count() { return host->threads; }
inline u32 block_index() { return host->block; }
inline bool barrier_or(bool value) { return host->meet(*host, value); }
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

inline u64 nanoseconds() { return host->time; }
// A poll that fails lets other fibers run.
inline u64 cycles() {
    host->yield(*host);
    return 2 * host->time;
}
inline void pause() { host->yield(*host); }

} // namespace weft
