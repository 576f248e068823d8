//! Calls of plans with a switch: their buffers are in multicast windows, at the same places on all ranks.

use super::{Communicator, PlanId};
use crate::call::Key;
use crate::driver::DeviceAddress;
use crate::multicast::{InWindow, MulticastRanges};
use crate::program::{SwitchUse, VECTOR_BYTES};

/// Where a switch accesses input and output of a call; nothing where it does not.
pub(super) type Switched = [Option<InWindow>; 2];

impl Communicator {
    /// Where the switch of a plan accesses the buffers of a call, or why it cannot; nothing if the plan has none.
    pub(super) fn switched(
        &self,
        plan: PlanId,
        buffers: [DeviceAddress; 2],
        key: &Key,
    ) -> Result<Option<Switched>, String> {
        let compiler = &self.resources.plans[plan.number].compiler;
        let Some(switch) = compiler.switch else { return Ok(None) };
        let bytes = key.bytes_of(compiler.plan(), self.rank() as u32);
        find(switch, &self.multicast, [(buffers[0], bytes[0]), (buffers[1], bytes[1])]).map(Some)
    }
}

/// Finds buffers, each with its bytes, in multicast windows.
fn find(
    switch: SwitchUse,
    windows: &MulticastRanges,
    buffers: [(DeviceAddress, u64); 2],
) -> Result<Switched, String> {
    let mut places = Switched::default();
    for (number, (address, bytes)) in buffers.into_iter().enumerate().filter(|(_, (_, bytes))| *bytes > 0) {
        let name = ["input", "output"][number];
        if !address.is_multiple_of(VECTOR_BYTES as u64) {
            return Err(format!(
                "the {name} is at {address:#x}, and plans with a switch take buffers at multiples of {VECTOR_BYTES} bytes"
            ));
        }
        if switch.buffers[number] {
            places[number] = Some(windows.find(address, bytes).ok_or_else(|| {
                format!(
                    "the {name}, {bytes} bytes at {address:#x}, is in no multicast window of this communicator, and the plan accesses \
                     it through a switch: allocate it with `multicast_window`, or choose another algorithm"
                )
            })?);
        }
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use weftlink_plan::{Algorithm, Collective};

    use super::*;

    #[test]
    fn buffers_of_a_switch_are_in_multicast_windows() {
        let windows = Arc::new(MulticastRanges::default());
        let _one = windows.add(0, 4096, 256, 1 << 40);
        let _other = windows.add(1, 8192, 256, 2 << 40);
        let of = |collective, buffers| {
            let plan = Algorithm::Nvls.flat(&collective, 4, 1).unwrap();
            let places = find(SwitchUse::of(&plan).unwrap(), &windows, buffers)?;
            Ok(places.map(|place| place.map(|it| (it.window, it.offset, it.multicast))))
        };
        let all_reduce = |buffers| of(Collective::AllReduce, buffers);
        let (inside, outside) = ((4096, 128), (1 << 20, 128));
        let first = Some((0, 0, 1 << 40));
        assert_eq!(all_reduce([inside, inside]), Ok([first, first]));
        assert_eq!(all_reduce([inside, (8208, 128)]), Ok([first, Some((1, 16, (2 << 40) + 16))]));
        assert_eq!(all_reduce([(1, 0), (2, 0)]), Ok([None, None]), "empty buffers are not accessed");
        assert_eq!(of(Collective::AllGather, [outside, inside]), Ok([None, first]));
        assert_eq!(of(Collective::ReduceScatter, [inside, outside]), Ok([first, None]));
        let refused = |found: Result<_, String>, text: &str| {
            let why = found.unwrap_err();
            assert!(why.contains(text), "{why}");
        };
        refused(all_reduce([outside, inside]), "the input, 128 bytes at 0x100000, is in no multicast window");
        refused(
            all_reduce([inside, (8192, 257)]),
            "the output, 257 bytes at 0x2000, is in no multicast window",
        );
        refused(all_reduce([inside, (8200, 64)]), "the output is at 0x2008");
        refused(of(Collective::AllGather, [(1 << 20 | 4, 128), inside]), "the input is at 0x100004");
    }
}
