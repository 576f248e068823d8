// Signals are counted. A rank has a word for each peer, which only that peer writes, and private counters for each peer: the signals that it
// has begun and posted, and those that it has waited for. They are in device memory, so that a captured kernel can be launched again.
//
// A signal releases what the block has written before, and what came before its kernel on the stream; a wait acquires it. After a failure,
// ranks signal no more: nothing that was put after a failed wait is taken for valid.
namespace weft {

struct Window {
    u32 rank, ranks;
    u32 number, reserved; // Of the windows of a communicator.
    u64 bytes;            // Of each rank.
    u64 peers;            // A table: where each rank's memory is for this rank's GPU.
    u64 signals;          // Offset of the words that peers write.
    u64 failure;          // Offset of a word that is not 0 once a wait has failed on some rank.
    u64 counters;         // This rank's counters.
    u64 presence, reports, timeout_ns; // As in a call of a plan.
    u64 multicast;        // An address of the memory of all ranks, or 0.
};

constexpr u32 SIGNALLED = 4;     // A PollKind.
constexpr u64 SIGNAL_BYTES = 32; // From a word to the next.

// Where a rank's memory begins.
WEFT_DEVICE void* peer_pointer(const Window& window, u32 rank) { return (void*)((const u64*)window.peers)[rank]; }

WEFT_DEVICE u64* signal_word(const Window& window, u32 target, u32 source) {
    return (u64*)((u8*)peer_pointer(window, target) + window.signals + source * SIGNAL_BYTES);
}

WEFT_DEVICE u64* failure_word(const Window& window) { return (u64*)((u8*)peer_pointer(window, window.rank) + window.failure); }

enum CounterKind : u32 { BEGUN, POSTED, AWAITED };
WEFT_DEVICE u64* counter(const Window& window, CounterKind kind, u32 peer) { return (u64*)window.counters + kind * window.ranks + peer; }

WEFT_DEVICE Position position_in(const Window& window, u64 number) {
    const u64 own = (u64)peer_pointer(window, window.rank);
    Position at = {};
    at.reports = window.reports, at.presence = window.presence, at.timeout_ns = window.timeout_ns;
    at.arenas = window.peers, at.control = own, at.failure = own + window.failure;
    at.rank = window.rank, at.ranks = window.ranks, at.lane = window.number, at.tile = number;
    return at;
}

// Whether a place is inside of the window. If not, the window fails.
WEFT_DEVICE bool is_inside(const Window& window, u32 peer, u64 offset, u64 bytes) {
    if (peer < window.ranks && offset <= window.bytes && bytes <= window.bytes - offset) return true;
    if (thread_in_block() == 0) fail<false>(position_in(window, 0), OUTSIDE, SIGNALLED, peer, 0);
    return false;
}

template <class T> WEFT_DEVICE void copy_units(u8* to, const u8* from, u64 units) {
    const u64 step = threads_in_block();
    u64 at = thread_in_block();
    // Loads of four units are in flight at a time.
    for (; at + 3 * step < units; at += 4 * step) {
        T units_of[4];
        for (u32 i = 0; i < 4; i++) units_of[i] = ((const T*)from)[at + i * step];
        for (u32 i = 0; i < 4; i++) ((T*)to)[at + i * step] = units_of[i];
    }
    for (; at < units; at += step) ((T*)to)[at] = ((const T*)from)[at];
}

// Copies with the widest accesses that both addresses allow.
template <class T> WEFT_DEVICE void copy_as(u8* to, const u8* from, u64 bytes) {
    u64 head = (sizeof(T) - (u64)to % sizeof(T)) % sizeof(T);
    if (head > bytes) head = bytes;
    const u64 units = (bytes - head) / sizeof(T), tail = head + units * sizeof(T);
    if (head > 0) copy_units<u8>(to, from, head);
    copy_units<T>(to + head, from + head, units);
    if (tail < bytes) copy_units<u8>(to + tail, from + tail, bytes - tail);
}

WEFT_DEVICE void copy(void* target, const void* source, u64 bytes) {
    u8* to = (u8*)target;
    const u8* from = (const u8*)source;
    const u64 apart = (u64)to ^ (u64)from;
    if (apart % sizeof(Words) == 0) copy_as<Words>(to, from, bytes);
    else if (apart % sizeof(u32) == 0) copy_as<u32>(to, from, bytes);
    else copy_units<u8>(to, from, bytes);
}

// Copies to a rank's memory at an offset.
WEFT_DEVICE void put(const Window& window, u32 peer, u64 offset, const void* from, u64 bytes) {
    if (is_inside(window, peer, offset, bytes)) copy((u8*)peer_pointer(window, peer) + offset, from, bytes);
}

// Copies from a rank's memory at an offset. Threads of the block may use each other's elements after a barrier.
WEFT_DEVICE void get(const Window& window, u32 peer, u64 offset, void* into, u64 bytes) {
    if (is_inside(window, peer, offset, bytes)) copy(into, (const u8*)peer_pointer(window, peer) + offset, bytes);
}

// The address through which the NVLink switch stores to the memory of all ranks, and loads sums over it (`multimem` instructions, sm_90 or
// later); null if the window was not made for it. Compiled and never run: no machine with such a switch has run it.
WEFT_DEVICE void* multicast_pointer(const Window& window) { return (void*)window.multicast; }

// Whether a place is inside of a multicast window and begins and ends at multiples of 16 bytes.
WEFT_DEVICE bool is_multicast(const Window& window, u64 offset, u64 bytes) {
    if (window.multicast != 0 && (offset | bytes) % sizeof(Words) == 0) return is_inside(window, window.rank, offset, bytes);
    if (thread_in_block() == 0) fail<false>(position_in(window, 0), OUTSIDE, SIGNALLED, window.rank, 1);
    return false;
}

// Copies to the memory of all ranks at an offset.
WEFT_DEVICE void put_to_all(const Window& window, u64 offset, const void* from, u64 bytes) {
    if (!is_multicast(window, offset, bytes)) return;
    u8* to = (u8*)multicast_pointer(window) + offset;
    fence_alias();
    for (u64 at = thread_in_block() * sizeof(Words); at < bytes; at += threads_in_block() * sizeof(Words))
        multicast_store((Words*)(to + at), *(const Words*)((const u8*)from + at));
    fence_alias();
}

// Replaces elements at an offset by their sums over all ranks, in the memory of all: the step of an all-reduce that one rank makes for its
// share, between a signal of all ranks that their elements are there and one of its own that the sums are. `sum` is multicast_sum_f32,
// multicast_sum_f16 or multicast_sum_bf16. The order in which the switch adds is unknown.
template <class Sum> WEFT_DEVICE void sum_to_all(const Window& window, u64 offset, u64 bytes, Sum sum) {
    if (!is_multicast(window, offset, bytes)) return;
    u8* at_all = (u8*)multicast_pointer(window) + offset;
    fence_alias();
    for (u64 at = thread_in_block() * sizeof(Words); at < bytes; at += threads_in_block() * sizeof(Words))
        multicast_store((Words*)(at_all + at), sum((const Words*)(at_all + at)));
    fence_alias();
}

// Sends the next signal to a rank. Blocks that signal at the same time post one after the other.
WEFT_DEVICE void post_signal(const Window& window, u32 peer) {
    const u64* failure = failure_word(window);
    u64* posted = counter(window, POSTED, peer);
    const u64 number = add_relaxed(counter(window, BEGUN, peer), 1);
    if (load_relaxed(failure) != 0) return;
    Wait wait = begin_wait();
    while (load_acquire(posted) != number) {
        if (load_relaxed(failure) != 0) return;
        pause();
        if (!wait.is_long && cycles() - wait.since < QUIET_CYCLES) continue;
        wait = wait_long_cold(position_in(window, number), wait, SIGNALLED, window.rank);
        if (wait.failed) return;
    }
    if (wait.is_long) clear_report(window.reports);
    store_release(signal_word(window, peer, window.rank), number + 1);
    store_release(posted, number + 1);
}

// Waits for the next signal of a rank. Returns whether it has arrived.
WEFT_DEVICE bool await_signal(const Window& window, u32 peer) {
    const u64 number = add_relaxed(counter(window, AWAITED, peer), 1) + 1;
    if (load_relaxed(failure_word(window)) != 0) {
        (void)has_failed<false>(position_in(window, number), SIGNALLED);
        return false;
    }
    const u64* from = signal_word(window, window.rank, peer);
    Wait wait = begin_wait();
    while ((long long)(load_acquire(from) - number) < 0) {
        if (!wait.is_long && cycles() - wait.since < QUIET_CYCLES) continue;
        wait = wait_long_cold(position_in(window, number), wait, SIGNALLED, peer);
        if (wait.failed) return false;
    }
    if (wait.is_long) clear_report(window.reports);
    return true;
}

// Signals a rank, after all that the threads of the block have put.
WEFT_DEVICE void signal(const Window& window, u32 peer) {
    barrier();
    if (is_inside(window, peer, 0, 0) && thread_in_block() == 0) post_signal(window, peer);
}

// Waits for the next signal of a rank: the first wait for its first signal, and so on. Returns false after a failure, for all threads alike.
WEFT_DEVICE bool wait(const Window& window, u32 peer) {
    bool failed = !is_inside(window, peer, 0, 0);
    if (!failed && thread_in_block() == 0) failed = !await_signal(window, peer);
    return !barrier_or(failed);
}

} // namespace weft
#endif // WEFT_WINDOW
