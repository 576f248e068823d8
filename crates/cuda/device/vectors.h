// Moving the elements of a step between places in memory: every thread loads 16 bytes of each input, combines them and stores the result to
// each output.
//
// The elements of a chunk are divided among the slices of a call in units, in turn, so that all blocks of all ranks work on the same few
// megabytes at a time. A message holds the units of one slice without gaps.
namespace weft {

using Packs = Pack<WEFT_TYPE, WEFT_OPERATION>;
using Element = Packs::Storage;

constexpr u32 PACK = 16 / sizeof(Element); // Elements of 16 bytes; all types divide them.

// The element in the low bits. Factors have at most 8 bytes.
WEFT_DEVICE Element element_of(u64 bits) { return Packs::element(Words{{(u32)bits, (u32)(bits >> 32), 0, 0}}, 0); }

// The elements of a step that belong to this block: units of `unit` elements, `step` elements apart.
struct Part {
    u64 elements;
    u64 step;
    u32 unit, slice;
    u32 finished; // How many outputs, from the first on, get a final result; others get it before an average is divided.
    u32 combined; // The ranks that it combines.
    // Of a pre-multiplied sum: the records of the inputs, and the factors by rank.
    const Operand* inputs;
    const Element* factors;
};

// Elements of input `i`, multiplied by the factor of their rank if they are what its user has stored.
WEFT_DEVICE Words scale(Words words, u32 i, const Part& part) {
    if constexpr (Packs::One::SCALES) {
        const Operand& operand = part.inputs[i];
        if (operand.kind == INPUT || operand.kind == PEER_INPUT) return Packs::scale(words, part.factors[operand.index]);
    }
    (void)i, (void)part;
    return words;
}
WEFT_DEVICE Element scale(Element value, u32 i, const Part& part) {
    if constexpr (Packs::One::SCALES) {
        const Operand& operand = part.inputs[i];
        if (operand.kind == INPUT || operand.kind == PEER_INPUT) return Packs::One::scale(value, part.factors[operand.index]);
    }
    (void)i, (void)part;
    return value;
}

// The result of a step for its output `o`.
WEFT_DEVICE Words finish(Words words, u32 o, const Part& part) {
    return Packs::One::FINISHES && o < part.finished ? Packs::finish(words, part.combined) : words;
}
WEFT_DEVICE Element finish(Element value, u32 o, const Part& part) {
    return Packs::One::FINISHES && o < part.finished ? Packs::One::finish(value, part.combined) : value;
}

template <u32 INPUTS> WEFT_DEVICE Words reduce(const Words (&inputs)[INPUTS], const Part& part) {
    const Words first = scale(inputs[0], 0, part);
    if constexpr (INPUTS == 1) return first;
    auto partial = Packs::start(first);
    WEFT_UNROLL
    for (u32 i = 1; i < INPUTS; i++) partial = Packs::next(partial, scale(inputs[i], i, part));
    return Packs::end(partial);
}

// `get` returns the elements of the inputs.
template <class Get> WEFT_DEVICE Element reduce_any(Get get, u32 count, const Part& part) {
    Element value = scale(get(0), 0, part);
    if (count > 1) {
        auto partial = Packs::One::load(value);
        WEFT_NO_UNROLL
        for (u32 i = 1; i < count; i++) partial = Packs::One::combine(partial, Packs::One::load(scale(get(i), i, part)));
        value = Packs::One::store(partial);
    }
    return value;
}

// Any number of operands, at any address.
// By value: a part whose address is taken would leave the registers.
WEFT_COLD void move_any(Part part, const Span* in, u32 inputs, const Span* out, u32 outputs) {
    u64 k = 0;
    for (u64 start = (u64)part.slice * part.unit; start < part.elements; start += part.step, k++) {
        u64 length = part.elements - start < part.unit ? part.elements - start : part.unit;
        for (u32 at = thread_index(); at < length; at += thread_count()) {
            auto get = [&](u32 i) { return ((const Element*)(in[i].first + k * in[i].stride))[at]; };
            Element result = reduce_any(get, inputs, part);
            for (u32 o = 0; o < outputs; o++) ((Element*)(out[o].first + k * out[o].stride))[at] = finish(result, o, part);
        }
    }
}

// Accesses to ordinary memory. A part may end inside of a vector. On an H200, a step with more inputs than outputs is 4 to 6 % faster with plain loads;
// one with two of each is 8 % slower while its data fits into the L2 cache.
template <bool LOADS_MOST> struct Ordinary {
    static constexpr bool HAS_REST = true;
    static WEFT_DEVICE Words load(const Words* from) { return LOADS_MOST ? load_plain(from) : load_streamed(from); }
    static WEFT_DEVICE void store(Words* to, Words words) { store_streamed(to, words); }
};

// A fixed number of operands, all at multiples of 16 bytes. UNROLL units are in flight at once. Unless MESSAGES, all operands have the same
// stride. Addresses stay in shared memory: registers are for what is in flight.
template <u32 INPUTS, u32 OUTPUTS, bool MESSAGES, class Access> struct Vectors {
    const Span *in, *out;
    u64 offset; // Of the thread in each operand's first unit, then in its current one.
    u64 stride;
    u64 unit; // The number of the current unit.

    WEFT_DEVICE Words* at(const Span& span, u32 ahead) const {
        return (Words*)(span.first + offset + (MESSAGES ? (unit + ahead) * span.stride : ahead * stride));
    }

    template <u32 UNITS> WEFT_DEVICE void move(const Part& part) {
        Words v[UNITS][INPUTS];
        WEFT_UNROLL
        for (u32 u = 0; u < UNITS; u++) {
            WEFT_UNROLL
            for (u32 i = 0; i < INPUTS; i++) v[u][i] = Access::load(at(in[i], u));
        }
        WEFT_UNROLL
        for (u32 u = 0; u < UNITS; u++) {
            Words words = reduce(v[u], part);
            WEFT_UNROLL
            for (u32 o = 0; o < OUTPUTS; o++) Access::store(at(out[o], u), finish(words, o, part));
        }
        MESSAGES ? unit += UNITS : offset += UNITS * stride;
    }
};

template <u32 INPUTS, u32 OUTPUTS, bool MESSAGES, class Access = Ordinary<(INPUTS > OUTPUTS)>> WEFT_DEVICE void move_vectors(const Part& part, const Span* in, const Span* out) {
    // Loads in flight: several units of a step with few inputs. More of them were slower on an H200.
    constexpr u32 UNROLL = INPUTS == 1 ? 4 : INPUTS <= 4 ? 2 : 1;
    Vectors<INPUTS, OUTPUTS, MESSAGES, Access> vectors = {in, out, thread_index() * 16, part.step * sizeof(Element), 0};
    u64 start = (u64)part.slice * part.unit + thread_index() * PACK;
    WEFT_NO_UNROLL
    for (; start + (UNROLL - 1) * part.step + PACK <= part.elements; start += UNROLL * part.step) vectors.template move<UNROLL>(part);
    if constexpr (UNROLL > 1) {
        WEFT_NO_UNROLL
        for (; start + PACK <= part.elements; start += part.step) vectors.template move<1>(part);
    }
    if constexpr (!Access::HAS_REST) return;
    const u32 rest = start < part.elements ? (u32)(part.elements - start) : 0;
    WEFT_NO_UNROLL
    for (u32 e = 0; e < rest; e++) {
        Element result = reduce_any([&](u32 i) { return ((const Element*)vectors.at(in[i], 0))[e]; }, INPUTS, part);
        WEFT_NO_UNROLL
        for (u32 o = 0; o < OUTPUTS; o++) ((Element*)vectors.at(out[o], 0))[e] = finish(result, o, part);
    }
}

} // namespace weft
