//! `libnccl-tuner-weft.so`: NCCL asks it which algorithm and protocol to use.
//!
//! [`abi`] has the interface, a file per version. A communicator is a [`communicator::Communicator`]: it chooses by rows of a measured table
//! ([`table`]), or else by the closed form of the simulator ([`model`]), with the constants of a calibration if there is one. What a size
//! costs is computed once per class of sizes ([`classes`]). The choice goes into NCCL's own table of costs ([`costs`]).
//!
//! All ranks of a communicator must choose alike, or they wait for each other forever. So a choice depends only on the files and settings,
//! on the numbers of ranks and nodes, and on what NCCL passes alike on all ranks: never on the time, on earlier calls or on the rank.
//!
//! Deliberately absent: measuring, threads, and any error that reaches NCCL.

mod abi;
mod classes;
mod communicator;
mod costs;
mod model;
mod settings;
mod table;
