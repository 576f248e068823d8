//! Plans
//!
//! A plan is an algorithm for one collective and a number of ranks. A plan is verified when it is read:
//! it computes its collective on every schedule, without deadlocks and data races.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::Read;
use std::sync::Arc;

use weftlink::plan::{Collective, Kind, MscclError, Plan, Verified, verify};
use weftlink::{Error, PlanId};

use crate::any::{Op, Type};
use crate::call::Call;
use crate::comm::{lock, weft_comm};
use crate::error::{Failure, c_string, guard, weft_status};
use crate::pointer::{check_not_null, reference, text};
use crate::request::weft_request;

/// A verified plan.
pub struct weft_plan {
    plan: Arc<Verified>,
    name: CString,
    collective: CString,
}

/// The longest file, as for `weft plan --verify`.
const BYTES_MAX: u64 = 64 << 20;

/// Reads a plan from text: MSCCL's XML or Weft's JSON (`weft plan --emit json`), and verifies it. A plan
/// that is refused is an error that names rank, lane and step.
///
/// # Safety
/// `text` is null or a text, `plan` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_plan_parse(text: *const c_char, plan: *mut *mut weft_plan) -> weft_status {
    guard(|| {
        check_not_null(plan, "plan")?;
        // SAFETY: the caller's.
        let made = parsed(unsafe { self::text(text, "text") }?)?;
        // SAFETY: as above.
        unsafe { plan.write(Box::into_raw(Box::new(made))) };
        Ok(())
    })
}

/// Reads a plan from a file, and verifies it.
///
/// # Safety
/// `path` is null or a text, `plan` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_plan_read(path: *const c_char, plan: *mut *mut weft_plan) -> weft_status {
    guard(|| {
        check_not_null(plan, "plan")?;
        // SAFETY: the caller's.
        let path = unsafe { text(path, "path") }?;
        let named = |error: &dyn std::fmt::Display| Failure::misuse(format!("cannot read {path}: {error}"));
        let (mut file, mut content) =
            (std::fs::File::open(path).map_err(|error| named(&error))?, String::new());
        file.by_ref().take(BYTES_MAX + 1).read_to_string(&mut content).map_err(|error| named(&error))?;
        if content.len() as u64 > BYTES_MAX {
            return Err(Failure::misuse(format!("{path} is larger than 64 MiB, the limit for a plan")));
        }
        let in_file = |failure: Failure| Failure { text: format!("{path}: {}", failure.text), ..failure };
        let made = parsed(&content).map_err(in_file)?;
        // SAFETY: as above.
        unsafe { plan.write(Box::into_raw(Box::new(made))) };
        Ok(())
    })
}

/// The plan that the communicator would choose for a call: `collective` by its name ("all-reduce"), and
/// the arguments of its function. Pass WEFT_NO_OP or root 0 where it has none. All ranks ask for the
/// same call. The buffers are not changed.
///
/// # Safety
/// `comm` is null or a communicator, `collective` null or a text, `plan` null or valid; the buffers are as for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_chosen_plan(
    comm: *mut weft_comm,
    collective: *const c_char,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
    root: c_int,
    plan: *mut *mut weft_plan,
) -> weft_status {
    guard(|| {
        check_not_null(plan, "plan")?;
        // SAFETY: the caller's.
        let (comm, name) = unsafe { (reference(comm, "comm")?, text(collective, "collective")?) };
        let collective = named(name, weft_comm::root(root)?)?;
        let request = Call::new(collective, input, output, count, data_type).op(op).request(comm)?;
        // SAFETY: as above.
        let chosen = unsafe { comm.background()?.plan_of_raw(request) };
        let made = weft_plan::new(chosen.map_err(|error| comm.failure(error))?);
        // SAFETY: as above.
        unsafe { plan.write(Box::into_raw(Box::new(made))) };
        Ok(())
    })
}

/// Runs a plan, and waits for it. `count` is the number of elements of a block, as for the function of
/// its collective; `op` is WEFT_NO_OP if that combines nothing. The first call with a plan loads it: all
/// ranks make it, and wait for each other.
///
/// # Safety
/// `comm` is null or a communicator, `plan` null or a plan; the buffers are as long as its collective needs, and nothing else uses them
/// during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_plan_run(
    comm: *mut weft_comm,
    plan: *const weft_plan,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        let plan = unsafe { reference(plan, "plan") }?;
        // SAFETY: as above.
        let loaded = plan.loaded(unsafe { reference(comm, "comm") }?)?;
        let collective = plan.plan.collective.clone();
        // SAFETY: as above.
        unsafe { Call::new(collective, input, output, count, data_type).op(op).plan(loaded).run(comm) }
    })
}

/// Starts weft_plan_run. The first call with a plan still waits for the other ranks.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_plan_start(
    comm: *mut weft_comm,
    plan: *const weft_plan,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: Type,
    op: Op,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        let plan = unsafe { reference(plan, "plan") }?;
        // SAFETY: as above.
        let loaded = plan.loaded(unsafe { reference(comm, "comm") }?)?;
        let collective = plan.plan.collective.clone();
        let call = Call::new(collective, input, output, count, data_type).op(op).plan(loaded);
        // SAFETY: as above.
        unsafe { call.start(comm, request) }
    })
}

/// The name of a plan, valid until it is freed; null for a null pointer.
///
/// # Safety
/// `plan` is null or a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_plan_name(plan: *const weft_plan) -> *const c_char {
    // SAFETY: the caller's.
    unsafe { plan.as_ref() }.map_or(std::ptr::null(), |plan| plan.name.as_ptr())
}

/// The collective of a plan, as "all-reduce" or "broadcast from rank 1", valid until the plan is freed;
/// null for a null pointer.
///
/// # Safety
/// `plan` is null or a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_plan_collective(plan: *const weft_plan) -> *const c_char {
    // SAFETY: the caller's.
    unsafe { plan.as_ref() }.map_or(std::ptr::null(), |plan| plan.collective.as_ptr())
}

/// The number of ranks of a plan; 0 for a null pointer.
///
/// # Safety
/// `plan` is null or a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_plan_ranks(plan: *const weft_plan) -> c_int {
    // SAFETY: the caller's.
    unsafe { plan.as_ref() }.map_or(0, |plan| plan.plan.ranks as c_int)
}

/// Frees a plan. Communicators that have loaded it keep it. Does nothing with a null pointer.
///
/// # Safety
/// `plan` is null or a plan that nothing else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_plan_free(plan: *mut weft_plan) -> weft_status {
    guard(|| {
        if !plan.is_null() {
            // SAFETY: the caller's: it came from `Box::into_raw`, and nothing else uses it.
            drop(unsafe { Box::from_raw(plan) });
        }
        Ok(())
    })
}

impl weft_plan {
    fn new(plan: Arc<Verified>) -> Self {
        let (name, collective) = (c_string(&plan.name), c_string(&plan.collective.to_string()));
        Self { plan, name, collective }
    }

    /// The plan in a communicator, which loads it unless it has.
    fn loaded(&self, comm: &weft_comm) -> Result<PlanId, Failure> {
        let known = |(plan, _): &&(Arc<Verified>, PlanId)| Arc::ptr_eq(plan, &self.plan);
        if let Some((_, loaded)) = lock(&comm.plans).iter().find(known) {
            return Ok(*loaded);
        }
        let plan = Arc::clone(&self.plan);
        let loaded = comm.with(move |comm| comm.load(plan))?;
        lock(&comm.plans).push((Arc::clone(&self.plan), loaded));
        Ok(loaded)
    }
}

fn parsed(text: &str) -> Result<weft_plan, Failure> {
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let plan = match text.chars().next() {
        Some('<') => Plan::from_msccl(text).map_err(|error| {
            let refused = !matches!(error, MscclError::Text { .. });
            let status = if refused { weft_status::WEFT_REFUSED } else { weft_status::WEFT_MISUSE };
            Failure { status, ..Failure::misuse(error.to_string()) }
        })?,
        Some('{') => Plan::from_json(text).map_err(|error| Failure::misuse(error.to_string()))?,
        _ => {
            let what = "not a plan: it begins neither with `{` (JSON) nor with `<` (MSCCL's XML)";
            return Err(Failure::misuse(what));
        }
    };
    Ok(weft_plan::new(Arc::new(verify(plan).map_err(Error::from)?)))
}

/// The collective of a name, if it needs no arguments but a root.
fn named(name: &str, root: u32) -> Result<Collective, Failure> {
    let kind: Kind =
        name.parse().map_err(|error: weftlink::plan::UnknownKind| Failure::misuse(error.to_string()))?;
    Ok(match kind {
        Kind::AllReduce => Collective::AllReduce,
        Kind::Reduce => Collective::Reduce { root },
        Kind::Broadcast => Collective::Broadcast { root },
        Kind::AllGather => Collective::AllGather,
        Kind::ReduceScatter => Collective::ReduceScatter,
        Kind::AllToAll => Collective::AllToAll,
        Kind::Gather => Collective::Gather { root },
        Kind::Scatter => Collective::Scatter { root },
        Kind::Scan => Collective::Scan,
        Kind::ExclusiveScan => Collective::ExclusiveScan,
        Kind::Barrier => Collective::Barrier,
        other => return Err(Failure::misuse(format!("weft_chosen_plan does not support {other}"))),
    })
}
