// Operations on elements. Their names are those of `Reduction` in Rust.
//
// A step combines its inputs from left to right, in accumulators, and stores the result once: `((a + b) + c) + d`. A step with one input
// copies its bits.

namespace weft {

// Integers wrap around; the unsigned type avoids the undefined overflow of the signed one.
WEFT_FUNCTION i32 sum(i32 a, i32 b) { return i32(u32(a) + u32(b)); }
WEFT_FUNCTION u32 sum(u32 a, u32 b) { return a + b; }
WEFT_FUNCTION i64 sum(i64 a, i64 b) { return i64(u64(a) + u64(b)); }
WEFT_FUNCTION u64 sum(u64 a, u64 b) { return a + b; }
WEFT_FUNCTION float sum(float a, float b) { return a + b; }
WEFT_FUNCTION double sum(double a, double b) { return a + b; }

WEFT_FUNCTION i32 product(i32 a, i32 b) { return i32(u32(a) * u32(b)); }
WEFT_FUNCTION u32 product(u32 a, u32 b) { return a * b; }
WEFT_FUNCTION i64 product(i64 a, i64 b) { return i64(u64(a) * u64(b)); }
WEFT_FUNCTION u64 product(u64 a, u64 b) { return a * b; }
WEFT_FUNCTION float product(float a, float b) { return a * b; }
WEFT_FUNCTION double product(double a, double b) { return a * b; }

template <class Part>
WEFT_FUNCTION Complex<Part> sum(Complex<Part> a, Complex<Part> b) {
    return {a.re + b.re, a.im + b.im};
}

template <class Part>
WEFT_FUNCTION Complex<Part> product(Complex<Part> a, Complex<Part> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

template <class Number>
WEFT_FUNCTION Number minimum(Number a, Number b) {
    return a < b ? a : b;
}

template <class Number>
WEFT_FUNCTION Number maximum(Number a, Number b) {
    return a > b ? a : b;
}

// -0 is less than +0, and NaN if either is NaN. Equal operands have the same bits, except zeros: or-ing the bits then yields -0, and-ing
// yields +0.
WEFT_FUNCTION float minimum(float a, float b) {
    float number = a == b ? float_of(bits_of(a) | bits_of(b)) : a < b ? a : b;
    return is_nan(a) || is_nan(b) ? float_of(NAN_F32) : number;
}

WEFT_FUNCTION double minimum(double a, double b) {
    double number = a == b ? double_of(bits_of(a) | bits_of(b)) : a < b ? a : b;
    return is_nan(a) || is_nan(b) ? double_of(NAN_F64) : number;
}

WEFT_FUNCTION float maximum(float a, float b) {
    float number = a == b ? float_of(bits_of(a) & bits_of(b)) : a > b ? a : b;
    return is_nan(a) || is_nan(b) ? float_of(NAN_F32) : number;
}

WEFT_FUNCTION double maximum(double a, double b) {
    double number = a == b ? double_of(bits_of(a) & bits_of(b)) : a > b ? a : b;
    return is_nan(a) || is_nan(b) ? double_of(NAN_F64) : number;
}

// Rounds towards zero. The number of ranks may exceed the range of the element type, but not that of its accumulator.
WEFT_FUNCTION u32 quotient(u32 value, u32 by) { return value / by; }
WEFT_FUNCTION u64 quotient(u64 value, u32 by) { return value / by; }
WEFT_FUNCTION i64 quotient(i64 value, u32 by) { return value / i64(by); }
WEFT_FUNCTION float quotient(float value, u32 by) { return value / float(by); }
WEFT_FUNCTION double quotient(double value, u32 by) { return value / double(by); }

WEFT_FUNCTION i32 quotient(i32 value, u32 by) {
    u32 magnitude = (value < 0 ? 0u - u32(value) : u32(value)) / by;
    return i32(value < 0 ? 0u - magnitude : magnitude);
}

template <class Part>
WEFT_FUNCTION Complex<Part> quotient(Complex<Part> value, u32 by) {
    return {quotient(value.re, by), quotient(value.im, by)};
}

// What an operation does apart from combining.
enum class Finish { NOTHING, DIVIDE, TRUTH };

WEFT_FUNCTION constexpr bool has_numbers(Kind kind) { return kind != Kind::BOOL; }
WEFT_FUNCTION constexpr bool has_order(Kind kind) { return kind != Kind::COMPLEX; }
WEFT_FUNCTION constexpr bool has_bits(Kind kind) { return kind == Kind::INTEGER || kind == Kind::BOOL; }

#define WEFT_DEFINE_OPERATION(NAME, IS_FOR, SCALES_INPUT, FINISH_OF, IS_SUM, IS_BITWISE, RESULT) \
    struct NAME {                                                                                \
        static WEFT_FUNCTION constexpr bool is_for(Kind kind) { return IS_FOR(kind); }           \
        static constexpr bool SCALES = SCALES_INPUT;                                             \
        static constexpr Finish FINISH = Finish::FINISH_OF;                                      \
        static constexpr bool SUM = IS_SUM;                                                      \
        static constexpr bool BITWISE = IS_BITWISE;                                              \
        template <class Number>                                                                  \
        static WEFT_FUNCTION Number combine(Number a, Number b) {                                \
            return RESULT;                                                                       \
        }                                                                                        \
    };

WEFT_DEFINE_OPERATION(Sum, has_numbers, false, NOTHING, true, false, sum(a, b))
WEFT_DEFINE_OPERATION(Product, has_numbers, false, NOTHING, false, false, product(a, b))
WEFT_DEFINE_OPERATION(Minimum, has_order, false, NOTHING, false, false, minimum(a, b))
WEFT_DEFINE_OPERATION(Maximum, has_order, false, NOTHING, false, false, maximum(a, b))
WEFT_DEFINE_OPERATION(Average, has_numbers, false, DIVIDE, true, false, sum(a, b))
WEFT_DEFINE_OPERATION(PremultipliedSum, has_numbers, true, NOTHING, true, false, sum(a, b))
WEFT_DEFINE_OPERATION(LogicalAnd, has_bits, false, TRUTH, false, false, Number(a != 0 && b != 0))
WEFT_DEFINE_OPERATION(LogicalOr, has_bits, false, TRUTH, false, false, Number(a != 0 || b != 0))
WEFT_DEFINE_OPERATION(LogicalXor, has_bits, false, TRUTH, false, false, Number((a != 0) != (b != 0)))
WEFT_DEFINE_OPERATION(BitAnd, has_bits, false, NOTHING, false, true, Number(a & b))
WEFT_DEFINE_OPERATION(BitOr, has_bits, false, NOTHING, false, true, Number(a | b))
WEFT_DEFINE_OPERATION(BitXor, has_bits, false, NOTHING, false, true, Number(a ^ b))

#undef WEFT_DEFINE_OPERATION

// An operation on elements of a type.
template <class Element, class Operation>
struct Reduction {
    static_assert(Operation::is_for(Element::KIND), "the operation is not defined for this type");

    using Storage = typename Element::Storage;
    using Accumulator = typename Element::Accumulator;

    // Whether a rank's input is scaled before it is combined, and whether results need `finish`.
    static constexpr bool SCALES = Operation::SCALES;
    static constexpr bool FINISHES = Operation::FINISH != Finish::NOTHING;

    static WEFT_FUNCTION Accumulator load(Storage value) { return Element::load(value); }
    static WEFT_FUNCTION Accumulator combine(Accumulator a, Accumulator b) { return Operation::combine(a, b); }
    static WEFT_FUNCTION Storage store(Accumulator value) { return Element::store(value); }

    // A step with two inputs.
    static WEFT_FUNCTION Storage two(Storage a, Storage b) { return store(combine(load(a), load(b))); }

    // An element of a rank's input times the rank's factor, rounded to the type.
    static WEFT_FUNCTION Storage scale(Storage value, Storage factor) {
        return Element::store(product(Element::load(value), Element::load(factor)));
    }

    // The final result of `ranks` ranks: divides an average, and makes of a logical operation's input 1 or 0 even if it was only copied.
    static WEFT_FUNCTION Storage finish(Storage value, u32 ranks) {
        if constexpr (Operation::FINISH == Finish::DIVIDE) {
            return Element::store(quotient(Element::load(value), ranks));
        } else if constexpr (Operation::FINISH == Finish::TRUTH) {
            return Element::store(Element::load(value) != 0);
        } else {
            return value;
        }
    }
};

}  // namespace weft
