//! What a launcher told, in torch's words.

use super::address::{self, JOB_PORTS, hash};
use super::launchers::PARENT;
use super::{Environment, EnvironmentError, EnvironmentSource, Variables, launchers, of_this_process};
use crate::rendezvous_address::RendezvousAddress;

impl Environment {
    /// The variables by which torch's store finds its ranks, as far as the launcher's word goes and they are not set: `RANK`,
    /// `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`. Where it tells no address, neither does this.
    pub fn for_torch() -> Result<Vec<(&'static str, String)>, EnvironmentError> {
        of_this_process(for_torch)
    }
}

pub(super) fn for_torch(
    around: &EnvironmentSource<'_>,
) -> Result<Vec<(&'static str, String)>, EnvironmentError> {
    let variables = Variables { around };
    let info = launchers::read(&variables)?;
    let number = |number: usize| Some(number.to_string());
    // All ranks of a job come to the same port, and jobs of one host to different ones where their launcher names them.
    let ports = u64::from(JOB_PORTS.end() - JOB_PORTS.start()) + 1;
    let job = info.job.as_deref().filter(|job| !job.starts_with(PARENT)).unwrap_or_default();
    let port = JOB_PORTS.start() + (hash(job) % ports) as u16;
    let (host, port) = match address::of(&variables, &info) {
        Ok(RendezvousAddress::Tcp { host, ports }) => (Some(host), *ports.start()),
        Ok(RendezvousAddress::Abstract(_) | RendezvousAddress::Path(_)) => {
            (Some("127.0.0.1".to_owned()), port)
        }
        Err(_) => (None, port),
    };
    let all = [
        ("RANK", number(info.rank)),
        ("WORLD_SIZE", number(info.size)),
        ("LOCAL_RANK", info.local_rank.and_then(number)),
        ("LOCAL_WORLD_SIZE", info.local_size.and_then(number)),
        ("MASTER_ADDR", host),
        ("MASTER_PORT", number(port.into())),
    ];
    let missing = all.into_iter().filter(|(name, _)| !variables.is_set(name));
    Ok(missing.filter_map(|(name, value)| Some((name, value?))).collect())
}
