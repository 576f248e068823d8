//! The arguments of a call: which of them a plan accepts, and a signature by which ranks notice that they are in different calls.

use weftlink_plan::{Aliasing, Collective, DataType, Plan, Reduction};

use crate::driver::DeviceAddress;
use crate::program::Spread;

/// The arguments of a call, except its buffers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub(crate) count: usize,
    pub(crate) data_type: DataType,
    pub(crate) reduction: Reduction,
    pub(crate) aliasing: Aliasing,
}

impl Key {
    /// The key of a call of this rank, or why the call is refused.
    pub(crate) fn new(
        plan: &Plan,
        rank: u32,
        [input, output]: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        reduction: Reduction,
    ) -> Result<Key, String> {
        let size = data_type.bytes();
        let Some(block_bytes) = count.checked_mul(size) else {
            return Err(format!("{count} elements of {size} bytes are more than there is memory"));
        };
        if let Some(address) = [input, output].iter().find(|address| !address.is_multiple_of(size as u64)) {
            return Err(format!("the buffer at {address:#x} is not aligned to elements of {size} bytes"));
        }
        let Some(aliasing) =
            aliasing_of(&plan.collective, rank, plan.ranks, block_bytes as u64, [input, output])
        else {
            return Err("input and output overlap, but not as in a call in place".to_owned());
        };
        if !plan.aliasing.contains(&aliasing) {
            let how = match aliasing {
                Aliasing::InPlace => "in place",
                Aliasing::OutOfPlace => "out of place",
            };
            return Err(format!("it is not proved for calls {how}"));
        }
        if !plan.collective.reduces() {
            let (data_type, reduction) = moved_as(data_type);
            return Ok(Key { count, data_type, reduction, aliasing });
        }
        let is_scan = matches!(plan.collective, Collective::Scan | Collective::ExclusiveScan);
        let finishes = matches!(
            reduction,
            Reduction::Average | Reduction::LogicalAnd | Reduction::LogicalOr | Reduction::LogicalXor
        );
        if matches!(reduction, Reduction::PremultipliedSum | Reduction::UserDefined { .. })
            || is_scan && finishes
        {
            return Err(format!("{reduction:?} is not supported on GPUs yet"));
        }
        if !reduction.is_for(data_type.kind()) {
            return Err(format!("{reduction:?} is not defined for {}", data_type.name()));
        }
        Ok(Key { count, data_type, reduction, aliasing })
    }

    /// A number of 32 bits that differs, most likely, from that of another call.
    pub(crate) fn signature(&self, tiles: u64, spread: Spread) -> u32 {
        use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
        let build = BuildHasherDefault::<std::hash::DefaultHasher>::default();
        let mut hasher = build.build_hasher();
        hasher.write_usize(self.count);
        hasher.write_u64(tiles);
        hasher.write_u32(spread.slices);
        hasher.write_u32(spread.threads);
        hasher.write_u8(self.data_type as u8);
        hasher.write(format!("{:?}", self.reduction).as_bytes());
        hasher.finish() as u32
    }
}

/// The type and operation of the kernel that moves elements of a type: one for each size.
fn moved_as(data_type: DataType) -> (DataType, Reduction) {
    let unsigned = match data_type.bytes() {
        1 => DataType::U8,
        2 => DataType::U16,
        4 => DataType::U32,
        8 => DataType::U64,
        _ => data_type,
    };
    (unsigned, Reduction::Sum)
}

/// The blocks at which a rank's input and output begin if they are one buffer: the smaller is the rank's own block of the larger.
pub fn in_one_buffer(collective: &Collective, rank: u32) -> [u32; 2] {
    match collective {
        Collective::AllGather | Collective::Gather { .. } => [rank, 0],
        Collective::ReduceScatter | Collective::Scatter { .. } => [0, rank],
        _ => [0, 0],
    }
}

/// Whether a rank's buffers are one as in a call in place, or apart; nothing if they overlap otherwise.
fn aliasing_of(
    collective: &Collective,
    rank: u32,
    ranks: u32,
    block_bytes: u64,
    [input, output]: [DeviceAddress; 2],
) -> Option<Aliasing> {
    let (gives, gets) = (collective.gives(rank, ranks), collective.gets(rank, ranks));
    let (given, gotten) = (u64::from(gives) * block_bytes, u64::from(gets) * block_bytes);
    if given == 0 || gotten == 0 {
        return Some(Aliasing::OutOfPlace);
    }
    let [input_at, output_at] = in_one_buffer(collective, rank).map(|block| u64::from(block) * block_bytes);
    if input.wrapping_sub(input_at) == output.wrapping_sub(output_at) {
        return Some(Aliasing::InPlace);
    }
    let are_apart = input.saturating_add(given) <= output || output.saturating_add(gotten) <= input;
    are_apart.then_some(Aliasing::OutOfPlace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_in_place_are_recognised() {
        use Aliasing::{InPlace, OutOfPlace};
        use Collective::{AllGather, AllReduce, Broadcast, Gather, ReduceScatter, Scatter};
        // Blocks of 64 bytes of rank 1 of 4.
        let cases = [
            (AllReduce, [1000, 1000], Some(InPlace)),
            (AllReduce, [1000, 1064], Some(OutOfPlace)),
            (AllReduce, [1000, 1063], None),
            (AllReduce, [1063, 1000], None),
            (AllGather, [1064, 1000], Some(InPlace)),
            (AllGather, [1000, 1000], None),
            (AllGather, [936, 1000], Some(OutOfPlace)),
            (AllGather, [1256, 1000], Some(OutOfPlace)),
            (AllGather, [1192, 1000], None),
            (ReduceScatter, [1000, 1064], Some(InPlace)),
            (ReduceScatter, [1000, 1000], None),
            (Gather { root: 0 }, [1000, 1000], Some(OutOfPlace)),
            (Gather { root: 1 }, [1064, 1000], Some(InPlace)),
            (Scatter { root: 1 }, [1000, 1064], Some(InPlace)),
            (Broadcast { root: 0 }, [1000, 1000], Some(OutOfPlace)),
            (Broadcast { root: 1 }, [1000, 1000], Some(InPlace)),
        ];
        for (collective, buffers, expected) in cases {
            assert_eq!(aliasing_of(&collective, 1, 4, 64, buffers), expected, "{collective} {buffers:?}");
        }
        assert_eq!(aliasing_of(&AllGather, 1, 4, 0, [1000, 1000]), Some(OutOfPlace));
    }

    #[test]
    fn reductions_matter_to_calls_that_reduce_only() {
        let plan =
            |collective: Collective| weftlink_plan::Algorithm::Exchange.flat(&collective, 2, 1).unwrap();
        let key = |collective: Collective, data_type, reduction| {
            Key::new(&plan(collective), 0, [4096, 8192], 16, data_type, reduction)
        };
        let moved = key(Collective::AllGather, DataType::Bool, Reduction::Sum).unwrap();
        assert_eq!((moved.data_type, moved.reduction), (DataType::U8, Reduction::Sum));
        let same = key(Collective::AllGather, DataType::U8, Reduction::Maximum).unwrap();
        assert_eq!(moved, same);
        assert!(key(Collective::AllReduce, DataType::Complex64, Reduction::Maximum).is_err());
        assert!(
            key(Collective::AllReduce, DataType::F32, Reduction::UserDefined { commutes: true }).is_err()
        );
        assert!(
            Key::new(&plan(Collective::AllReduce), 0, [4098, 8192], 16, DataType::F32, Reduction::Sum)
                .is_err()
        );
    }
}
