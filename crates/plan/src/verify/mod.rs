//! The verifier: proves that a plan computes its collective under every schedule.
//!
//! It runs the [interpreter](crate::interpret) over expressions and vector clocks, for every aliasing that the plan
//! supports: once with calls of one tile and once with calls of one tile more than the deepest FIFO has slots, so that
//! every slot, counter and scratch chunk is reused while its last use may still be in progress. One run each is enough:
//! see [`plan`](crate::plan). The proof shows that
//!
//! - every output chunk holds what the collective promises, of this call and tile: one rank's chunk, or the reduction of
//!   the ranks' chunks, each exactly once; no rank leaves a barrier that another has not entered;
//! - all ranks combine in the same order and hold the same bits, if the plan claims so;
//! - no step combines different chunks or stores one in the place of another, so that each chunk has one length;
//! - nothing deadlocks;
//! - any two accesses of the same memory are ordered unless both read, including the caller's before and after the call;
//! - an out-of-place call does not change its input.
//!
//! It checks the symmetry that a plan declares, and runs a large plan by its [classes](crate::classes).

mod clocks;
mod contributions;
mod expressions;
mod verified;

use self::contributions::Contributions;
pub use self::verified::{Proof, Verified};
use crate::classes::Classes;
use crate::interpret::{Blocked, Machine, Shape, Unset};
use crate::limits::{EXACT_WORK_MAX, TURNED_MAX, limits};
use crate::order::Order;
use crate::plan::{Agreement, Plan, Wait};
use crate::refusal::{Fault, Refusal, Spot};
use crate::well_formed::WellFormed;

/// The number of waiting lanes that a deadlock lists.
const WAITING_SHOWN: usize = 4;

/// Proves a plan; the error says where it is wrong.
pub fn verify(plan: Plan) -> Result<Verified, Refusal> {
    verify_up_to(plan, EXACT_WORK_MAX)
}

/// The same by the classes that a plan declares, even for small plans: tests compare the two.
#[doc(hidden)]
pub fn verify_by_classes(plan: Plan) -> Result<Verified, Refusal> {
    verify_up_to(plan, 0)
}

/// Proves a plan rank by rank if that takes at most `exact_work_max`, else by its classes.
fn verify_up_to(plan: Plan, exact_work_max: u64) -> Result<Verified, Refusal> {
    let checked = WellFormed::check(&plan)?;
    let classes = classes(checked, exact_work_max)?;
    let rounds = checked.rounds();
    let mut order = if classes.are_trivial() { Order::Canonical } else { Order::Any };
    for &aliasing in &checked.aliasing {
        for (calls, tiles) in [(rounds, 1), (2, rounds)] {
            order = order.min(prove(checked, Shape { calls, tiles, aliasing }, &classes)?);
        }
    }
    // After the proof, so that a fault of the plan is reported before one of its symmetry.
    if classes.are_trivial() {
        declared_classes(checked)?;
    }
    Ok(Verified::proved(plan, order))
}

/// Whether the ranks' results of a plan have the same bits. Ignores all other faults, which are left to [`verify`].
pub(crate) fn agreement(plan: &Plan) -> Agreement {
    let Ok(checked) = WellFormed::check(plan) else { return Agreement::SameBits };
    let Ok(classes) = classes(checked, EXACT_WORK_MAX) else { return Agreement::SameBits };
    let shape = |aliasing| Shape { calls: 1, tiles: 1, aliasing };
    let ran = checked.aliasing.iter().map(|&aliasing| prove(checked, shape(aliasing), &classes));
    let differs = |refusal: &Refusal| matches!(*refusal.fault, Fault::Order { .. });
    match ran.filter_map(Result::err).any(|refusal| differs(&refusal)) {
        true => Agreement::UpToRounding,
        false => Agreement::SameBits,
    }
}

/// Runs a plan once in the given shape and looks for faults; returns how far all reductions keep the ranks' order.
fn prove(plan: WellFormed<'_>, shape: Shape, classes: &Classes) -> Result<Order, Refusal> {
    let refuse = |spot, fault| Err(Refusal { plan: plan.name.clone(), spot, fault: Box::new(fault) });
    let domain = Contributions::new(plan, shape, classes.clone());
    let mut machine = Machine::by_classes(plan, shape, domain, classes.clone());
    let ran = machine.run(|domain, _, _| domain.fault.is_none());
    if let Err(Unset { spot, cell }) = ran {
        return refuse(Some(spot), Fault::Unset { aliasing: shape.aliasing, cell });
    }
    let blocked = machine.blocked();
    let domain = machine.into_domain();
    if let Some((spot, fault)) = domain.fault {
        return refuse(spot, fault);
    }
    if let Some((spot, _)) = blocked.first() {
        let waiting = blocked.iter().take(WAITING_SHOWN).map(|(spot, why)| waiting(spot, why)).collect();
        return refuse(Some(spot.clone()), Fault::Deadlock { aliasing: shape.aliasing, waiting });
    }
    Ok(domain.order)
}

/// A blocked lane as text.
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

/// The classes by which a plan is proved: every rank on its own up to `exact_work_max`, else those that it declares.
fn classes(plan: WellFormed<'_>, exact_work_max: u64) -> Result<Classes, Refusal> {
    let refuse = |spot, fault| Refusal { plan: plan.name.clone(), spot, fault: Box::new(fault) };
    let trivial = Classes::trivial(plan.ranks);
    let exact = plan.proof_work(&trivial) <= exact_work_max;
    let classes = if exact { trivial } else { declared_classes(plan)? };
    limits(plan.plan(), &classes).map_err(|fault| refuse(None, fault))?;
    Ok(classes)
}

/// The classes that a plan declares, after a check of its symmetry; every rank on its own if it declares none.
fn declared_classes(plan: WellFormed<'_>) -> Result<Classes, Refusal> {
    let refuse = |spot, fault| Refusal { plan: plan.name.clone(), spot, fault: Box::new(fault) };
    let digits = plan.symmetry.iter().flat_map(|symmetry| &symmetry.ranks);
    let turning = digits.filter(|digit| digit.turns).count() as u64;
    let outputs = u64::from(plan.ranks) * u64::from(plan.chunks.output);
    for (what, each) in [
        ("the number of ranks times chunks of output times digits that turn", outputs),
        ("the work of one tile times digits that turn", plan.work()),
    ] {
        let (value, limit) = (each * turning, TURNED_MAX);
        if value > limit {
            return Err(refuse(None, Fault::TooLarge { what, value, limit }));
        }
    }
    Classes::check(plan.plan()).map_err(|(spot, what)| refuse(spot, Fault::Malformed(what)))
}
