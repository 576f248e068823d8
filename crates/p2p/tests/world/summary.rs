//! What became of schedules.

/// What became of a schedule.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Summary {
    pub(crate) steps: usize,
    pub(crate) operations: usize,
    pub(crate) done: usize,
    pub(crate) pulled: usize,
    pub(crate) timed_out: usize,
    pub(crate) ended: usize,
    pub(crate) left: usize,
    pub(crate) broken: usize,
    pub(crate) differ: usize,
    pub(crate) unreadable: usize,
}

impl Summary {
    pub(crate) fn add(&mut self, other: &Summary) {
        self.steps += other.steps;
        self.operations += other.operations;
        self.done += other.done;
        self.pulled += other.pulled;
        self.timed_out += other.timed_out;
        self.ended += other.ended;
        self.left += other.left;
        self.broken += other.broken;
        self.differ += other.differ;
        self.unreadable += other.unreadable;
    }

    /// How often each outcome occurred.
    pub(crate) fn parts(&self) -> [(&'static str, usize); 8] {
        [
            ("is done", self.done),
            ("is pulled", self.pulled),
            ("times out", self.timed_out),
            ("ends with the communicator", self.ended),
            ("fails because its peer has left", self.left),
            ("fails with its connection", self.broken),
            ("has a counterpart that differs", self.differ),
            ("cannot be pulled", self.unreadable),
        ]
    }
}
