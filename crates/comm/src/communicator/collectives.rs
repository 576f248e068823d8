//! The collectives by their names.

use weftlink_plan::Collective;

use super::Communicator;
use crate::buffers::Buffers;
use crate::error::Error;
use crate::operation::Operation;
use crate::request::CallArgs;

impl Communicator {
    /// Combines the buffers of all ranks; every rank ends with the same bits.
    ///
    /// ```
    /// use weftlink_comm::Reduction;
    ///
    /// let sums = weftlink_comm::on_threads(2, |mut comm| {
    ///     let mut values = [1.0, comm.rank() as f32];
    ///     comm.all_reduce(&mut values, Reduction::Sum)?;
    ///     Ok(values)
    /// })?;
    /// assert_eq!(sums, [[2.0, 1.0]; 2]);
    /// # Ok::<(), weftlink_comm::Error>(())
    /// ```
    #[inline]
    pub fn all_reduce<'a>(
        &mut self,
        buffers: impl Into<Buffers<'a>>,
        operation: impl Into<Operation<'a>>,
    ) -> Result<(), Error> {
        let operation = operation.into();
        self.call(CallArgs::new(&Collective::AllReduce, buffers).with(operation.borrow()))
    }

    /// Combines the buffers of all ranks into the root's output. The other ranks pass an input only.
    #[inline]
    pub fn reduce<'a>(
        &mut self,
        buffers: impl Into<Buffers<'a>>,
        operation: impl Into<Operation<'a>>,
        root: usize,
    ) -> Result<(), Error> {
        let collective = Collective::Reduce { root: index(root) };
        let (buffers, operation) = (buffers.into(), operation.into());
        self.call(CallArgs::new(&collective, buffers).with(operation.borrow()))
    }

    /// Combines the buffers of all ranks; each rank gets its block of the result. In place, the result replaces that block.
    #[inline]
    pub fn reduce_scatter<'a>(
        &mut self,
        buffers: impl Into<Buffers<'a>>,
        operation: impl Into<Operation<'a>>,
    ) -> Result<(), Error> {
        let operation = operation.into();
        self.call(CallArgs::new(&Collective::ReduceScatter, buffers).with(operation.borrow()))
    }

    /// The same with blocks of different lengths: `counts` has the length of each rank's block.
    pub fn reduce_scatter_v<'a>(
        &mut self,
        buffers: impl Into<Buffers<'a>>,
        operation: impl Into<Operation<'a>>,
        counts: &'a [usize],
    ) -> Result<(), Error> {
        let operation = operation.into();
        let mine = counts.get(self.rank..=self.rank).unwrap_or(&[]);
        let request = CallArgs::new(&Collective::ReduceScatter, buffers).with(operation.borrow());
        self.call(CallArgs { counts: Some((counts, mine)), ..request })
    }

    /// Every rank gets the combination of all ranks up to itself.
    #[inline]
    pub fn scan<'a>(
        &mut self,
        buffers: impl Into<Buffers<'a>>,
        operation: impl Into<Operation<'a>>,
    ) -> Result<(), Error> {
        let operation = operation.into();
        self.call(CallArgs::new(&Collective::Scan, buffers).with(operation.borrow()))
    }

    /// Every rank gets the combination of all ranks before itself. Rank 0 gets nothing: its output is unchanged.
    #[inline]
    pub fn exclusive_scan<'a>(
        &mut self,
        buffers: impl Into<Buffers<'a>>,
        operation: impl Into<Operation<'a>>,
    ) -> Result<(), Error> {
        let operation = operation.into();
        self.call(CallArgs::new(&Collective::ExclusiveScan, buffers).with(operation.borrow()))
    }

    /// Every rank gets the root's buffer.
    ///
    /// ```
    /// let got = weftlink_comm::on_threads(3, |mut comm| {
    ///     let mut name = if comm.rank() == 1 { *b"weft" } else { *b"    " };
    ///     comm.broadcast(&mut name, 1)?;
    ///     Ok(name)
    /// })?;
    /// assert_eq!(got, [*b"weft"; 3]);
    /// # Ok::<(), weftlink_comm::Error>(())
    /// ```
    #[inline]
    pub fn broadcast<'a>(&mut self, buffers: impl Into<Buffers<'a>>, root: usize) -> Result<(), Error> {
        let collective = Collective::Broadcast { root: index(root) };
        let buffers = buffers.into();
        self.call(CallArgs::new(&collective, buffers))
    }

    /// Every rank gets the buffers of all ranks, in the order of the ranks. In place, each rank passes the whole buffer with its own
    /// block filled in.
    #[inline]
    pub fn all_gather<'a>(&mut self, buffers: impl Into<Buffers<'a>>) -> Result<(), Error> {
        self.call(CallArgs::new(&Collective::AllGather, buffers))
    }

    /// The same with blocks of different lengths: `counts` has the length of each rank's block.
    pub fn all_gather_v<'a>(
        &mut self,
        buffers: impl Into<Buffers<'a>>,
        counts: &'a [usize],
    ) -> Result<(), Error> {
        let mine = counts.get(self.rank..=self.rank).unwrap_or(&[]);
        self.call(CallArgs { counts: Some((mine, counts)), ..CallArgs::new(&Collective::AllGather, buffers) })
    }

    /// The root gets the buffers of all ranks, in the order of the ranks. The other ranks pass an input only.
    #[inline]
    pub fn gather<'a>(&mut self, buffers: impl Into<Buffers<'a>>, root: usize) -> Result<(), Error> {
        let collective = Collective::Gather { root: index(root) };
        let buffers = buffers.into();
        self.call(CallArgs::new(&collective, buffers))
    }

    /// The same with blocks of different lengths: `counts` has the length of each rank's block on the root, and one length elsewhere.
    pub fn gather_v<'a>(
        &mut self,
        buffers: impl Into<Buffers<'a>>,
        counts: &'a [usize],
        root: usize,
    ) -> Result<(), Error> {
        let (collective, buffers) = (Collective::Gather { root: index(root) }, buffers.into());
        let counts = if self.rank == root {
            (counts.get(self.rank..=self.rank).unwrap_or(&[]), counts)
        } else {
            (counts, &[][..])
        };
        let request = CallArgs::new(&collective, buffers);
        self.call(CallArgs { counts: Some(counts), ..request })
    }

    /// Every rank gets its block of the root's buffer.
    #[inline]
    pub fn scatter<'a>(&mut self, buffers: impl Into<Buffers<'a>>, root: usize) -> Result<(), Error> {
        let collective = Collective::Scatter { root: index(root) };
        let buffers = buffers.into();
        self.call(CallArgs::new(&collective, buffers))
    }

    /// The same with blocks of different lengths: `counts` has the length of each rank's block on the root, and one length elsewhere.
    pub fn scatter_v<'a>(
        &mut self,
        buffers: impl Into<Buffers<'a>>,
        counts: &'a [usize],
        root: usize,
    ) -> Result<(), Error> {
        let (collective, buffers) = (Collective::Scatter { root: index(root) }, buffers.into());
        let counts = if self.rank == root {
            (counts, counts.get(self.rank..=self.rank).unwrap_or(&[]))
        } else {
            (&[][..], counts)
        };
        let request = CallArgs::new(&collective, buffers);
        self.call(CallArgs { counts: Some(counts), ..request })
    }

    /// Sends block r of every rank's buffer to rank r, which receives the blocks in the order of the ranks.
    #[inline]
    pub fn all_to_all<'a>(&mut self, buffers: impl Into<Buffers<'a>>) -> Result<(), Error> {
        self.call(CallArgs::new(&Collective::AllToAll, buffers))
    }

    /// The same with blocks of different lengths: the number of elements sent to each rank, and received from each.
    pub fn all_to_all_v<'a>(
        &mut self,
        buffers: impl Into<Buffers<'a>>,
        sent: &'a [usize],
        received: &'a [usize],
    ) -> Result<(), Error> {
        self.call(CallArgs {
            counts: Some((sent, received)),
            ..CallArgs::new(&Collective::AllToAll, buffers)
        })
    }

    /// Exchanges messages of `count` elements: `messages` lists the source and the target of each, the same list on all ranks. A rank's
    /// input has the messages it sends and its output those it receives, in the order of the list.
    ///
    /// ```
    /// let got = weftlink_comm::on_threads(3, |mut comm| {
    ///     let ring: Vec<(u32, u32)> = (0..3).map(|rank| (rank, (rank + 1) % 3)).collect();
    ///     let (mine, mut theirs) = ([comm.rank()], [0]);
    ///     comm.send_receive((&mine, &mut theirs), &ring, 1)?;
    ///     Ok(theirs[0])
    /// })?;
    /// assert_eq!(got, [2, 0, 1]);
    /// # Ok::<(), weftlink_comm::Error>(())
    /// ```
    pub fn send_receive<'a>(
        &mut self,
        buffers: impl Into<Buffers<'a>>,
        messages: &[(u32, u32)],
        count: usize,
    ) -> Result<(), Error> {
        let collective = Collective::SendReceive { messages: messages.to_vec() };
        let buffers = buffers.into();
        let request = CallArgs::new(&collective, buffers);
        self.call(CallArgs { count: Some(count), ..request })
    }

    /// Every rank exchanges a block with each of its neighbours on a torus: six blocks in and out, from and to the rank before and the
    /// rank after it in each dimension.
    pub fn neighbours<'a>(&mut self, buffers: impl Into<Buffers<'a>>, torus: [u32; 3]) -> Result<(), Error> {
        let collective = Collective::Neighbours { torus };
        let buffers = buffers.into();
        self.call(CallArgs::new(&collective, buffers))
    }

    /// Returns when all ranks have called it.
    #[inline]
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.call(CallArgs::new(&Collective::Barrier, Buffers::none()))
    }
}

/// A rank that does not fit into the type becomes one that does not exist, which is refused.
#[inline]
fn index(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}
