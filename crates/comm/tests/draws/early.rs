//! A rank that is killed or stopped in the first 100 ms of its life, wherever it is then: before its first line, while ranks meet,
//! or in its first calls.

use std::time::Duration;

use crate::draw::Draw;
use crate::rank::now;
use crate::scenario::Scene;

/// How long ranks wait for each other to come. All processes start at once, on a machine that may be busy.
pub(crate) const MEETING_LIMIT: Duration = Duration::from_secs(6);

/// Whether the rank is killed. Otherwise it is stopped.
pub(crate) fn kills(draw: &Draw) -> bool {
    draw.way.is_multiple_of(2)
}

pub(crate) fn play(scene: &mut Scene) {
    std::thread::sleep(scene.draw.delay * 2 / 3);
    scene.harm();
    scene.at = now();
    if !kills(&scene.draw) {
        scene.see_the_end();
    }
}
