//! What calls do, checked and ready to be run.

use weftlink::DataType;
use weftlink::plan::Collective;

use crate::operations::Operation;

/// A call of one communicator.
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
