// The kernel: a block runs one lane of a rank's program on one slice of the elements.

namespace weft {

// Loops that move a step's elements.
constexpr u32 LOOP_ANY = 0;        // Any operands in memory.
constexpr u32 LOOP_PACKETS = 1;    // Any number of inputs, with packets.
constexpr u32 LOOP_PACKETS_OF = 2; // Plus a number of inputs.
constexpr u32 LOOP_VECTORS = 32;   // And more: vectors of certain numbers of operands.

// Words of an entry: input and output, as the reader addresses them, and the signature; each with half of the epoch.
constexpr u32 ENTRY_WORDS = 8, ENTRY_WORDS_USED = 5;

WEFT_DEVICE u32 min_of(u32 a, u32 b) { return a < b ? a : b; }

WEFT_DEVICE u64* control_word(const Shared& shared, u64 control, u32 word) {
    return (u64*)(control + shared.slice * shared.call.control_stride) + word;
}

// The tables of the program.
WEFT_DEVICE const Peer* peers_of(const Shared& shared) { return (const Peer*)shared.program; }
WEFT_DEVICE const Fifo* fifos_of(const Shared& shared) { return (const Fifo*)(peers_of(shared) + shared.call.ranks); }
WEFT_DEVICE const Lane* lanes_of(const Shared& shared) { return (const Lane*)(fifos_of(shared) + shared.call.fifos); }

// Copies a part of the program to shared memory. All threads take part. The parameters are read as such: a pointer that may also point to
// device memory would make these loads slow.
WEFT_DEVICE void copy_program(const Call& call, u8* to, u32 from, u32 bytes) {
    const u32* words = (const u32*)(call.header.program + from);
    const u32 first = (u32)(call.header.ranks * sizeof(View) + from) / 4;
    WEFT_NO_UNROLL
    for (u32 at = thread_index(); at < bytes / 4; at += thread_count())
        ((u32*)to)[at] = call.header.program != 0 ? words[at] : call.rest[first + at];
}

// This rank's buffers, as a peer addresses them.
WEFT_DEVICE View view_of(const Call& call, u32 rank) {
    const u32* words = call.rest + rank * (u32)(sizeof(View) / 4);
    return {(u64)words[1] << 32 | words[0], (u64)words[3] << 32 | words[2]};
}

// Sends this rank's entry to a peer.
WEFT_DEVICE void enter(const Shared& shared, u32 rank, View view) {
    u64 epoch = (shared.epoch + 1) << 32;
    u64* to = control_word(shared, peers_of(shared)[rank].control, shared.call.entry_word + shared.call.rank * ENTRY_WORDS);
    store_entry(to + 0, epoch | (u32)view.input);
    store_entry(to + 1, epoch | (u32)(view.input >> 32));
    store_entry(to + 2, epoch | (u32)view.output);
    store_entry(to + 3, epoch | (u32)(view.output >> 32));
    store_entry(to + 4, epoch | shared.call.signature);
}

// Waits for the entry of a peer.
WEFT_DEVICE void await_entry(Shared& shared, u32 rank) {
    const u64* from = control_word(shared, shared.call.control, shared.call.entry_word + rank * ENTRY_WORDS);
    const u32 epoch = (u32)(shared.epoch + 1);
    u64 words[ENTRY_WORDS_USED];
    Wait wait = begin_wait();
    for (;;) {
        u32 there = 0;
        WEFT_UNROLL
        for (u32 w = 0; w < ENTRY_WORDS_USED; w++) words[w] = load_entry(from + w);
        WEFT_UNROLL
        for (u32 w = 0; w < ENTRY_WORDS_USED; w++) there += (u32)(words[w] >> 32) == epoch;
        if (there == ENTRY_WORDS_USED) break;
        if (!goes_on(shared, wait, ENTERED, rank)) return;
    }
    fence_acquire();
    if ((u32)words[4] != shared.call.signature) return report(shared, MISMATCH, ENTERED, rank, (u32)words[4]);
    shared.entered[rank] = 1;
    shared.bases[3 * rank + 0] = words[1] << 32 | (u32)words[0];
    shared.bases[3 * rank + 1] = words[3] << 32 | (u32)words[2];
}

// The number of a message, counted from 0 over all calls.
WEFT_DEVICE u64 message_number(const Shared& shared, u32 fifo, u64 tile, u64 in_tile) {
    return shared.sequence[fifo] + tile * fifos_of(shared)[fifo].per_tile + in_tile;
}

WEFT_DEVICE u64 counter_value(const Shared& shared, u64 tile, u32 per_tile, u32 value) {
    return (shared.epoch + 1) << 32 | (u32)(tile * per_tile + value);
}

WEFT_DEVICE void await(Shared& shared, u64 tile, const Poll& poll) {
    if (poll.kind == ENTERED) {
        if (!shared.entered[poll.rank]) await_entry(shared, poll.rank);
        return;
    }
    u32 word = poll.word, shift = 0;
    u64 value;
    if (poll.kind == REACHED) {
        value = counter_value(shared, tile, poll.per_tile, poll.value);
    } else {
        const Fifo& fifo = fifos_of(shared)[poll.index];
        word = fifo.own_word;
        value = message_number(shared, poll.index, tile, poll.value) + 1;
        if (poll.kind == CREDIT) {
            if (value <= shared.credit[poll.index] + fifo.depth) return;
            value -= fifo.depth;
        } else {
            shift = 32; // Above the signature.
        }
    }
    const u64* from = control_word(shared, shared.call.control, word);
    Wait wait = begin_wait();
    u64 seen;
    // Of arrivals the word has the low half only, which may have wrapped around.
    while (seen = load_acquire(from), (long long)((seen >> shift << shift) - (value << shift)) < 0)
        if (!goes_on(shared, wait, poll.kind, poll.rank)) return;
    // A sender that is ahead has been here with this call's signature.
    if (shift != 0 && seen >> 32 == (u32)value && (u32)seen != shared.call.signature)
        report(shared, MISMATCH, poll.kind, poll.rank, (u32)seen);
}

WEFT_DEVICE void post(Shared& shared, u64 tile, const Post& post) {
    u32 word = post.word;
    u64 value;
    if (post.kind == SIGNAL) {
        value = counter_value(shared, tile, post.per_tile, post.value);
    } else {
        word = fifos_of(shared)[post.index].peer_word;
        value = message_number(shared, post.index, tile, post.value) + 1;
        if (post.kind == SENT) value = value << 32 | shared.call.signature;
    }
    u64* to = control_word(shared, peers_of(shared)[post.rank].control, word);
    // Packets have been read when their flags have: nothing else is released with them.
    if (post.kind == RELEASE_PACKETS) store_relaxed(to, value);
    else store_release(to, value);
}

WEFT_DEVICE Stream stream_of(const Shared& shared, u64 tile, const Operand& operand) {
    const CallHeader& call = shared.call;
    const u32 unit_bytes = call.unit_elements * (u32)sizeof(Element);
    if (operand.kind <= MEMORY_TILED) {
        u64 first = shared.bases[operand.index] + operand.offset + (u64)shared.slice * unit_bytes;
        if (operand.kind == MEMORY_TILED) first += tile * call.tile_bytes;
        return {first, (u64)call.slices * unit_bytes, operand.kind, 0, 0, 0};
    }
    const Fifo& fifo = fifos_of(shared)[operand.index];
    u64 number = message_number(shared, operand.index, tile, operand.offset);
    u64 first = fifo.slots + shared.slice * fifo.slice_stride + (number & fifo.slot_mask) * fifo.slot_bytes;
    const bool packets = operand.kind == PACKET;
    // Flags of packets are never 0, and repeat after 2^31 messages.
    return {first + (packets ? PACKET_HEAD_BYTES : 0), (u64)unit_bytes << packets, operand.kind, fifo.peer, (u32)number | 0x80000000u, operand.index};
}

WEFT_DEVICE bool has_packets(const Step& step) { return step.loop != LOOP_ANY && step.loop < LOOP_VECTORS; }

// Before the flags of packets repeat, every slot is cleared once, by the receiver before it releases the slot.
WEFT_COLD void clear_packets(Shared& shared, const Stream* in, u32 inputs) {
    barrier();
    for (u32 i = 0; i < inputs; i++) {
        if (in[i].kind != PACKET) continue;
        const Fifo& fifo = fifos_of(shared)[in[i].fifo];
        Words* slot = (Words*)(in[i].first - PACKET_HEAD_BYTES);
        for (u32 w = thread_index(); w < fifo.slot_bytes / 16; w += thread_count()) store_packets(slot + w, Words{});
    }
}

// Whether some slot of these packets is due: among the first messages after a multiple of 2^30.
WEFT_DEVICE bool are_due(const Shared& shared, const Stream* in, u32 inputs) {
    bool due = false;
    WEFT_NO_UNROLL
    for (u32 i = 0; i < inputs; i++) due = due || (in[i].kind == PACKET && (in[i].flag & 0x3fffffff) <= fifos_of(shared)[in[i].fifo].slot_mask);
    return due;
}

WEFT_DEVICE void move(Shared& shared, const Step& step, const Stream* in) {
    const CallHeader& call = shared.call;
    const Stream* out = in + step.inputs;
    const u32 inputs = step.inputs, outputs = step.outputs;
    const Part part = {step.elements, (u64)call.slices * call.unit_elements, call.unit_elements, shared.slice, {step.finishes, call.ranks}};
    switch (step.loop) {
#define PACKETS(INPUTS) case LOOP_PACKETS_OF + INPUTS: return move_packets<INPUTS>(shared, part, in, INPUTS, out, outputs);
        WEFT_PACKETS
#undef PACKETS
    case LOOP_PACKETS: return move_many_packets(shared, part, in, inputs, out, outputs);
    case LOOP_ANY: return move_any(part, in, inputs, out, outputs);
    default: break;
    }
    u64 addresses = 0;
    WEFT_NO_UNROLL
    for (u32 i = 0; i < inputs + outputs; i++) addresses |= in[i].first | in[i].stride;
    if ((addresses & 15) != 0) return move_any(part, in, inputs, out, outputs);
    const Own own = own_part(part);
    // WEFT_LOOPS expands LOOP(number, inputs, outputs, unroll, slots).
    switch (step.loop) {
#define LOOP(NUMBER, INPUTS, OUTPUTS, UNROLL, SLOTS) \
    case NUMBER: return move_vectors<INPUTS, OUTPUTS, UNROLL, SLOTS>(part, own, in, out);
        WEFT_LOOPS
#undef LOOP
    default: return;
    }
}

// Runs a step. Returns whether the call goes on.
WEFT_DEVICE bool run_step(Shared& shared, const Step& step, u64 tile, u32 turn) {
    const Poll* polls = (const Poll*)(&step + 1);
    const Operand* operands = (const Operand*)(polls + step.polls);
    const u32 count = step.inputs + step.outputs;
    const Post* posts = (const Post*)(operands + count);
    Stream* streams = shared.streams[turn];
    const bool moves = step.op != OP_SYNC && (step.elements > 0 || has_packets(step));
    if (thread_index() == 0) shared.step = step.ordinal, shared.tile = tile;
    WEFT_NO_UNROLL
    for (u32 i = thread_index(); i < step.polls; i += thread_count()) await(shared, tile, polls[i]);
    // Entries have the addresses of operands.
    if (step.enters) barrier();
    if (moves) {
        WEFT_NO_UNROLL
        for (u32 i = thread_index(); i < count; i += thread_count()) streams[i] = stream_of(shared, tile, operands[i]);
    }
    barrier();
    if (shared.failed) return false;
    if (moves) {
        move(shared, step, streams);
        if (has_packets(step) && are_due(shared, streams, step.inputs)) clear_packets(shared, streams, step.inputs);
    }
    if (shared.call.trace != 0 && !(moves && has_packets(step))) {
        barrier();
        if (thread_index() == 0) trace_step(shared);
    }
    if (step.posts > 0) {
        barrier();
        if (shared.failed) return false;
        WEFT_NO_UNROLL
        for (u32 i = thread_index(); i < step.posts; i += thread_count()) post(shared, tile, posts[i]);
    }
    return true;
}

// Runs all tiles. The steps in shared memory are those from `loaded` on.
WEFT_DEVICE bool run_tiles(const Call& call, Shared& shared, u32 tables) {
    u8* window = shared.program + tables;
    const u32 room = PROGRAM_BYTES - tables;
    const Lane lane = lanes_of(shared)[shared.lane];
    u32 loaded = tables, turn = 0;
    for (u64 tile = 0; tile <= shared.call.repeats; tile++) {
        const bool is_last = tile == shared.call.repeats;
        u32 next = is_last ? lane.last : lane.first;
        const u32 end = next + (is_last ? lane.last_bytes : lane.first_bytes);
        while (next < end) {
            if (next < loaded || next - loaded + STEP_BYTES > room) {
                // Is the whole program there?
                if (shared.call.program_bytes > PROGRAM_BYTES) {
                    barrier();
                    copy_program(call, window, next, min_of(shared.call.program_bytes - next, room));
                    barrier();
                    loaded = next;
                }
            }
            const Step& step = *(const Step*)(window + (next - loaded));
            if (!run_step(shared, step, tile + step.tile, turn)) return false;
            turn ^= 1, next += step.bytes;
        }
    }
    return true;
}

// What this rank keeps for the next call. Lanes of a slice share the epoch: the last of them writes it.
WEFT_DEVICE void finish(Shared& shared, u64* state) {
    const CallHeader& call = shared.call;
    WEFT_NO_UNROLL
    for (u32 f = thread_index(); f < call.fifos; f += thread_count()) {
        const Fifo& fifo = fifos_of(shared)[f];
        if (fifo.lane == shared.lane) state[fifo.state_word] = shared.sequence[f] + call.tiles * fifo.per_tile;
    }
    if (thread_index() != 0) return;
    if (shared.reported) store_host(&((Report*)call.reports + block_index())->kind, RUNNING);
    if (call.lanes > 1) {
        if (add_relaxed(state + 1, 1) + 1 != call.lanes) return;
        state[1] = 0;
    }
    state[0] = shared.epoch + 1;
}

WEFT_DEVICE void run(const Call& call, Shared& shared) {
    const CallHeader& header = call.header;
    const u32 lane = header.lanes == 1 ? 0 : block_index() % header.lanes;
    const u32 slice = header.lanes == 1 ? block_index() : block_index() / header.lanes;
    u64* state = (u64*)(header.state + slice * header.state_stride);
    const u32 tables = (u32)(header.ranks * sizeof(Peer) + header.fifos * sizeof(Fifo) + header.lanes * sizeof(Lane));
    // The load is under way while the program is copied.
    const u64 epoch = thread_index() == 0 ? state[0] : 0;
    WEFT_NO_UNROLL
    for (u32 w = thread_index(); w < sizeof(CallHeader) / 4; w += thread_count()) ((u32*)&shared.call)[w] = ((const u32*)&call.header)[w];
    copy_program(call, shared.program, 0, min_of(header.program_bytes, PROGRAM_BYTES));
    WEFT_NO_UNROLL
    for (u32 r = thread_index(); r < header.ranks; r += thread_count()) {
        const bool own = r == header.rank;
        const View view = view_of(call, r);
        shared.entered[r] = own;
        shared.bases[3 * r + 0] = own ? view.input : 0;
        shared.bases[3 * r + 1] = own ? view.output : 0;
    }
    if (thread_index() == 0) shared.epoch = epoch, shared.failed = 0, shared.reported = 0, shared.lane = lane, shared.slice = slice;
    barrier();
    WEFT_NO_UNROLL
    for (u32 f = thread_index(); f < header.fifos; f += thread_count()) {
        const Fifo& fifo = fifos_of(shared)[f];
        shared.sequence[f] = state[fifo.state_word];
        shared.credit[f] = load_relaxed(control_word(shared, header.control, fifo.own_word));
    }
    if (header.announces && lane == 0) fence_release();
    WEFT_NO_UNROLL
    for (u32 r = thread_index(); r < header.ranks; r += thread_count()) {
        shared.bases[3 * r + 2] = peers_of(shared)[r].scratch;
        if (header.announces && lane == 0 && r != header.rank) enter(shared, r, view_of(call, r));
    }
    barrier();
    const bool ran = run_tiles(call, shared, tables);
    barrier();
    if (ran && !shared.failed) finish(shared, state);
}

} // namespace weft
