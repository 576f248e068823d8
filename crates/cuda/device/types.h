// Element types: how an element lies in memory, and the type its arithmetic has.
//
// The files types.h, half.h, float8.h, operations.h and pack.h belong together, in this order. They have no #include: NVRTC compiles them
// for the device, and with WEFT_HOST defined a host compiler takes the same text as C++17. The rules for the resulting bits are those of
// crates/plan/src/reduction.rs; tests/types.rs compares every type and operation with that crate.
//
// The results depend on two compiler options: --fmad=false on the device (-ffp-contract=off on the host), and no fast math, so that
// subnormal numbers are kept and divisions are rounded correctly.
//
// An element type has the members
//   Storage      its bits in memory
//   Accumulator  the type in which a step combines its inputs
//   KIND         decides which operations it has
//   load         the number with these bits
//   store        the bits of the nearest number, ties to even. Every NaN becomes the type's canonical one: positive, quiet, and without
//                payload.
//
// The names of the types are those of `DataType` in Rust.

#ifdef WEFT_HOST
#define WEFT_FUNCTION inline
#define WEFT_UNROLL
#else
#define WEFT_FUNCTION __device__ __forceinline__
#define WEFT_UNROLL _Pragma("unroll")
#endif

namespace weft {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "the integers have the sizes of their names");

enum class Kind { INTEGER, FLOAT, BOOL, COMPLEX };

WEFT_FUNCTION u32 bits_of(float value) { return __builtin_bit_cast(u32, value); }
WEFT_FUNCTION u64 bits_of(double value) { return __builtin_bit_cast(u64, value); }
WEFT_FUNCTION float float_of(u32 bits) { return __builtin_bit_cast(float, bits); }
WEFT_FUNCTION double double_of(u64 bits) { return __builtin_bit_cast(double, bits); }

WEFT_FUNCTION bool is_nan(float value) { return value != value; }
WEFT_FUNCTION bool is_nan(double value) { return value != value; }

constexpr u32 NAN_F32 = 0x7fc00000u;
constexpr u64 NAN_F64 = 0x7ff8000000000000ull;

// The accumulators of narrow integers have 32 bits: sums and products wrap around when they are stored, with the same low bits.
template <class Bits, class Number, class Wide>
struct Integer {
    using Storage = Bits;
    using Accumulator = Wide;
    static constexpr Kind KIND = Kind::INTEGER;

    static WEFT_FUNCTION Wide load(Bits bits) { return Wide(Number(bits)); }
    static WEFT_FUNCTION Bits store(Wide value) { return Bits(value); }
};

struct I8 : Integer<u8, i8, i32> {};
struct U8 : Integer<u8, u8, u32> {};
struct I16 : Integer<u16, i16, i32> {};
struct U16 : Integer<u16, u16, u32> {};
struct I32 : Integer<u32, i32, i32> {};
struct U32 : Integer<u32, u32, u32> {};
struct I64 : Integer<u64, i64, i64> {};
struct U64 : Integer<u64, u64, u64> {};

// A byte: everything but 0 is true, and results are 0 or 1.
struct Bool {
    using Storage = u8;
    using Accumulator = u32;
    static constexpr Kind KIND = Kind::BOOL;

    static WEFT_FUNCTION u32 load(u8 bits) { return bits != 0; }
    static WEFT_FUNCTION u8 store(u32 value) { return value != 0; }
};

struct F32 {
    using Storage = u32;
    using Accumulator = float;
    static constexpr Kind KIND = Kind::FLOAT;

    static WEFT_FUNCTION float load(u32 bits) { return float_of(bits); }
    static WEFT_FUNCTION u32 store(float value) { return is_nan(value) ? NAN_F32 : bits_of(value); }
};

struct F64 {
    using Storage = u64;
    using Accumulator = double;
    static constexpr Kind KIND = Kind::FLOAT;

    static WEFT_FUNCTION double load(u64 bits) { return double_of(bits); }
    static WEFT_FUNCTION u64 store(double value) { return is_nan(value) ? NAN_F64 : bits_of(value); }
};

// Two parts, the real one first. A NaN in one part leaves the other as it is.
template <class Part>
struct alignas(2 * sizeof(Part)) Complex {
    Part re;
    Part im;
};

template <class Part>
struct ComplexOf {
    using Storage = Complex<typename Part::Storage>;
    using Accumulator = Complex<typename Part::Accumulator>;
    static constexpr Kind KIND = Kind::COMPLEX;

    static WEFT_FUNCTION Accumulator load(Storage bits) { return {Part::load(bits.re), Part::load(bits.im)}; }
    static WEFT_FUNCTION Storage store(Accumulator value) { return {Part::store(value.re), Part::store(value.im)}; }
};

struct Complex64 : ComplexOf<F32> {};
struct Complex128 : ComplexOf<F64> {};

}  // namespace weft
