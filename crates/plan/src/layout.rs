//! The layout of ranks on the wiring, as algorithms see it.
//!
//! An algorithm takes a layout and writes a plan. A layout comes from a fabric, where a search finds rings and trees, or is
//! [flat](Layout::flat) if the wiring is unknown.

/// Ranks on their wiring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The ranks by island: those that reach each other over GPU links or, where there are none, inside a host. A
    /// rank's position in its island is its rail.
    pub islands: Vec<Vec<u32>>,
    /// Rings through all ranks, each a cyclic order. All carry the same share.
    pub rings: Vec<Vec<u32>>,
    /// Spanning trees over all ranks that share no link, if they carry more than rings do.
    pub trees: Vec<Tree>,
    /// Whether any two ranks of an island reach each other at the full speed of their ports.
    pub switched: bool,
    /// Whether every island's switches multicast and reduce; if not, why.
    pub multicast: Result<(), String>,
    /// Whether the network's switches reduce; if not, why.
    pub network_reduces: Result<(), String>,
}

/// A spanning tree of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The parent of each rank; nothing for the root.
    pub parents: Vec<Option<u32>>,
}

impl Layout {
    /// Ranks on unknown wiring: one island in which every rank reaches every other, with `rings` in the order of the ranks, every
    /// second one reversed.
    ///
    /// # Panics
    /// If there are no ranks or no rings.
    pub fn flat(ranks: u32, rings: u32) -> Self {
        Self::grid(1, ranks, rings)
    }

    /// Equal islands whose switches multicast and reduce, with ranks numbered island by island.
    ///
    /// # Panics
    /// If there are no islands, ranks or rings.
    pub fn grid(islands: u32, ranks_per_island: u32, rings: u32) -> Self {
        assert!(islands > 0 && ranks_per_island > 0 && rings > 0, "a layout needs ranks and rings");
        let ranks = islands * ranks_per_island;
        let forward: Vec<u32> = (0..ranks).collect();
        let backward: Vec<u32> = (0..ranks).rev().collect();
        let ring = |number: u32| if number.is_multiple_of(2) { forward.clone() } else { backward.clone() };
        let one = "there is no network between ranks of one island".to_owned();
        Self {
            islands: forward.chunks(ranks_per_island as usize).map(<[u32]>::to_vec).collect(),
            rings: (0..rings).map(ring).collect(),
            trees: Vec::new(),
            switched: true,
            multicast: Ok(()),
            network_reduces: if islands > 1 { Ok(()) } else { Err(one) },
        }
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        self.islands.iter().map(|island| island.len() as u32).sum()
    }

    /// The number of ranks of each island, if it is the same for all.
    pub fn per_island(&self) -> Option<u32> {
        let first = self.islands.first()?.len();
        self.islands.iter().all(|island| island.len() == first).then_some(first as u32)
    }

    /// The island of each rank, and its position there.
    pub fn places(&self) -> Vec<(u32, u32)> {
        let mut places = vec![(0, 0); self.ranks() as usize];
        for (number, island) in (0..).zip(&self.islands) {
            for (position, &rank) in (0..).zip(island) {
                places[rank as usize] = (number, position);
            }
        }
        places
    }
}
