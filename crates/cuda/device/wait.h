// Every wait of a kernel: bounded, and after some 20 us it reports what it waits for and polls the abort word in host memory.
namespace weft {

constexpr u64 QUIET_CYCLES = 40000; // About 20 us.

constexpr u32 OPERANDS_MAX = 64;

// An input or output of this block: the address of its first unit, and the bytes from a unit to the next.
struct Stream {
    u64 first;
    u64 stride;
    u32 kind; // An OperandKind.
    u32 rank; // The sender of packets.
    u32 flag; // Of packets.
    u32 signature;
};

// What all threads of a block share.
struct Shared {
    u64 epoch;       // The calls before this one that used this slice.
    u32 failed;      // Set by a thread whose wait ended without success.
    u8 entered[RANKS_MAX];    // Ranks whose entry has arrived.
    u64 bases[3 * RANKS_MAX]; // Input, output and scratch of every rank, as far as they are known.
    u64 sequence[FIFOS_MAX];  // The messages of each FIFO end before this call.
    u64 credit[FIFOS_MAX];    // The messages that the receiver had released when the call began.
    Fifo fifos[FIFOS_MAX];
    Peer peers[RANKS_MAX];
    Stream in[OPERANDS_MAX], out[OPERANDS_MAX]; // Of the current step.
    alignas(16) u8 window[WINDOW_BYTES];
};

// Where a block is.
struct Position {
    const CallHeader* call;
    Shared* shared;
    u32 lane, slice;
    u64 tile;
    u32 step;
};

struct Awaited {
    u32 kind, rank;
};

WEFT_DEVICE Report* report_of(const Position& at) {
    return (Report*)at.call->reports + block_index();
}

WEFT_COLD void report(const Position& at, Awaited awaited, u32 kind, u32 other) {
    Report* to = report_of(at);
    to->signature = at.call->signature;
    to->lane = at.lane, to->slice = at.slice;
    to->step = at.step, to->rank = awaited.rank, to->poll = awaited.kind, to->other = other;
    to->tile = at.tile, to->epoch = at.shared->epoch;
    store_host(&to->kind, kind);
}

// Records the step between its last input and its first output that a peer can see.
WEFT_COLD void trace_step(const Position& at) {
    u64* count = (u64*)at.call->trace;
    Trace* traces = (Trace*)(count + 2);
    u64 number = add_relaxed(count, 1);
    if (number < count[1]) traces[number] = {(u16)at.call->rank, (u16)at.lane, at.slice, at.step, (u32)at.tile};
}

// Another rank is in another call.
WEFT_COLD void mismatch(const Position& at, u32 rank, u32 other) {
    report(at, Awaited{ENTERED, rank}, MISMATCH, other);
    at.shared->failed = 1;
}

// Whether a wait continues that has lasted longer than most.
WEFT_COLD bool continues(const Position& at, Awaited awaited, u64 since_ns, u32& reported) {
    if (load_host((const u32*)at.call->abort) != 0) {
        report(at, awaited, ABORTED, 0);
        return false;
    }
    if (nanoseconds() - since_ns > at.call->timeout_ns) {
        report(at, awaited, TIMED_OUT, 0);
        return false;
    }
    if (!reported) {
        report(at, awaited, WAITING, 0);
        reported = 1;
    }
    pause();
    return true;
}

// Waits until `ready` returns true. Another result of the wait is in `shared.failed`.
template <class Ready> WEFT_DEVICE void wait(const Position& at, Awaited awaited, Ready ready) {
    u64 since = cycles();
    do {
        if (ready()) return;
    } while (cycles() - since < QUIET_CYCLES);
    u64 since_ns = nanoseconds();
    u32 reported = 0;
    while (!ready()) {
        if (!continues(at, awaited, since_ns, reported)) {
            at.shared->failed = 1;
            return;
        }
    }
    if (reported) store_host(&report_of(at)->kind, RUNNING);
}

} // namespace weft
