//! Groups made of the ranks of another: parts of it, and the ranks that are left of it.

use std::sync::Arc;
use std::time::Duration;

use super::blame::Blame;
use super::deadline::Deadline;
use super::error::{BootstrapError, Request};
use super::group::Group;
use super::message::Event;
use super::{Bootstrap, Link, regroup, split};

impl Bootstrap {
    /// Splits the group: all ranks that say the same part become a group of their own, in the order of their keys, and of their
    /// ranks where these are equal. A rank without a part is in none.
    pub fn split(
        &mut self,
        part: Option<u32>,
        key: i64,
        deadline: Duration,
    ) -> Result<Option<Bootstrap>, BootstrapError> {
        let turn = self.sweeps.wrapping_add(1);
        let mut mine = part.map_or(u64::MAX, u64::from).to_le_bytes().to_vec();
        mine.extend(key.to_le_bytes());
        let said = self.exchange("a split", mine, deadline)?;
        let Some(part) = part.map(u64::from) else { return Ok(None) };
        let number =
            |bytes: &[u8], at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk::<8>().copied());
        let mut together: Vec<(i64, usize)> = (0..said.len())
            .filter(|&rank| number(&said[rank], 0).map(u64::from_le_bytes) == Some(part))
            .map(|rank| (number(&said[rank], 8).map_or(0, i64::from_le_bytes), rank))
            .collect();
        together.sort_unstable();
        let origins: Vec<usize> = together.into_iter().map(|(_, rank)| rank).collect();
        let rank = origins.iter().position(|rank| *rank == self.rank).unwrap_or(0);
        let mut bootstrap = match &self.link {
            Link::InProcess(local) => {
                let local = local.part(u64::from(turn), part, origins.len());
                Bootstrap::in_process(local, rank, origins.len())
            }
            Link::Tree { group, monitor, .. } => {
                let members = group.members.get().map_or(&[][..], Vec::as_slice);
                let contacts: Vec<_> = origins.iter().map(|rank| members[*rank].contact.clone()).collect();
                let id = part_of(group.id, turn, part);
                let group = match monitor {
                    None => Group::alone(id, contacts),
                    Some(monitor) => {
                        let over = || group.verdict().map_or(Ok(()), Err);
                        let called: Vec<u32> = origins.iter().map(|&rank| rank as u32).collect();
                        let (elder, deadline) = ((group, &called[..]), Deadline::new(deadline));
                        let formed = split::form(monitor, id, rank as u32, contacts, elder, deadline, over);
                        // What ended the whole group is said in its own numbers.
                        let formed = formed
                            .map_err(|error| group.verdict().unwrap_or_else(|| renamed(error, &origins)));
                        formed.map_err(|error| {
                            let ask = Request { rank: self.rank, purpose: "a split".to_owned(), bytes: 0 };
                            self.fall(error, &ask, deadline)
                        })?
                    }
                };
                let monitor =
                    if let Link::Tree { monitor, .. } = &self.link { monitor.clone() } else { None };
                Bootstrap::in_group(group, monitor)
            }
        };
        bootstrap.origins = origins;
        Ok(Some(bootstrap))
    }

    /// Regroups after this group has failed. The new group has all ranks that live and call this in time; the others are out. Its
    /// origins are the ranks of this group.
    pub fn shrink(mut self, deadline: Duration) -> Result<Bootstrap, BootstrapError> {
        let bootstrap = match &self.link {
            Link::InProcess(local) => {
                let (local, origins) = local.shrink(self.rank, Deadline::new(deadline));
                let rank = origins.iter().position(|rank| *rank as usize == self.rank);
                let rank = rank.ok_or(BootstrapError::Excluded { rank: self.rank })?;
                let mut shrunk = Bootstrap::in_process(local, rank, origins.len());
                shrunk.origins = origins.into_iter().map(|rank| rank as usize).collect();
                shrunk
            }
            Link::Tree { monitor: None, group, .. } => {
                let contacts = group.members.get().into_iter().flatten().map(|member| member.contact.clone());
                Bootstrap::in_group(Group::alone(group.id, contacts.collect()), None)
            }
            Link::Tree { group, monitor: Some(monitor), lineage: old } => {
                let whole = group;
                let (group, lineage) = regroup::regroup(whole, monitor, old, deadline)?;
                // Ranks that are not in the new group must not take this one for dead when its process ends.
                whole.learn(Event::Continued { rank: whole.rank, group: group.id });
                let origins = old.origins(&lineage);
                let mut shrunk = Bootstrap::in_group(Arc::clone(&group), Some(Arc::clone(monitor)));
                shrunk.link = Link::Tree { group, monitor: Some(Arc::clone(monitor)), lineage };
                shrunk.origins = origins;
                shrunk
            }
        };
        if let Link::Tree { group, .. } = &bootstrap.link {
            self.continued_in = Some(group.id);
        }
        Ok(bootstrap)
    }

    /// The same for a group that came out of [`Bootstrap::shrink`] and was never used. The origins are the ranks of the group before.
    pub fn shrink_again(self, deadline: Duration) -> Result<Bootstrap, BootstrapError> {
        let before = self.origins.clone();
        let mut shrunk = self.shrink(deadline)?;
        shrunk.origins.iter_mut().for_each(|rank| *rank = before[*rank]);
        Ok(shrunk)
    }
}

/// The number of a part of a group, which its ranks all work out and nobody else has.
fn part_of(group: u64, turn: u32, part: u64) -> u64 {
    let mix = |number: u64| (number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mix(mix(group ^ u64::from(turn) << 32).wrapping_add(part))
}

/// An error of a part of a group, as the whole calls its ranks.
fn renamed(error: BootstrapError, origins: &[usize]) -> BootstrapError {
    use BootstrapError::{Died, GaveUp, Left, Lost, Missing, NoAnswer};
    let of = |rank: usize| origins.get(rank).copied().unwrap_or(rank);
    match error {
        Died { rank, host, pid } => Died { rank: of(rank), host, pid },
        Lost { rank, host, pid, by, what } => Lost { rank: of(rank), host, pid, by: of(by), what },
        Missing { ranks, purpose, limit } => {
            Missing { ranks: ranks.into_iter().map(of).collect(), purpose, limit }
        }
        NoAnswer { rank, pid, purpose, limit } => NoAnswer { rank: of(rank), pid, purpose, limit },
        GaveUp { rank, cause, blamed } => {
            let of_blame = |blame: Blame| Blame { rank: of(blame.rank as usize) as u32, ..blame };
            GaveUp { rank: of(rank), cause, blamed: blamed.into_iter().map(of_blame).collect() }
        }
        Left { rank, pid, purpose } => Left { rank: of(rank), pid, purpose },
        other => other,
    }
}
