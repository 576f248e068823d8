// The instructions of memory.h for a CPU, so that tests run the device code without a GPU.
#include <atomic>
#include <cstring>

#define WEFT_DEVICE inline
#define WEFT_COLD inline
#define WEFT_NO_UNROLL
#define WEFT_RARE(CONDITION) (CONDITION)

namespace weft {

inline thread_local Host* host;

inline u32 thread_index() { return host->thread; }
inline u32 thread_count() { return host->threads; }
inline u32 block_index() { return host->block; }
inline u32 thread_in_block() { return host->thread; }
inline u32 threads_in_block() { return host->threads; }
inline bool barrier_or(bool value) { return host->meet(*host, value); }
inline void barrier() { barrier_or(false); }

// Other fibers run between any two accesses.
template <class T> inline std::atomic_ref<T> atomic(const T* at) {
    host->disturb(*host);
    return std::atomic_ref<T>(*const_cast<T*>(at));
}

inline u64 load_acquire(const u64* from) { return atomic(from).load(std::memory_order_acquire); }
inline void store_release(u64* to, u64 value) { atomic(to).store(value, std::memory_order_release); }
inline u64 load_relaxed(const u64* from) { return atomic(from).load(std::memory_order_relaxed); }
inline void store_relaxed(u64* to, u64 value) { atomic(to).store(value, std::memory_order_relaxed); }
// Thread sanitizers do not know fences: entries are loaded and stored with the order that the fences give them.
inline u64 load_entry(const u64* from) { return load_acquire(from); }
inline void store_entry(u64* to, u64 value) { store_release(to, value); }
inline void fence_kernels() {}
inline void fence_acquire() {}
inline u64 add_relaxed(u64* to, u64 value) { return atomic(to).fetch_add(value, std::memory_order_relaxed); }
inline u64 exchange(u64* to, u64 value) { return atomic(to).exchange(value, std::memory_order_relaxed); }
inline u32 load_host(const u32* from) { return atomic(from).load(std::memory_order_relaxed); }
inline u32 acquire_host(const u32* from) { return atomic(from).load(std::memory_order_acquire); }
inline void store_host(u32* to, u32 value) { atomic(to).store(value, std::memory_order_relaxed); }
inline void publish_host(u32* to, u32 value) { atomic(to).store(value, std::memory_order_release); }

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
inline u64 load_relaxed_if(bool condition, const u64* from) { return condition ? load_relaxed(from) : 0; }
inline u32 load_word_if(bool condition, const u32* from) { return condition ? *from : 0; }
inline Words load_anywhere_if(bool condition, const void* from) { return condition ? load_anywhere(from) : Words{}; }
constexpr u32 THREADS_MIN = 1;
inline Words load_plain(const Words* from) { return *from; }
inline Words load_streamed(const Words* from) { return *from; }
inline void store_streamed(Words* to, Words words) { *to = words; }

// A multicast address is one of the first rank's memory. A test sets where the memory of all ranks is, window by window. Sums are in the
// order of the ranks.
inline thread_local std::atomic<const u64*> multicast_table;
inline thread_local std::atomic<u32> multicast_windows, multicast_ranks;
inline u8* multicast_place(const void* address, u32 rank) {
    const u32 ranks = multicast_ranks.load(std::memory_order_relaxed);
    const u64* first = multicast_table.load(std::memory_order_relaxed);
    const u64* window = first;
    // The window that begins last before the address.
    for (const u64* next = first; next < first + ranks * multicast_windows.load(std::memory_order_relaxed); next += ranks)
        if ((u64)address - *next < (u64)address - *window) window = next;
    return (u8*)address + (window[rank] - window[0]);
}
inline void fence_alias() {}
inline Words multicast_sum_f32(const Words* from) {
    float sums[4];
    for (u32 rank = 0; rank < multicast_ranks.load(std::memory_order_relaxed); rank++) {
        const Words words = *(const Words*)multicast_place(from, rank);
        float values[4];
        std::memcpy(values, &words, sizeof values);
        for (u32 i = 0; i < 4; i++) sums[i] = rank == 0 ? values[i] : sums[i] + values[i];
    }
    Words words;
    std::memcpy(&words, sums, sizeof words);
    return words;
}
#ifndef WEFT_WINDOW
template <class Type> inline Words multicast_sum_of(const Words* from) {
    using Sums = Pack<Type, Sum>;
    typename Sums::Partial partial = Sums::start(*(const Words*)multicast_place(from, 0));
    for (u32 rank = 1; rank < multicast_ranks.load(std::memory_order_relaxed); rank++)
        partial = Sums::next(partial, *(const Words*)multicast_place(from, rank));
    return Sums::end(partial);
}
inline Words multicast_sum_f16(const Words* from) { return multicast_sum_of<F16>(from); }
inline Words multicast_sum_bf16(const Words* from) { return multicast_sum_of<Bf16>(from); }
#endif
inline void multicast_store(Words* to, Words words) {
    for (u32 rank = 0; rank < multicast_ranks.load(std::memory_order_relaxed); rank++) *(Words*)multicast_place(to, rank) = words;
}

inline u64 nanoseconds() { return host->time; }
// A poll that fails lets other fibers run.
inline u64 cycles() {
    host->yield(*host);
    return 2 * host->time;
}
inline void pause() { host->yield(*host); }

} // namespace weft
