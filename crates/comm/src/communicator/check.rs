//! Whether a call can be made at all. What is refused here has not been announced, so the communicator stays as it was.

use weftlink_plan::Verified;

use crate::engine::Engine;
use crate::error::Error;
use crate::window::Buffers;

/// Whether buffers can be passed to any call of this communicator.
#[inline]
pub(super) fn check_buffers(buffers: &Buffers<'_>, identity: u64) -> Result<(), Error> {
    if buffers.input_length != buffers.output_length {
        return Err(uneven(buffers));
    }
    if buffers.is_symmetric() && buffers.owner != identity {
        return Err(Error::Misuse("a window of another communicator cannot be used here".to_owned()));
    }
    Ok(())
}

#[cold]
fn uneven(buffers: &Buffers<'_>) -> Error {
    let (input, output) = (buffers.input_length, buffers.output_length);
    Error::Misuse(format!("an all-reduce has as many elements out as in, not {input} in and {output} out"))
}

/// Whether a plan can be run on these buffers.
#[inline]
pub(super) fn check_plan(engine: &Engine, buffers: &Buffers<'_>) -> Result<(), Error> {
    let claimed = engine.claims(buffers.aliasing);
    let reachable = buffers.is_symmetric() || !engine.needs_windows();
    if claimed && reachable { Ok(()) } else { Err(unfit(&engine.plan, buffers, reachable)) }
}

#[cold]
fn unfit(plan: &Verified, buffers: &Buffers<'_>, reachable: bool) -> Error {
    let name = &plan.name;
    Error::Misuse(if reachable {
        format!("the plan {name:?} is not proved for buffers that are passed {}", buffers.aliasing)
    } else {
        format!("the plan {name:?} reaches into peers' buffers: pass windows (symmetric memory)")
    })
}
