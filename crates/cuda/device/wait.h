// What the threads of a block share, and every wait of a kernel: bounded, and after some 20 us it reports what it waits for and polls the
// abort word in host memory.
//
// Code that is rarely run is kept out of line: a call is short, and much of its time would go into fetching instructions.

namespace weft {

constexpr u64 QUIET_CYCLES = 40000; // About 20 us.

// An input or output of this block: the address of its first unit, and the bytes from a unit to the next.
struct Stream {
    u64 first;
    u64 stride;
    u32 kind; // An OperandKind.
    u32 rank; // The sender of packets.
    u32 flag; // Of packets.
    u32 fifo;
};

struct Shared {
    CallHeader call;
    u64 epoch;  // The calls before this one that used this slice.
    u64 tile;   // Where the block is.
    u32 step;
    u32 lane, slice;
    u32 failed;   // Set by a thread whose wait ended without success.
    u32 reported; // Set by one that has waited long.
    u8 entered[RANKS_MAX];    // Ranks whose entry has arrived.
    u64 bases[3 * RANKS_MAX]; // Input, output and scratch of every rank, as far as they are known.
    u64 sequence[FIFOS_MAX];  // The messages of each FIFO end before this call.
    u64 credit[FIFOS_MAX];    // The messages that the receiver had released when the call began.
    Stream streams[2][2 * OPERANDS_MAX]; // Of this step and the one before, which slow threads still use.
    alignas(16) u8 program[PROGRAM_BYTES]; // Its tables, then a window of its steps.
};

WEFT_COLD void report(Shared& shared, u32 kind, u32 poll, u32 rank, u32 other) {
    Report* to = (Report*)shared.call.reports + block_index();
    to->signature = shared.call.signature;
    to->lane = shared.lane, to->slice = shared.slice;
    to->step = shared.step, to->rank = rank, to->poll = poll, to->other = other;
    to->tile = shared.tile, to->epoch = shared.epoch;
    store_host(&to->kind, kind);
    if (kind > WAITING) shared.failed = 1;
    shared.reported = 1;
}

// A wait that has lasted longer than most: 0 to go on, 1 if it has failed.
struct Wait {
    u64 since; // Cycles, then nanoseconds.
    u32 is_long;
};

WEFT_DEVICE Wait begin_wait() { return {cycles(), 0}; }

WEFT_COLD bool wait_long(Shared& shared, Wait& wait, u32 poll, u32 rank) {
    if (load_host((const u32*)shared.call.abort) != 0) return report(shared, ABORTED, poll, rank, 0), false;
    if (!wait.is_long) {
        wait = {nanoseconds(), 1};
        report(shared, WAITING, poll, rank, 0);
    } else if (nanoseconds() - wait.since > shared.call.timeout_ns) {
        return report(shared, TIMED_OUT, poll, rank, 0), false;
    }
    pause();
    return true;
}

// Whether a wait goes on. Called between polls.
WEFT_DEVICE bool goes_on(Shared& shared, Wait& wait, u32 poll, u32 rank) {
    if (!wait.is_long && cycles() - wait.since < QUIET_CYCLES) return true;
    return wait_long(shared, wait, poll, rank);
}

// Records the step between its last input and its first output that a peer can see.
WEFT_COLD void trace_step(Shared& shared) {
    u64* count = (u64*)shared.call.trace;
    Trace* traces = (Trace*)(count + 2);
    u64 number = add_relaxed(count, 1);
    if (number < count[1]) traces[number] = {(u16)shared.call.rank, (u16)shared.lane, shared.slice, shared.step, (u32)shared.tile};
}

} // namespace weft
