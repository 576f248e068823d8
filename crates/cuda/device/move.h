// Moving the elements of a step: every thread loads a few bytes of each input, combines them and stores the result to each output.
//
// The elements of a chunk are dealt to the slices of a call in units, in turn, so that all blocks of all ranks work on the same few
// megabytes at a time. A message holds the units of one slice without gaps.
namespace weft {

using Packs = Pack<WEFT_TYPE, WEFT_OPERATION>;
using Element = Packs::Storage;

constexpr u32 PACK = 16 / sizeof(Element); // Elements of 16 bytes; all types divide them.
// Bytes that a thread moves by packets at a time, and the elements in them.
constexpr u32 PACKET_BYTES = sizeof(Element) > 8 ? sizeof(Element) : 8;
constexpr u32 PACKET_PACK = PACKET_BYTES / sizeof(Element);

// A quotient of 64 bits, which takes much code; most fit into 32.
WEFT_COLD u64 divide_long(u64 a, u64 b) { return a / b; }
WEFT_DEVICE u64 divide(u64 a, u64 b) { return (a | b) >> 32 == 0 ? (u32)a / (u32)b : divide_long(a, b); }

// What becomes of the inputs of a step.
struct Result {
    u32 finishes, ranks;
};

template <u32 INPUTS> WEFT_DEVICE Words reduce(const Words (&inputs)[INPUTS], Result result) {
    Words words = inputs[0];
    if constexpr (INPUTS > 1) {
        auto partial = Packs::start(inputs[0]);
        WEFT_UNROLL
        for (u32 i = 1; i < INPUTS; i++) partial = Packs::next(partial, inputs[i]);
        words = Packs::end(partial);
    }
    return Packs::One::FINISHES && result.finishes ? Packs::finish(words, result.ranks) : words;
}

// `get` returns the elements of the inputs.
template <class Get> WEFT_DEVICE Element reduce_any(Get get, u32 count, Result result) {
    Element value = get(0);
    if (count > 1) {
        auto partial = Packs::One::load(value);
        WEFT_NO_UNROLL
        for (u32 i = 1; i < count; i++) partial = Packs::One::combine(partial, Packs::One::load(get(i)));
        value = Packs::One::store(partial);
    }
    return Packs::One::FINISHES && result.finishes ? Packs::One::finish(value, result.ranks) : value;
}

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

// The elements of a step that belong to this block: units of `unit` elements, `step` elements apart.
struct Part {
    u64 elements;
    u64 step;
    u32 unit, slice;
    Result result;
};

// Any number of operands in memory, at any address.
WEFT_COLD void move_any(const Part& part, const Stream* in, u32 inputs, const Stream* out, u32 outputs) {
    u64 k = 0;
    for (u64 start = (u64)part.slice * part.unit; start < part.elements; start += part.step, k++) {
        u64 length = part.elements - start < part.unit ? part.elements - start : part.unit;
        for (u32 at = thread_index(); at < length; at += thread_count()) {
            auto get = [&](u32 i) { return ((const Element*)(in[i].first + k * in[i].stride))[at]; };
            Element result = reduce_any(get, inputs, part.result);
            for (u32 o = 0; o < outputs; o++) ((Element*)(out[o].first + k * out[o].stride))[at] = result;
        }
    }
}

// What a thread moves of a part by 16 bytes at a time: whole vectors, then the elements of an incomplete one.
struct Own {
    u64 full;
    u32 rest;
};

WEFT_DEVICE Own own_part(const Part& part) {
    const u64 start = (u64)part.slice * part.unit + thread_index() * PACK;
    if (start >= part.elements) return {0, 0};
    const u64 left = part.elements - start;
    if (left < PACK) return {0, (u32)left};
    const u64 full = divide(left - PACK, part.step) + 1;
    // Where the last vector is whole, nothing follows in the block's next unit either.
    const u64 next = full * part.step;
    return {full, next < left ? (u32)(left - next) : 0};
}

// A fixed number of operands in memory, all at multiples of 16 bytes. UNROLL units are in flight at once. Unless SLOTS, no operand is
// a message, and all have the same stride. Addresses stay in shared memory: registers are for what is in flight.
template <u32 INPUTS, u32 OUTPUTS, bool SLOTS> struct Vectors {
    const Stream *in, *out;
    u64 offset; // Of the thread in each operand's first unit, then in its current one.
    u64 stride;
    u64 unit; // The number of the current unit.

    WEFT_DEVICE Words* at(const Stream& stream, u32 ahead) const {
        return (Words*)(stream.first + offset + (SLOTS ? (unit + ahead) * stream.stride : ahead * stride));
    }

    template <u32 UNITS> WEFT_DEVICE void move(Result result) {
        Words v[UNITS][INPUTS];
        WEFT_UNROLL
        for (u32 u = 0; u < UNITS; u++) {
            WEFT_UNROLL
            for (u32 i = 0; i < INPUTS; i++) v[u][i] = load_streamed(at(in[i], u));
        }
        WEFT_UNROLL
        for (u32 u = 0; u < UNITS; u++) {
            Words words = reduce(v[u], result);
            WEFT_UNROLL
            for (u32 o = 0; o < OUTPUTS; o++) store_streamed(at(out[o], u), words);
        }
        SLOTS ? unit += UNITS : offset += UNITS * stride;
    }
};

template <u32 INPUTS, u32 OUTPUTS, u32 UNROLL, bool SLOTS>
WEFT_DEVICE void move_vectors(const Part& part, Own own, const Stream* in, const Stream* out) {
    Vectors<INPUTS, OUTPUTS, SLOTS> vectors = {in, out, thread_index() * 16, part.step * sizeof(Element), 0};
    WEFT_NO_UNROLL
    for (; own.full >= UNROLL; own.full -= UNROLL) vectors.template move<UNROLL>(part.result);
    if constexpr (UNROLL > 1) {
        WEFT_NO_UNROLL
        for (; own.full > 0; own.full--) vectors.template move<1>(part.result);
    }
    WEFT_NO_UNROLL
    for (u32 e = 0; e < own.rest; e++) {
        Element result = reduce_any([&](u32 i) { return ((const Element*)vectors.at(in[i], 0))[e]; }, INPUTS, part.result);
        WEFT_NO_UNROLL
        for (u32 o = 0; o < OUTPUTS; o++) ((Element*)vectors.at(out[o], 0))[e] = result;
    }
}

// A message of packets begins with the signature of its call.
constexpr u32 PACKET_HEAD_BYTES = 16;

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

WEFT_DEVICE void send_heads(Shared& shared, const Stream* out, u32 outputs) {
    WEFT_NO_UNROLL
    for (u32 o = thread_index(); o < outputs; o += thread_count())
        if (out[o].kind == PACKET) {
            Words packets = {{shared.call.signature, out[o].flag, shared.call.signature, out[o].flag}};
            store_packets((Words*)(out[o].first - PACKET_HEAD_BYTES), packets);
        }
}

WEFT_DEVICE void receive_heads(Shared& shared, const Stream* in, u32 inputs) {
    WEFT_NO_UNROLL
    for (u32 i = thread_index(); i < inputs; i += thread_count()) {
        if (in[i].kind != PACKET) continue;
        Wait wait = begin_wait();
        for (;;) {
            Words packets = load_packets((const Words*)(in[i].first - PACKET_HEAD_BYTES));
            if (packets.word[1] == in[i].flag) {
                if (packets.word[0] != shared.call.signature) report(shared, MISMATCH, ARRIVED, in[i].rank, packets.word[0]);
                break;
            }
            if (!goes_on(shared, wait, ARRIVED, in[i].rank)) break;
        }
    }
}

// The words of input `i`, if they are there.
WEFT_DEVICE bool get_small(const Stream& in, u64 k, u32 count, Words& words) {
    u64 place = in.first + k * in.stride;
    if (in.kind == PACKET) return receive_small(place + thread_index() * 2 * PACKET_BYTES, in.flag, words);
    words = load_small(place + thread_index() * PACKET_BYTES, count);
    return true;
}

// Operands of which some are packets. A thread that waits for packets waits alone. With INPUTS, their number is known, and all are polled
// at once.
template <u32 INPUTS> WEFT_DEVICE void move_packets(Shared& shared, const Part& part, const Stream* in, u32 inputs, const Stream* out, u32 outputs) {
    if (shared.call.trace != 0) {
        receive_heads(shared, in, inputs);
        barrier();
        if (thread_index() == 0) trace_step(shared);
        barrier();
    }
    send_heads(shared, out, outputs);
    u64 k = 0;
    WEFT_NO_UNROLL
    for (u64 start = (u64)part.slice * part.unit + thread_index() * PACKET_PACK; start < part.elements; start += part.step, k++) {
        u64 left = part.elements - start;
        u32 count = left < PACKET_PACK ? (u32)left : PACKET_PACK;
        Wait wait = begin_wait();
        Words result;
        if constexpr (INPUTS > 0) {
            Words v[INPUTS];
            for (;;) {
                u32 missing = INPUTS;
                WEFT_UNROLL
                for (u32 i = 0; i < INPUTS; i++)
                    if (!get_small(in[i], k, count, v[i])) missing = i;
                if (missing == INPUTS || !goes_on(shared, wait, ARRIVED, in[missing].rank)) break;
            }
            result = reduce(v, part.result);
        } else {
            auto get = [&](u32 i) {
                Words words;
                while (!get_small(in[i], k, count, words) && goes_on(shared, wait, ARRIVED, in[i].rank)) {
                }
                return words;
            };
            result = get(0);
            if (inputs > 1) {
                auto partial = Packs::start(result);
                for (u32 i = 1; i < inputs; i++) partial = Packs::next(partial, get(i));
                result = Packs::end(partial);
            }
            if (Packs::One::FINISHES && part.result.finishes) result = Packs::finish(result, part.result.ranks);
        }
        WEFT_NO_UNROLL
        for (u32 o = 0; o < outputs; o++) {
            u64 place = out[o].first + k * out[o].stride;
            if (out[o].kind == PACKET) send_small(place + thread_index() * 2 * PACKET_BYTES, out[o].flag, result);
            else store_small(place + thread_index() * PACKET_BYTES, count, result);
        }
    }
    if (shared.call.trace == 0) receive_heads(shared, in, inputs);
}

WEFT_COLD void move_many_packets(Shared& shared, const Part& part, const Stream* in, u32 inputs, const Stream* out, u32 outputs) {
    move_packets<0>(shared, part, in, inputs, out, outputs);
}

} // namespace weft
