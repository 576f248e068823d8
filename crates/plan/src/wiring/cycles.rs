//! Rings on a mesh: as many rings through all ranks as its wires allow, without a shared wire.
//!
//! **Search.** With two-way links, a ring and its reverse use the same links; the search looks for such pairs first, because
//! it needs to find only half as many. Then it looks for single rings on the remaining wires. If wires are still unused, it
//! searches for single rings from the start: the eight GPUs of a full mesh have seven links each, an odd number, so pairs
//! leave a link of every GPU idle, while seven one-way rings use all. If that does not use all wires either, it splits each
//! wire into two or three, and each ring carries a smaller part.
//!
//! A ring grows rank by rank, and the search backtracks as soon as some rank outside can no longer be entered or left. It
//! starts at the rank with the fewest wires; all of these must be used in the end, so it can take them in a fixed order. The
//! number of steps is bounded; a search that exceeds it starts over with its choices in another order. The result is
//! deterministic.
//!
//! **Bound.** There are no more rings than wires out of any set of ranks, since a ring leaves every set.

use super::mesh::{Mesh, Packing, Wires};

/// The maximum number of rings on one mesh. Each takes a thread block of every GPU.
const RINGS_MAX: usize = 64;

/// The maximum number of parts of a wire.
const SPLIT_MAX: u32 = 3;
/// Searches for a number of rings, and the steps of each.
const ATTEMPTS: u32 = 8;
const STEPS_MAX: u32 = 40_000;

impl Mesh {
    /// Rings that share no wire, each a cyclic order of the ranks. None if there is no ring.
    pub fn rings(&self) -> Packing<Vec<u32>> {
        let cut = self.least_cut();
        let mut best: Packing<Vec<u32>> = Packing { items: Vec::new(), split: 1 };
        for split in 1..=SPLIT_MAX {
            let most = (cut * u64::from(split)).min(RINGS_MAX as u64) as usize;
            let items = side_by_side(&self.residual(split), most);
            if items.len() * best.split as usize > best.items.len() * split as usize {
                best = Packing { items, split };
            }
            if best.items.len() as u64 >= cut * u64::from(best.split) || best.items.is_empty() {
                break;
            }
        }
        best
    }

    /// The rate of an all-reduce over rings, in wires: each share takes 2(n-1) hops.
    pub fn all_reduce_by_rings(&self, rings: &Packing<Vec<u32>>) -> Wires {
        Wires {
            count: (rings.items.len() * self.ranks()) as u64,
            parts: 2 * u64::from(rings.split) * (self.ranks() as u64).saturating_sub(1).max(1),
        }
    }

    /// The share of all wires that rings use, in thousandths, rounded down.
    pub fn share_of_wires(&self, rings: &Packing<Vec<u32>>) -> u64 {
        let used = Wires { count: (rings.items.len() * self.ranks()) as u64, parts: rings.split.into() };
        used.thousandths_of(Wires { count: self.wire_count(), parts: 1 })
    }

    fn residual(&self, split: u32) -> Residual {
        let wires = |cell: usize| self.wires(cell / self.ranks(), cell % self.ranks()) * split;
        Residual { ranks: self.ranks(), wires: (0..self.ranks() * self.ranks()).map(wires).collect() }
    }
}

/// Up to `most` rings that share no wire.
fn side_by_side(residual: &Residual, most: usize) -> Vec<Vec<u32>> {
    if residual.ranks < 2 || most == 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut left = residual.clone();
    if residual.ranks > 2 {
        let links = residual.links();
        for ring in Search::run(&links, most.min(links.least_degree()) / 2, true) {
            let back: Vec<u32> = ring.iter().rev().copied().collect();
            left.take(&ring);
            left.take(&back);
            found.extend([ring, back]);
        }
    }
    if found.len() < most {
        found.extend(Search::run(&left, (most - found.len()).min(left.least_degree()), false));
    }
    if found.len() < most {
        let one_way = Search::run(residual, most, false);
        if one_way.len() > found.len() {
            return one_way;
        }
    }
    found
}

/// Unused wires.
#[derive(Clone)]
struct Residual {
    ranks: usize,
    wires: Vec<u32>,
}

impl Residual {
    fn wires(&self, source: usize, target: usize) -> u32 {
        self.wires[source * self.ranks + target]
    }

    /// The links that go both ways.
    fn links(&self) -> Self {
        let link = |cell: usize| {
            let (a, b) = (cell / self.ranks, cell % self.ranks);
            self.wires(a, b).min(self.wires(b, a))
        };
        Self { ranks: self.ranks, wires: (0..self.wires.len()).map(link).collect() }
    }

    fn out_degree(&self, rank: usize) -> usize {
        (0..self.ranks).map(|peer| self.wires(rank, peer) as usize).sum()
    }

    fn in_degree(&self, rank: usize) -> usize {
        (0..self.ranks).map(|peer| self.wires(peer, rank) as usize).sum()
    }

    fn least_degree(&self) -> usize {
        (0..self.ranks).map(|rank| self.out_degree(rank).min(self.in_degree(rank))).min().unwrap_or(0)
    }

    fn take(&mut self, ring: &[u32]) {
        self.change(ring, |wires| *wires -= 1);
    }

    fn give(&mut self, ring: &[u32]) {
        self.change(ring, |wires| *wires += 1);
    }

    fn change(&mut self, ring: &[u32], change: impl Fn(&mut u32)) {
        for (at, source) in ring.iter().enumerate() {
            let target = ring[(at + 1) % ring.len()];
            change(&mut self.wires[*source as usize * self.ranks + target as usize]);
        }
    }

    /// Whether every rank reaches every other.
    fn is_connected(&self) -> bool {
        let reaches_all = |wired: &dyn Fn(usize, usize) -> bool| {
            let mut seen = vec![0];
            let mut next = 0;
            while let Some(&at) = seen.get(next) {
                let new = (0..self.ranks).filter(|peer| wired(at, *peer) && !seen.contains(peer));
                seen.extend(new.collect::<Vec<_>>());
                next += 1;
            }
            seen.len() == self.ranks
        };
        reaches_all(&|a, b| self.wires(a, b) > 0) && reaches_all(&|a, b| self.wires(b, a) > 0)
    }
}

/// One search for a number of rings.
struct Search {
    residual: Residual,
    /// Whether a ring takes links, the wire back with every wire.
    both_ways: bool,
    /// The order in which equally wide peers are tried.
    order: Vec<usize>,
    steps_left: u32,
    rings: Vec<Vec<u32>>,
    best: Vec<Vec<u32>>,
    path: Vec<u32>,
    outside: Vec<bool>,
}

impl Search {
    /// Finds at most `wanted` rings.
    fn run(residual: &Residual, wanted: usize, both_ways: bool) -> Vec<Vec<u32>> {
        let mut best = Vec::new();
        for attempt in 0..ATTEMPTS {
            if wanted == 0 || !residual.is_connected() {
                break;
            }
            let mut search = Self {
                residual: residual.clone(),
                both_ways,
                order: shuffled(residual.ranks, attempt),
                steps_left: STEPS_MAX,
                rings: Vec::new(),
                best: Vec::new(),
                path: Vec::new(),
                outside: vec![true; residual.ranks],
            };
            search.next_ring(wanted);
            if search.best.len() > best.len() {
                best = search.best;
            }
            if best.len() == wanted {
                break;
            }
        }
        best
    }

    /// Searches for the `missing` rings; true if it has found them all.
    fn next_ring(&mut self, missing: usize) -> bool {
        if self.rings.len() > self.best.len() {
            self.best = self.rings.clone();
        }
        if missing == 0 {
            return true;
        }
        let ends = if self.both_ways { 2 * missing } else { missing };
        let few = |rank: &usize| self.residual.out_degree(*rank).min(self.residual.in_degree(*rank));
        let Some(start) = (0..self.residual.ranks).min_by_key(few) else { return false };
        if few(&start) < ends || !self.residual.is_connected() {
            return false;
        }
        let path = std::mem::replace(&mut self.path, vec![start as u32]);
        let outside = std::mem::replace(&mut self.outside, vec![true; self.residual.ranks]);
        self.outside[start] = false;
        let done = self.extend(missing);
        (self.path, self.outside) = (path, outside);
        done
    }

    /// Grows the ring by a rank, or closes it.
    fn extend(&mut self, missing: usize) -> bool {
        if self.steps_left == 0 {
            return false;
        }
        self.steps_left -= 1;
        let (start, at) = (self.path[0] as usize, self.path[self.path.len() - 1] as usize);
        if self.path.len() == self.residual.ranks {
            return self.residual.wires(at, start) > 0 && self.close(missing);
        }
        if !self.can_go_on(start, at) {
            return false;
        }
        let mut peers: Vec<usize> = self
            .order
            .iter()
            .copied()
            .filter(|&peer| self.outside[peer] && self.residual.wires(at, peer) > 0)
            .collect();
        // Wide bundles first: most of their wires are still unused.
        peers.sort_by_key(|peer| std::cmp::Reverse(self.residual.wires(at, *peer)));
        let tight =
            at == start && self.residual.out_degree(start) == missing * if self.both_ways { 2 } else { 1 };
        for peer in peers {
            self.outside[peer] = false;
            self.path.push(peer as u32);
            let done = self.extend(missing);
            self.path.pop();
            self.outside[peer] = true;
            if done {
                return true;
            }
            // Every wire of the start must be used by some ring; if this peer fails, no ring can use its wire.
            if tight {
                return false;
            }
        }
        false
    }

    fn close(&mut self, missing: usize) -> bool {
        let ring = self.path.clone();
        let back: Vec<u32> = ring.iter().rev().copied().collect();
        self.residual.take(&ring);
        if self.both_ways {
            self.residual.take(&back);
        }
        self.rings.push(ring.clone());
        let done = self.next_ring(missing - 1);
        self.rings.pop();
        self.residual.give(&ring);
        if self.both_ways {
            self.residual.give(&back);
        }
        done
    }

    /// Whether every rank outside can still be entered and left.
    fn can_go_on(&self, start: usize, at: usize) -> bool {
        let open = |rank: usize| self.outside[rank];
        let passable = |rank: usize| {
            let entered = (0..self.residual.ranks)
                .any(|peer| (open(peer) || peer == at) && self.residual.wires(peer, rank) > 0);
            let left = (0..self.residual.ranks)
                .any(|peer| (open(peer) || peer == start) && self.residual.wires(rank, peer) > 0);
            entered && left
        };
        (0..self.residual.ranks).filter(|rank| open(*rank)).all(passable)
    }
}

/// The numbers below `count` in an order that depends on the attempt; in order for the first.
fn shuffled(count: usize, attempt: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = u64::from(attempt);
    for at in (1..count).rev().filter(|_| attempt > 0) {
        // Knuth's 64-bit linear congruential generator: any deterministic shuffle will do.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(at, (state >> 33) as usize % (at + 1));
    }
    order
}
