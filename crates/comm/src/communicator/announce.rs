//! Announcing a call: its number, its signature, and its header where all ranks of the host read it.

use std::time::Duration;

use weftlink_plan::Collective;
use weftlink_recorder::header::{CallKind, Header, kind};
use weftlink_recorder::waiting::Waiting;
use weftlink_shm::wait::Stop;

use super::Communicator;
use super::check::Fitted;
use super::current::Current;
use crate::compile::Lengths;
use crate::data::Elements;
use crate::engine::Stopped;
use crate::error::Error;
use crate::request::CallArgs;
use crate::shared::numbered;

/// A call that has been announced.
#[derive(Clone, Copy)]
pub(super) struct Announced {
    pub(super) number: u32,
    pub(super) signature: u32,
}

impl Communicator {
    /// Announces the checked call. From here on it fails on all ranks or on none.
    #[inline]
    pub(super) fn announce(&mut self, request: &CallArgs<'_>) -> Result<Announced, Error> {
        self.calls = self.calls.wrapping_add(1);
        let number = self.calls;
        self.shared.recorder.begin(number);
        if let Err((stop, rank)) = self.shared.look_back(number) {
            let stopped = Stopped { stop, step: None, waiting: Waiting::Entered { rank } };
            return Err(self.fail_current(request, &stopped, [None; 2]));
        }
        let Current { words, signature, .. } = &self.current;
        let signature = numbered(*signature, number);
        self.shared.announce(self.rank, number, signature, words);
        // A late rank must see that another rank has aborted.
        if let Some(code) = self.shared.waiter.aborted() {
            let stopped = Stopped {
                stop: Stop::Aborted { code, waited: Duration::ZERO },
                step: None,
                waiting: Waiting::Anything,
            };
            let reached = self.reached_by_any();
            return Err(self.fail_current(request, &stopped, reached));
        }
        Ok(Announced { number, signature })
    }

    /// The header of a call.
    pub(super) fn header(&self, request: &CallArgs<'_>, fitted: &Fitted) -> Header {
        let CallArgs { collective, buffers, operation, plan, .. } = request;
        let plan = plan.map_or(0, |plan| self.engines.get(plan.index).map_or(0, |engine| engine.plan.hash()));
        let (elements, count) = elements(request, fitted);
        Header {
            what: CallKind::Collective(kind(collective)),
            plan,
            count: count as u64,
            uneven: fitted.shape.uneven.is_some(),
            aliasing: buffers.aliasing,
            reduction: operation.map(|operation| operation.reduction),
            deterministic: operation.is_some() && self.options.deterministic,
            data_type: elements.data_type,
            element_bytes: elements.code(),
            root: collective.root().unwrap_or(0),
            detail: detail(collective, fitted.shape.uneven.as_deref()) ^ u64::from(request.tag),
            input: fitted.input_location,
            output: fitted.output_location,
        }
    }
}

/// The type and the number of elements that a call announces: those of the caller, even if data only moves as bytes, so that a rank
/// cannot receive integers as floats.
fn elements(request: &CallArgs<'_>, fitted: &Fitted) -> (Elements, usize) {
    let elements = request.buffers.elements;
    // A rank without messages has no type to announce; where ranks compare lengths, they compare types too.
    let is_open =
        fitted.shape.uneven.is_some() && matches!(request.collective, Collective::SendReceive { .. });
    // Counts are comparable only if the bytes of an element fit into a header.
    if is_open || elements.bytes == 0 || usize::from(elements.code()) != elements.bytes {
        return (fitted.elements, fitted.shape.count);
    }
    (elements, fitted.shape.count * fitted.elements.bytes / elements.bytes)
}

/// A hash of what a collective has beside its kind and root, in 63 bits. It includes the lengths of blocks where all ranks know all of
/// them.
fn detail(collective: &Collective, uneven: Option<&Lengths>) -> u64 {
    match (collective, uneven) {
        (Collective::AllGather, Some(uneven)) => hashed(uneven.output.iter().map(|&length| length as u64)),
        (Collective::ReduceScatter, Some(uneven)) => hashed(uneven.input.iter().map(|&length| length as u64)),
        (Collective::SendReceive { messages }, _) => {
            hashed(messages.iter().map(|&(from, to)| u64::from(from) << 32 | u64::from(to)))
        }
        (Collective::Neighbours { torus }, _) => hashed(torus.iter().copied().map(u64::from)),
        _ => 0,
    }
}

fn hashed(words: impl Iterator<Item = u64>) -> u64 {
    let mix = |hash: u64, word: u64| {
        let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    let hash = words.fold(0xcbf2_9ce4_8422_2325, mix);
    (hash ^ hash >> 32) >> 1
}
