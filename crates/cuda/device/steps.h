// Running a step: threads poll what it waits for, all of them move its elements, then threads post that it is done.
namespace weft {

WEFT_DEVICE u64 number_of(const Block& block, u32 per_tile, int value) { return block.tile * per_tile + (u64)(long long)value; }

WEFT_DEVICE void await(Block& block, const Poll& poll) {
    const u64 value = number_of(block, poll.per_tile, poll.value);
    const u64* from = control_word(block, block.header().control, poll.word);
    Wait wait = begin_wait();
    while ((long long)(load_acquire(from) - value) < 0)
        if (!continues<INLINE_WAITS>(block, wait, poll.kind, poll.rank)) return;
    end_wait(block, wait);
}

// Heads of messages have the signature of their call.
template <class S> WEFT_DEVICE void send_heads(Block& block, const Records<S>& records) {
    const u32 signature = block.header().signature;
    WEFT_NO_UNROLL
    for (u32 o = thread_index(); o < records.shape.outputs(); o += thread_count()) {
        const Operand& operand = records.output(o);
        if (operand.kind < MESSAGE) continue;
        const Slot slot = slot_of(block, operand);
        if (operand.kind == PACKET) store_packets((Words*)slot.head, Words{{signature, slot.flag(), signature, slot.flag()}});
        else *(u32*)slot.head = signature;
    }
}

// Checks heads, unless this thread did so before it used the packets behind them. Returns whether it has found a slot that is due to be
// cleared.
template <class S> WEFT_DEVICE bool check_heads(Block& block, const Records<S>& records, bool has_checked_packets) {
    bool due = false;
    const u32 signature = block.header().signature;
    WEFT_NO_UNROLL
    for (u32 i = thread_index(); i < records.shape.inputs(); i += thread_count()) {
        const Operand& operand = records.input(i);
        if (operand.kind < MESSAGE) continue;
        const Slot slot = slot_of(block, operand);
        u32 found = signature;
        if (operand.kind == MESSAGE) {
            found = *(const u32*)slot.head;
        } else if (!has_checked_packets) {
            Wait wait = begin_wait();
            for (;;) {
                const Words packets = load_packets((const Words*)slot.head);
                found = packets.word[0];
                if (packets.word[1] == slot.flag()) break;
                if (!continues<INLINE_WAITS>(block, wait, ARRIVED, slot.peer)) return due;
            }
            end_wait(block, wait);
        }
        if (operand.kind == PACKET) due = due || is_due(block, operand);
        if (found != signature) mismatch<INLINE_WAITS>(block, ARRIVED, slot.peer, found);
    }
    return due;
}

template <class S> WEFT_DEVICE void move_spans(Block& block, const Records<S>& records, const Part& part) {
    Span* spans = block.shared.spans[block.turn];
    const u32 inputs = records.shape.inputs(), outputs = records.shape.outputs();
    // Entries have the addresses of operands: all have arrived. With packets in the plan, units are smaller than vectors of all threads.
    bool is_odd = part.unit != thread_count() * PACK;
    WEFT_EACH (i, inputs + outputs) {
        const Operand& operand = records.input(i);
        const Span span = span_of(block, operand.kind, operand);
        spans[i] = span, is_odd = is_odd || ((span.first | span.stride) & 15) != 0;
    }
    is_odd = WEFT_RARE(barrier_or(is_odd));
    block.turn ^= 1;
    if constexpr (S::IS_FIXED && S::FIXED_INPUTS > 0) {
        if (!is_odd) return move_vectors<S::FIXED_INPUTS, S::FIXED_OUTPUTS, S::FIXED_MESSAGES>(part, spans, spans + inputs);
    }
    move_any(part, spans, inputs, spans + inputs, outputs);
}

// Clears slots that are due, which all threads have read.
template <class S> WEFT_DEVICE void clear_packets(const Block& block, const Records<S>& records) {
    WEFT_NO_UNROLL
    for (u32 i = 0; i < records.shape.inputs(); i++) {
        const Operand& operand = records.input(i);
        if (operand.kind == PACKET && is_due(block, operand))
            clear_slot(slot_of(block, operand).head, record<Fifo>(block, block.header().fifos + operand.index * (u32)sizeof(Fifo)).slot_bytes);
    }
    barrier();
}

// Runs the step whose record is at an offset. Returns whether the call continues, for all threads alike.
template <class S> WEFT_DEVICE bool run_step(Block& block, u64 tile, u32 at, u32& bytes) {
    const Step& step = record<Step>(block, at);
    const Records<S> records = {block, S(step), at};
    const S& shape = records.shape;
    const CallHeader& call = block.header();
    bytes = shape.bytes();
    block.ordinal = step.ordinal, block.tile = block.tiles + tile + step.tile;
    // An entry holds for all tiles.
#ifdef WEFT_ENTERS
    const u32 polled = shape.entries();
#else
    const u32 polled = tile == 0 ? 0 : shape.entries();
#endif
    const bool polls = polled < shape.polls();
    if (polls) {
        WEFT_EACH (i, shape.polls() - polled)
            polled + i < shape.entries() ? await_entry(block, records.poll(polled + i).rank) : await(block, records.poll(polled + i));
#ifdef WEFT_SWITCH
        // What peers have stored through the switch is read at other addresses.
        fence_alias();
#endif
    }
    // Other threads may have written the operands in the step before. A step that only waits leaves it to the next to agree.
    if (!shape.has(MOVES) && shape.posts() == 0) block.waited = true;
    else if ((polls || shape.has(PACKETS) || block.waited) && agree(block)) return false;
    else block.waited = false;
    bool is_due = false;
    if (shape.has(MOVES)) {
        const u32 finished = shape.has(FINISHES) ? shape.outputs() : shape.has(FINISHES_FIRST) ? 1 : 0;
        Part part = {step.elements, (u64)call.slices * call.unit_elements, call.unit_elements, block.slice, finished, call.combined, nullptr, nullptr};
        if constexpr (Packs::One::SCALES) part.inputs = &records.input(0), part.factors = block.shared.factors;
#ifdef WEFT_TRACE
        if (shape.has(PACKETS)) {
            (void)check_heads(block, records, false);
            if (agree(block)) return false;
            if (thread_index() == 0) trace_step(block.position());
            barrier();
        }
#endif
        if constexpr (S::HAS_HEADS) send_heads(block, records);
        bool has_checked = false;
#ifdef WEFT_SWITCH
        if (shape.has(BY_SWITCH)) move_switched(block, records, part);
        else
#endif
        if (shape.has(PACKETS)) has_checked = Packets<S>{block, records, part, {}, {}}.move();
        else move_spans(block, records, part);
        if (S::HAS_HEADS && shape.posts() > 0) is_due = check_heads(block, records, has_checked);
    }
#ifdef WEFT_TRACE
    if (!shape.has(PACKETS)) {
        if (agree(block)) return false;
        if (thread_index() == 0) trace_step(block.position());
    }
#endif
    if (shape.posts() > 0) {
        // One barrier tells both, since both are rare.
        const bool is_rare = barrier_or(block.failed || is_due);
        if (WEFT_RARE(is_rare)) {
            if (agree(block)) return false;
            clear_packets(block, records);
        }
        WEFT_EACH (i, shape.posts()) {
            const Post& post = records.post(i);
            u64* to = control_word(block, post.word, 0);
            const u64 value = number_of(block, post.per_tile, post.value);
            if (shape.has(RELAXED) && !is_rare) store_relaxed(to, value);
            else store_release(to, value);
        }
    }
    return true;
}

// Runs steps of one shape that follow each other.
template <class S> WEFT_DEVICE bool run_steps(Block& block, u64 tile, u32& at, u32 count) {
    WEFT_NO_UNROLL
    for (; count > 0; count--) {
        u32 bytes;
        if (!run_step<S>(block, tile, at, bytes)) return false;
        at += bytes;
    }
    return true;
}

} // namespace weft
