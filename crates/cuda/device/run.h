// The kernel: a block runs one lane of a rank's program on one slice of the elements.
namespace weft {

// Words of an entry: input and output, as the reader addresses them, and the signature; each with half of the epoch.
constexpr u32 ENTRY_WORDS = 8;

WEFT_DEVICE u64* control_word(u64 control, u64 stride, u32 slice, u32 word) { return (u64*)(control + slice * stride) + word; }

// Copies records to shared memory. All threads take part.
WEFT_DEVICE void copy_records(void* to, const void* from, u32 bytes) {
    for (u32 at = thread_index(); at < bytes / 4; at += thread_count()) ((u32*)to)[at] = ((const u32*)from)[at];
}

// An entry word: 32 bits of payload under the low half of the epoch.
WEFT_DEVICE u64 entry_word(u64 epoch, u32 payload) { return (epoch & 0xffffffff) << 32 | payload; }

// Sends this rank's entry to one peer.
WEFT_DEVICE void enter(const Position& at, u32 rank, View view) {
    u64 epoch = at.shared->epoch + 1;
    u64* to = control_word(at.shared->peers[rank].control, at.call->control_stride, at.slice, at.call->entry_word + at.call->rank * ENTRY_WORDS);
    store_entry(to + 0, entry_word(epoch, (u32)view.input));
    store_entry(to + 1, entry_word(epoch, (u32)(view.input >> 32)));
    store_entry(to + 2, entry_word(epoch, (u32)view.output));
    store_entry(to + 3, entry_word(epoch, (u32)(view.output >> 32)));
    store_entry(to + 4, entry_word(epoch, at.call->signature));
}

// Waits for the entry of a peer.
WEFT_DEVICE void await_entry(const Position& at, u32 rank) {
    Shared& shared = *at.shared;
    const u64* from = control_word(at.call->control, at.call->control_stride, at.slice, at.call->entry_word + rank * ENTRY_WORDS);
    u64 epoch = shared.epoch + 1;
    u64 words[5];
    wait(at, Awaited{ENTERED, rank}, [&] {
        bool there = true;
WEFT_UNROLL
        for (u32 w = 0; w < 5; w++) words[w] = load_entry(from + w);
WEFT_UNROLL
        for (u32 w = 0; w < 5; w++) there = there && words[w] >> 32 == (epoch & 0xffffffff);
        return there;
    });
    if (shared.failed) return;
    fence_acquire();
    if ((u32)words[4] != at.call->signature) return mismatch(at, rank, (u32)words[4]);
    shared.entered[rank] = 1;
    shared.bases[3 * rank + 0] = (words[1] << 32) | (u32)words[0];
    shared.bases[3 * rank + 1] = (words[3] << 32) | (u32)words[2];
}

// The number of a message, counted from 0 over all calls.
WEFT_DEVICE u64 message_number(const Position& at, u32 fifo, u64 in_tile) {
    return at.shared->sequence[fifo] + at.tile * at.shared->fifos[fifo].per_tile + in_tile;
}

WEFT_DEVICE void await(const Position& at, const Poll& poll) {
    Shared& shared = *at.shared;
    if (poll.kind == ENTERED) {
        if (!shared.entered[poll.rank]) await_entry(at, poll.rank);
        return;
    }
    u32 word = poll.word;
    u64 value;
    if (poll.kind == REACHED) {
        value = (shared.epoch + 1) << 32 | (u32)(at.tile * poll.per_tile + poll.value);
    } else {
        const Fifo& fifo = shared.fifos[poll.index];
        word = fifo.own_word;
        value = message_number(at, poll.index, poll.value) + 1;
        if (poll.kind == CREDIT) {
            if (value <= shared.credit[poll.index] + fifo.depth) return;
            value -= fifo.depth;
        }
    }
    const u64* from = control_word(at.call->control, at.call->control_stride, at.slice, word);
    if (poll.kind == ARRIVED) {
        u64 seen = 0;
        wait(at, Awaited{ARRIVED, poll.rank}, [&] { return seen = load_acquire(from), (int)((u32)(seen >> 32) - (u32)value) >= 0; });
        // A sender that is ahead has been here with this call's signature.
        if (!shared.failed && (u32)(seen >> 32) == (u32)value && (u32)seen != at.call->signature) mismatch(at, poll.rank, (u32)seen);
        return;
    }
    wait(at, Awaited{poll.kind, poll.rank}, [&] { return load_acquire(from) >= value; });
}

WEFT_DEVICE void post(const Position& at, const Post& post) {
    Shared& shared = *at.shared;
    u32 word = post.word;
    u64 value;
    if (post.kind == SIGNAL) {
        value = (shared.epoch + 1) << 32 | (u32)(at.tile * post.per_tile + post.value);
    } else {
        word = shared.fifos[post.index].peer_word;
        value = message_number(at, post.index, post.value) + 1;
        if (post.kind == SENT) value = value << 32 | at.call->signature;
    }
    store_release(control_word(shared.peers[post.rank].control, at.call->control_stride, at.slice, word), value);
}

// Flags of packets are never 0, and repeat after 2^31 messages.
WEFT_DEVICE u32 packet_flag(u64 message) { return (u32)message | 0x80000000u; }

WEFT_DEVICE Stream stream_of(const Position& at, const Operand& operand) {
    const CallHeader& call = *at.call;
    Shared& shared = *at.shared;
    Stream stream;
    stream.kind = operand.kind;
    u64 skipped = (u64)at.slice * call.unit_elements * sizeof(Element);
    if (operand.kind <= MEMORY_TILED) {
        stream.first = shared.bases[operand.index] + operand.offset + skipped + (operand.kind == MEMORY_TILED ? at.tile * call.tile_bytes : 0);
        stream.stride = (u64)call.slices * call.unit_elements * sizeof(Element);
        stream.rank = stream.flag = stream.signature = 0;
        return stream;
    }
    const Fifo& fifo = shared.fifos[operand.index];
    u64 number = message_number(at, operand.index, operand.offset);
    stream.first = fifo.slots + at.slice * fifo.slice_stride + number % fifo.depth * fifo.slot_bytes;
    stream.stride = (u64)call.unit_elements * sizeof(Element) * (operand.kind == PACKET ? 2 : 1);
    if (operand.kind == PACKET) stream.first += PACKET_HEAD_BYTES;
    stream.rank = fifo.peer, stream.flag = packet_flag(number), stream.signature = call.signature;
    return stream;
}

// The loops that this kernel was compiled with: WEFT_LOOPS expands LOOP(number, inputs, outputs, unroll, slots).
WEFT_DEVICE bool move_specialised(u32 loop, const Part& part, const Stream* in, const Stream* out) {
    switch (loop) {
#define LOOP(NUMBER, INPUTS, OUTPUTS, UNROLL, SLOTS) \
    case NUMBER: move_vectors<INPUTS, OUTPUTS, UNROLL, SLOTS>(part, in, out); return true;
        WEFT_LOOPS
#undef LOOP
    default: return false;
    }
}

constexpr u32 LOOP_ANY = 0, LOOP_PACKETS = 1, LOOP_PACKETS_OF = 2, LOOP_VECTORS = 32;

WEFT_DEVICE bool has_packets(const Step& step) { return step.loop != LOOP_ANY && step.loop < LOOP_VECTORS; }

WEFT_DEVICE void move(const Position& at, const Step& step) {
    const CallHeader& call = *at.call;
    const Stream *in = at.shared->in, *out = at.shared->out;
    Part part = {step.elements, call.unit_elements, at.slice, call.slices, {step.finishes, call.ranks}};
    switch (step.loop) {
#define PACKETS(INPUTS) case LOOP_PACKETS_OF + INPUTS: return move_packets<INPUTS>(at, part, in, INPUTS, out, step.outputs);
        WEFT_PACKETS
#undef PACKETS
    case LOOP_PACKETS: return move_packets<0>(at, part, in, step.inputs, out, step.outputs);
    default: break;
    }
    u64 addresses = 0;
    for (u32 i = 0; i < step.inputs; i++) addresses |= in[i].first | in[i].stride;
    for (u32 o = 0; o < step.outputs; o++) addresses |= out[o].first | out[o].stride;
    if ((addresses & 15) == 0 && move_specialised(step.loop, part, in, out)) return;
    move_any(part, in, step.inputs, out, step.outputs);
}

// Flags repeat after 2^31 messages. Before they do, every slot is cleared once, by the receiver before it releases the slot.
WEFT_DEVICE void clear_packets(const Position& at, const Step& step, const Operand* inputs) {
    for (u32 i = 0; i < step.inputs; i++) {
        if (inputs[i].kind != PACKET) continue;
        const Fifo& fifo = at.shared->fifos[inputs[i].index];
        u64 number = message_number(at, inputs[i].index, inputs[i].offset);
        if (number >> 30 == (number - fifo.depth) >> 30 || number < fifo.depth) continue;
        barrier();
        Words* slot = (Words*)(fifo.slots + at.slice * fifo.slice_stride + number % fifo.depth * fifo.slot_bytes);
        for (u32 w = thread_index(); w < fifo.slot_bytes / 16; w += thread_count()) store_packets(slot + w, Words{});
    }
}

// What this rank keeps for the next call. Lanes of a slice share the epoch: the last of them writes it.
WEFT_DEVICE void finish(const Position& at, u64* state) {
    const CallHeader& call = *at.call;
    Shared& shared = *at.shared;
    for (u32 f = thread_index(); f < call.fifos; f += thread_count()) {
        const Fifo& fifo = shared.fifos[f];
        if (fifo.lane == at.lane) state[fifo.state_word] = shared.sequence[f] + call.tiles * fifo.per_tile;
    }
    if (thread_index() != 0) return;
    if (call.lanes > 1) {
        if (add_relaxed(state + 1, 1) + 1 != call.lanes) return;
        state[1] = 0;
    }
    state[0] = shared.epoch + 1;
}

// Runs a step. Returns whether the call goes on.
WEFT_DEVICE bool run_step(const Position& at, const Step& step) {
    Shared& shared = *at.shared;
    const Poll* polls = (const Poll*)(&step + 1);
    const Operand* inputs = (const Operand*)(polls + step.polls);
    const Operand* outputs = inputs + step.inputs;
    const Post* posts = (const Post*)(outputs + step.outputs);
    for (u32 i = thread_index(); i < step.polls; i += thread_count()) await(at, polls[i]);
    barrier();
    if (shared.failed) return false;
    if (step.op != OP_SYNC && (step.elements > 0 || has_packets(step))) {
        for (u32 i = thread_index(); i < step.inputs; i += thread_count()) shared.in[i] = stream_of(at, inputs[i]);
        for (u32 o = thread_index(); o < step.outputs; o += thread_count()) shared.out[o] = stream_of(at, outputs[o]);
        barrier();
        move(at, step);
        if (has_packets(step)) clear_packets(at, step, inputs);
    }
    if (at.call->trace != 0 && !has_packets(step)) {
        barrier();
        if (thread_index() == 0) trace_step(at);
    }
    if (step.posts > 0) {
        barrier();
        if (shared.failed) return false;
        for (u32 i = thread_index(); i < step.posts; i += thread_count()) post(at, posts[i]);
    }
    return true;
}

// Runs a list of steps, a window at a time. `loaded` is what the window holds.
WEFT_DEVICE bool run_steps(Position at, const u8* steps, u32 bytes, const u8*& loaded) {
    Shared& shared = *at.shared;
    const u64 tile = at.tile;
    u32 done = 0;
    while (done < bytes) {
        if (loaded != steps + done) {
            u32 length = bytes - done < WINDOW_BYTES ? bytes - done : WINDOW_BYTES;
            barrier();
            copy_records(shared.window, steps + done, length);
            barrier();
            loaded = steps + done;
        }
        u32 cursor = 0;
        while (done + cursor < bytes) {
            const Step& step = *(const Step*)(shared.window + cursor);
            if (cursor + sizeof(Step) > WINDOW_BYTES || cursor + step.bytes > WINDOW_BYTES) break;
            at.step = step.ordinal, at.tile = tile + step.tile;
            if (!run_step(at, step)) return false;
            cursor += step.bytes;
        }
        done += cursor;
    }
    return true;
}

WEFT_DEVICE void run(const Call& call, Shared& shared) {
    const CallHeader& header = call.header;
    Position at = {&header, &shared, block_index() % header.lanes, block_index() / header.lanes, 0, 0};
    const View* views = (const View*)call.rest;
    const u8* program = header.program != 0 ? (const u8*)header.program : (const u8*)(views + header.ranks);
    const Peer* peers = (const Peer*)program;
    const Fifo* fifos = (const Fifo*)(peers + header.ranks);
    const Lane* lanes = (const Lane*)(fifos + header.fifos);
    const Lane lane = lanes[at.lane];
    u64* state = (u64*)(header.state + at.slice * header.state_stride);
    // What this rank keeps between calls; the first lane of a slice writes it back.
    if (thread_index() == 0) shared.epoch = state[0], shared.failed = 0;
    for (u32 f = thread_index(); f < header.fifos; f += thread_count()) {
        Fifo fifo = fifos[f];
        shared.fifos[f] = fifo;
        shared.sequence[f] = state[fifo.state_word];
        shared.credit[f] = load_acquire(control_word(header.control, header.control_stride, at.slice, fifo.own_word));
    }
    for (u32 r = thread_index(); r < header.ranks; r += thread_count()) {
        shared.peers[r] = peers[r];
        bool own = r == header.rank;
        shared.entered[r] = own;
        shared.bases[3 * r + 0] = own ? views[r].input : 0;
        shared.bases[3 * r + 1] = own ? views[r].output : 0;
        shared.bases[3 * r + 2] = peers[r].scratch;
    }
    const u8* steps = program + (header.repeats > 0 ? lane.first : lane.last);
    u32 bytes = header.repeats > 0 ? lane.first_bytes : lane.last_bytes;
    copy_records(shared.window, steps, bytes < WINDOW_BYTES ? bytes : WINDOW_BYTES);
    const u8* loaded = steps;
    barrier();
    if (header.announces && at.lane == 0) {
        fence_release();
        for (u32 r = thread_index(); r < header.ranks; r += thread_count())
            if (r != header.rank) enter(at, r, views[r]);
    }
    bool goes_on = true;
    for (; goes_on && at.tile < header.repeats; at.tile++)
        goes_on = run_steps(at, program + lane.first, lane.first_bytes, loaded);
    if (goes_on) goes_on = run_steps(at, program + lane.last, lane.last_bytes, loaded);
    barrier();
    if (!goes_on || shared.failed) return;
    finish(at, state);
}

} // namespace weft
