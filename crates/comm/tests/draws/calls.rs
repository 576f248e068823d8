//! Calls whose results are checked, value by value.

use weftlink_comm::{Communicator, Data, Error, Reduction};

/// A call, with all that ranks must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) what: What,
    pub(crate) count: usize,
    pub(crate) is_float: bool,
    pub(crate) maximum: bool,
    pub(crate) root: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    AllReduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Scan,
    Reduce,
    AllGatherUneven,
    AllToAllUneven,
    Barrier,
}

/// How a call went wrong.
#[derive(Debug)]
pub(crate) enum Outcome {
    Failed(Error),
    Wrong(String),
}

impl From<Error> for Outcome {
    fn from(error: Error) -> Outcome {
        Outcome::Failed(error)
    }
}

const SMALL: [What; 7] = [
    What::AllReduce,
    What::Broadcast,
    What::AllGather,
    What::ReduceScatter,
    What::AllToAll,
    What::Scan,
    What::Reduce,
];

impl Call {
    fn new(what: What, count: usize) -> Call {
        Call { what, count, is_float: true, maximum: false, root: 0 }
    }

    /// A small call; rounds cycle through all collectives.
    pub(crate) fn small(round: usize, size: usize) -> Call {
        let count = [1, 7, 100, 513, 3000][round % 5];
        let what = SMALL[round % SMALL.len()];
        Call {
            root: round % size,
            maximum: round % 3 == 1,
            is_float: round % 4 != 3,
            ..Call::new(what, count)
        }
    }

    /// 16 MiB on every rank; 256 KiB in an unoptimised build, which is as slow.
    pub(crate) fn large() -> Call {
        Call::new(What::AllReduce, if cfg!(debug_assertions) { 64 << 10 } else { 4 << 20 })
    }

    pub(crate) fn uneven(round: usize) -> Call {
        let what = if round.is_multiple_of(2) { What::AllGatherUneven } else { What::AllToAllUneven };
        Call::new(what, 10 + round % 3 * 200)
    }

    pub(crate) fn barrier() -> Call {
        Call::new(What::Barrier, 0)
    }

    /// A call that differs from this one; `way` selects how.
    pub(crate) fn differently(self, way: u64, size: usize) -> Call {
        let uneven = matches!(self.what, What::AllGatherUneven | What::AllToAllUneven | What::Barrier);
        // Calls that only move data have no type.
        let combines = matches!(self.what, What::AllReduce | What::ReduceScatter | What::Scan | What::Reduce);
        let other = match way {
            _ if uneven => Call::new(What::AllReduce, 5),
            0 => Call { count: self.count + 1, ..self },
            1 if combines => Call { is_float: !self.is_float, ..self },
            2 if combines => Call { maximum: !self.maximum, ..self },
            3 if matches!(self.what, What::Broadcast | What::Reduce) => {
                Call { root: (self.root + 1) % size, ..self }
            }
            4 => Call::barrier(),
            _ if self.what == What::AllReduce => Call { what: What::AllGather, ..self },
            _ => Call { what: What::AllReduce, ..self },
        };
        assert_ne!(self, other);
        other
    }

    /// Makes the call and checks every value of the result.
    pub(crate) fn check(&self, comm: &mut Communicator, round: usize) -> Result<(), Outcome> {
        if self.is_float { self.check_of::<f32>(comm, round) } else { self.check_of::<i32>(comm, round) }
    }

    fn check_of<T: Value>(&self, comm: &mut Communicator, round: usize) -> Result<(), Outcome> {
        let (me, size, count, root) = (comm.rank(), comm.size(), self.count, self.root);
        let given = |rank: usize, length: usize| -> Vec<T> {
            (0..length).map(|index| T::of(number(rank, index, round))).collect()
        };
        let combined = |index: usize, ranks: usize| {
            let all = (0..ranks).map(|rank| number(rank, index, round));
            T::of(if self.maximum { all.max().unwrap_or(0) } else { all.sum() })
        };
        let operation = if self.maximum { Reduction::Maximum } else { Reduction::Sum };
        let blank = |length: usize| vec![T::of(-1); length];
        let expected: Vec<T>;
        let got: Vec<T>;
        match self.what {
            What::AllReduce => {
                let mut values = given(me, count);
                comm.all_reduce(&mut values, operation)?;
                (got, expected) = (values, (0..count).map(|index| combined(index, size)).collect());
            }
            What::Broadcast => {
                let mut values = if me == root { given(root, count) } else { blank(count) };
                comm.broadcast(&mut values, root)?;
                (got, expected) = (values, given(root, count));
            }
            What::AllGather => {
                let (mine, mut all) = (given(me, count), blank(count * size));
                comm.all_gather((&mine, &mut all))?;
                (got, expected) = (all, (0..size).flat_map(|rank| given(rank, count)).collect());
            }
            What::ReduceScatter => {
                let (all, mut mine) = (given(me, count * size), blank(count));
                comm.reduce_scatter((&all, &mut mine), operation)?;
                let block = me * count..(me + 1) * count;
                (got, expected) = (mine, block.map(|index| combined(index, size)).collect());
            }
            What::AllToAll => {
                let (sent, mut received) = (given(me, count * size), blank(count * size));
                comm.all_to_all((&sent, &mut received))?;
                let block = |rank: usize| given(rank, count * size)[me * count..(me + 1) * count].to_vec();
                (got, expected) = (received, (0..size).flat_map(block).collect());
            }
            What::Scan => {
                let (mine, mut scanned) = (given(me, count), blank(count));
                comm.scan((&mine, &mut scanned), operation)?;
                (got, expected) = (scanned, (0..count).map(|index| combined(index, me + 1)).collect());
            }
            What::Reduce if me == root => {
                let (mine, mut sum) = (given(me, count), blank(count));
                comm.reduce((&mine, &mut sum), operation, root)?;
                (got, expected) = (sum, (0..count).map(|index| combined(index, size)).collect());
            }
            What::Reduce => {
                let mine = given(me, count);
                comm.reduce(&mine, operation, root)?;
                return Ok(());
            }
            What::AllGatherUneven => {
                let counts: Vec<usize> = (0..size).map(|rank| (count + rank * 37) % 101).collect();
                let (mine, mut all) = (given(me, counts[me]), blank(counts.iter().sum()));
                comm.all_gather_v((&mine, &mut all), &counts)?;
                (got, expected) = (all, (0..size).flat_map(|rank| given(rank, counts[rank])).collect());
            }
            What::AllToAllUneven => {
                let length = |from: usize, to: usize| (count + from * 37 + to * 11) % 101;
                let sent: Vec<usize> = (0..size).map(|to| length(me, to)).collect();
                let received: Vec<usize> = (0..size).map(|from| length(from, me)).collect();
                let (mine, mut theirs) = (given(me, sent.iter().sum()), blank(received.iter().sum()));
                comm.all_to_all_v((&mine, &mut theirs), &sent, &received)?;
                let block = |from: usize| {
                    let before: usize = (0..me).map(|to| length(from, to)).sum();
                    given(from, before + length(from, me)).split_off(before)
                };
                (got, expected) = (theirs, (0..size).flat_map(block).collect());
            }
            What::Barrier => {
                comm.barrier()?;
                return Ok(());
            }
        }
        match got.iter().zip(&expected).position(|(got, expected)| got != expected) {
            None if got.len() == expected.len() => Ok(()),
            place => Err(Outcome::Wrong(format!(
                "{self:?} in round {round}: value {place:?} of {} is {:?} and should be {:?}",
                expected.len(),
                place.map(|place| &got[place]),
                place.map(|place| &expected[place])
            ))),
        }
    }
}

/// Numbers whose sums every type holds exactly.
pub(crate) fn number(rank: usize, index: usize, round: usize) -> i32 {
    ((rank * 31 + index * 7 + round * 13) % 97) as i32
}

trait Value: Data + Copy + PartialEq + std::fmt::Debug {
    fn of(number: i32) -> Self;
}

impl Value for f32 {
    fn of(number: i32) -> Self {
        number as f32
    }
}

impl Value for i32 {
    fn of(number: i32) -> Self {
        number
    }
}
