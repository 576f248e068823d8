//! The costs of a plan that is given, such as one from a file. No header has formulas for it, so its hops and bytes are counted on all of its
//! ranks.

use super::candidate::{Terms, path_of, sides, terms};
use super::loads::Medium;
use super::usage::{Usage, messages_across};
use super::{Placement, Prediction};
use crate::algorithms::Impossible;
use crate::domain::hops::{Hops, hops};
use crate::plan::Switch;
use crate::well_formed::WellFormed;
use crate::{Recipe, Verified, Work};

/// A proved plan with its costs on a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The costs that do not depend on the bytes of a call.
    pub terms: Terms,
    hops: Hops,
    /// Chunks that the busiest rank sends or receives inside its island, and the busiest island to or from others.
    moved: (u64, u64),
    /// Chunks of the larger of a rank's input and output.
    chunks: u64,
}

impl Given {
    /// Counts the hops and bytes of a plan, one rank for each GPU of the fabric. All its messages are priced with the protocol of its first
    /// channel.
    pub fn new(plan: &Verified, placement: &Placement<'_>) -> Result<Self, Impossible> {
        let ranks = placement.layout().ranks();
        if plan.ranks != ranks {
            return Err(Impossible(format!(
                "it is for {} ranks, and the fabric has {ranks} GPUs",
                plan.ranks
            )));
        }
        let layout = placement.layout();
        for group in &plan.groups {
            let (what, is_there) = match group.switch {
                Switch::Nvswitch => ("switches of an island", &layout.multicast),
                Switch::Network => ("switches of the network", &layout.network_reduces),
            };
            if let Err(why) = is_there {
                return Err(Impossible(format!("it needs {what} that multicast and reduce: {why}")));
            }
        }
        let recipe = Recipe::of(plan);
        let usage = Usage::of(&recipe);
        let gpu = |rank: u32| placement.fabric().gpus()[rank as usize];
        let mut loads = placement.loads_of_all(&plan.collective);
        let sides = sides(&usage, &mut loads, layout, placement, gpu)?;
        let islands = placement.island_of();
        let hops = hops(WellFormed::trusted(plan), islands)
            .ok_or_else(|| Impossible("it deadlocks; check it with `weft plan verify`".to_owned()))?;
        let all: Vec<u32> = (0..ranks).collect();
        let is_networked = sides.across.is_some_and(|side| side.medium == Medium::Network);
        let messages = match is_networked {
            true => messages_across(&recipe, &all, islands, usage.only_waits()).0,
            false => 0,
        };
        let protocol = plan.channels.first().map(|channel| channel.protocol);
        let terms = Terms {
            messages_across: messages,
            path_per_hop: path_of(u64::from(hops.inside + hops.across), &usage, &plan.collective),
            // The messages are counted, as all other bytes are.
            counted: None,
            ..terms(protocol, plan, &usage, &sides, placement)
        };
        let chunks = plan.chunks.input.max(plan.chunks.output).max(1).into();
        Ok(Self { terms, hops, moved: moved(&usage, islands), chunks })
    }

    /// The predicted time of a call of `bytes`, as nccl-tests count them.
    pub fn predict(&self, placement: &Placement<'_>, bytes: u64) -> Prediction {
        let of = |chunks: u64| {
            let whole = (u128::from(bytes) * u128::from(chunks)).div_ceil(self.chunks.into());
            u64::try_from(whole).unwrap_or(u64::MAX)
        };
        let work = Work {
            hops_inside: self.hops.inside.into(),
            hops_across: self.hops.across.into(),
            rank_bytes: of(self.moved.0),
            island_bytes: of(self.moved.1),
        };
        self.terms.form(placement, work, bytes).predict()
    }
}

/// The chunks that the busiest rank sends or receives inside its island, and that the busiest island sends or receives.
fn moved(usage: &Usage, islands: &[u32]) -> (u64, u64) {
    let island = |rank: u32| islands[rank as usize] as usize;
    let (mut ranks, mut all) = (vec![(0, 0); islands.len()], vec![(0, 0); islands.len()]);
    for (&(from, to), chunks) in &usage.pairs {
        let (ends, source, target) = match island(from) == island(to) {
            true => (&mut ranks, from as usize, to as usize),
            false => (&mut all, island(from), island(to)),
        };
        ends[source].0 += chunks;
        ends[target].1 += chunks;
    }
    for (&rank, &(out, into)) in &usage.nvswitch {
        ranks[rank as usize].0 += out;
        ranks[rank as usize].1 += into;
    }
    for (&(rank, _), &(out, into)) in &usage.network {
        all[island(rank)].0 += out;
        all[island(rank)].1 += into;
    }
    let most = |ends: Vec<(u64, u64)>| ends.into_iter().map(|(out, into)| out.max(into)).max().unwrap_or(0);
    (most(ranks), most(all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose::Chooser;
    use crate::cost::predict;
    use crate::{Collective, verify};
    use weftlink_fabric::resolve;

    /// A plan of a built-in algorithm costs about the same whether its hops and bytes are counted or come from its header, which counts all
    /// bytes of a ring as bytes inside islands.
    #[test]
    fn counts_agree_with_headers() {
        for spec in ["hgx-h100", "dgx-1-v100", "2x hgx-h100 + 8x ndr", "4x-rtx4090"] {
            let fabric = resolve(spec).unwrap();
            let placement = Placement::of(&fabric);
            for collective in
                [Collective::AllReduce, Collective::AllGather, Collective::Broadcast { root: 0 }]
            {
                let chooser = Chooser::new(&collective, false, &placement);
                for bytes in [8, 1 << 20, 1 << 30] {
                    let (candidate, _) = chooser.cheapest(bytes).unwrap();
                    let recipe = candidate.algorithm.recipe(&collective, placement.layout()).unwrap();
                    let recipe = match candidate.protocol {
                        Some(protocol) => recipe.with_protocol(protocol),
                        None => recipe,
                    };
                    let given = Given::new(&verify(recipe.plan()).unwrap(), &placement).unwrap();
                    let headed = predict(candidate, &placement, &collective, bytes).unwrap();
                    let counted = given.predict(&placement, bytes);
                    let ratio = counted.time().0 as f64 / headed.time().0 as f64;
                    let what = format!("{spec} {collective} {bytes} {}", candidate.algorithm);
                    assert!((ratio - 1.0).abs() < 0.15, "{what}: {ratio}\n{counted:?}\n{headed:?}");
                }
            }
        }
    }

    #[test]
    fn plans_that_do_not_fit_are_refused() {
        let fabric = resolve("4x-rtx4090").unwrap();
        let placement = Placement::of(&fabric);
        let plan = |algorithm: crate::Algorithm, ranks| {
            let layout = crate::Layout::flat(ranks, 1);
            verify(algorithm.recipe(&Collective::AllReduce, &layout).unwrap().plan()).unwrap()
        };
        let why = |plan: &Verified| Given::new(plan, &placement).unwrap_err().0;
        assert_eq!(why(&plan(crate::Algorithm::Ring, 3)), "it is for 3 ranks, and the fabric has 4 GPUs");
        assert!(why(&plan(crate::Algorithm::TwoShot, 4)).contains("cannot access"));
        assert!(why(&plan(crate::Algorithm::Nvls, 4)).contains("multicast and reduce"));
    }
}
