//! Taking a slot in the tree: waiting for the children, and for all ranks to be in place.

use std::sync::Arc;

use weftlink_membership::tree::Shape;

use super::deadline::Deadline;
use super::error::{BootstrapError, Request};
use super::group::{Group, Link};
use super::message::{Introduction, Member};
use super::monitor::Monitor;

/// Waits for children to connect, and adds them to the links, also before it returns an error: they must hear of it. `over`
/// gets the ranks that are missing, and returns an error if they will not come.
pub(super) fn await_children(
    monitor: &Monitor,
    group: u64,
    children: &[u32],
    links: &mut Vec<Arc<Link>>,
    ask: &Request,
    deadline: Deadline,
    mut over: impl FnMut(&[u32]) -> Result<(), BootstrapError>,
) -> Result<(), BootstrapError> {
    let mut missing = children.to_vec();
    while !missing.is_empty() {
        let wanted = |introduction: &Introduction| match introduction {
            Introduction::Link { group: theirs, from } if *theirs == group => {
                missing.contains(from).then_some(*from)
            }
            _ => None,
        };
        let Some((child, channel)) = monitor.expect(deadline, wanted, || over(&missing))? else {
            let (purpose, limit) = (ask.purpose.clone(), deadline.limit());
            let ranks = missing.into_iter().map(|child| child as usize).collect();
            return Err(BootstrapError::Missing { ranks, purpose, limit });
        };
        missing.retain(|other| *other != child);
        links.push(monitor.link(child, channel));
    }
    links.sort_by_key(|link| link.rank);
    Ok(())
}

/// Sends the members down the tree, and waits until all ranks are in place.
pub(super) fn in_place(
    group: &Group,
    members: Option<Vec<Member>>,
    shape: Shape,
    ask: &Request,
    deadline: Deadline,
) -> Result<(), BootstrapError> {
    let settle = || {
        let members = match members {
            Some(members) => members,
            None => group.await_members(ask, deadline)?,
        };
        group.send_members(&members, ask, deadline)?;
        group.set_members(members, shape);
        group.sweep(0, ask, Vec::new(), deadline, None).map(|_| ())
    };
    settle().inspect_err(|error| group.fail_for(error))
}
