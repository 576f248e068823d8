//! The blocks of a call in buffers of given lengths.

use weftlink_plan::Collective;

use crate::call::in_one_buffer;

/// The elements of a call's buffers.
#[derive(Clone, Copy, Debug)]
pub enum Lengths {
    /// Of the one buffer that is input and output, or of an output alone.
    InPlace(usize),
    /// Of an input alone, on ranks that get nothing.
    Input(usize),
    /// Of input and output.
    Separate(usize, usize),
}

/// Where a call finds its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arranged {
    /// Elements of a block.
    pub count: usize,
    /// The first element of the input in its buffer.
    pub input: usize,
    /// The first element of the output in its buffer.
    pub output: usize,
}

/// The blocks of a rank's call, or why the buffers do not have them.
pub fn arrange(collective: &Collective, rank: u32, ranks: u32, lengths: Lengths) -> Result<Arranged, String> {
    let (gives, gets) = (collective.gives(rank, ranks) as usize, collective.gets(rank, ranks) as usize);
    let count_of = |what: &str, length: usize, blocks: usize| match length.checked_rem(blocks) {
        Some(0) => Ok(length / blocks),
        Some(_) => Err(format!("{what} of {length} elements cannot be divided into {blocks} equal blocks")),
        None => Err(format!("rank {rank} takes no part in it")),
    };
    match lengths {
        Lengths::InPlace(length) => {
            let count = count_of("a buffer", length, gives.max(gets))?;
            let [input, output] = match gives > 0 && gets > 0 {
                true => in_one_buffer(collective, rank).map(|block| block as usize * count),
                false => [0, 0],
            };
            Ok(Arranged { count, input, output })
        }
        Lengths::Input(_) if gets > 0 => Err(format!("rank {rank} gets a result and needs an output")),
        Lengths::Input(length) => {
            Ok(Arranged { count: count_of("an input", length, gives)?, input: 0, output: 0 })
        }
        Lengths::Separate(input, output) => {
            let count = match gives {
                0 => count_of("an output", output, gets)?,
                _ => count_of("an input", input, gives)?,
            };
            // A buffer that the rank does not use may have any length.
            if gives > 0 && gets > 0 && output != gets * count {
                let expected = gets * count;
                return Err(format!(
                    "an input of {input} elements gives {expected}, and the output has {output}"
                ));
            }
            Ok(Arranged { count, input: 0, output: 0 })
        }
    }
}

#[cfg(test)]
mod tests {
    use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Gather, ReduceScatter, Scatter};

    use super::*;

    #[test]
    fn blocks_lie_in_the_buffers() {
        let cases = [
            (AllReduce, Lengths::InPlace(10), Ok((10, 0, 0))),
            (AllReduce, Lengths::Separate(10, 10), Ok((10, 0, 0))),
            (AllGather, Lengths::Separate(3, 12), Ok((3, 0, 0))),
            (AllGather, Lengths::InPlace(12), Ok((3, 3, 0))),
            (ReduceScatter, Lengths::InPlace(12), Ok((3, 0, 3))),
            (AllToAll, Lengths::Separate(8, 8), Ok((2, 0, 0))),
            (Broadcast { root: 0 }, Lengths::InPlace(5), Ok((5, 0, 0))),
            (Broadcast { root: 1 }, Lengths::InPlace(5), Ok((5, 0, 0))),
            (Gather { root: 0 }, Lengths::Input(5), Ok((5, 0, 0))),
            (Gather { root: 1 }, Lengths::InPlace(20), Ok((5, 5, 0))),
            (Scatter { root: 0 }, Lengths::InPlace(5), Ok((5, 0, 0))),
            (Scatter { root: 1 }, Lengths::Separate(20, 5), Ok((5, 0, 0))),
            (AllReduce, Lengths::InPlace(0), Ok((0, 0, 0))),
            (
                AllReduce,
                Lengths::Separate(10, 11),
                Err("an input of 10 elements gives 10, and the output has 11"),
            ),
            (AllReduce, Lengths::Input(10), Err("rank 1 gets a result and needs an output")),
            (
                AllGather,
                Lengths::InPlace(10),
                Err("a buffer of 10 elements cannot be divided into 4 equal blocks"),
            ),
            (
                AllToAll,
                Lengths::Separate(8, 12),
                Err("an input of 8 elements gives 8, and the output has 12"),
            ),
        ];
        for (collective, lengths, expected) in cases {
            let arranged = arrange(&collective, 1, 4, lengths);
            let arranged = arranged.map(|Arranged { count, input, output }| (count, input, output));
            assert_eq!(arranged, expected.map_err(str::to_owned), "{collective} {lengths:?}");
        }
    }
}
