//! A fabric as a document: TOML for people, JSON for programs, one schema for both.
//!
//! Writing is lossless: reading the document back gives an equal fabric. A document written by hand may start from a
//! preset or a cluster spec and list only the differences.
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
//! | key | contents |
//! |---|---|
//! | `weft` | the version of this format: 1 |
//! | `name` | the name of the fabric |
//! | `base` | a preset or a cluster spec to start from |
//! | `peer_access` | whether GPUs access each other's memory over PCIe; as the usual driver allows if absent |
//! | `notes` | remarks on the description |
//! | `[[host]]` | `name`; `system`, its system in the catalog; or `like`, a preset of one host whose devices to copy |
//! | `[[device]]` | `name`, and the keys of its kind, see below |
//! | `[[link_type]]` | `id`; `kind`, a link of the catalog, unless the id is one; `nominal`, `effective`, `latency`: omitted figures are unknown |
//! | `[[link]]` | `between` two devices; `type`, a link type's id or a link of the catalog such as `pcie5x16`; `count` of parallel links, 1 by default; `oneway` for a link from the first to the second only |
//! | `[[override]]` | `between` two linked devices; `type` where they have several kinds of link; `oneway`; then `remove = true`, or a `count`, or a measured `gb_per_s_each_way` of each of the parallel links with its `source` |
//!
//! A device's name consists of host, kind and number: `host0/gpu3`. The kinds are `numa`, `port` (of a PCIe root
//! complex), `pcie` (a PCIe switch), `gpu`, `nvswitch`, `nic`, `nvme`, `leaf`, `spine` and `pci` (any other PCI function).
//! `leaf` and `spine` belong to no host. With one host, its name may be omitted; with several, an `nvswitch` without a
//! host is between them; any other device of no host has a bare `/` in front.
//!
//! | key of a device | kinds | contents |
//! |---|---|---|
//! | `bus`, `class` | all | PCI address and class, `"0000:17:00.0"` and `"0x030200"` |
//! | `label` | all | the machine's name for it |
//! | `extra` | all | pairs of names and values that are passed on unread |
//! | `model`, `sm`, `ranks` | `gpu` | the catalog's id; compute capability times ten; the ranks of a topology file |
//! | `numa`, `cpu` | `numa` | the kernel's number, by default the device's own; `arch`, `vendor`, `family` and `model` |
//! | `generation` | `nvswitch` | 1 to 4 |
//! | `ports` | `nic` | `name`, `network` and `gb_per_s_each_way` |
//!
//! A figure is `gb_per_s_each_way` (`ns` for a latency), `basis` (`nominal`, `effective` or `measured`) and `source`. A
//! rate is always that of one link in one direction.
//!
//! The readers use less than 256 MB of memory for any input. That limits TOML to a dozen NVL72 racks written out in full
//! and JSON to about a hundred; `base` may have 20,000 GPUs in either.
//!
//! Deliberately absent: expressions, loops and includes. Programs that need them can generate JSON.

mod assemble;
mod devices;
mod overrides;
mod read;
mod schema;
mod write;

pub use read::{read_json, read_toml};
pub use write::{WriteError, write_json, write_toml};

/// Parallel links between two devices.
pub const LINK_COUNT_MAX: u32 = 65_536;
/// Devices in a document: enough for 20,000 GPUs with their hosts and switches.
pub const DEVICES_MAX: usize = 250_000;
/// GPUs in the `base` of a document; larger clusters need a plain spec.
pub const BASE_GPUS_MAX: u64 = 20_000;
