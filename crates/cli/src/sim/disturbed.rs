//! Disturbances: slow and missing links, throttled GPUs and other jobs, from arguments to the engine.

use anyhow::anyhow;
use weftlink_fabric::bytes::Bytes;
use weftlink_fabric::{DeviceId, Fabric};
use weftlink_plan::cost::Picoseconds;
use weftlink_plan::{Kind, UnknownKind};
use weftlink_sim::engine::{Conditions, Disturbance, Spans};
use weftlink_sim::execute::{Execution, Runner, Tenant};
use weftlink_sim::predict::{Neighbour, operation};
use weftlink_sim::setup::Operation;

use crate::Failure;

/// Arguments for disturbances.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Disturbances")]
pub(super) struct Disturbed {
    /// Slow the links between two devices to a fraction of their rate: host0/nic0,leaf0=0.5; `weft topo FABRIC --tree` prints the names
    #[arg(long, value_name = "A,B=FRACTION", value_parser = slow)]
    slow: Vec<(Ends, f64)>,
    /// Remove the links between two devices: gpu0,gpu1
    #[arg(long, value_name = "A,B", value_parser = ends)]
    missing: Vec<Ends>,
    /// Take the links between two devices down periodically: nic0,leaf0=10ms,1ms is down for 1 ms of every 10 ms
    #[arg(long, value_name = "A,B=PERIOD,DOWN", value_parser = flap)]
    flap: Vec<(Ends, Picoseconds, Picoseconds)>,
    /// Throttle a GPU to a fraction of its rate: 3=0.7
    #[arg(long, value_name = "GPU=FRACTION", value_parser = throttle)]
    throttle: Vec<(u32, f64)>,
    /// The GPUs of the call, equally many on each host; --beside may use the others [default: all]
    #[arg(long, value_name = "0-7,16", value_parser = numbers)]
    gpus: Option<Numbers>,
    /// Run another job at the same time, on all GPUs or some: all-to-all:64MiB, all-reduce:1GiB@8-15
    #[arg(long, value_name = "WHAT:SIZE[@GPUS]", value_parser = beside)]
    beside: Vec<Beside>,
}

/// Two names of devices.
type Ends = (String, String);

/// Numbers of GPUs.
#[derive(Clone, Debug)]
struct Numbers(Vec<u32>);

/// Another job.
#[derive(Clone, Debug)]
struct Beside {
    kind: Kind,
    operation: Operation,
    bytes: u64,
    gpus: Option<Numbers>,
}

/// The result of a disturbed call.
pub(super) struct DisturbedCall {
    pub(super) execution: Execution,
    /// The time of the same call without disturbances.
    pub(super) alone_us: f64,
    pub(super) beside: Vec<Neighbour>,
}

fn us(execution: &Execution) -> f64 {
    execution.time.us()
}

impl Disturbed {
    /// Whether there are no disturbances.
    pub(super) fn is_none(&self) -> bool {
        self.slow.is_empty()
            && self.missing.is_empty()
            && self.flap.is_empty()
            && self.throttle.is_empty()
            && self.gpus.is_none()
            && self.beside.is_empty()
    }

    /// Whether something may slow the call; the choice of its GPUs does not.
    pub(super) fn slows(&self) -> bool {
        let on_all = Self { gpus: None, ..self.clone() };
        !on_all.is_none()
    }

    /// The GPUs of the call, if not all.
    pub(super) fn gpus(&self) -> Option<&[u32]> {
        self.gpus.as_ref().map(|gpus| gpus.0.as_slice())
    }

    /// The number of GPUs, if not all.
    pub(super) fn ranks(&self) -> Option<u32> {
        self.gpus().map(|gpus| gpus.len() as u32)
    }

    /// Executes a call under all disturbances.
    pub(super) fn run(
        &self,
        site: &Runner<'_>,
        operation: Operation,
        bytes: u64,
        spans: Option<&mut Spans>,
    ) -> Result<DisturbedCall, Failure> {
        let conditions = self.conditions(site.fabric())?;
        let all = || Numbers((0..site.fabric().gpus().len() as u32).collect());
        let tenant = |operation, bytes, gpus: &Option<Numbers>| Tenant {
            operation,
            bytes,
            gpus: gpus.clone().unwrap_or_else(all).0,
            start: Picoseconds(0),
        };
        let beside = self.beside.iter().map(|job| tenant(job.operation, job.bytes, &job.gpus));
        let tenants: Vec<Tenant> =
            std::iter::once(tenant(operation, bytes, &self.gpus)).chain(beside).collect();
        let none = conditions.undisturbed();
        let (execution, alone_us, done) = match tenants.as_slice() {
            [_] if self.gpus.is_none() => {
                let alone = site.execute_with_conditions(operation, bytes, &none, None)?;
                let execution = site.execute_with_conditions(operation, bytes, &conditions, spans)?;
                (execution, vec![us(&alone)], Vec::new())
            }
            tenants => {
                let alone = site.execute_apart(tenants, &none)?.iter().map(us).collect();
                let mut done = site.execute_concurrently(tenants, &conditions, spans)?;
                (done.remove(0), alone, done)
            }
        };
        let beside = self.beside.iter().zip(done).zip(tenants.iter().zip(&alone_us).skip(1));
        let beside = beside.map(|((job, execution), (tenant, alone_us))| Neighbour {
            what: job.kind.name().to_owned(),
            bytes: job.bytes,
            gpus: tenant.gpus.len(),
            time_us: us(&execution),
            alone_us: *alone_us,
        });
        Ok(DisturbedCall { execution, alone_us: alone_us[0], beside: beside.collect() })
    }

    /// Resolves names to devices.
    fn conditions(&self, fabric: &Fabric) -> Result<Conditions, Failure> {
        let find = |name: &str| {
            fabric.find(name).ok_or_else(|| {
                let (on, near) = (fabric.name(), fabric.suggest_device(name));
                Failure::misuse(anyhow!(
                    "{on} has no device `{name}`.{near} `weft topo FABRIC --tree` prints the names."
                ))
            })
        };
        let link =
            |ends: &Ends| -> Result<(DeviceId, DeviceId), Failure> { Ok((find(&ends.0)?, find(&ends.1)?)) };
        let mut disturbances = Vec::new();
        for (ends, part) in &self.slow {
            disturbances.push(Disturbance::Slow { link: link(ends)?, fraction: *part });
        }
        for ends in &self.missing {
            disturbances.push(Disturbance::Slow { link: link(ends)?, fraction: 0.0 });
        }
        for (ends, period, down) in &self.flap {
            disturbances.push(Disturbance::Flapping { link: link(ends)?, period: *period, down: *down });
        }
        for (gpu, part) in &self.throttle {
            disturbances.push(Disturbance::Throttled { gpu: *gpu, fraction: *part });
        }
        Ok(Conditions { disturbances })
    }
}

fn ends(text: &str) -> Result<Ends, String> {
    let (a, b) = text.split_once(',').ok_or("write two devices with a comma between them: nic0,leaf0")?;
    Ok((a.trim().to_owned(), b.trim().to_owned()))
}

fn part(text: &str) -> Result<f64, String> {
    let found = text.trim().parse().ok().filter(|part: &f64| (0.0..=1.0).contains(part));
    found.ok_or_else(|| format!("`{text}` is not a fraction from 0 to 1, such as 0.5"))
}

fn slow(text: &str) -> Result<(Ends, f64), String> {
    let (devices, number) = text.rsplit_once('=').ok_or("write nic0,leaf0=0.5")?;
    Ok((ends(devices)?, part(number)?))
}

fn flap(text: &str) -> Result<(Ends, Picoseconds, Picoseconds), String> {
    let (devices, times) = text.rsplit_once('=').ok_or("write nic0,leaf0=10ms,1ms")?;
    let (period, down) = times.split_once(',').ok_or("write period and outage: 10ms,1ms")?;
    Ok((ends(devices)?, duration(period)?, duration(down)?))
}

fn duration(text: &str) -> Result<Picoseconds, String> {
    let wrong = || format!("`{text}` is not a time; write 500us, 10ms or 1s");
    let units = [("us", 1e6), ("ms", 1e9), ("ns", 1e3), ("s", 1e12)];
    let (unit, scale) = units.into_iter().find(|(unit, _)| text.trim().ends_with(unit)).ok_or_else(wrong)?;
    let number: f64 = text.trim().trim_end_matches(unit).trim().parse().map_err(|_| wrong())?;
    let picoseconds = number * scale;
    (0.0..=1e18).contains(&picoseconds).then_some(Picoseconds(picoseconds as u64)).ok_or_else(wrong)
}

fn throttle(text: &str) -> Result<(u32, f64), String> {
    let (gpu, number) = text.split_once('=').ok_or("write GPU=FRACTION, such as 3=0.7")?;
    let gpu = gpu
        .trim()
        .trim_start_matches("gpu")
        .parse()
        .map_err(|_| format!("`{gpu}` is not the number of a GPU, such as 3"))?;
    Ok((gpu, part(number)?))
}

fn numbers(text: &str) -> Result<Numbers, String> {
    const GPUS_MAX: usize = 1 << 20;
    let wrong = || format!("`{text}` is not a list of GPUs; write 0-7 or 0-3,8-11");
    let mut all = Vec::new();
    for piece in text.split(',') {
        let (from, to) = piece.split_once('-').unwrap_or((piece, piece));
        let (from, to): (u32, u32) =
            (from.trim().parse().map_err(|_| wrong())?, to.trim().parse().map_err(|_| wrong())?);
        if from > to || (to - from) as usize >= GPUS_MAX - all.len().min(GPUS_MAX) {
            return Err(wrong());
        }
        all.extend(from..=to);
    }
    let mut sorted = all.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() != all.len() { Err(format!("`{text}` names a GPU twice")) } else { Ok(Numbers(all)) }
}

fn beside(text: &str) -> Result<Beside, String> {
    let (job, gpus) = match text.split_once('@') {
        Some((job, gpus)) => (job, Some(numbers(gpus)?)),
        None => (text, None),
    };
    let (what, size) = job.split_once(':').ok_or("write COLLECTIVE:SIZE, such as all-to-all:64MiB")?;
    let kind: Kind = what.parse().map_err(|error: UnknownKind| error.to_string())?;
    let operation = operation(kind).map_err(|error| error.to_string())?;
    let bytes = size.parse::<Bytes>().map_err(|error| error.to_string())?.0;
    if bytes == 0 {
        Err("the size is 0; a call has at least 1 byte".to_owned())
    } else {
        Ok(Beside { kind, operation, bytes, gpus })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        assert_eq!(numbers("0-2,8").unwrap().0, [0, 1, 2, 8]);
        assert!(numbers("3-1").is_err() && numbers("0,0").is_err() && numbers("0-4000000000").is_err());
        assert_eq!(duration("1.5ms").unwrap(), Picoseconds(1_500_000_000));
        assert!(duration("5").is_err() && duration("-1s").is_err());
        assert_eq!(slow("host0/nic0,leaf0=0.5").unwrap(), (("host0/nic0".into(), "leaf0".into()), 0.5));
        assert!(slow("nic0,leaf0=2").is_err());
        assert_eq!(throttle("gpu3=0.7").unwrap(), (3, 0.7));
        let job = beside("all-reduce:1GiB@8-15").unwrap();
        assert_eq!((job.bytes, job.gpus.unwrap().0.len()), (1 << 30, 8));
    }
}
