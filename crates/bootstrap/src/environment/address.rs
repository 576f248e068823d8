//! Where a job meets: told by a variable, or made of what its launcher told.

use std::ops::RangeInclusive;

use super::launchers::LauncherInfo;
use super::{EnvironmentError, Launcher, Variables, nodelist};
use crate::rendezvous_address::RendezvousAddress;

/// How many ports are tried where nobody says which.
const PORTS_TRIED: u16 = 16;
/// For jobs whose launcher tells no port. These are below the kernel's own choices, which begin at 32768.
pub(super) const JOB_PORTS: RangeInclusive<u16> = 20_000..=29_999;
/// The kernel takes names of sockets up to this length.
const NAME_BYTES_MAX: usize = 107;

const RENDEZVOUS: &str = "WEFT_RENDEZVOUS";

pub(super) fn of(
    variables: &Variables<'_>,
    info: &LauncherInfo,
) -> Result<RendezvousAddress, EnvironmentError> {
    if let Some(text) = variables.text(RENDEZVOUS)? {
        return rendezvous(&text);
    }
    if let Some(host) = variables.text("MASTER_ADDR")? {
        return beside_torch(variables, host);
    }
    if variables.is_set("MASTER_PORT") && matches!(info.launcher, Launcher::Torchrun | Launcher::Variables) {
        let advice = "They are the address of rank 0's host and a port there";
        return Err(EnvironmentError::Missing { present: "MASTER_PORT", missing: "MASTER_ADDR", advice });
    }
    // A job of one meets nobody, and one whose launcher names no job could meet another.
    if info.local_size == Some(info.size) || info.size == 1 {
        let job = match (&info.job, info.size) {
            (Some(job), _) => job.clone(),
            (None, 1) => format!("alone-{}", variables.around.process),
            (None, _) => return Err(no_address(info)),
        };
        return Ok(RendezvousAddress::Abstract(name(info.launcher, &job, variables.around.user)));
    }
    match info.launcher {
        Launcher::Slurm => slurm(variables, info),
        _ => Err(no_address(info)),
    }
}

fn no_address(info: &LauncherInfo) -> EnvironmentError {
    let (launcher, example) = match info.launcher {
        Launcher::OpenMpi => {
            ("mpirun", "mpirun -x WEFT_RENDEZVOUS=host0:29500 -n 8 --host host0:4,host1:4 PROGRAM")
        }
        Launcher::Hydra => {
            ("mpiexec", "mpiexec -genv WEFT_RENDEZVOUS host0:29500 -n 8 -hosts host0,host1 PROGRAM")
        }
        Launcher::Slurm => ("srun", "srun --export=ALL,WEFT_RENDEZVOUS=host0:29500 -N 2 -n 8 PROGRAM"),
        Launcher::Torchrun => {
            ("torchrun", "WEFT_RENDEZVOUS=host0:29600 torchrun --nnodes 2 PROGRAM, on each host")
        }
        Launcher::Pmi => {
            ("the PMI launcher", "WEFT_RENDEZVOUS=host0:29500, in the environment of every rank")
        }
        Launcher::WeftRun => ("weft run", "it sets it by itself, so somebody has unset it"),
        Launcher::Variables => (
            "somebody",
            "WEFT_RENDEZVOUS=host0:29500 RANK=0 WORLD_SIZE=2 PROGRAM (127.0.0.1:29500 if all are on one host), or \
             MASTER_ADDR and MASTER_PORT as torch has them",
        ),
    };
    EnvironmentError::NoAddress { launcher, size: info.size, example }
}

/// `host:port`, `host:port-port`, `[IPv6]:port`.
fn rendezvous(text: &str) -> Result<RendezvousAddress, EnvironmentError> {
    let unreadable =
        |wanted| EnvironmentError::Unreadable { name: RENDEZVOUS, value: text.to_owned(), wanted };
    let (host, ports) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(|| unreadable("[IPv6 address]:port"))?;
            // A zone (`fe80::1%eth0`) is the resolver's business.
            let address = host.split('%').next().unwrap_or_default();
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(unreadable("[IPv6 address]:port"));
            }
            (host, rest.strip_prefix(':').ok_or_else(|| unreadable("[IPv6 address]:port"))?)
        }
        None => text.rsplit_once(':').ok_or_else(|| unreadable("host:port or host:port-port"))?,
    };
    if host.contains(':') && !text.starts_with('[') {
        return Err(unreadable("[IPv6 address]:port, with the address in brackets"));
    }
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/') {
        return Err(unreadable("host:port, with the name or address of rank 0's host"));
    }
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let port = |text: &str| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|port| digits && *port > 0)
    };
    let (first, last) = port(first)
        .zip(port(last))
        .ok_or_else(|| unreadable("host:port or host:port-port, with ports from 1 to 65535"))?;
    if first > last {
        return Err(unreadable("host:port-port with the lower port first"));
    }
    Ok(RendezvousAddress::Tcp { host: host.to_owned(), ports: first..=last })
}

/// torch's own store listens on `MASTER_PORT` while the job runs.
fn beside_torch(variables: &Variables<'_>, host: String) -> Result<RendezvousAddress, EnvironmentError> {
    let port = variables.number("MASTER_PORT")?.ok_or(EnvironmentError::Missing {
        present: "MASTER_ADDR",
        missing: "MASTER_PORT",
        advice: "They are the address of rank 0's host and a port there, such as 29500",
    })?;
    let first = u16::try_from(port).ok().filter(|port| *port > 0).and_then(|port| port.checked_add(1));
    let first = first.ok_or(EnvironmentError::Unreadable {
        name: "MASTER_PORT",
        value: port.to_string(),
        wanted: "a port from 1 to 65534: torch takes it, and Weft one of those after it",
    })?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host).to_owned();
    Ok(RendezvousAddress::Tcp { host, ports: first..=first.saturating_add(PORTS_TRIED - 1) })
}

/// The first host of the step has its first rank, unless tasks were distributed arbitrarily.
fn slurm(variables: &Variables<'_>, info: &LauncherInfo) -> Result<RendezvousAddress, EnvironmentError> {
    let name =
        if variables.is_set("SLURM_STEP_NODELIST") { "SLURM_STEP_NODELIST" } else { "SLURM_JOB_NODELIST" };
    let Some(list) = variables.text(name)? else { return Err(no_address(info)) };
    let host = nodelist::expand(&list).and_then(|hosts| hosts.into_iter().next());
    let host = host.ok_or(EnvironmentError::Unreadable {
        name,
        value: list,
        wanted: "a list of hosts such as node[01-03,7]",
    })?;
    let room = u64::from(JOB_PORTS.end() - JOB_PORTS.start() + 1) / u64::from(PORTS_TRIED);
    let slot = (hash(info.job.as_deref().unwrap_or_default()) % room) as u16;
    let first = JOB_PORTS.start() + slot * PORTS_TRIED;
    Ok(RendezvousAddress::Tcp { host, ports: first..=first + PORTS_TRIED - 1 })
}

/// A name that two jobs or two users do not share.
fn name(launcher: Launcher, job: &str, user: u32) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    let start = format!("weft-{}-", launcher.name());
    let cleaned: String = job.chars().map(plain).collect();
    // What was shortened or replaced is told apart by its hash.
    let job = match start.len() + cleaned.len() + "-4294967295".len() <= NAME_BYTES_MAX && cleaned == job {
        true => cleaned,
        false => format!("{}-{:016x}", &cleaned[..cleaned.len().min(40)], hash(job)),
    };
    format!("{start}{job}-{user}")
}

/// FNV-1a: the same on every host, unlike the standard library's.
pub(super) fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
