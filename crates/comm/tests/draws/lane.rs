//! Two communicators of the same ranks share a window, as the lanes of a long call do, and one of them fails. Calls of the other on the
//! window succeed with right results, or fail.

use std::time::Duration;

use weftlink_comm::{Background, Communicator, Window};

use crate::calls::{Outcome, number};
use crate::draw::Draw;
use crate::judge::mentions;
use crate::rank::{Event, Rank, report};
use crate::raw::sum;
use crate::scenario::Evidence;

/// The elements of each communicator's part of the window.
const PART: usize = 64 << 10;
/// The timeout of the call that one rank does not make.
const ABSENT_TIMEOUT: Duration = Duration::from_secs(3);
/// Calls of the other communicator after the failure.
const ROUNDS: usize = 12;
/// The victim's reason for its abort.
const REASON: &str = "this lane alone";

/// How the lane fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// The victim does not make the call.
    Absent,
    /// It makes a different call.
    Differs,
    /// It aborts the lane.
    Aborts,
}

fn how(draw: &Draw) -> How {
    [How::Absent, How::Differs, How::Aborts][(draw.way % 3) as usize]
}

impl Rank {
    pub(crate) fn fail_a_lane(&mut self, mut comm: Communicator) -> Result<(), Outcome> {
        let (me, size) = (comm.rank(), comm.size());
        let lane = comm.split(Some(0), me as i64)?.unwrap();
        let window = comm.window::<f32>(2 * PART)?;
        let (comm, lane) = (comm.into_background()?, lane.into_background()?);
        let mut window = lane.with(move |lane| lane.adopt(&window).map(|()| window))?;
        let lengths = [1, 100, 3000, PART];
        for round in 0..2 * lengths.len() {
            for (number, comm) in [&comm, &lane].into_iter().enumerate() {
                self.sum_right(comm, &mut window, number, lengths[round % 4], round, size)?;
            }
        }
        let is_victim = me == self.draw.victim;
        window[PART..].fill(1.0);
        let made = match how(&self.draw) {
            How::Absent if is_victim => Ok(()),
            How::Absent => sum(&lane, &mut window[PART..], Some(ABSENT_TIMEOUT)),
            How::Differs => sum(&lane, &mut window[PART + usize::from(is_victim)..], None),
            How::Aborts => {
                if is_victim {
                    std::thread::sleep(self.draw.delay);
                    lane.abort(REASON);
                }
                sum(&lane, &mut window[PART..], None)
            }
        };
        match made {
            Err(error) => report(&Event::Lane(error.to_string())),
            Ok(()) if is_victim => {}
            Ok(()) => return Err(Outcome::Wrong("the lane did not fail".to_owned())),
        }
        for round in 0..ROUNDS {
            let count = lengths[(round + self.draw.way as usize / 3) % 4];
            self.sum_right(&comm, &mut window, 0, count, 100 + round, size)?;
        }
        Ok(())
    }

    /// Makes a call in a part of the window, and checks every value.
    fn sum_right(
        &mut self,
        comm: &Background,
        window: &mut Window<f32>,
        part: usize,
        count: usize,
        round: usize,
        size: usize,
    ) -> Result<(), Outcome> {
        let value = |rank: usize, index: usize| number(rank, index, round) as f32;
        for index in 0..count {
            window[part * PART + index] = value(comm.rank(), index);
        }
        let made = sum(comm, &mut window[part * PART..][..count], None).map_err(Outcome::Failed);
        self.made(made)?;
        let wrong = (0..count).find(|index| {
            let expected: f32 = (0..size).map(|rank| value(rank, *index)).sum();
            window[part * PART + index] != expected
        });
        match wrong {
            Some(index) => Err(Outcome::Wrong(format!("sum {index} of {count} in round {round} is wrong"))),
            None => Ok(()),
        }
    }
}

/// All errors say why the lane failed. The ranks have checked the results of the other communicator; if it failed too, its error names the
/// same rank.
pub(crate) fn judge(draw: &Draw, evidence: &Evidence) -> Result<Vec<f64>, String> {
    let Draw { victim, size, .. } = *draw;
    for rank in (0..size).filter(|rank| *rank != victim) {
        let log = &evidence.logs[rank];
        let lane = log.events.iter().find_map(|event| match event {
            Event::Lane(error) => Some(error.as_str()),
            _ => None,
        });
        let Some(error) = lane else { return Err(format!("the lane of rank {rank} did not fail")) };
        let is_right = mentions(error, victim)
            && match how(draw) {
                How::Absent => true,
                How::Differs => error.contains(" does not match: "),
                How::Aborts => error.contains(REASON),
            };
        if !is_right {
            return Err(format!("rank {rank} does not report what rank {victim} did to the lane: {error}"));
        }
        if let Some((error, ..)) = log.failure().filter(|(error, ..)| !mentions(error, victim)) {
            return Err(format!("rank {rank} does not blame rank {victim} for the other failure: {error}"));
        }
    }
    let stuck = evidence.logs.iter().position(|log| !log.is_done() && log.failure().is_none());
    stuck.map_or(Ok(Vec::new()), |rank| Err(format!("rank {rank} has neither finished nor failed")))
}
