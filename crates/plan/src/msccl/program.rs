//! The content of a file, shared by the reader and the writer.

use crate::plan::{Aliasing, Buffer, Collective, Protocol};

/// An `algo` element.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) protocol: Protocol,
    pub(super) collective: Collective,
    /// Chunks of the larger of a gpu's two buffers.
    pub(super) chunks: u32,
    pub(super) aliasing: Vec<Aliasing>,
    /// In the order of their ids.
    pub(super) gpus: Vec<Gpu>,
}

/// A `gpu` element.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) input_chunks: u32,
    pub(super) output_chunks: u32,
    pub(super) scratch_chunks: u32,
    /// In the order of their ids.
    pub(super) blocks: Vec<Block>,
}

impl Gpu {
    /// The chunks of a buffer that the gpu declares.
    pub(super) fn chunks(&self, buffer: Buffer) -> u32 {
        match buffer {
            Buffer::Input => self.input_chunks,
            Buffer::Output => self.output_chunks,
            Buffer::Scratch => self.scratch_chunks,
        }
    }
}

/// A `tb` element: a thread block.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub(super) send: Option<u32>,
    pub(super) receive: Option<u32>,
    pub(super) channel: u32,
    pub(super) steps: Vec<Step>,
}

/// A `step` element.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) kind: Kind,
    /// The place it reads, if its kind reads local memory.
    pub(super) source: Place,
    /// The place it writes, if its kind does.
    pub(super) target: Place,
    /// The number of consecutive chunks.
    pub(super) count: u32,
    /// The tb and its step that have to finish first.
    pub(super) after: Option<(u32, u32)>,
    /// Whether it signals other tbs when it is done.
    pub(super) has_dependents: bool,
}

/// The first chunk of a step; nothing for -1 in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) buffer: Buffer,
    pub(super) chunk: Option<u32>,
}

/// The `type` of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Nop,
    Send,
    Receive,
    ReceiveCopySend,
    ReceiveReduceSend,
    ReceiveReduceCopy,
    ReceiveReduceCopySend,
    Copy,
    Reduce,
}

impl Kind {
    pub(super) const ALL: [Kind; 9] = [
        Kind::Nop,
        Kind::Send,
        Kind::Receive,
        Kind::ReceiveCopySend,
        Kind::ReceiveReduceSend,
        Kind::ReceiveReduceCopy,
        Kind::ReceiveReduceCopySend,
        Kind::Copy,
        Kind::Reduce,
    ];

    /// The spelling in files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Nop => "nop",
            Kind::Send => "s",
            Kind::Receive => "r",
            Kind::ReceiveCopySend => "rcs",
            Kind::ReceiveReduceSend => "rrs",
            Kind::ReceiveReduceCopy => "rrc",
            Kind::ReceiveReduceCopySend => "rrcs",
            Kind::Copy => "cpy",
            Kind::Reduce => "re",
        }
    }

    pub(super) fn sends(self) -> bool {
        matches!(
            self,
            Kind::Send | Kind::ReceiveCopySend | Kind::ReceiveReduceSend | Kind::ReceiveReduceCopySend
        )
    }

    pub(super) fn receives(self) -> bool {
        !matches!(self, Kind::Nop | Kind::Send | Kind::Copy | Kind::Reduce)
    }

    /// Whether it reads its source.
    pub(super) fn reads(self) -> bool {
        !matches!(self, Kind::Nop | Kind::Receive | Kind::ReceiveCopySend)
    }

    /// Whether it writes its target.
    pub(super) fn writes(self) -> bool {
        !matches!(self, Kind::Nop | Kind::Send | Kind::ReceiveReduceSend)
    }
}

/// The spellings of collectives. RCCL's comes first; msccl-tools has others for some.
pub(super) const COLLECTIVES: [(&str, Collective); 9] = [
    ("allreduce", Collective::AllReduce),
    ("allgather", Collective::AllGather),
    ("reducescatter", Collective::ReduceScatter),
    ("reduce_scatter", Collective::ReduceScatter),
    ("alltoall", Collective::AllToAll),
    ("broadcast", Collective::Broadcast { root: 0 }),
    ("reduce", Collective::Reduce { root: 0 }),
    ("gather", Collective::Gather { root: 0 }),
    ("scatter", Collective::Scatter { root: 0 }),
];

/// The same collective with this root, if it has one.
pub(super) fn with_root(collective: &Collective, root: u32) -> Collective {
    match collective {
        Collective::Broadcast { .. } => Collective::Broadcast { root },
        Collective::Reduce { .. } => Collective::Reduce { root },
        Collective::Gather { .. } => Collective::Gather { root },
        Collective::Scatter { .. } => Collective::Scatter { root },
        rootless => rootless.clone(),
    }
}

/// The spellings of protocols.
pub(super) const PROTOCOLS: [(&str, Protocol); 3] =
    [("Simple", Protocol::Simple), ("LL", Protocol::Ll), ("LL128", Protocol::Ll128)];

/// The spellings of buffers.
pub(super) const BUFFERS: [(&str, Buffer); 3] =
    [("i", Buffer::Input), ("o", Buffer::Output), ("s", Buffer::Scratch)];
