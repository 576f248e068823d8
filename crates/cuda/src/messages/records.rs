//! The parameters of the kernels of messages: the same layout as in `device/messages.h`, which a test compares.

// Plain memory, which is copied as bytes.
#![allow(unsafe_code)]

use bytemuck::{Pod, Zeroable};

use super::{Group, MessageLayout};
use crate::driver::DeviceAddress;
use crate::window::DeviceWindow;

/// All parameters of a kernel.
pub(crate) const GROUP_BYTES: usize = 4096;
/// Of a pair or a message in a table.
pub(crate) const RECORD_BYTES: usize = 16;
/// Of a table in the parameters of a group, and of a part of one in those of the kernel that copies it.
pub(crate) const TABLE_RECORDS_MAX: usize = (GROUP_BYTES - size_of::<GroupHeader>()) / RECORD_BYTES;
pub(crate) const PART_RECORDS_MAX: usize = (GROUP_BYTES - size_of::<TablePartHeader>()) / RECORD_BYTES;

/// What a kernel knows of a group, before the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct GroupHeader {
    window: DeviceWindow,
    heads: u64,
    credits: u64,
    counters: u64,
    table: u64,
    slot_bytes: u32,
    slots: u32,
    channels: u32,
    pairs: u32,
    channels_used: u32,
    blocks: u32,
}

impl GroupHeader {
    /// Of a group whose table, if it is long, is in device memory.
    pub(crate) fn new(
        layout: MessageLayout,
        window: DeviceWindow,
        group: &Group,
        table: DeviceAddress,
        blocks: u32,
    ) -> GroupHeader {
        GroupHeader {
            window,
            heads: layout.heads() as u64,
            credits: layout.credits() as u64,
            counters: layout.counters() as u64,
            table: if group.is_long() { table } else { 0 },
            slot_bytes: layout.slot_bytes as u32,
            slots: layout.slots as u32,
            channels: layout.channels as u32,
            pairs: group.pairs() as u32,
            channels_used: group.channels_used as u32,
            blocks,
        }
    }
}

/// What the kernel that copies a part of a table knows, before the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct TablePartHeader {
    pub(crate) to: DeviceAddress,
    pub(crate) records: u32,
    pub(crate) reserved: u32,
}

/// The messages of one direction of a peer, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Pair {
    pub(crate) peer: u32,
    pub(crate) receives: u32,
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// A message in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MessageRecord {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}
