// The 8-bit floats of the Open Compute Project, which are combined in f32.
//
// The conversions to fp8 that GPUs have saturate; these overflow to infinity, or to NaN in the format without infinities.

namespace weft {

// Four bits of exponent, three of mantissa, no infinities.
struct F8E4m3 {
    using Storage = u8;
    using Accumulator = float;
    static constexpr Kind KIND = Kind::FLOAT;

    static WEFT_FUNCTION float load(u8 bits) {
        u32 magnitude = bits & 0x7fu;
        // The same exponent and mantissa in an f32 stand for the number divided by 2^120. The product is exact, also of subnormal numbers.
        float number = float_of(magnitude << 20 | (u32(bits) >> 7) << 31) * float_of((127 + 120) << 23);
        return magnitude == 0x7fu ? float_of(NAN_F32) : number;
    }

    static WEFT_FUNCTION u8 store(float value) { return u8(narrowed<8, 3, 7, 0x7f, 0x7e, 0x7f>(value)); }
};

// Five bits of exponent, two of mantissa: the upper half of an f16.
struct F8E5m2 {
    using Storage = u8;
    using Accumulator = float;
    static constexpr Kind KIND = Kind::FLOAT;

    static WEFT_FUNCTION float load(u8 bits) { return F16::load(u16(u32(bits) << 8)); }
    static WEFT_FUNCTION u8 store(float value) { return u8(narrowed<8, 2, 15, 0x7c, 0x7c, 0x7e>(value)); }
};

}  // namespace weft
