//! Enums of `weft.h` as C passes them: any number. The conversions in `types.rs` refuse numbers that the enum does not have; an enum of Rust
//! with such a number would be undefined behaviour. The generated header has the enums in their place.

/// A `weft_status`.
pub(crate) type Status = u32;
/// A `weft_type`.
pub(crate) type Type = u32;
/// A `weft_op`.
pub(crate) type Op = u32;
