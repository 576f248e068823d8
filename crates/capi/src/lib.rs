//! The C library libweft. `weft.h` is generated from these modules, in the order in which they are listed here, and has all documentation:
//! comments on exported items are written for C programmers.
//!
//! Each exported function calls the Rust library; there is no logic of its own. `guard` (`error.rs`) catches panics, and every function
//! goes through it.
//!
//! Unsafe code is allowed, because every function takes addresses from C. Each says what it relies on; `weft.h` tells the program what to keep.

#![allow(unsafe_code)] // Functions that C calls, with its addresses.
#![allow(non_camel_case_types)] // Exported types have their C names.

mod error;
mod types;

mod options;
mod start;

mod collectives;
mod comm;
mod messages;
mod request;
mod started;
mod stream;
mod uneven;

mod plan;
mod predict;

mod any;
mod call;
mod gpu;
mod pointer;

pub use collectives::*;
pub use comm::*;
pub use error::*;
pub use messages::*;
pub use options::*;
pub use plan::*;
pub use predict::*;
pub use request::*;
pub use start::*;
pub use started::*;
pub use stream::*;
pub use types::*;
pub use uneven::*;
