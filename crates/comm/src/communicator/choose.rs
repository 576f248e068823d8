//! Choosing the engine of a call: which plans can run it is known before it is announced, which of them does may depend on the
//! buffers of the other ranks, which only their headers tell.

use weftlink_bootstrap::Reason;
use weftlink_plan::Order;
use weftlink_recorder::header::{Header, kind};
use weftlink_recorder::waiting::Waiting;

use super::Communicator;
use super::announce::Announced;
use super::check::Fitted;
use crate::buffers::ORDINARY;
use crate::choose::{self, Choice, Key, Memory};
use crate::compile::Unfit;
use crate::engine::Stopped;
use crate::error::Error;
use crate::failure::reached;
use crate::operation::{Arithmetic, OperationRef};
use crate::request::CallArgs;
use crate::shared::{Call, Shared};
use crate::symmetric::Reached;

/// The engine that runs a call.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    pub(super) engine: usize,
    /// Whether the call repeats the last one, whose buffers no other rank accessed.
    pub(super) is_again: bool,
    /// Whether ranks had to compare headers to learn whether all buffers are symmetric.
    pub(super) is_symmetric: bool,
}

impl Communicator {
    /// Chooses the engine of an announced call, and compiles its program if needed. `longest` is the longest block of any rank, if blocks
    /// differ in length.
    #[inline(always)]
    pub(super) fn choose(
        &mut self,
        request: &CallArgs<'_>,
        announced: Announced,
        arithmetic: &Arithmetic<'_>,
        longest: Option<usize>,
    ) -> Result<Chosen, Error> {
        if let Some(engine) = self.current.private
            && request.buffers.owner == ORDINARY
        {
            return Ok(Chosen { engine, is_again: true, is_symmetric: false });
        }
        self.choose_anew(request, announced, arithmetic, longest)
    }

    /// The same for a call that does not repeat the last one.
    #[inline(always)]
    fn choose_anew(
        &mut self,
        request: &CallArgs<'_>,
        announced: Announced,
        arithmetic: &Arithmetic<'_>,
        longest: Option<usize>,
    ) -> Result<Chosen, Error> {
        let (mut engine, symmetric) = self.current.engines;
        let is_symmetric = engine != symmetric && self.current.header.is_symmetric();
        if let Some(longest) = longest {
            self.current.fitted.shape.count = longest;
        }
        if self.current.is_new || is_symmetric || longest.is_some() {
            match meet(&self.shared, &self.current.call(request.collective, announced, arithmetic)) {
                Ok(all) if is_symmetric && all => {
                    engine = symmetric;
                    self.shared.recorder.is_symmetric();
                }
                Ok(_) => {}
                Err(stopped) => {
                    let reached = self.reached_by_any();
                    return Err(self.fail_current(request, &stopped, reached));
                }
            }
            if std::mem::take(&mut self.current.is_new) {
                self.signatures.add(&self.current.header, self.current.hash);
            }
        }
        match self.engines[engine].prepare(&self.current.fitted.shape, &self.ports) {
            Ok(()) => Ok(Chosen { engine, is_again: false, is_symmetric }),
            Err(unfit) => Err(self.unfit(engine, unfit)),
        }
    }

    /// The engine for a call in ordinary memory and the one for a call in symmetric memory, which may be the same.
    #[inline]
    pub(super) fn engines_for(
        &mut self,
        request: &CallArgs<'_>,
        fitted: &Fitted,
        header: &Header,
    ) -> Result<(usize, usize), Error> {
        // If blocks differ in length, no rank knows the longest yet.
        let bytes = match fitted.shape.uneven {
            // A plan must carry at least one element.
            None => fitted.shape.count.max(1) * fitted.shape.element_bytes,
            Some(_) => usize::MAX,
        };
        if self.spans_hosts {
            // Peers on other hosts cannot access memory of any kind.
            let choice = choose::across(kind(request.collective), bytes);
            let engine = self.engine_for(request, fitted, header, (Memory::Ordinary, choice))?;
            return Ok((engine, engine));
        }
        let ordinary = if self.readable { Memory::Readable } else { Memory::Ordinary };
        let [private, symmetric] = [ordinary, Memory::Symmetric].map(|memory| {
            let choice = self.table.choice(kind(request.collective), memory, bytes);
            (memory, choice)
        });
        let first = self.engine_for(request, fitted, header, private)?;
        let same = private.1 == symmetric.1;
        let second = if same { first } else { self.engine_for(request, fitted, header, symmetric)? };
        Ok((first, second))
    }

    #[inline]
    fn engine_for(
        &mut self,
        request: &CallArgs<'_>,
        fitted: &Fitted,
        header: &Header,
        (memory, choice): (Memory, Choice),
    ) -> Result<usize, Error> {
        let uneven = fitted.shape.uneven.is_some();
        let order = self.order(request);
        // Only the root has two buffers, and the others do not know how it passes them.
        let aliasing = request.collective.root().is_none().then_some(request.buffers.aliasing);
        let is_it = |key: &Key| {
            (key.memory, key.choice, key.aliasing) == (memory, choice, aliasing)
                && (key.uneven, key.order) == (uneven, order)
                && key.collective == *request.collective
        };
        if let Some((_, engine)) = self.chosen.iter().find(|(key, _)| is_it(key)) {
            return Ok(*engine);
        }
        let collective = request.collective.clone();
        self.load_for(Key { collective, memory, aliasing, uneven, order, choice }, header)
    }

    /// The order in which a call's plan must combine ranks.
    #[inline]
    pub(super) fn order(&self, request: &CallArgs<'_>) -> Order {
        let data_type = request.buffers.elements.data_type;
        let of =
            |operation: OperationRef<'_>| operation.reduction.order(data_type, self.options.deterministic);
        request.operation.map_or(Order::Any, of)
    }

    #[cold]
    fn unfit(&mut self, index: usize, unfit: Unfit) -> Error {
        let (name, rank) = (&self.engines[index].plan.name, self.rank as u32);
        let what = match unfit {
            Unfit::Element => format!("an element does not fit into a message of the plan {name:?}"),
            Unfit::Length => {
                format!("the plan {name:?} moves blocks through ranks that do not know their lengths")
            }
        };
        let (mine, _) = self.set_abort_word(Reason::Unfit);
        let error = Error::Unfit { call: self.calls, rank, what };
        // Peers have seen the announcement, and the plan may fit them.
        let reached = self.reached_by_any();
        self.abort(&error, mine, reached);
        error
    }

    /// The windows that peers may access in a call of this engine.
    #[cold]
    pub(super) fn reached_by(&self, engine: usize) -> Reached {
        reached(&self.engines[engine], &self.current.header)
    }

    /// The windows that peers may access in an announced call, whichever of its plans they run.
    #[cold]
    pub(super) fn reached_by_any(&self) -> Reached {
        let (ordinary, symmetric) = self.current.engines;
        let ([input, output], [other_input, other_output]) =
            (self.reached_by(ordinary), self.reached_by(symmetric));
        [input.or(other_input), output.or(other_output)]
    }
}

/// Waits until all ranks of this host have entered the call, checks that all make the same one, and returns whether all buffers are
/// symmetric.
#[cold]
fn meet(shared: &Shared, call: &Call<'_>) -> Result<bool, Stopped> {
    let waited = shared.wait_for_all(call.number);
    let differs = shared.differs(call);
    if let Err((stop, rank)) = waited.and(differs.map_or(Ok(()), |stop| Err((stop, 0)))) {
        return Err(Stopped { stop, step: None, waiting: Waiting::Entered { rank } });
    }
    Ok(shared.calls(call.number).all(|header| header.is_symmetric()))
}
