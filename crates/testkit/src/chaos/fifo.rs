//! The slots of a FIFO. Slots are used in turn: the k-th message goes into slot k modulo the depth.

#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    Reserved,
    Full,
    Taken,
}

pub(super) struct Fifo {
    slots: Vec<Slot>,
    /// Slots reserved and messages taken so far.
    reserved: usize,
    taken: usize,
}

impl Fifo {
    pub(super) fn new(depth: usize) -> Self {
        Self { slots: vec![Slot::Free; depth], reserved: 0, taken: 0 }
    }

    pub(super) fn can_reserve(&self) -> bool {
        self.next(self.reserved, Slot::Free).is_some()
    }

    pub(super) fn can_take(&self) -> bool {
        self.next(self.taken, Slot::Full).is_some()
    }

    /// Reserves the slot for the next message, if it is free.
    pub(super) fn reserve(&mut self) -> Option<usize> {
        let slot = self.next(self.reserved, Slot::Free)?;
        (self.slots[slot], self.reserved) = (Slot::Reserved, self.reserved + 1);
        Some(slot)
    }

    /// The message in a reserved slot is complete.
    pub(super) fn publish(&mut self, slot: usize) {
        self.slots[slot] = Slot::Full;
    }

    /// Takes the next message, if it is there.
    pub(super) fn take(&mut self) -> Option<usize> {
        let slot = self.next(self.taken, Slot::Full)?;
        (self.slots[slot], self.taken) = (Slot::Taken, self.taken + 1);
        Some(slot)
    }

    /// The message in a taken slot was read.
    pub(super) fn release(&mut self, slot: usize) {
        self.slots[slot] = Slot::Free;
    }

    pub(super) fn has_messages(&self) -> bool {
        self.slots.contains(&Slot::Full)
    }

    /// The slot of the `count`-th message, if it is in this state.
    fn next(&self, count: usize, state: Slot) -> Option<usize> {
        let slot = count.checked_rem(self.slots.len())?;
        (self.slots[slot] == state).then_some(slot)
    }
}
