//! Parts that the owner has forgotten, until its calls that may use them have ended: then peers may unmap them. A rank's call ends after all
//! accesses to its buffers, which the proof of a plan includes.

use super::message::Part;

/// The parts, with an event of type `E` after the last call that may use them.
#[derive(Debug)]
pub(crate) struct Evicted<E> {
    /// Of the call that is being launched.
    new: Vec<u64>,
    waiting: Vec<(E, Vec<u64>)>,
}

impl<E> Evicted<E> {
    pub(crate) fn new() -> Evicted<E> {
        Evicted { new: Vec::new(), waiting: Vec::new() }
    }

    /// Adds parts that the next call to be launched does not use.
    pub(crate) fn add(&mut self, ids: Vec<u64>) {
        self.new.extend(ids);
    }

    /// A call was launched. The event is recorded only if there are new parts.
    pub(crate) fn launched<R>(&mut self, event: impl FnOnce() -> Result<E, R>) -> Result<(), R> {
        if !self.new.is_empty() {
            self.waiting.push((event()?, std::mem::take(&mut self.new)));
        }
        Ok(())
    }

    /// Parts are used again. Returns the ids of those that were here.
    pub(crate) fn revive(&mut self, parts: &[Part]) -> Vec<u64> {
        let is_used = |id: &mut u64| parts.iter().any(|part| part.id == *id);
        let waiting = self.waiting.iter_mut().map(|(_, ids)| ids);
        std::iter::once(&mut self.new).chain(waiting).flat_map(|ids| ids.extract_if(.., is_used)).collect()
    }

    /// Takes the parts whose event has happened, unless a call has failed: only one that succeeded has ended after the accesses of its peers.
    /// `has_failed` is asked after the events, which a kernel precedes with its report.
    pub(crate) fn take_ended<R>(
        &mut self,
        has_ended: impl Fn(&E) -> Result<bool, R>,
        has_failed: impl FnOnce() -> bool,
    ) -> Result<Vec<u64>, R> {
        let mut ended = Vec::new();
        while let Some((event, _)) = self.waiting.first()
            && has_ended(event)?
        {
            ended.extend(self.waiting.remove(0).1);
        }
        if !ended.is_empty() && has_failed() {
            self.new.append(&mut ended);
        }
        Ok(ended)
    }

    /// Takes all.
    pub(crate) fn take_all(&mut self) -> Vec<u64> {
        let waiting = std::mem::take(&mut self.waiting).into_iter().flat_map(|(_, ids)| ids);
        std::mem::take(&mut self.new).into_iter().chain(waiting).collect()
    }
}
