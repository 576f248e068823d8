// Moving the elements of a step of which some operands are packets. A thread that waits for packets waits alone.
namespace weft {

// Bytes that a thread moves at a time, and the elements in them.
constexpr u32 PACKET_BYTES = sizeof(Element) > 8 ? sizeof(Element) : 8;
constexpr u32 PACKET_PACK = PACKET_BYTES / sizeof(Element);

WEFT_DEVICE Words pack(const Element* elements) {
    Words words = {};
    WEFT_UNROLL
    for (u32 e = 0; e < PACK; e++) put(words, e, elements[e]);
    return words;
}

WEFT_DEVICE void unpack(const Words& words, Element* elements) {
    WEFT_UNROLL
    for (u32 e = 0; e < PACK; e++) get(words, e, elements[e]);
}

// PACKET_BYTES of elements, as words that can be combined: all of an element of 16 bytes, or 8 bytes and zeros.
WEFT_COLD Words load_few(u64 address, u32 count) {
    Element elements[PACK] = {};
    for (u32 e = 0; e < count; e++) elements[e] = ((const Element*)address)[e];
    return pack(elements);
}

WEFT_COLD void store_few(u64 address, u32 count, Words words) {
    Element elements[PACK];
    unpack(words, elements);
    for (u32 e = 0; e < count; e++) ((Element*)address)[e] = elements[e];
}

WEFT_DEVICE bool is_whole(u64 address, u32 count) { return count == PACKET_PACK && (address & (PACKET_BYTES - 1)) == 0; }

WEFT_DEVICE Words load_small(u64 address, u32 count) {
    if (!is_whole(address, count)) return load_few(address, count);
    Words words = {};
    WEFT_UNROLL
    for (u32 w = 0; w < PACKET_BYTES / 4; w++) words.word[w] = ((const u32*)address)[w];
    return words;
}

WEFT_DEVICE void store_small(u64 address, u32 count, const Words& words) {
    if (!is_whole(address, count)) return store_few(address, count, words);
    WEFT_UNROLL
    for (u32 w = 0; w < PACKET_BYTES / 4; w++) ((u32*)address)[w] = words.word[w];
}

WEFT_DEVICE void send_small(u64 address, u32 flag, const Words& words) {
    WEFT_UNROLL
    for (u32 w = 0; w < PACKET_BYTES / 4; w += 2) {
        Words packets = {{words.word[w], flag, words.word[w + 1], flag}};
        store_packets((Words*)address + w / 2, packets);
    }
}

// Polls once.
WEFT_DEVICE bool receive_small(u64 address, u32 flag, Words& words) {
    bool there = true;
    words = {};
    WEFT_UNROLL
    for (u32 w = 0; w < PACKET_BYTES / 4; w += 2) {
        Words packets = load_packets((const Words*)address + w / 2);
        words.word[w] = packets.word[0], words.word[w + 1] = packets.word[2];
        there = there && packets.word[1] == flag && packets.word[3] == flag;
    }
    return there;
}

// An operand of such a step: the address of this thread's first packets or elements, and the flag of packets.
struct Place {
    u64 first;
    u32 flag; // 0 if there are no packets.
    u32 peer;
};

WEFT_DEVICE Place place_of(const Block& block, u32 kind, const Operand& operand) {
    if (kind != PACKET) return {span_of(block, kind, operand).first + thread_index() * PACKET_BYTES, 0, 0};
    const Slot slot = slot_of(block, operand);
    return {slot.head + HEAD_BYTES + thread_index() * 2 * PACKET_BYTES, slot.flag(), slot.peer};
}

// Bytes from a unit to the next.
WEFT_DEVICE u64 stride_of(const Block& block, const Place& place) { return (u64)unit_bytes(block) * (place.flag != 0 ? 2 : block.header().slices); }

// Gets the words of an input, if they are there.
WEFT_DEVICE bool get_small(const Block& block, const Place& in, u64 k, u32 count, Words& words) {
    const u64 at = in.first + k * stride_of(block, in);
    if (in.flag != 0) return receive_small(at, in.flag, words);
    words = load_small(at, count);
    return true;
}

template <class S> struct Packets {
    static constexpr u32 INPUTS = S::FIXED_INPUTS, OUTPUTS = S::FIXED_OUTPUTS;
    Block& block;
    const Records<S>& records;
    const Part& part;
    Place in[INPUTS > 0 ? INPUTS : 1], out[OUTPUTS > 0 ? OUTPUTS : 1];

    WEFT_DEVICE Place input(u32 i) const { return place_of(block, records.shape.input_kind(i, records.input(i)), records.input(i)); }
    WEFT_DEVICE Place output(u32 o) const { return place_of(block, records.shape.output_kind(o, records.output(o)), records.output(o)); }

    WEFT_DEVICE void store(const Place& place, u64 k, u32 count, const Words& result) const {
        const u64 at = place.first + k * stride_of(block, place);
        if (place.flag != 0) send_small(at, place.flag, result);
        else store_small(at, count, result);
    }

    // Polls the head of a message once. One of another call ends the wait: its packets are neither used nor sent on.
    WEFT_DEVICE bool has_head(const Place& place) {
        if (place.flag == 0) return true;
        const Words head = load_packets((const Words*)(place.first - thread_index() * 2 * PACKET_BYTES - HEAD_BYTES));
        if (head.word[1] != place.flag) return false;
        if (head.word[0] == block.header().signature) return true;
        mismatch<INLINE_WAITS>(block, ARRIVED, place.peer, head.word[0]);
        return false;
    }

    // The result of all inputs of this thread's unit `k`, polled at once. False if the wait has failed.
    WEFT_DEVICE bool combine_fixed(u64 k, u32 count, Words& result) {
        Words v[INPUTS > 0 ? INPUTS : 1];
        Wait wait = begin_wait();
        for (;;) {
            u32 missing = INPUTS, peer = 0;
            WEFT_UNROLL
            for (u32 i = 0; i < INPUTS; i++)
                if (!get_small(block, in[i], k, count, v[i])) missing = i, peer = in[i].peer;
            if (k == 0) {
                WEFT_UNROLL
                for (u32 i = 0; i < INPUTS; i++)
                    if (!has_head(in[i])) missing = i, peer = in[i].peer;
                if (block.failed) return false;
            }
            if (missing == INPUTS) break;
            if (!continues<INLINE_WAITS>(block, wait, ARRIVED, peer)) return false;
        }
        end_wait(block, wait);
        result = reduce(v, part);
        return true;
    }

    // The same, one after the other.
    WEFT_DEVICE bool combine_any(u64 k, u32 count, Words& result) {
        const u32 inputs = records.shape.inputs();
        typename Packs::Partial partial = {};
        for (u32 i = 0; i < inputs; i++) {
            const Place place = input(i);
            Words words;
            Wait wait = begin_wait();
            while (!get_small(block, place, k, count, words) || (k == 0 && !has_head(place)))
                if (block.failed || !continues<INLINE_WAITS>(block, wait, ARRIVED, place.peer)) return false;
            end_wait(block, wait);
            words = scale(words, i, part);
            if (inputs == 1) result = words;
            else partial = i == 0 ? Packs::start(words) : Packs::next(partial, words);
        }
        if (inputs > 1) result = Packs::end(partial);
        return true;
    }

    // Returns whether this thread has checked the heads of all inputs.
    WEFT_DEVICE bool move() {
        if constexpr (S::IS_FIXED) {
            WEFT_UNROLL
            for (u32 i = 0; i < INPUTS; i++) in[i] = input(i);
            WEFT_UNROLL
            for (u32 o = 0; o < OUTPUTS; o++) out[o] = output(o);
        }
        u64 k = 0;
        WEFT_NO_UNROLL
        for (u64 start = (u64)part.slice * part.unit + thread_index() * PACKET_PACK; start < part.elements; start += part.step, k++) {
            const u64 left = part.elements - start;
            const u32 count = left < PACKET_PACK ? (u32)left : PACKET_PACK;
            Words result = {};
            // What was not received is not sent.
            if constexpr (S::IS_FIXED) {
                if (!combine_fixed(k, count, result)) return false;
                WEFT_UNROLL
                for (u32 o = 0; o < OUTPUTS; o++) store(out[o], k, count, finish(result, o, part));
            } else {
                if (!combine_any(k, count, result)) return false;
                for (u32 o = 0; o < records.shape.outputs(); o++) store(output(o), k, count, finish(result, o, part));
            }
        }
        return k > 0;
    }
};

// Before the flags of packets repeat, every slot is cleared once, by the receiver before it releases the slot.
WEFT_DEVICE bool is_due(const Block& block, const Operand& operand) {
    const u32 mask = record<Fifo>(block, block.header().fifos + operand.index * (u32)sizeof(Fifo)).slot_mask;
    const u64 number = slot_of(block, operand).number;
    return number > mask && (number & 0x3fffffff) <= mask;
}

WEFT_COLD void clear_slot(u64 slot, u32 bytes) {
    for (u32 w = thread_index(); w < bytes / 16; w += thread_count()) store_packets((Words*)slot + w, Words{});
}

} // namespace weft
