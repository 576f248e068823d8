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

WEFT_DEVICE void run(const Call& call, Shared& shared) {
    const CallHeader& header = call.header;
    const u32 lane = header.lanes == 1 ? 0 : block_index() % header.lanes;
    const u32 slice = header.lanes == 1 ? block_index() : block_index() / header.lanes;
    Block block = {call, shared, lane, slice, 0, 0, 0, 0, false};
    // These loads do not wait for each other.
    block.tile = block.tiles = load_relaxed(block.tiles_run());
    copy_program(block);
    if (Packs::One::SCALES && thread_index() == 0) shared.factors[header.rank] = element_of(header.factor);
    // A call that has failed ends later ones before they announce their buffers.
    if (thread_index() == 0 && load_relaxed((const u64*)header.failure) != 0) block.failed = true;
    if (agree(block)) {
        if (thread_index() == 0) (void)has_failed(block.position(), ENTERED);
        return;
    }
    if (header.announces && lane == 0) {
        fence_release();
        WEFT_NO_UNROLL
        for (u32 r = thread_index(); r < header.ranks; r += thread_count())
            if (r != header.rank) enter(block, r);
    }
    // After a failure the number does not matter: no call runs any more.
    if (run_tiles(block) && thread_index() == 0) store_relaxed(block.tiles_run(), block.tiles + header.tiles);
}

} // namespace weft
