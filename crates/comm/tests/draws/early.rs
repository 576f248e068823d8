//! A rank is killed or stopped within 100 ms of its start: before `main`, in the rendezvous, or in its first calls.

use std::time::Duration;

use crate::draw::Draw;
use crate::rank::now;
use crate::scenario::Scenario;

/// The timeout of the rendezvous. All processes start at once, on a machine that may be busy.
pub(crate) const JOIN_TIMEOUT: Duration = Duration::from_secs(6);

/// Whether the rank is killed. Otherwise it is stopped.
pub(crate) fn kills(draw: &Draw) -> bool {
    draw.way.is_multiple_of(2)
}

pub(crate) fn drive(scenario: &mut Scenario) {
    std::thread::sleep(scenario.draw.delay * 2 / 3);
    scenario.inject();
    scenario.at = now();
    if !kills(&scenario.draw) {
        scenario.await_outcome();
    }
}
