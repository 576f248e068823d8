//! Events: their kinds, and what NCCL says of one when it starts.

/// Numbers that describe an event; [`Kind::fields`] says what they are.
pub(crate) type Words = [u64; WORDS];
pub(crate) const WORDS: usize = 10;

/// What NCCL passes when an event starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) kind: Kind,
    /// The number of the event that it is a part of; 0 if there is none.
    pub(crate) parent: u64,
    /// The rank in the communicator; negative if NCCL does not say.
    pub(crate) rank: i32,
    /// The number of the communicator, which old versions pass with each event; 0 if they do not.
    pub(crate) communicator: u64,
    pub(crate) words: Words,
}

/// How a number is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Number,
    Signed,
    Flag,
    /// An address, or bits.
    Hexadecimal,
    /// A name, interned.
    Name,
}

/// A number of an event: its name in traces, and its form.
pub(crate) type Field = (&'static str, Form);

macro_rules! kinds {
    ($($kind:ident = $bit:literal $name:literal [$($field:literal $form:ident),*],)+) => {
        /// The kinds of events, in the order of their bits.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub(crate) enum Kind {
            $($kind = $bit,)+
        }

        impl Kind {
            /// All of them.
            pub(crate) const ALL: &'static [Kind] = &[$(Kind::$kind,)+];

            /// Its name in traces.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)+
                }
            }

            /// What the numbers of such an event are.
            pub(crate) fn fields(self) -> &'static [Field] {
                match self {
                    $(Kind::$kind => const { &[$(($field, Form::$form)),*] },)+
                }
            }
        }
    };
}

kinds! {
    Group = 0 "group" [],
    Coll = 1 "collective" [
        "function" Name, "count" Number, "data_type" Name, "root" Signed, "sequence" Number, "channels" Number, "warps" Number,
        "algorithm" Name, "protocol" Name, "kernel" Name
    ],
    P2p = 2 "message" ["function" Name, "count" Number, "data_type" Name, "peer" Signed, "channels" Number],
    ProxyOp = 3 "proxy operation" [
        "channel" Number, "is_send" Flag, "peer" Signed, "steps" Signed, "chunk_bytes" Signed, "pid" Signed
    ],
    ProxyStep = 4 "proxy step" ["step" Signed],
    ProxyCtrl = 5 "proxy thread" [],
    KernelCh = 6 "kernel channel" ["channel" Number, "gpu_start_ns" Number],
    NetPlugin = 7 "network" [
        "plugin" Hexadecimal, "device" Signed, "queue_pair" Signed, "opcode" Signed, "bytes" Number, "request" Number,
        "socket" Signed
    ],
    GroupApi = 8 "group call" ["is_captured" Flag, "depth" Signed],
    CollApi = 9 "collective call" [
        "function" Name, "count" Number, "data_type" Name, "root" Signed, "stream" Hexadecimal, "is_captured" Flag, "tag" Number
    ],
    P2pApi = 10 "message call" [
        "function" Name, "count" Number, "data_type" Name, "stream" Hexadecimal, "is_captured" Flag, "tag" Number
    ],
    KernelLaunch = 11 "kernel launch" ["stream" Hexadecimal],
    CeColl = 12 "copy-engine collective" [
        "function" Name, "count" Number, "data_type" Name, "root" Signed, "sequence" Number, "strategy" Name, "batch_size" Number,
        "batches" Number, "stream" Hexadecimal, "tag" Number
    ],
    CeSync = 13 "copy-engine sync" ["is_complete" Flag, "ranks" Signed],
    CeBatch = 14 "copy-engine batch" ["operations" Signed, "bytes" Number, "is_synced_inside" Flag],
    KernelPhase = 15 "kernel phase" ["channel" Number, "gpu_start_ns" Number, "phase" Name],
}

impl Kind {
    /// The kind of a type as NCCL passes it: one bit. Nothing for a type of a newer version.
    pub(crate) fn of_type(bits: u64) -> Option<Kind> {
        let bit = bits.is_power_of_two().then(|| bits.trailing_zeros() as usize)?;
        Kind::ALL.get(bit).copied()
    }

    /// The bit in masks of events.
    pub(crate) fn bit(self) -> u32 {
        1 << self as u8
    }
}

/// The states of events, by their numbers.
pub(crate) const STATES: [&str; 32] = [
    "send posted",
    "waits for the receiver",
    "send transmitted",
    "send done",
    "receive posted",
    "received",
    "receive transmitted",
    "receive done",
    "waits for the GPU (send)",
    "waits for the network (send)",
    "waits for the network (receive)",
    "waits for the flush",
    "waits for the GPU (receive)",
    "idle",
    "active",
    "sleeps",
    "wakes up",
    "appends",
    "has appended",
    "in progress",
    "waits for the receiver",
    "update",
    "kernel stopped",
    "group start ended",
    "group end began",
    "copies start",
    "copies complete",
    "sync starts",
    "sync complete",
    "batch starts",
    "batch complete",
    "phase stopped",
];

/// The states in which a step of a proxy waits for another rank: for its data, and for its readiness.
pub(crate) const WAITS_FOR_DATA: u64 = 10;
pub(crate) const WAITS_FOR_RECEIVER: u64 = 20;
/// The states with the time at which the GPU stopped.
pub(crate) const GPU_STOPPED: [u64; 2] = [22, 31];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_bits() {
        for (bit, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(Kind::of_type(1 << bit), Some(*kind));
            assert_eq!((kind.bit(), *kind as usize), (1 << bit, bit));
            assert!(kind.fields().len() <= WORDS, "{}", kind.name());
        }
        for bits in [0, 3, 1 << 16, 1 << 63, u64::MAX] {
            assert_eq!(Kind::of_type(bits), None);
        }
    }
}
