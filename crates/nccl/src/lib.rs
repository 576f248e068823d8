//! `libnccl.so.2`: programs that were built for NCCL run on Weft without a change.
//!
//! The functions are those of NCCL 2.30 ([`abi`] has the types, which programs see, and [`export`] the names). A communicator ([`comm`]) is a Weft
//! communicator on the host and, if it has a GPU, one there. Calls are checked and queued by [`group`], and run by [`host`] or [`device`] when the
//! outermost group of the thread ends. An error has a result code and a sentence ([`failure`]), which `ncclGetLastError` returns.
//!
//! Loading the library does nothing: it starts no thread and no CUDA.

mod abi;
#[macro_use]
mod export;
mod calls;
mod comm;
mod config;
mod device;
mod device_api;
mod directory;
mod failure;
mod gpu;
mod group;
mod host;
mod id;
mod init;
mod lifetime;
mod loaded;
mod lock;
mod log;
mod memory;
mod messages;
mod one_sided;
mod open;
mod operations;
mod parameters;
mod predict;
mod registry;
mod regroup;
mod settings;
mod signals;
mod window;
mod windows;
mod work;
