//! Connecting to a rank, at whichever of its addresses answers.

use std::io;
use std::os::fd::OwnedFd;

use weftlink_membership::durations::HELLO;

use super::Inner;
use crate::address::{call_abstract, call_tcp, own_addresses};
use crate::broken::Broken;
use crate::channel::Channel;
use crate::deadline::Deadline;
use crate::message::{Contact, Introduction, Message};

impl Inner {
    /// Connects to a rank and introduces this one.
    pub(crate) fn dial(
        &self,
        contact: &Contact,
        introduction: &Introduction,
        deadline: Deadline,
    ) -> Result<Channel, Broken> {
        let introduce = |socket: OwnedFd, deadline: Deadline| {
            let channel = Channel::dial(socket, &self.token, Some(&contact.name), deadline)?;
            channel.send(&Message::Introduction(introduction.clone()), None, deadline)?;
            Ok(channel)
        };
        if contact.host.is_same(&self.host) {
            let socket = call_abstract(&contact.name, deadline).map_err(|error| {
                here_or_elsewhere(error.into(), contact.host.shares_network_with(&self.host))
            })?;
            return introduce(socket, deadline);
        }
        // An address that this host has too (docker0) leads to this host, whatever it is on the other.
        let own = match contact.host.shares_network_with(&self.host) || contact.addresses.len() == 1 {
            true => Vec::new(),
            false => own_addresses(),
        };
        let addresses: Vec<_> =
            contact.addresses.iter().filter(|address| !own.contains(&address.ip())).collect();
        let mut failed = Vec::new();
        for (number, address) in addresses.iter().enumerate() {
            let left = deadline.left().ok_or(Broken::Late)?;
            // The first is the likeliest. None takes the time of those that follow.
            let rest = addresses.len() - number;
            let share = Deadline::new(left / if number == 0 { rest.min(2) } else { rest } as u32);
            let tried = match call_tcp(**address, share) {
                Ok(stream) => introduce(stream.into(), share.or_within(HELLO)).map_err(Tried::Connected),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Err(Tried::Refused),
                Err(error) => Err(Tried::Silent(format!("{address}: {error}"))),
            };
            match tried {
                Ok(channel) => return Ok(channel),
                Err(tried) => failed.push(tried),
            }
        }
        Err(verdict(failed))
    }
}

/// The end of an attempt to reach a rank at its abstract name. Such names are those of one network namespace: in another one nobody
/// has the name, which proves nothing about the rank.
fn here_or_elsewhere(broken: Broken, shares_network: bool) -> Broken {
    match broken {
        Broken::Refused if !shares_network => Broken::Unreachable(ELSEWHERE.to_owned()),
        broken => broken,
    }
}

const ELSEWHERE: &str =
    "it is in another network namespace. Ranks that meet at a path must share one to shrink or split";

/// The result of trying one address of a rank.
#[derive(Debug, PartialEq, Eq)]
enum Tried {
    /// A process answered, and this is what went wrong then.
    Connected(Broken),
    /// The host answered and no process listens at the port.
    Refused,
    /// Nothing answered, and why.
    Silent(String),
}

/// What all addresses of a rank together prove. If a process accepted and has not answered yet, it may be the rank, stopped.
/// If every address that answers refuses the connection, the rank is dead. An address that does not answer proves nothing, nor does one
/// at which another process listens.
fn verdict(failed: Vec<Tried>) -> Broken {
    let weight = |tried: &Tried| match tried {
        Tried::Connected(Broken::Late) => 5,
        Tried::Connected(Broken::Stranger(_)) => 2,
        Tried::Connected(Broken::Another) => 1,
        Tried::Connected(_) => 4,
        Tried::Refused => 3,
        Tried::Silent(_) => 0,
    };
    match failed.into_iter().max_by_key(weight) {
        None => Broken::Unreachable("it told no address".to_owned()),
        Some(Tried::Connected(broken)) => broken,
        Some(Tried::Refused) => Broken::Refused,
        Some(Tried::Silent(why)) => Broken::Unreachable(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nobody_has_proves_a_death_in_its_own_network_only() {
        assert_eq!(here_or_elsewhere(Broken::Refused, true), Broken::Refused);
        let elsewhere = here_or_elsewhere(Broken::Refused, false);
        assert_eq!(elsewhere, Broken::Unreachable(ELSEWHERE.to_owned()));
        assert_eq!(here_or_elsewhere(Broken::Late, false), Broken::Late);
    }

    #[test]
    fn a_stopped_rank_is_not_gone_at_its_other_addresses() {
        let (late, silent) = (|| Tried::Connected(Broken::Late), || Tried::Silent("timed out".to_owned()));
        assert_eq!(verdict(vec![late(), Tried::Refused]), Broken::Late);
        assert_eq!(verdict(vec![Tried::Refused, silent(), late()]), Broken::Late);
        assert_eq!(verdict(vec![late(), silent()]), Broken::Late);
        assert_eq!(verdict(vec![Tried::Refused, Tried::Refused]), Broken::Refused);
        assert_eq!(
            verdict(vec![Tried::Refused, silent()]),
            Broken::Refused,
            "where a host answers, nobody listens"
        );
        assert_eq!(verdict(vec![silent(), silent()]), Broken::Unreachable("timed out".to_owned()));
        assert_eq!(verdict(vec![Tried::Refused, Tried::Connected(Broken::Another)]), Broken::Refused);
        assert_eq!(verdict(vec![Tried::Connected(Broken::Ended), Tried::Refused]), Broken::Ended);
    }
}
