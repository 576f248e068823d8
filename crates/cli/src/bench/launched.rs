//! `weft bench` as one rank of a job that a launcher started: `weft run`, torchrun, mpirun, srun, or any program that sets `RANK`
//! and `WORLD_SIZE`. All ranks run the same command. Rank 0 prints; it gathers the messages of the others after each row, through
//! the communicator that is measured.
//!
//! The launcher places and stops the ranks. Each rank reports its own failure.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::anyhow;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use weftlink_comm::bootstrap::{Bootstrap, Environment, EnvironmentError};
use weftlink_comm::{Communicator, Error, Reduction};
use weftlink_knobs::Knobs;

use super::job::{Job, Message};
use super::rank::{self, Report};
use super::spawn::{self, Event};
use crate::Failure;

/// What starts the ranks.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Launcher {
    /// Join the ranks of a launcher if one started this process
    Auto,
    /// Start ranks of its own
    None,
}

/// The rank of this process, if a launcher started it.
pub(super) fn of_this_process(launcher: Launcher) -> Result<Option<Environment>, Failure> {
    if launcher == Launcher::None {
        return Ok(None);
    }
    match Environment::of_this_process() {
        Ok(environment) => Ok(Some(environment)),
        Err(EnvironmentError::Nobody) => Ok(None),
        Err(error) => Err(Failure::misuse(anyhow!("{error}; or add --launcher none to start other ranks"))),
    }
}

/// What ranks exchange before they measure.
#[derive(Serialize, Deserialize)]
struct Told {
    /// The hash of the job, which must be the same.
    job: u64,
    cache_bytes: usize,
    /// The cores that the rank may use.
    cores: Vec<usize>,
}

/// Joins the other ranks and exchanges what only some of them know.
pub(super) fn meet(job: &mut Job) -> Result<Bootstrap, Failure> {
    let mut knobs = Knobs::from_environment().map_err(Failure::misuse)?;
    knobs.deadline = job.deadline;
    let mut met = Bootstrap::from_environment(&knobs).map_err(Failure::finding)?;
    let told = Told {
        job: hash(job)?,
        cache_bytes: job.cache_bytes,
        cores: spawn::allowed_cores().map_err(Failure::Finding)?,
    };
    let said = serde_json::to_vec(&told).map_err(Failure::finding)?;
    let heard = met.exchange("what is measured", said, job.deadline).map_err(Failure::finding)?;
    let all: Vec<Told> = heard
        .iter()
        .map(|said| serde_json::from_slice(said))
        .collect::<Result<_, _>>()
        .map_err(Failure::finding)?;
    if let Some(rank) = all.iter().position(|other| other.job != all[0].job) {
        return Err(Failure::misuse(anyhow!(
            "rank {rank} has another job than rank 0; give all ranks the same command line and files"
        )));
    }
    job.cache_bytes = all.iter().map(|told| told.cache_bytes).max().unwrap_or(job.cache_bytes);
    job.spin = have_a_core_each(met.hosts(), &all);
    let only = |told: &Told| match told.cores[..] {
        [core] => Some(core),
        _ => None,
    };
    job.cores = all.iter().map(only).collect();
    Ok(met)
}

/// Whether every host has as many usable cores as ranks.
fn have_a_core_each(hosts: &[u32], all: &[Told]) -> bool {
    hosts.iter().all(|host| {
        let here = || hosts.iter().zip(all).filter(|(other, _)| *other == host);
        let cores: BTreeSet<usize> = here().flat_map(|(_, told)| told.cores.iter().copied()).collect();
        here().count() <= cores.len()
    })
}

/// The hash of the job, without what may differ between hosts.
fn hash(job: &Job) -> Result<u64, Failure> {
    let job = Job { cache_bytes: 0, cores: None, spin: false, ..job.clone() };
    let mut hasher = DefaultHasher::new();
    serde_json::to_vec(&job).map_err(Failure::finding)?.hash(&mut hasher);
    Ok(hasher.finish())
}

/// Any rank except 0: measures until the job is done.
pub(super) fn follow(mut job: Job) -> Result<(), Failure> {
    let met = meet(&mut job)?;
    let rank = met.rank();
    let failed = |error: Error| Failure::finding(anyhow!("rank {rank}: {error}"));
    let comm = rank::options(&job).and_then(|options| Communicator::new(met, options)).map_err(failed)?;
    rank::run(comm, &job, &mut Gathering { rank, pending: Vec::new(), to: None }).map_err(failed)
}

/// Rank 0: measures on a separate thread, which forwards the messages of all ranks.
pub(super) fn lead(job: &Job, met: Bootstrap, sender: Sender<Event>) -> anyhow::Result<()> {
    let job = job.clone();
    let work = move || {
        // Reports the end even if the thread panics.
        let _closing = Closing { ranks: job.ranks, sender: sender.clone() };
        let report = Gathering { rank: 0, pending: Vec::new(), to: Some(sender) };
        spawn::run(&job, 0, || Communicator::new(met, rank::options(&job)?), report);
    };
    let started = thread::Builder::new().spawn(work);
    started.map(drop).map_err(|error| anyhow!(weftlink_shm::limits::no_thread(&error)))
}

struct Closing {
    ranks: usize,
    sender: Sender<Event>,
}

impl Drop for Closing {
    fn drop(&mut self) {
        (0..self.ranks).for_each(|rank| drop(self.sender.send(Event::Closed(rank))));
    }
}

/// Sends the messages of a rank to rank 0, which forwards them.
struct Gathering {
    rank: usize,
    pending: Vec<Message>,
    /// On rank 0.
    to: Option<Sender<Event>>,
}

impl Report for Gathering {
    fn tell(&mut self, message: Message) {
        match &self.to {
            // Sending fails when the command is done.
            Some(to) => drop(to.send(Event::Said(self.rank, message))),
            None => self.pending.push(message),
        }
    }

    fn gather(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        let unreadable =
            |error: serde_json::Error| Error::Misuse(format!("cannot parse the message of a rank: {error}"));
        let mut mine = serde_json::to_vec(&std::mem::take(&mut self.pending)).map_err(unreadable)?;
        let mut length = [mine.len() as u64];
        comm.all_reduce(&mut length, Reduction::Maximum)?;
        // JSON ignores trailing spaces.
        mine.resize(length[0] as usize, b' ');
        let mut all = vec![0; if self.rank == 0 { mine.len() * comm.size() } else { 0 }];
        comm.gather((&mine[..], &mut all[..]), 0)?;
        let Some(to) = &self.to else { return Ok(()) };
        for (rank, told) in all.chunks(mine.len()).enumerate() {
            for message in serde_json::from_slice::<Vec<Message>>(told).map_err(unreadable)? {
                drop(to.send(Event::Said(rank, message)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_keep_their_cores_only_if_every_host_has_enough() {
        let told = |cores: &[usize]| Told { job: 0, cache_bytes: 0, cores: cores.to_vec() };
        assert!(have_a_core_each(&[0, 0], &[told(&[0, 1]), told(&[0, 1])]));
        assert!(have_a_core_each(&[0, 0, 1], &[told(&[0]), told(&[1]), told(&[0])]));
        assert!(!have_a_core_each(&[0, 0], &[told(&[0]), told(&[0])]));
        assert!(!have_a_core_each(&[0, 1, 1], &[told(&[0, 1]), told(&[3]), told(&[3])]));
    }
}
