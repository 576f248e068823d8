//! A fabric as a document: TOML for people, JSON for programs, one schema for both.
//!
//! Writing a fabric loses nothing, and reading it back gives an equal one. A person writes less: a document may start
//! from a preset or a cluster spec and say only what differs.
//!
//! ```
//! let fabric = weftlink_fabric::format::document::read_toml(br#"
//!     weft = 1
//!     base = "2x hgx-h100 + 8x ndr"
//!
//!     [[override]]
//!     between = ["host1/nic3", "leaf3"]
//!     gb_per_s_each_way = 12.5
//!     source = "measured with ib_write_bw on 2026-11-01"
//! "#).unwrap();
//! assert_eq!(fabric.gpus().len(), 16);
//! ```
//!
//! | key | what it holds |
//! |---|---|
//! | `weft` | the version of this format: 1 |
//! | `name` | what the fabric is called |
//! | `base` | a preset or a cluster spec to start from |
//! | `notes` | what a reader should know about where the description came from |
//! | `[[host]]` | `name`; `system`, the catalog's system it is one of; or `like`, a preset of one host whose devices to copy |
//! | `[[device]]` | `name`, and what its kind has, see below |
//! | `[[link_type]]` | `id`; `kind`, a link of the catalog, if the id is none; `nominal`, `effective`, `latency`: what is left out is unknown |
//! | `[[link]]` | `between` two devices; `type`, a link type's id or a link of the catalog such as `pcie5x16`; `count` of parallel links, 1 unless given; `oneway` from the first to the second |
//! | `[[override]]` | `between` two linked devices; `type` where several kinds join them; `oneway`; then `remove = true`, or a `count`, or a measured `gb_per_s_each_way` of each of the parallel links with its `source` |
//!
//! A device's name says whose it is, what it is and its number: `host0/gpu3`. The kinds are `numa`, `port` (of a PCIe root
//! complex), `pcie` (a PCIe switch), `gpu`, `nvswitch`, `nic`, `nvme`, `leaf`, `spine` and `pci` (any other PCI function).
//! `leaf` and `spine` belong to no host. Where there is one host, its name may be left out; where there are several, an
//! `nvswitch` without one stands between them; anything else that is nobody's has a bare `/` in front.
//!
//! | key of a device | for | what it holds |
//! |---|---|---|
//! | `bus`, `class` | all | PCI address and class, `"0000:17:00.0"` and `"0x030200"` |
//! | `label` | all | what the machine calls it |
//! | `extra` | all | pairs of names and values that are passed on unread |
//! | `model`, `sm`, `ranks` | `gpu` | the catalog's id; compute capability times ten; processes a topology file put on it |
//! | `numa`, `cpu` | `numa` | the kernel's number, the device's own unless given; `arch`, `vendor`, `family` and `model` |
//! | `generation` | `nvswitch` | 1 to 4 |
//! | `ports` | `nic` | `name`, `network` and `gb_per_s_each_way` |
//!
//! A figure is `gb_per_s_each_way` (`ns` for a latency), `basis` (`nominal`, `effective` or `measured`) and `source`. A
//! rate is always that of one link in one direction.
//!
//! Readers hold less than 256 MB, whatever they are given: TOML takes a dozen NVL72 racks written out in full, JSON some
//! hundred; `base` takes 20,000 GPUs in either.
//!
//! Deliberately absent: expressions, loops and includes. A program that needs them writes JSON.

mod assemble;
mod devices;
mod overrides;
mod read;
mod schema;
mod write;

pub use read::{read_json, read_toml};
pub use write::{WriteError, write_json, write_toml};

/// Parallel links between two devices; more is a slip of the finger.
pub const LINK_COUNT_MAX: u32 = 65_536;
/// Devices in a document: enough for 20,000 GPUs and what is around them.
pub const DEVICES_MAX: usize = 250_000;
/// GPUs that `base` may bring; clusters above it are for specs alone.
pub const BASE_GPUS_MAX: u64 = 20_000;
