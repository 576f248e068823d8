// The state of a block, and every wait of a kernel: bounded, and after some 20 us it polls the failure word, now and then the awaited rank's
// word in host memory, and reports what it waits for.
//
// A wait that fails sets the failure word of every rank, so that all blocks that wait in calls of the plan fail too, and later ones at
// once: no rank accesses buffers of a call that another has given up. Threads of a block agree at the next barrier.
//
// Code that is rarely run is kept out of line: a call is short, and much of its time would go into fetching instructions. Where few steps
// wait, it is inline all the same (INLINE): what a function call needs would lie in memory from the start of the kernel.

namespace weft {

#ifdef WEFT_FEW_STEPS
constexpr bool INLINE_WAITS = true;
#else
constexpr bool INLINE_WAITS = false;
#endif
constexpr u64 QUIET_CYCLES = 40000; // About 20 us.
constexpr u64 PRESENCE_NS = 100000; // A thread that waits loads a rank's word this often: thousands of them share the link to the host.
constexpr u64 REPORT_NS = 1000000;  // A block that waits reports this often.

#ifndef WEFT_WINDOW
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
    SelectedPack::Storage factors[SelectedReduction::SCALES ? RANKS_MAX : 1]; // Of this rank, and of every peer whose entry has arrived.
};
#endif

// Threads take one of COUNT things each. There is no loop if the count is a constant that is small.
#define WEFT_EACH(I, COUNT) WEFT_NO_UNROLL for (u32 I = thread_index(), once = 1; once != 0 && I < (COUNT); I += thread_count(), once = (COUNT) > THREADS_MIN)

// What a block reports of itself. Passed by value: a block whose address is taken would leave the registers.
struct Position {
    u64 reports, failure, presence, timeout_ns, trace;
    u64 arenas, control; // The addresses of all arenas, and of this rank's.
    u32 signature, number, rank, ranks, lane, slice, ordinal;
    u64 tile; // Of the call.
};

#ifndef WEFT_WINDOW
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
    bool waited; // The step before did nothing else.

    WEFT_DEVICE const CallHeader& header() const { return call.header; }
    WEFT_DEVICE u64* tiles_run() const { return (u64*)header().tiles_run + (slice * header().lanes + lane); }
    WEFT_DEVICE Position position() const;
};

// A record of the program, by its offset.
template <class T> WEFT_DEVICE const T& record(const Block& block, u32 offset) {
#ifdef WEFT_IN_SHARED
    return *(const T*)(block.shared.rest + block.header().ranks * (u32)sizeof(View) + offset);
#else
    return *(const T*)(block.header().program + offset);
#endif
}

WEFT_DEVICE Position Block::position() const {
    const CallHeader& h = header();
    // The program begins with them. Its copy in shared memory may not be there yet.
    const u64 arenas = h.program != 0 ? h.program : (u64)call.rest + h.ranks * sizeof(View);
    return {h.reports, h.failure, h.presence, h.timeout_ns, h.trace, arenas, h.control, h.signature, h.number, h.rank, h.ranks, lane, slice, ordinal, tile - tiles};
}

#endif

WEFT_DEVICE void write_report(Position at, u32 place, u32 kind, u32 poll, u32 rank, u32 other) {
    // Threads of a block that wait for different ranks share a place: the host may see some of each.
    Report* to = (Report*)at.reports + place;
    store_host(&to->signature, at.signature);
    store_host(&to->lane, at.lane), store_host(&to->slice, at.slice);
    store_host(&to->step, at.ordinal), store_host(&to->rank, rank), store_host(&to->poll, poll), store_host(&to->other, other);
    store_host(&to->tile, (u32)at.tile), store_host(&to->call, at.number);
    if (at.number != 0) store_host(&((Report*)at.reports)->started, at.number);
    publish_host(&to->kind, kind);
}
WEFT_COLD void write_report_cold(Position at, u32 place, u32 kind, u32 poll, u32 rank, u32 other) { write_report(at, place, kind, poll, rank, other); }
template <bool INLINE> WEFT_DEVICE void report(Position at, u32 place, u32 kind, u32 poll, u32 rank, u32 other) {
    INLINE ? write_report(at, place, kind, poll, rank, other) : write_report_cold(at, place, kind, poll, rank, other);
}

constexpr u32 ABORTED_BY = WEFT_ABORTED_BY; // A presence word: a rank has aborted all calls, the one that is added.
constexpr u64 FAILED_HERE = 1, FAILED_AT = WEFT_FAILED_AT; // A failure word that is not 0: here, or at the rank that is added.

// Ends the call of this block, and later ones of all ranks. The first block that fails says why.
template <bool INLINE> WEFT_DEVICE void fail(Position at, u32 kind, u32 poll, u32 rank, u32 other) {
    if (exchange((u64*)at.failure, FAILED_HERE) == FAILED_HERE) return;
    report<INLINE>(at, 0, kind, poll, rank, other);
    WEFT_NO_UNROLL
    for (u32 r = 0; r < at.ranks; r++)
        if (r != at.rank) store_relaxed((u64*)(((const u64*)at.arenas)[r] + (at.failure - at.control)), FAILED_AT + at.rank);
}

// Whether a call of this rank or of another has failed.
template <bool INLINE> WEFT_DEVICE bool has_failed(Position at, u32 poll) {
    const u64 word = load_relaxed((const u64*)at.failure);
    if (word >= FAILED_AT) {
        // Another peer may have failed since, and a peer must not replace this rank's own reason.
        const u64 last = exchange((u64*)at.failure, FAILED_HERE);
        if (last >= FAILED_AT && load_host(&((const Report*)at.reports)->kind) == RUNNING)
            report<INLINE>(at, 0, PEER_FAILED, poll, (u32)(last - FAILED_AT), 0);
    }
    return word != 0;
}

// This block does not wait any more.
WEFT_DEVICE void clear_report(u64 reports) { publish_host(&((Report*)reports + 1 + block_index())->kind, RUNNING); }

struct Wait {
    u64 since; // Cycles, then nanoseconds.
    u64 reported, polled;
    bool is_long, failed;
    u32 gone; // One more than a rank that is gone: what it has sent has arrived.
};

WEFT_DEVICE Wait begin_wait() { return {cycles(), 0, 0, false, false, 0}; }

template <bool INLINE> WEFT_DEVICE Wait wait_long(Position at, Wait wait, u32 poll, u32 rank) {
    const u64 now = nanoseconds();
    if (!wait.is_long) wait = {now, now, now, true, false, 0};
    u32 failed = now - wait.since > at.timeout_ns ? TIMED_OUT : RUNNING, other = 0;
    // A wait for several ranks may have seen the word of another one.
    const bool was_gone = wait.gone == rank + 1;
    if (was_gone || now - wait.polled > PRESENCE_NS) {
        wait.polled = now;
        const u32 word = acquire_host((const u32*)at.presence + rank);
        const u32 kind = word >= ABORTED_BY ? ABORTED : word != 0 && was_gone ? GONE : RUNNING;
        if (kind != RUNNING) failed = kind, other = kind == ABORTED ? word - ABORTED_BY : word;
        wait.gone = word != 0 ? rank + 1 : 0;
    }
    if (failed != RUNNING) fail<INLINE>(at, failed, poll, rank, other);
    if (has_failed<INLINE>(at, poll)) wait.failed = true, clear_report(at.reports);
    else if (now - wait.reported > REPORT_NS) {
        wait.reported = now;
        store_host(&((Report*)at.reports + 1 + block_index())->waited_ms, (u32)((now - wait.since) / 1000000));
        report<INLINE>(at, 1 + block_index(), WAITING, poll, rank, 0);
    }
    pause();
    return wait;
}

WEFT_COLD Wait wait_long_cold(Position at, Wait wait, u32 poll, u32 rank) { return wait_long<false>(at, wait, poll, rank); }

#ifndef WEFT_WINDOW
// Whether a wait continues. Called between polls.
template <bool INLINE> WEFT_DEVICE bool continues(Block& block, Wait& wait, u32 poll, u32 rank) {
    if (!WEFT_RARE(wait.is_long || cycles() - wait.since >= QUIET_CYCLES)) return true;
    wait = INLINE ? wait_long<true>(block.position(), wait, poll, rank) : wait_long_cold(block.position(), wait, poll, rank);
    block.failed = block.failed || wait.failed;
    return !wait.failed;
}

// The end of a successful wait.
WEFT_DEVICE void end_wait(const Block& block, const Wait& wait) {
    if (WEFT_RARE(wait.is_long)) clear_report(block.header().reports);
}

// Whether a thread of the block has failed.
WEFT_DEVICE bool agree(Block& block) { return block.failed = barrier_or(block.failed); }

template <bool INLINE> WEFT_DEVICE void mismatch(Block& block, u32 poll, u32 rank, u32 other) {
    fail<INLINE>(block.position(), MISMATCH, poll, rank, other);
    block.failed = true;
}

#endif

// Records the step between its last input and its first output that a peer can see.
WEFT_COLD void trace_step(Position at) {
    u64* count = (u64*)at.trace;
    Trace* traces = (Trace*)(count + 2);
    u64 number = add_relaxed(count, 1);
    if (number < count[1]) traces[number] = {(u16)at.rank, (u16)at.lane, at.slice, at.ordinal, (u32)at.tile};
}

} // namespace weft
