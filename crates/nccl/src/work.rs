//! What calls do, checked and ready to be run.

use std::sync::Arc;

use weftlink::DataType;
use weftlink::plan::Collective;

use crate::operations::Operation;
use crate::window::{Place, Window};

/// What a group collects for a communicator.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    /// A collective or a message.
    Work(Work),
    /// A window, or a call that only one rank makes.
    OneSided(OneSided),
}

/// Windows, and calls on them.
#[derive(Clone, Debug)]
pub(crate) enum OneSided {
    /// All ranks register a window.
    Register(Arc<Window>),
    /// Copies to a peer's window if there are bytes, and signals the peer.
    Signal { peer: usize, put: Option<Put>, stream: u64 },
    /// Waits for signals: of which ranks, and how many.
    Wait { signals: Vec<(usize, u32)>, stream: u64 },
}

/// Bytes for a peer's window.
#[derive(Clone, Debug)]
pub(crate) struct Put {
    pub(crate) place: Place,
    pub(crate) on_gpu: bool,
    pub(crate) offset: u64,
    pub(crate) from: u64,
    pub(crate) bytes: usize,
}

/// A collective or a message.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) what: What,
    /// The elements of a block, or of a message.
    pub(crate) count: usize,
    pub(crate) data_type: DataType,
    pub(crate) stream: u64,
    /// Whether its memory is one that the GPU uses.
    pub(crate) on_gpu: bool,
}

/// What a call does.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Collective { collective: Collective, input: u64, output: u64, operation: Option<Operation> },
    Send { to: usize, from: u64 },
    Receive { from: usize, into: u64 },
}

impl Work {
    pub(crate) fn is_on_gpu(&self) -> bool {
        self.on_gpu
    }

    /// The bytes of a message.
    pub(crate) fn bytes(&self) -> usize {
        self.count * self.data_type.bytes()
    }
}
