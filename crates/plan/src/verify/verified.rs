//! The result of a proof. [`Verified`] has no public constructor, no public fields and no `Deserialize`, so that safe code gets one only
//! from [`verify`](crate::verify()).

use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::order::Order;
use crate::plan::{Buffer, Input, Plan};
use crate::reduction::Reduction;
use crate::well_formed::WellFormed;

/// A plan that [`verify`](crate::verify()) has proved. Executors rely on it for memory safety.
///
/// Safe code can neither build a `Verified`
///
/// ```compile_fail,E0451
/// use weftlink_plan::{Order, Plan, Verified};
///
/// fn forged(plan: Plan) -> Verified {
///     Verified { plan, hash: 0, order: Order::Any }
/// }
/// ```
///
/// nor read one from a file
///
/// ```compile_fail,E0277
/// use weftlink_plan::Verified;
///
/// fn forged(text: &str) -> Option<Verified> {
///     serde_json::from_str(text).ok()
/// }
/// ```
///
/// nor change the plan inside one:
///
/// ```compile_fail,E0594
/// use weftlink_plan::Verified;
///
/// fn changed(mut plan: Verified) -> Verified {
///     plan.ranks += 1;
///     plan
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    plan: Plan,
    hash: u64,
    order: Order,
}

impl Deref for Verified {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}

impl Verified {
    /// The verifier's verdict on a plan that it has proved.
    pub(super) fn proved(plan: Plan, order: Order) -> Self {
        let hash = plan.fingerprint();
        Self { plan, hash, order }
    }

    /// The plan's fingerprint. Ranks compare it to make sure that they run the same plan.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The result of the proof, to be sent to processes that have built the same plan.
    pub fn proof(&self) -> Proof {
        Proof { hash: self.hash, order: self.order }
    }

    /// How far every reduction combines the ranks in their order. [`Order::Any`] if the plan was proved by classes, which does not
    /// track the order.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Whether every reduction combines the ranks in their order, so that an operation need not commute.
    pub fn in_rank_order(&self) -> bool {
        self.order >= Order::Ranks
    }

    /// Whether the plan can run a reduction; the error says why not. A reduction that does not commute needs the ranks' order, and a
    /// switch combines the bytes it finds in memory, with its own operations.
    pub fn allows(&self, reduction: Reduction) -> Result<(), String> {
        let lanes = self.programs.iter().flat_map(|program| &program.lanes);
        let inputs: Vec<&Input> = lanes.flat_map(|lane| lane.steps()).flat_map(|step| &step.inputs).collect();
        let mut by_switch = inputs.iter().filter_map(|input| match input {
            Input::Switch(grouped) => Some(grouped.buffer),
            _ => None,
        });
        let name = &self.name;
        if !self.collective.reduces() {
            return Ok(());
        }
        if !reduction.commutes() && !self.in_rank_order() {
            return Err(format!(
                "a {reduction} reduction that does not commute needs a plan that combines ranks in their order, which \
                 {name} is not known to do"
            ));
        }
        if matches!(reduction, Reduction::UserDefined { .. }) && by_switch.clone().next().is_some() {
            return Err(format!("{name} combines in a switch, which cannot run a {reduction} reduction"));
        }
        if reduction.changes_inputs() && by_switch.any(|buffer| buffer == Buffer::Input) {
            return Err(format!(
                "{name} combines inputs in a switch, as they are in memory, but a {reduction} changes them first"
            ));
        }
        Ok(())
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

/// The result of a proof, without the plan. A proof takes long for many ranks, and all ranks of a job build the same plans: one rank
/// proves, and the others check that their plan is the same.
///
/// A `Proof` can be sent to another process as bytes, which any process can write. It proves nothing by itself, and turning it back
/// into a [`Verified`] is unsafe: see [`Proof::of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    hash: u64,
    order: Order,
}

impl Proof {
    /// The plan as a verified one; nothing if its fingerprint is not that of the plan that was proved.
    ///
    /// # Safety
    /// [`verify`](crate::verify()) has accepted this very plan, here or in another process of the same job. Executors do not check
    /// bounds that a proof covers, so an unproved plan writes outside its buffers. The fingerprint detects two builds that write
    /// different plans; it does not stop an attacker who chooses both the plan and the proof.
    ///
    /// Safe code therefore cannot run a plan by a proof that it has read from somewhere:
    ///
    /// ```compile_fail,E0133
    /// use weftlink_plan::{Plan, Proof, Verified};
    ///
    /// fn forged(plan: Plan, text: &str) -> Option<Verified> {
    ///     let proof: Proof = serde_json::from_str(text).ok()?;
    ///     proof.of(plan)
    /// }
    /// ```
    #[allow(unsafe_code, reason = "only the declaration: the caller guarantees what the type promises")]
    pub unsafe fn of(self, plan: Plan) -> Option<Verified> {
        (plan.fingerprint() == self.hash).then_some(Verified { plan, hash: self.hash, order: self.order })
    }
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, Collective, verify};

    #[test]
    #[allow(unsafe_code)]
    fn a_proof_fits_one_plan_only() {
        let plan = |ranks| Algorithm::Ring.flat(&Collective::AllReduce, ranks, 1).unwrap();
        let proved = verify(plan(4)).unwrap();
        // SAFETY: the result is compared and dropped; nothing runs it.
        let of = |plan| unsafe { proved.proof().of(plan) };
        assert_eq!(of(plan(4)), Some(proved.clone()));
        assert_eq!(of(plan(5)), None);
        let mut changed = plan(4);
        changed.name.push('s');
        assert_eq!(of(changed), None);
    }
}
