// Entries: what a rank tells its peers when a call begins, namely where its buffers are and which call it is.
namespace weft {

// Words of an entry: input and output, as the reader addresses them, the signature, and the factor of a pre-multiplied sum; each with half
// of the epoch.
constexpr u32 ENTRY_WORDS = WEFT_ENTRY_WORDS, ENTRY_WORDS_USED = Packs::One::SCALES ? 7 : 5;

// Counted from 1 over the calls of a slice, with gaps.
WEFT_DEVICE u32 epoch_of(const Block& block) { return (u32)(block.tiles + 1); }

WEFT_DEVICE u64* control_word(const Block& block, u64 control, u32 word) { return (u64*)(control + block.slice * block.header().control_stride) + word; }

// Sends this rank's entry to a peer.
WEFT_DEVICE void enter(const Block& block, u32 rank) {
    const CallHeader& call = block.header();
    const View* views = (const View*)block.call.rest;
    const View view = views[rank];
    // The program begins with the control memory of all ranks.
    const u64* arenas = call.program != 0 ? (const u64*)call.program : (const u64*)(views + call.ranks);
    const u64 epoch = (u64)epoch_of(block) << 32;
    u64* to = control_word(block, arenas[rank], call.rank * ENTRY_WORDS);
    store_entry(to + 0, epoch | (u32)view.input);
    store_entry(to + 1, epoch | (u32)(view.input >> 32));
    store_entry(to + 2, epoch | (u32)view.output);
    store_entry(to + 3, epoch | (u32)(view.output >> 32));
    store_entry(to + 4, epoch | block.header().signature);
    if constexpr (Packs::One::SCALES) {
        store_entry(to + 5, epoch | (u32)block.header().factor);
        store_entry(to + 6, epoch | (u32)(block.header().factor >> 32));
    }
}

// Waits for the entry of a peer. One of a later call means that the peer has finished this one: then nothing accesses its buffers any more.
WEFT_DEVICE void await_entry(Block& block, u32 rank) {
    const u64* from = control_word(block, block.header().control, rank * ENTRY_WORDS);
    const u32 epoch = epoch_of(block);
    u64 words[ENTRY_WORDS_USED];
    Wait wait = begin_wait();
    u32 same;
    for (;;) {
        u32 there = 0;
        same = 0;
        WEFT_UNROLL
        for (u32 w = 0; w < ENTRY_WORDS_USED; w++) words[w] = load_entry(from + w);
        WEFT_UNROLL
        for (u32 w = 0; w < ENTRY_WORDS_USED; w++) {
            const u32 found = (u32)(words[w] >> 32);
            there += (int)(found - epoch) >= 0, same += found == epoch;
        }
        if (there == ENTRY_WORDS_USED) break;
        if (!continues<INLINE_WAITS>(block, wait, ENTERED, rank)) return;
    }
    end_wait(block, wait);
    fence_acquire();
    if (same != ENTRY_WORDS_USED) return;
    if (WEFT_RARE((u32)words[4] != block.header().signature)) return mismatch<INLINE_WAITS>(block, ENTERED, rank, (u32)words[4]);
    block.shared.bases[2 * rank + 0] = words[1] << 32 | (u32)words[0];
    block.shared.bases[2 * rank + 1] = words[3] << 32 | (u32)words[2];
    if constexpr (Packs::One::SCALES) block.shared.factors[rank] = element_of(words[6] << 32 | (u32)words[5]);
}

} // namespace weft
