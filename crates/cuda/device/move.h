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

// The elements of a step that belong to this block.
struct Part {
    u64 elements;
    u32 unit, slice, slices;
    Result result;
};

WEFT_DEVICE u64 unit_start(const Part& part, u64 k) { return (k * part.slices + part.slice) * part.unit; }

// The elements of unit `k`; none after the end.
WEFT_DEVICE u32 unit_length(const Part& part, u64 k) {
    u64 start = unit_start(part, k);
    if (start >= part.elements) return 0;
    return part.elements - start < part.unit ? (u32)(part.elements - start) : part.unit;
}

// Any number of operands in memory, at any address.
WEFT_COLD void move_any(const Part& part, const Stream* in, u32 inputs, const Stream* out, u32 outputs) {
    for (u64 k = 0;; k++) {
        u32 length = unit_length(part, k);
        if (length == 0) return;
        for (u32 at = thread_index(); at < length; at += thread_count()) {
            auto get = [&](u32 i) { return ((const Element*)(in[i].first + k * in[i].stride))[at]; };
            Element result = reduce_any(get, inputs, part.result);
            for (u32 o = 0; o < outputs; o++) ((Element*)(out[o].first + k * out[o].stride))[at] = result;
        }
    }
}

// A fixed number of operands in memory, all at multiples of 16 bytes. UNROLL units are in flight at once. Unless SLOTS, no operand is
// a message, and all have the same stride.
template <u32 INPUTS, u32 OUTPUTS, u32 UNROLL, bool SLOTS>
WEFT_DEVICE void move_vectors(const Part& part, const Stream* ins, const Stream* outs) {
    u64 in[INPUTS], out[OUTPUTS], in_stride[SLOTS ? INPUTS : 1], out_stride[SLOTS ? OUTPUTS : 1];
    const u64 common = (u64)part.slices * part.unit * sizeof(Element);
    const u32 mine = thread_index() * PACK;
            WEFT_UNROLL
    for (u32 i = 0; i < INPUTS; i++) {
        in[i] = ins[i].first + mine * sizeof(Element);
        if (SLOTS) in_stride[i] = ins[i].stride;
    }
            WEFT_UNROLL
    for (u32 o = 0; o < OUTPUTS; o++) {
        out[o] = outs[o].first + mine * sizeof(Element);
        if (SLOTS) out_stride[o] = outs[o].stride;
    }
    auto source = [&](u32 i, u64 k) { return (const Words*)(in[i] + k * (SLOTS ? in_stride[SLOTS ? i : 0] : common)); };
    auto target = [&](u32 o, u64 k) { return (Words*)(out[o] + k * (SLOTS ? out_stride[SLOTS ? o : 0] : common)); };
    u64 k = 0;
    for (; unit_start(part, k + UNROLL - 1) + mine + PACK <= part.elements; k += UNROLL) {
        Words v[UNROLL][INPUTS];
            WEFT_UNROLL
        for (u32 u = 0; u < UNROLL; u++)
            WEFT_UNROLL
            for (u32 i = 0; i < INPUTS; i++) v[u][i] = load_streamed(source(i, k + u));
            WEFT_UNROLL
        for (u32 u = 0; u < UNROLL; u++) {
            Words result = reduce(v[u], part.result);
            WEFT_UNROLL
            for (u32 o = 0; o < OUTPUTS; o++) store_streamed(target(o, k + u), result);
        }
    }
    for (; unit_start(part, k) + mine < part.elements; k++) {
        u64 left = part.elements - unit_start(part, k) - mine;
        if (left >= PACK) {
            Words v[INPUTS];
            WEFT_UNROLL
            for (u32 i = 0; i < INPUTS; i++) v[i] = load_streamed(source(i, k));
            Words result = reduce(v, part.result);
            WEFT_UNROLL
            for (u32 o = 0; o < OUTPUTS; o++) store_streamed(target(o, k), result);
            continue;
        }
        for (u32 at = 0; at < left; at++) {
            Element result = reduce_any([&](u32 i) { return ((const Element*)source(i, k))[at]; }, INPUTS, part.result);
            WEFT_UNROLL
            for (u32 o = 0; o < OUTPUTS; o++) ((Element*)target(o, k))[at] = result;
        }
    }
}

// PACKET_BYTES of data, in a form that can be combined.
struct Small {
    Words words; // All of an element of 16 bytes, or 8 bytes and zeros.
};

WEFT_DEVICE Small load_small(u64 address, u32 count) {
    Small small = {};
    if (count == PACKET_PACK && (address & (PACKET_BYTES - 1)) == 0) {
            WEFT_UNROLL
        for (u32 w = 0; w < PACKET_BYTES / 4; w++) small.words.word[w] = ((const u32*)address)[w];
    } else {
        Element elements[PACK] = {};
        for (u32 e = 0; e < count; e++) elements[e] = ((const Element*)address)[e];
        small.words = pack(elements);
    }
    return small;
}

WEFT_DEVICE void store_small(u64 address, u32 count, const Small& small) {
    if (count == PACKET_PACK && (address & (PACKET_BYTES - 1)) == 0) {
            WEFT_UNROLL
        for (u32 w = 0; w < PACKET_BYTES / 4; w++) ((u32*)address)[w] = small.words.word[w];
    } else {
        Element elements[PACK];
        unpack(small.words, elements);
        for (u32 e = 0; e < count; e++) ((Element*)address)[e] = elements[e];
    }
}

WEFT_DEVICE void send_small(u64 address, u32 flag, const Small& small) {
            WEFT_UNROLL
    for (u32 w = 0; w < PACKET_BYTES / 4; w += 2) {
        Words packets = {{small.words.word[w], flag, small.words.word[w + 1], flag}};
        store_packets((Words*)address + w / 2, packets);
    }
}

WEFT_DEVICE Small receive_small(const Position& at, u64 address, u32 flag, u32 rank) {
    Small small = {};
    wait(at, Awaited{ARRIVED, rank}, [&] {
        bool there = true;
            WEFT_UNROLL
        for (u32 w = 0; w < PACKET_BYTES / 4; w += 2) {
            Words packets = load_packets((const Words*)address + w / 2);
            small.words.word[w] = packets.word[0], small.words.word[w + 1] = packets.word[2];
            there = there && packets.word[1] == flag && packets.word[3] == flag;
        }
        return there;
    });
    return small;
}

// A message of packets begins with the signature of its call.
constexpr u32 PACKET_HEAD_BYTES = 16;

WEFT_DEVICE void send_head(const Stream& out) {
    Words packets = {{out.signature, out.flag, out.signature, out.flag}};
    store_packets((Words*)(out.first - PACKET_HEAD_BYTES), packets);
}

WEFT_DEVICE void receive_head(const Position& at, const Stream& in) {
    u32 signature = 0;
    wait(at, Awaited{ARRIVED, in.rank}, [&] {
        Words packets = load_packets((const Words*)(in.first - PACKET_HEAD_BYTES));
        signature = packets.word[0];
        return packets.word[1] == in.flag;
    });
    if (!at.shared->failed && signature != in.signature) mismatch(at, in.rank, signature);
}

// Operands of which some are packets. A thread that waits for a packet waits alone. With INPUTS, their number is known.
template <u32 INPUTS> WEFT_DEVICE void move_packets(const Position& at, const Part& part, const Stream* in, u32 inputs, const Stream* out, u32 outputs) {
    auto receive_heads = [&] {
        for (u32 i = thread_index(); i < inputs; i += thread_count())
            if (in[i].kind == PACKET) receive_head(at, in[i]);
    };
    if (at.call->trace != 0) {
        receive_heads();
        barrier();
        if (thread_index() == 0) trace_step(at);
        barrier();
    }
    for (u32 o = thread_index(); o < outputs; o += thread_count())
        if (out[o].kind == PACKET) send_head(out[o]);
    const u32 mine = thread_index() * PACKET_PACK;
    for (u64 k = 0; unit_start(part, k) + mine < part.elements; k++) {
        u64 left = part.elements - unit_start(part, k) - mine;
        u32 count = left < PACKET_PACK ? (u32)left : PACKET_PACK;
        auto get = [&](u32 i) {
            u64 place = in[i].first + k * in[i].stride;
            return in[i].kind == PACKET ? receive_small(at, place + thread_index() * 2 * PACKET_BYTES, in[i].flag, in[i].rank)
                                        : load_small(place + mine * sizeof(Element), count);
        };
        Small result;
        if constexpr (INPUTS > 0) {
            Words v[INPUTS];
            WEFT_UNROLL
            for (u32 i = 0; i < INPUTS; i++) v[i] = get(i).words;
            result.words = reduce(v, part.result);
        } else {
            result.words = get(0).words;
            if (inputs > 1) {
                auto partial = Packs::start(result.words);
                for (u32 i = 1; i < inputs; i++) partial = Packs::next(partial, get(i).words);
                result.words = Packs::end(partial);
            }
            if (Packs::One::FINISHES && part.result.finishes) result.words = Packs::finish(result.words, part.result.ranks);
        }
        for (u32 o = 0; o < outputs; o++) {
            u64 place = out[o].first + k * out[o].stride;
            if (out[o].kind == PACKET) send_small(place + thread_index() * 2 * PACKET_BYTES, out[o].flag, result);
            else store_small(place + mine * sizeof(Element), count, result);
        }
    }
    if (at.call->trace == 0) receive_heads();
}

} // namespace weft
