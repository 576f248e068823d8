// The kernel: a block runs one lane of a rank's program on one slice of the elements.
namespace weft {

// Runs a list of steps of any shapes.
[[maybe_unused]] WEFT_DEVICE bool run_any(Block& block, u64 tile, u32 at, u32 end) {
    while (at < end) {
        u32 bytes;
        if (!run_step<AnyShape>(block, tile, at, bytes)) return false;
        at += bytes;
    }
    return true;
}

// Runs a list of steps. WEFT_SEQUENCES has the steps of lanes whose order is a constant of the kernel:
// SEQUENCE(number, LANE(lane) .., STEPS(shape, count) ..).
WEFT_DEVICE bool run_list(Block& block, u64 tile, u32 at, u32 end) {
    switch (block.lane) {
#define LANE(NUMBER) case NUMBER:
#define STEPS(COUNT, ...) && run_steps<Shape<__VA_ARGS__>>(block, tile, at, COUNT)
#define ANY_STEPS(COUNT) && run_steps<AnyShape>(block, tile, at, COUNT)
#define SEQUENCE(LANES, ...) LANES return true __VA_ARGS__;
        WEFT_SEQUENCES
#undef SEQUENCE
#undef ANY_STEPS
#undef STEPS
#undef LANE
#ifdef WEFT_ANY_STEPS
    default: return run_any(block, tile, at, end);
#else
    default: return at == end;
#endif
    }
}

WEFT_DEVICE bool run_tiles(Block& block) {
    const CallHeader& call = block.header();
    const Lane& lane = record<Lane>(block, call.lists + block.lane * (u32)sizeof(Lane));
    WEFT_NO_UNROLL
    for (u64 tile = 0; tile <= call.repeats; tile++) {
        const bool is_last = tile == call.repeats;
        const u32 at = is_last ? lane.last : lane.first;
        if (!run_list(block, tile, at, at + (is_last ? lane.last_bytes : lane.first_bytes))) return false;
    }
    return true;
}

// Runs the steps of a program.
WEFT_DEVICE void run_program(Block& block) {
    const CallHeader& header = block.header();
    if (WEFT_RARE(agree(block))) {
        if (thread_index() == 0) (void)has_failed<INLINE_WAITS>(block.position(), ENTERED);
        return;
    }
    // After a failure the number does not matter: no call runs any more.
    if (run_tiles(block) && thread_index() == 0) store_relaxed(block.tiles_run(), block.tiles + header.tiles);
}

#ifdef WEFT_DIRECT
// A call that cannot run directly.
WEFT_COLD void run_indirectly(const Call& call, Shared& shared, u32 slice, u64 tiles, bool failed) {
    Block block = {call, shared, 0, slice, tiles, 0, tiles, 0, failed, false};
    copy_program(block);
    run_program(block);
}
#endif

WEFT_DEVICE void run(const Call& call, Shared& shared) {
    const CallHeader& header = call.header;
#ifdef WEFT_LANES
    constexpr u32 lanes = WEFT_LANES;
#else
    const u32 lanes = header.lanes;
#endif
    const u32 lane = lanes == 1 ? 0 : block_index() % lanes, slice = lanes == 1 ? block_index() : block_index() / lanes;
    Block block = {call, shared, lane, slice, 0, 0, 0, 0, false, false};
    if (Packs::One::SCALES && thread_index() == 0) shared.factors[header.rank] = element_of(header.factor);
#ifdef WEFT_DIRECT
    Directly direct = {block, 0, {}};
    direct.begin();
    if (WEFT_RARE(barrier_or(block.failed || !direct.is_fit()))) return run_indirectly(call, shared, slice, block.tiles, block.failed);
    if (run_directly(direct) && thread_index() == 0) store_relaxed(block.tiles_run(), block.tiles + 1);
#else
    // A call that has failed ends later ones before they announce their buffers.
#ifdef WEFT_ENTERS
    constexpr u32 ranks = WEFT_ENTERS;
#else
    const u32 ranks = header.ranks;
#endif
    const u64 failure = load_relaxed_if(thread_index() < ranks, (const u64*)header.failure);
    block.tile = block.tiles = load_relaxed(block.tiles_run());
    block.failed = failure != 0;
    // While the loads above are under way.
    copy_program(block);
    if (header.announces && lane == 0 && thread_index() < ranks && !block.failed) {
        fence_kernels();
        WEFT_EACH (r, ranks)
            if (r != header.rank) enter(block, r);
    }
#ifdef WEFT_ENTERS
    // All lanes begin by waiting for the entries of all ranks.
    WEFT_EACH (r, ranks)
        if (r != header.rank && !block.failed) await_entry(block, r);
#endif
    run_program(block);
#endif
}

} // namespace weft
