//! The environment of ranks: torchrun's variables, and the rendezvous of Weft's communicators.

use super::args::Job;
use super::gpus::Gpus;
use super::hosts::own_name;
use super::wire::{RankStart, Start};

/// The values that change with each start of a job.
pub(super) struct Afresh {
    pub(super) secret: String,
    pub(super) ports: [String; 2],
    /// The number of earlier starts.
    pub(super) restarts: u32,
}

/// Variables of an outer launcher that would contradict those set here.
pub(super) const UNSET: [&str; 5] = [
    "WEFT_SECRET_FILE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "WEFT_LOCAL_RANK",
    "WEFT_LOCAL_WORLD_SIZE",
];

/// The orders for one host.
pub(super) fn start(job: &Job, host: usize, afresh: &Afresh) -> Start {
    let placed = &job.hosts[host];
    let own = |(local, rank): (usize, usize)| {
        let size = placed.ranks.len();
        // A rank that shares a GPU is shown a host of its own; Weft needs to know the real one.
        let is_alone = job.gpus.as_ref().is_some_and(Gpus::ranks_are_alone);
        let (shown, of, group) = if is_alone { (0, 1, rank) } else { (local, size, host) };
        let mut pairs = vec![
            ("RANK", rank),
            ("LOCAL_RANK", shown),
            ("LOCAL_WORLD_SIZE", of),
            ("GROUP_RANK", group),
            ("NODE_RANK", group),
        ];
        if is_alone {
            pairs.extend([("WEFT_LOCAL_RANK", local), ("WEFT_LOCAL_WORLD_SIZE", size)]);
        }
        let environment =
            pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_string())).collect();
        RankStart { rank, environment }
    };
    let forwarded = if placed.is_here { Vec::new() } else { job.forwarded.clone() };
    Start {
        program: job.program.clone(),
        workdir: job.workdir.clone(),
        environment: [forwarded, job.given.clone(), common(job, afresh)].concat(),
        unset: UNSET.map(str::to_owned).to_vec(),
        ranks: placed.ranks.clone().enumerate().map(own).collect(),
        bind: job.bind,
        gpus: job.gpus.clone(),
        nccl: job.nccl.clone(),
        by_lines: job.tags || job.size > 1,
        files_limit: job.files_limit.filter(|_| placed.is_here),
        grace_ms: u64::try_from(job.grace.as_millis()).unwrap_or(u64::MAX),
    }
}

fn common(job: &Job, afresh: &Afresh) -> Vec<(String, String)> {
    let host = address(job);
    let rendezvous = match host.contains(':') {
        true => format!("[{host}]:{}", afresh.ports[1]),
        false => format!("{host}:{}", afresh.ports[1]),
    };
    let mut pairs = vec![
        ("WORLD_SIZE", job.size.to_string()),
        ("MASTER_ADDR", host),
        ("MASTER_PORT", afresh.ports[0].clone()),
        ("TORCHELASTIC_RESTART_COUNT", afresh.restarts.to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", job.restarts_max.to_string()),
        ("WEFT_JOB", job.name.clone()),
        ("WEFT_RENDEZVOUS", rendezvous),
        ("WEFT_SECRET", afresh.secret.clone()),
    ];
    // Ranks that start a thread for every core slow each other down; torchrun sets 1, too.
    if !job.given.iter().any(|(name, _)| name == "OMP_NUM_THREADS") {
        let threads = std::env::var("OMP_NUM_THREADS").ok().filter(|value| !value.is_empty());
        pairs.push(("OMP_NUM_THREADS", threads.unwrap_or_else(|| "1".to_owned())));
    }
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The address of the host of rank 0, as other hosts reach it.
fn address(job: &Job) -> String {
    match (&job.address, job.hosts.as_slice()) {
        (Some(address), _) => address.trim_start_matches('[').trim_end_matches(']').to_owned(),
        (None, [_]) => "127.0.0.1".to_owned(),
        // To another host, localhost is itself.
        (None, [first, ..]) if ["localhost", "127.0.0.1", "::1"].contains(&first.host.as_str()) => own_name(),
        // ssh takes user@host; sockets take the host only.
        (None, [first, ..]) => first.host.rsplit('@').next().unwrap_or_default().to_owned(),
        (None, []) => String::new(),
    }
}
