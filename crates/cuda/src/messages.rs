//! Messages between two ranks, enqueued on streams in groups. `device/messages.h` has the protocol: chunks go through slots in a window, and one
//! kernel makes all sends and receives of a group. Nothing here knows the driver or a communicator: `communicator/messages.rs` launches groups.

mod group;
mod records;

use crate::driver::DeviceAddress;
use crate::window;

pub(crate) use group::Group;
pub(crate) use records::{GROUP_BYTES, GroupHeader, PART_RECORDS_MAX, RECORD_BYTES, TablePartHeader};

/// The source of the kernels `weft_messages` and `weft_messages_table`, for ranks that are all on one GPU, or not.
pub(crate) fn kernels(is_one_gpu: bool) -> String {
    let scope = if is_one_gpu { "#define WEFT_ONE_GPU\n" } else { "" };
    let parts = [include_str!("../device/messages.h"), include_str!("../device/messages_kernels.h")];
    [&[scope, window::WINDOW_H], &parts[..]].concat().concat()
}

/// The same code for a CPU, without kernels.
#[cfg(test)]
pub(crate) fn host_source() -> String {
    [&window::HOST[..], &[include_str!("../device/messages.h")]].concat().concat()
}

/// Of the slots of a rank.
const SLOTS_BYTES_MAX: usize = 8 << 20;
/// Slots of a channel.
const SLOTS: usize = 4;
/// The most channels between two ranks, and of a rank with all its peers.
const CHANNELS_MAX: usize = 16;
const CHANNELS_OF_RANK_MAX: usize = 64;
/// From a head or a credit to the next.
const WORD_BYTES: usize = 32;
/// Of a group whose messages do not fit in a kernel's parameters.
const TABLE_BYTES: usize = 256 << 10;

/// A part of a group: memory of this rank's GPU that is sent to a rank, or received from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The other rank.
    pub peer: usize,
    /// Where the bytes are.
    pub address: DeviceAddress,
    /// How many. An empty message is one, too: it needs its counterpart.
    pub bytes: usize,
}

/// Where everything lies in a rank's memory: the slots for each peer's messages, their heads, the credits of this rank's sends, its counters, and
/// the table of a large group. The same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageLayout {
    pub(crate) ranks: usize,
    pub(crate) channels: usize,
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
}

impl MessageLayout {
    /// The layout for a number of ranks. The fewer ranks there are, the more channels and the longer slots each pair has.
    pub(crate) fn new(ranks: usize) -> MessageLayout {
        let places = ranks.max(2).next_power_of_two();
        let channels = (CHANNELS_OF_RANK_MAX / places).clamp(1, CHANNELS_MAX);
        let slot_bytes = SLOTS_BYTES_MAX / places / channels / SLOTS;
        MessageLayout { ranks, channels, slots: SLOTS, slot_bytes }
    }

    fn lanes(self) -> usize {
        self.ranks * self.channels
    }

    pub(crate) fn heads(self) -> usize {
        self.lanes() * self.slots * self.slot_bytes
    }

    pub(crate) fn credits(self) -> usize {
        self.heads() + self.lanes() * self.slots * WORD_BYTES
    }

    pub(crate) fn counters(self) -> usize {
        self.credits() + self.lanes() * WORD_BYTES
    }

    /// Where the table of a large group is.
    pub(crate) fn table(self) -> usize {
        // Records have 16 bytes.
        (self.counters() + 2 * self.lanes() * size_of::<u64>()).next_multiple_of(16)
    }

    /// Messages and peers of the largest group.
    pub(crate) fn records_max(self) -> usize {
        TABLE_BYTES / RECORD_BYTES
    }

    pub(crate) fn bytes(self) -> usize {
        self.table() + TABLE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_8_mib_at_most_and_a_block_has_room_for_all_queues() {
        for (ranks, channels, slot_bytes) in [
            (1, 16, 64),
            (2, 16, 64),
            (3, 16, 32),
            (8, 8, 32),
            (9, 4, 32),
            (32, 2, 32),
            (64, 1, 32),
            (128, 1, 16),
        ] {
            let layout = MessageLayout::new(ranks);
            assert_eq!((layout.channels, layout.slot_bytes >> 10), (channels, slot_bytes), "{ranks} ranks");
            assert!(layout.heads() <= SLOTS_BYTES_MAX && layout.bytes() <= SLOTS_BYTES_MAX + (512 << 10));
            assert!(2 * (ranks - 1) * channels <= group::QUEUES_MAX, "{ranks} ranks");
            assert!([layout.heads(), layout.credits(), layout.table()].iter().all(|at| at % 16 == 0));
        }
    }

    #[test]
    fn the_device_code_has_the_same_constants() {
        let source = kernels(true);
        assert!(
            source.starts_with("#define WEFT_ONE_GPU\n") && !kernels(false).contains("#define WEFT_ONE_GPU")
        );
        for constant in [
            format!("__launch_bounds__({}, 2) weft_messages(", group::THREADS_MAX),
            format!("GROUP_BYTES = {GROUP_BYTES};"),
            format!("WORD_BYTES = {WORD_BYTES};"),
            format!("QUEUES_MAX = {};", group::QUEUES_MAX),
            format!(
                "MESSAGE_SENT = {}, MESSAGE_TAKEN = {};",
                crate::records::MESSAGE_SENT,
                crate::records::MESSAGE_TAKEN
            ),
        ] {
            assert!(source.contains(&constant), "{constant}");
        }
    }
}
