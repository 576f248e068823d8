//! The verifier: proves that a plan computes its collective, whatever the schedule.
//!
//! It runs the [interpreter](crate::interpret) over expressions and vector clocks, under every aliasing the plan
//! claims, once for calls of one tile and once for calls of as many tiles as the deepest FIFO has slots and one more,
//! so that every slot, counter and scratch chunk is used again while its last user may still be near. One run each is
//! enough: see [`plan`](crate::plan). What it shows:
//!
//! - every output chunk is the reduction of every rank's chunk, each exactly once, and of this call and tile;
//! - all ranks combine in the same order, so that they hold the same bits;
//! - no step combines different chunks or puts one where another belongs, so that each has one length in elements;
//! - nothing waits for ever;
//! - no two accesses of the same memory are unordered unless both read, the caller's own before and after included;
//! - an out-of-place call leaves its input alone.

use std::ops::Deref;

use crate::domain::contributions::Contributions;
use crate::interpret::{Blocked, Machine, Shape, Unset};
use crate::plan::{Plan, Wait};
use crate::refusal::{Fault, Refusal, Spot};
use crate::well_formed::WellFormed;

/// How many of the waiting lanes a deadlock shows.
const WAITING_SHOWN: usize = 4;

/// A plan that was proved. Only [`verify`] makes one, and it cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    plan: Plan,
    hash: u64,
}

impl Deref for Verified {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}

impl Verified {
    /// A number that ranks compare to know that they run the same plan.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The plan, for the interpreter.
    pub fn well_formed(&self) -> WellFormed<'_> {
        WellFormed::trusted(&self.plan)
    }

    /// The plan, to be changed; it has to be verified again.
    pub fn into_plan(self) -> Plan {
        self.plan
    }
}

/// Proves a plan, or says where it is wrong.
pub fn verify(plan: Plan) -> Result<Verified, Refusal> {
    let checked = WellFormed::check(&plan)?;
    let rounds = checked.rounds();
    for &aliasing in &checked.aliasing {
        for (calls, tiles) in [(rounds, 1), (2, rounds)] {
            prove(checked, Shape { calls, tiles, aliasing })?;
        }
    }
    let hash = plan.fingerprint();
    Ok(Verified { plan, hash })
}

/// Runs a plan once in the given shape, looking for faults.
fn prove(plan: WellFormed<'_>, shape: Shape) -> Result<(), Refusal> {
    let refuse = |spot, fault| Err(Refusal { plan: plan.name.clone(), spot, fault: Box::new(fault) });
    let mut machine = Machine::new(plan, shape, Contributions::new(plan, shape));
    let ran = machine.run(|domain, _, _| domain.fault.is_none());
    if let Err(Unset { spot, cell }) = ran {
        return refuse(Some(spot), Fault::Unset { aliasing: shape.aliasing, cell });
    }
    let blocked = machine.blocked();
    if let Some((spot, fault)) = machine.into_domain().fault {
        return refuse(spot, fault);
    }
    if let Some((spot, _)) = blocked.first() {
        let waiting = blocked.iter().take(WAITING_SHOWN).map(|(spot, why)| waiting(spot, why)).collect();
        return refuse(Some(spot.clone()), Fault::Deadlock { aliasing: shape.aliasing, waiting });
    }
    Ok(())
}

/// Who waits for what, in a clause.
fn waiting(spot: &Spot, why: &Blocked) -> String {
    let what = match why {
        Blocked::Finished => return format!("{spot} has finished"),
        Blocked::Waits(Wait::Entered { rank }) => format!("rank {rank} to enter"),
        Blocked::Waits(Wait::Reached { rank, counter, count }) => {
            format!("counter {counter} of rank {rank} to reach {count}")
        }
        Blocked::Empty { from } => format!("a message from rank {from}"),
        Blocked::Full { to } => format!("a free slot towards rank {to}"),
    };
    format!("{spot} waits for {what}")
}
