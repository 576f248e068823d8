// The state of a block, and every wait of a kernel: bounded, and after some 20 us it reports what it waits for and polls the abort word in
// host memory.
//
// A wait that fails sets a word of this rank, so that every other block that waits fails too, and later calls fail at once. Threads of a
// block agree at the next barrier.
//
// Code that is rarely run is kept out of line: a call is short, and much of its time would go into fetching instructions.

namespace weft {

constexpr u64 QUIET_CYCLES = 40000; // About 20 us.
constexpr u64 REPORT_NS = 1000000;  // A block that waits reports this often.

// An operand in memory: the address of this block's first unit, and the bytes from a unit to the next.
struct Span {
    u64 first;
    u64 stride;
};

struct Shared {
#ifdef WEFT_IN_SHARED
    alignas(16) u8 rest[SHARED_BYTES]; // The views, then the program.
#endif
    u64 bases[2 * RANKS_MAX];           // Input and output of every peer whose entry has arrived.
    Span spans[2][2 * OPERANDS_MAX];    // Of this step and the one before, which slow threads still use.
};

// What a block reports of itself. Passed by value: a block whose address is taken would leave the registers.
struct Position {
    u64 reports, failures, abort, timeout_ns, trace;
    u32 signature, rank, lane, slice, ordinal;
    u64 tile; // Of the call.
};

// A block as one of its threads sees it.
struct Block {
    const Call& call;
    Shared& shared;
    u32 lane, slice;
    u64 tiles;   // That this block has run in earlier calls.
    u32 ordinal; // Of the current step.
    u64 tile;    // The current tile, counted over all calls.
    u32 turn;    // Which of the two spans.
    bool failed; // A wait of this thread has.

    WEFT_DEVICE const CallHeader& header() const { return call.header; }
    WEFT_DEVICE u64* tiles_run() const { return (u64*)header().state + 4 + (slice * header().lanes + lane); }
    WEFT_DEVICE Position position() const {
        const CallHeader& h = header();
        return {h.reports, h.state, h.abort, h.timeout_ns, h.trace, h.signature, h.rank, lane, slice, ordinal, tile - tiles};
    }
};

WEFT_COLD void report(Position at, u32 place, u32 kind, u32 poll, u32 rank, u32 other) {
    Report* to = (Report*)at.reports + place;
    to->signature = at.signature;
    to->lane = at.lane, to->slice = at.slice;
    to->step = at.ordinal, to->rank = rank, to->poll = poll, to->other = other;
    to->tile = at.tile;
    store_host(&to->kind, kind);
}

// Ends the call of this block, and later ones of this rank. The first block that fails says why.
WEFT_COLD void fail(Position at, u32 kind, u32 poll, u32 rank, u32 other) {
    if (exchange((u64*)at.failures, 1) == 0) report(at, 0, kind, poll, rank, other);
}

struct Wait {
    u64 since; // Cycles, then nanoseconds.
    u64 reported;
    bool is_long, failed;
};

WEFT_DEVICE Wait begin_wait() { return {cycles(), 0, false, false}; }

WEFT_COLD Wait wait_long(Position at, Wait wait, u32 poll, u32 rank) {
    const u64 now = nanoseconds();
    if (!wait.is_long) wait = {now, 0, true, false};
    if (load_host((const u32*)at.abort) != 0) fail(at, ABORTED, poll, rank, 0), wait.failed = true;
    else if (now - wait.since > at.timeout_ns) fail(at, TIMED_OUT, poll, rank, 0), wait.failed = true;
    else if (load_relaxed((const u64*)at.failures) != 0) wait.failed = true;
    else if (now - wait.reported > REPORT_NS) wait.reported = now, report(at, 1 + block_index(), WAITING, poll, rank, 0);
    pause();
    return wait;
}

// Whether a wait continues. Called between polls.
WEFT_DEVICE bool continues(Block& block, Wait& wait, u32 poll, u32 rank) {
    if (!wait.is_long && cycles() - wait.since < QUIET_CYCLES) return true;
    wait = wait_long(block.position(), wait, poll, rank);
    block.failed = block.failed || wait.failed;
    return !wait.failed;
}

WEFT_COLD void clear_report(u64 reports) { store_host(&((Report*)reports + 1 + block_index())->kind, RUNNING); }

// The end of a successful wait.
WEFT_DEVICE void end_wait(const Block& block, const Wait& wait) {
    if (wait.is_long) clear_report(block.header().reports);
}

// Whether a thread of the block has failed.
WEFT_DEVICE bool agree(Block& block) { return block.failed = barrier_or(block.failed); }

WEFT_DEVICE void mismatch(Block& block, u32 poll, u32 rank, u32 other) {
    fail(block.position(), MISMATCH, poll, rank, other);
    block.failed = true;
}

// Records the step between its last input and its first output that a peer can see.
WEFT_COLD void trace_step(Position at) {
    u64* count = (u64*)at.trace;
    Trace* traces = (Trace*)(count + 2);
    u64 number = add_relaxed(count, 1);
    if (number < count[1]) traces[number] = {(u16)at.rank, (u16)at.lane, at.slice, at.ordinal, (u32)at.tile};
}

} // namespace weft
