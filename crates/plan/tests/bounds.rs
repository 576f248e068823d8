//! Bounds of fabrics, compared with values computed by hand.

mod wired;

use weftlink_fabric::FabricBuilder;
use weftlink_fabric::device::{DeviceKind, Gpu};
use weftlink_plan::Collective;
use weftlink_plan::wiring::{Bound, Bounds};

use wired::{every_fabric, fabric};

const ALL: [Collective; 10] = [
    Collective::AllReduce,
    Collective::Reduce { root: 1 },
    Collective::Broadcast { root: 1 },
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
    Collective::Gather { root: 1 },
    Collective::Scatter { root: 1 },
    Collective::Scan,
    Collective::ExclusiveScan,
];

fn bound(spec: &str, collective: Collective) -> Bound {
    Bounds::of(&fabric(spec)).bound(&collective).expect("its ranks are connected")
}

fn without_switches(spec: &str) -> Bound {
    Bounds::of(&fabric(spec)).bound_without_switches(&Collective::AllReduce).expect("its ranks are connected")
}

/// Checks a bound in MB/s, and the words of its cut.
#[track_caller]
fn is(bound: &Bound, mb_per_second: u64, words: &str) {
    assert_eq!(bound.bytes_per_second / 1_000_000, mb_per_second, "{}", bound.cut);
    assert!(bound.cut.contains(words), "{}", bound.cut);
}

#[test]
fn ports_bound_a_switched_island() {
    // 18 links of 25 GB/s. Without switches that add, 2·7 buffers cross eight ports; with them, one crosses each.
    is(&without_switches("hgx-h100"), 450_000 * 8 / 14, "all 8 GPUs together");
    is(&bound("hgx-h100", Collective::AllReduce), 450_000, "out of gpu0");
    is(&bound("hgx-h100", Collective::AllGather), 450_000 * 8 / 7, "into gpu0");
    is(&bound("hgx-h100", Collective::ReduceScatter), 450_000 * 8 / 7, "out of gpu0");
    is(&bound("hgx-h100", Collective::AllToAll), 450_000 * 8 / 7, "out of gpu0");
    is(&bound("hgx-h100", Collective::Broadcast { root: 3 }), 450_000, "into gpu0");
    is(&bound("hgx-h100", Collective::Gather { root: 3 }), 450_000 * 8 / 7, "into gpu3");
    is(&bound("hgx-h100", Collective::Scatter { root: 3 }), 450_000 * 8 / 7, "out of gpu3");
    // These switches only forward.
    is(&bound("hgx-a100", Collective::AllReduce), 300_000 * 8 / 14, "all 8 GPUs together");
}

#[test]
fn cuts_through_links_bound_a_mesh() {
    // Six links of 25 GB/s out of each GPU, and no more between the quads, which limits an all-to-all.
    is(&bound("dgx-1-v100", Collective::AllReduce), 150_000 * 8 / 14, "all 8 GPUs together");
    is(&bound("dgx-1-v100", Collective::AllToAll), 75_000, "ranks 0 to 3");
    is(&bound("dgx-1-v100", Collective::Reduce { root: 0 }), 150_000, "into gpu0");
    // One way around only: a GPU sends to one and receives from one.
    let (_, ring) = every_fabric().find(|(name, _)| name == "ring-of-four.json").expect("it is in testdata");
    is(&Bounds::of(&ring).bound(&Collective::AllReduce).expect("it is a ring"), 50_000 * 4 / 6, "all 4 GPUs");
}

#[test]
fn the_narrowest_level_bounds_a_host_without_links() {
    // Slots of 31.5 GB/s. How much passes between sockets is not public.
    is(&bound("8x-rtx4090", Collective::AllReduce), 31_507 * 8 / 14, "all 8 GPUs together");
    is(&bound("8x-rtx4090", Collective::Broadcast { root: 0 }), 31_507, "gpu");
    is(&bound("8x-rtx4090", Collective::AllToAll), 31_507 * 8 / 7, "gpu0");
    is(&bound("4x-a100-pcie-bridge", Collective::AllReduce), 63_015, "island");
}

#[test]
fn nics_bound_a_cluster() {
    // Eight NICs of 50 GB/s. InfiniBand switches add; without them 2·15 buffers leave 16 hosts.
    is(&bound("16x hgx-h100 + 8x ndr", Collective::AllReduce), 400_000, "island");
    is(&without_switches("16x hgx-h100 + 8x ndr"), 400_000 * 16 / 30, "all 16 islands together");
    is(&bound("16x hgx-h100 + 8x ndr", Collective::AllToAll), 400_000 * 16 / 15 / 8, "island");
    is(&bound("16x dgx-1-v100 + 4x edr", Collective::Broadcast { root: 9 }), 50_000, "island");
}

#[test]
fn uplinks_bound_traffic_between_pods() {
    // 51 hosts below each group of leaves, whose uplinks have a quarter of the rate of their ports.
    let bound = bound("100x hgx-h100 + 8x ndr, oversubscribed 4:1", Collective::AllToAll);
    assert!(bound.cut.contains("below leaf0"), "{}", bound.cut);
    let fair =
        Bounds::of(&fabric("100x hgx-h100 + 8x ndr")).bound(&Collective::AllToAll).expect("it is connected");
    assert!(bound.bytes_per_second < fair.bytes_per_second * 2 / 3, "{} {}", bound.cut, fair.cut);
}

#[test]
fn messages_are_bound_by_the_cuts_they_cross() {
    // Every rank sends one message to the next: a slot carries one each way.
    let around =
        |ranks: u32| Collective::SendReceive { messages: (0..ranks).map(|r| (r, (r + 1) % ranks)).collect() };
    is(&bound("8x-rtx4090", around(8)), 31_507, "out of gpu0");
    is(&bound("hgx-h100", around(8)), 450_000, "out of gpu0");
    // Six blocks a rank, four of them to other ranks: before and behind are the same one, and twice it is the rank itself.
    is(&bound("4x-gh200", Collective::Neighbours { torus: [1, 2, 2] }), 450_000 * 6 / 4, "out of gpu0");
    // In a scan, one buffer crosses each port, and those of the first and last rank in one direction only.
    is(&bound("hgx-h100", Collective::Scan), 450_000, "gpu");
    let bounds = Bounds::of(&fabric("hgx-h100"));
    assert_eq!(bounds.bound(&Collective::Barrier), None);
    assert_eq!(bounds.bound(&Collective::Broadcast { root: 8 }), None);
}

#[test]
fn a_wider_fabric_has_no_lower_bound() {
    for collective in ALL {
        let [narrow, wide] =
            ["4x hgx-h100 + 4x ndr", "4x hgx-h100 + 8x ndr"].map(|spec| bound(spec, collective.clone()));
        assert!(
            narrow.bytes_per_second <= wide.bytes_per_second,
            "{collective}: {} {}",
            narrow.cut,
            wide.cut
        );
    }
}

#[test]
fn switches_that_add_never_lower_a_bound() {
    for (name, fabric) in every_fabric() {
        let bounds = Bounds::of(&fabric);
        for collective in ALL {
            let plain = bounds.bound_without_switches(&collective).map(|bound| bound.bytes_per_second);
            let helped = bounds.bound(&collective).map(|bound| bound.bytes_per_second);
            assert!(plain <= helped, "{name}: {collective}");
            assert_eq!(plain.is_some(), helped.is_some(), "{name}: {collective}");
        }
    }
}

#[test]
fn single_and_unconnected_ranks_have_no_bound() {
    let mut builder = FabricBuilder::new("one");
    builder.add(None, DeviceKind::Gpu(Gpu::default()));
    let one = builder.finish().expect("it is a fabric");
    assert_eq!(Bounds::of(&one).bound(&Collective::AllReduce), None);
    assert_eq!(Bounds::of(&fabric("2x hgx-h100")).bound(&Collective::AllReduce), None);
}

#[test]
fn many_hosts_have_the_bound_of_few() {
    let [few, many] =
        ["2x hgx-h100 + 8x ndr", "1250x hgx-h100 + 8x ndr"].map(|spec| bound(spec, Collective::AllReduce));
    assert_eq!(few, many);
}
