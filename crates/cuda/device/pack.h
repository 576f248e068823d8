// Operations on packs: the elements in 16 bytes.
//
// Functions take `Words` by value: of a reference, the compiler would load word by word.
//
// Two macros select what the rest of the source combines: WEFT_TYPE names an element type (`F16`) and WEFT_OPERATION an operation (`Sum`).

namespace weft {

// The widest access to memory. The first element is in the lowest bits of the first word.
struct alignas(16) Words {
    u32 word[4];
};

WEFT_FUNCTION void get(const Words& words, u32 index, u8& bits) { bits = u8(words.word[index / 4] >> (index % 4 * 8)); }
WEFT_FUNCTION void get(const Words& words, u32 index, u16& bits) { bits = u16(words.word[index / 2] >> (index % 2 * 16)); }
WEFT_FUNCTION void get(const Words& words, u32 index, u32& bits) { bits = words.word[index]; }
WEFT_FUNCTION void get(const Words& words, u32 index, u64& bits) {
    bits = u64(words.word[2 * index + 1]) << 32 | words.word[2 * index];
}

template <class Part>
WEFT_FUNCTION void get(const Words& words, u32 index, Complex<Part>& bits) {
    get(words, 2 * index, bits.re);
    get(words, 2 * index + 1, bits.im);
}

// Sets an element of words that are zero there.
WEFT_FUNCTION void put(Words& words, u32 index, u8 bits) { words.word[index / 4] |= u32(bits) << (index % 4 * 8); }
WEFT_FUNCTION void put(Words& words, u32 index, u16 bits) { words.word[index / 2] |= u32(bits) << (index % 2 * 16); }
WEFT_FUNCTION void put(Words& words, u32 index, u32 bits) { words.word[index] = bits; }
WEFT_FUNCTION void put(Words& words, u32 index, u64 bits) {
    words.word[2 * index] = u32(bits);
    words.word[2 * index + 1] = u32(bits >> 32);
}

template <class Part>
WEFT_FUNCTION void put(Words& words, u32 index, Complex<Part> bits) {
    put(words, 2 * index, bits.re);
    put(words, 2 * index + 1, bits.im);
}

// The sums of all integers of BYTES bytes in a word: the highest bit of each is added without a carry.
template <u32 BYTES>
WEFT_FUNCTION u32 sum_in_word(u32 a, u32 b) {
    constexpr u32 HIGHEST = BYTES == 1 ? 0x80808080u : BYTES == 2 ? 0x80008000u : 0x80000000u;
    return ((a & ~HIGHEST) + (b & ~HIGHEST)) ^ ((a ^ b) & HIGHEST);
}

template <bool CONDITION, class Then, class Else>
struct Choose {
    using Type = Then;
};

template <class Then, class Else>
struct Choose<false, Then, Else> {
    using Type = Else;
};

template <class Element, class Operation>
struct Pack {
    using One = Reduction<Element, Operation>;
    using Storage = typename Element::Storage;

    static constexpr u32 LANES = 16 / sizeof(Storage);

    // Whether words are combined as they are, without taking them apart.
    static constexpr bool IN_WORDS =
        Element::KIND == Kind::INTEGER && (Operation::BITWISE || (Operation::SUM && sizeof(Storage) <= 4));

    struct Accumulators {
        typename Element::Accumulator of[LANES];
    };

    // The state of a step after some of its inputs: `end(next(next(start(a), b), c))`.
    using Partial = typename Choose<IN_WORDS, Words, Accumulators>::Type;

    static WEFT_FUNCTION Partial start(Words first) {
        if constexpr (IN_WORDS) {
            return first;
        } else {
            Partial partial;
            WEFT_UNROLL
            for (u32 lane = 0; lane < LANES; ++lane) {
                partial.of[lane] = One::load(element(first, lane));
            }
            return partial;
        }
    }

    static WEFT_FUNCTION Partial next(const Partial& left, Words right) {
        Partial partial;
        if constexpr (IN_WORDS) {
            WEFT_UNROLL
            for (u32 index = 0; index < 4; ++index) {
                if constexpr (Operation::SUM) {
                    partial.word[index] = sum_in_word<sizeof(Storage)>(left.word[index], right.word[index]);
                } else {
                    partial.word[index] = Operation::combine(left.word[index], right.word[index]);
                }
            }
        } else {
            WEFT_UNROLL
            for (u32 lane = 0; lane < LANES; ++lane) {
                partial.of[lane] = One::combine(left.of[lane], One::load(element(right, lane)));
            }
        }
        return partial;
    }

    // Not for a step with one input, which is copied.
    static WEFT_FUNCTION Words end(const Partial& partial) {
        if constexpr (IN_WORDS) {
            return partial;
        } else {
            Words words = {};
            WEFT_UNROLL
            for (u32 lane = 0; lane < LANES; ++lane) {
                put(words, lane, One::store(partial.of[lane]));
            }
            return words;
        }
    }

    // A step with two inputs.
    static WEFT_FUNCTION Words two(Words a, Words b) { return end(next(start(a), b)); }

    // A step with `count` inputs, at least one.
    static WEFT_FUNCTION Words all(const Words* inputs, u32 count) {
        if (count == 1) {
            return inputs[0];
        }
        Partial partial = start(inputs[0]);
        for (u32 index = 1; index < count; ++index) {
            partial = next(partial, inputs[index]);
        }
        return end(partial);
    }

    static WEFT_FUNCTION Words scale(Words values, Storage factor) {
        Words words = {};
        WEFT_UNROLL
        for (u32 lane = 0; lane < LANES; ++lane) {
            put(words, lane, One::scale(element(values, lane), factor));
        }
        return words;
    }

    static WEFT_FUNCTION Words finish(Words values, u32 ranks) {
        Words words = {};
        WEFT_UNROLL
        for (u32 lane = 0; lane < LANES; ++lane) {
            put(words, lane, One::finish(element(values, lane), ranks));
        }
        return words;
    }

    static WEFT_FUNCTION Storage element(const Words& words, u32 lane) {
        Storage bits;
        get(words, lane, bits);
        return bits;
    }
};

#if defined(WEFT_TYPE) && defined(WEFT_OPERATION)
using SelectedReduction = Reduction<WEFT_TYPE, WEFT_OPERATION>;
using SelectedPack = Pack<WEFT_TYPE, WEFT_OPERATION>;
#endif

}  // namespace weft
