// The 16-bit floats, which are combined in f32.

namespace weft {

// The bits of a narrow float for an f32, rounded to nearest, ties to even. MANTISSA and BIAS are those of the narrow format; OVERFLOWS is
// the pattern after its largest finite number, and LAST the largest pattern that is not NaN. Overflow does not saturate.
template <u32 BITS, u32 MANTISSA, u32 BIAS, u32 OVERFLOWS, u32 LAST, u32 NAN_BITS>
WEFT_FUNCTION u32 narrowed(float value) {
    constexpr u32 SHIFT = 23 - MANTISSA;
    u32 bits = bits_of(value);
    u32 magnitude = bits & 0x7fffffffu;
    u32 odd = (magnitude >> SHIFT) & 1;
    u32 normal = (magnitude + ((1u << (SHIFT - 1)) - 1) + odd - ((127 - BIAS) << 23)) >> SHIFT;
    // Adding a number whose last bit is the least subnormal rounds all smaller bits away.
    constexpr u32 LARGE = (127 + 1 - BIAS + SHIFT) << 23;
    u32 subnormal = bits_of(float_of(magnitude) + float_of(LARGE)) - LARGE;
    u32 ordinary = magnitude < ((128 - BIAS) << 23) ? subnormal : normal;
    u32 finite = ordinary > OVERFLOWS ? OVERFLOWS : ordinary;
    u32 sign = (bits >> 31) << (BITS - 1);
    return magnitude > 0x7f800000u || finite > LAST ? NAN_BITS : finite | sign;
}

struct F16 {
    using Storage = u16;
    using Accumulator = float;
    static constexpr Kind KIND = Kind::FLOAT;

#ifdef WEFT_HOST
    static WEFT_FUNCTION float load(u16 bits) {
        u32 magnitude = bits & 0x7fffu;
        u32 normal = (magnitude << 13) + ((127 - 15) << 23);
        // The least normal exponent adds a leading one; subtracting it again leaves the mantissa.
        constexpr u32 LEAST = (128 - 15) << 23;
        u32 subnormal = bits_of(float_of((magnitude << 13) + LEAST) - float_of(LEAST));
        u32 ordinary = magnitude < 0x0400u ? subnormal : normal;
        u32 special = (magnitude << 13) | 0x7f800000u;
        return float_of((magnitude < 0x7c00u ? ordinary : special) | (u32(bits) >> 15) << 31);
    }

    static WEFT_FUNCTION u16 store(float value) { return u16(narrowed<16, 10, 15, 0x7c00, 0x7c00, 0x7e00>(value)); }
#else
    // The conversions of the hardware are exact (to f32) and round to nearest, ties to even (to f16), keep subnormal numbers, and overflow
    // to infinity. So they yield the bits of the functions above for everything but NaN, of which `store` makes the canonical one.
    static WEFT_FUNCTION float load(u16 bits) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    }

    static WEFT_FUNCTION u16 store(float value) {
        u16 bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        return is_nan(value) ? u16(0x7e00) : bits;
    }
#endif
};

// The upper half of an f32.
struct Bf16 {
    using Storage = u16;
    using Accumulator = float;
    static constexpr Kind KIND = Kind::FLOAT;

    static WEFT_FUNCTION float load(u16 bits) { return float_of(u32(bits) << 16); }

    static WEFT_FUNCTION u16 store(float value) {
        u32 bits = bits_of(value);
        u32 rounded = bits + 0x7fffu + ((bits >> 16) & 1);
        return is_nan(value) ? u16(0x7fc0) : u16(rounded >> 16);
    }
};

}  // namespace weft
