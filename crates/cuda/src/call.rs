//! The arguments of a call: which of them a plan accepts, and a signature by which ranks notice that they are in different calls.

use weftlink_plan::{Aliasing, Collective, DataType, Plan, Reduction};

use crate::driver::DeviceAddress;
use crate::multicast::InWindow;
use crate::program::Spread;

/// How a call combines elements. A [`Reduction`] is one, except a pre-multiplied sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    pub(crate) reduction: Reduction,
    factor: Option<Factor>,
}

/// The bytes of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Factor {
    bytes: [u8; FACTOR_BYTES_MAX],
    length: usize,
}

/// Ranks announce their factors with their buffers: an entry has room for 8 bytes.
const FACTOR_BYTES_MAX: usize = 8;

impl Operation {
    /// The sum of the ranks' inputs, each multiplied by a factor of its rank, of which these are the bytes; nothing if they are more than 8.
    pub fn premultiplied_sum(factor: &[u8]) -> Option<Operation> {
        let mut bytes = [0; FACTOR_BYTES_MAX];
        bytes.get_mut(..factor.len())?.copy_from_slice(factor);
        let factor = Some(Factor { bytes, length: factor.len() });
        Some(Operation { reduction: Reduction::PremultipliedSum, factor })
    }

    /// The factor as a parameter of a kernel, or why it does not fit the call.
    pub(crate) fn factor_of(self, key: &Key) -> Result<u64, String> {
        if key.reduction != Reduction::PremultipliedSum {
            return Ok(0);
        }
        let (name, size) = (key.data_type.name(), key.data_type.bytes());
        match self.factor {
            Some(Factor { bytes, length }) if length == size => Ok(u64::from_le_bytes(bytes)),
            Some(Factor { length, .. }) => {
                Err(format!("the factor has {length} bytes, and an element of {name} has {size}"))
            }
            None => Err("a pre-multiplied sum needs a factor: use `Operation::premultiplied_sum`".to_owned()),
        }
    }
}

impl From<Reduction> for Operation {
    fn from(reduction: Reduction) -> Operation {
        Operation { reduction, factor: None }
    }
}

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
        let aliasing = match aliasing {
            // On copies of the buffers: `is_copied`.
            Aliasing::InPlace if !plan.aliasing.contains(&aliasing) => Aliasing::OutOfPlace,
            aliasing => aliasing,
        };
        if !plan.aliasing.contains(&aliasing) {
            return Err("it is not proved for calls out of place".to_owned());
        }
        if !plan.collective.reduces() {
            let (data_type, reduction) = moved_as(data_type);
            return Ok(Key { count, data_type, reduction, aliasing });
        }
        if !reduction.is_for(data_type.kind()) {
            return Err(format!("{reduction} is not defined for {}", data_type.name()));
        }
        if !is_for_gpus(reduction, data_type) {
            return Err(format!("{reduction} of {} is not supported on GPUs", data_type.name()));
        }
        Ok(Key { count, data_type, reduction, aliasing })
    }

    /// Whether a call in place needs copies of its buffers, because the plan is not proved for calls in place.
    pub(crate) fn is_copied(&self, plan: &Plan, rank: u32, buffers: [DeviceAddress; 2]) -> bool {
        let block_bytes = (self.count * self.data_type.bytes()) as u64;
        let given = aliasing_of(&plan.collective, rank, plan.ranks, block_bytes, buffers);
        given == Some(Aliasing::InPlace) && self.aliasing == Aliasing::OutOfPlace
    }

    /// The bytes of a rank's input and output.
    pub(crate) fn bytes_of(&self, plan: &Plan, rank: u32) -> [u64; 2] {
        let block_bytes = (self.count * self.data_type.bytes()) as u64;
        let blocks = [plan.collective.gives(rank, plan.ranks), plan.collective.gets(rank, plan.ranks)];
        blocks.map(|blocks| u64::from(blocks) * block_bytes)
    }

    /// A number of 32 bits that differs, most likely, from that of another call. `switched`: where a switch accesses the buffers.
    pub(crate) fn signature(&self, tiles: u64, spread: Spread, switched: &[Option<InWindow>; 2]) -> u32 {
        use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
        let build = BuildHasherDefault::<std::hash::DefaultHasher>::default();
        let mut hasher = build.build_hasher();
        hasher.write_usize(self.count);
        hasher.write_u64(tiles);
        hasher.write_u32(spread.slices);
        hasher.write_u32(spread.threads);
        hasher.write_u8(self.data_type as u8);
        hasher.write(format!("{:?}", self.reduction).as_bytes());
        for place in switched.iter().flatten() {
            hasher.write_u32(place.window);
            hasher.write_u64(place.offset);
        }
        hasher.finish() as u32
    }
}

/// Whether GPUs combine elements of a type by an operation that is defined for it: not by functions of the host, nor with long factors.
pub fn is_for_gpus(reduction: Reduction, data_type: DataType) -> bool {
    match reduction {
        Reduction::UserDefined { .. } => false,
        Reduction::PremultipliedSum => data_type.bytes() <= FACTOR_BYTES_MAX,
        _ => true,
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
pub(crate) fn aliasing_of(
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
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

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
    fn calls_in_place_are_copied_where_the_plan_is_not_proved_for_them() {
        let key = |collective: &Collective, buffers| {
            let plan = weftlink_plan::Algorithm::Pairwise.flat(collective, 4, 1).unwrap();
            let key = Key::new(&plan, 1, buffers, 16, DataType::F32, Reduction::Sum).unwrap();
            (key.aliasing, key.is_copied(&plan, 1, buffers))
        };
        assert_eq!(key(&Collective::AllToAll, [4096, 4096]), (Aliasing::OutOfPlace, true));
        assert_eq!(key(&Collective::AllToAll, [4096, 8192]), (Aliasing::OutOfPlace, false));
    }

    #[test]
    fn a_factor_has_the_size_of_an_element() {
        let plan = weftlink_plan::Algorithm::Exchange.flat(&Collective::AllReduce, 2, 1).unwrap();
        let key = |data_type, reduction| Key::new(&plan, 0, [4096, 8192], 16, data_type, reduction).unwrap();
        let f32s = key(DataType::F32, Reduction::PremultipliedSum);
        assert_eq!(Operation::from(Reduction::Sum).factor_of(&key(DataType::F32, Reduction::Sum)), Ok(0));
        assert!(Operation::from(Reduction::PremultipliedSum).factor_of(&f32s).is_err());
        assert_eq!(Operation::premultiplied_sum(&[1; 9]), None);
        let sum = Operation::premultiplied_sum(&2.0_f32.to_ne_bytes()).unwrap();
        assert_eq!(sum.factor_of(&f32s), Ok(0x4000_0000));
        let refused = sum.factor_of(&key(DataType::F64, Reduction::PremultipliedSum)).unwrap_err();
        assert!(refused.contains("has 4 bytes"), "{refused}");
        let of = |data_type| Key::new(&plan, 0, [4096, 8192], 16, data_type, Reduction::PremultipliedSum);
        assert!(of(DataType::Complex64).is_ok() && of(DataType::Complex128).is_err());
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

    #[test]
    fn calls_at_different_places_of_windows_have_different_signatures() {
        let plan = weftlink_plan::Algorithm::Nvls.flat(&Collective::AllReduce, 2, 1).unwrap();
        let key = Key::new(&plan, 0, [4096, 8192], 16, DataType::F32, Reduction::Sum).unwrap();
        let spread = Spread { slices: 1, threads: 32, chunk_bytes: 64 };
        let signature = |input: [u64; 2], output: [u64; 2]| {
            let place = |[window, offset]: [u64; 2], multicast| {
                Some(InWindow { window: window as u32, offset, multicast })
            };
            let signed = |multicast| key.signature(1, spread, &[place(input, multicast), place(output, 7)]);
            assert_eq!(signed(0), signed(1 << 40), "ranks map windows at different addresses");
            signed(0)
        };
        let places = [[0, 0], [0, 16], [1, 0]];
        let mut signatures: Vec<_> =
            places.iter().flat_map(|input| places.map(|output| signature(*input, output))).collect();
        signatures.push(key.signature(1, spread, &[None; 2]));
        signatures.sort_unstable();
        signatures.dedup();
        assert_eq!(signatures.len(), 10);
        assert_eq!(key.bytes_of(&plan, 1), [64, 64]);
    }
}
