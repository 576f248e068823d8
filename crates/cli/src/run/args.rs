//! Arguments of `weft run`, and the job they describe.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::environment::UNSET;
use super::gpus::{self, Gpus, Which};
use super::hosts::{self, Placed, Slot};
use super::mps;
use super::nccl;
use super::secret;
use crate::Failure;
use crate::names::{between, duration};

/// Start the ranks of a job on this host or several, as torchrun and mpirun do
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft run -n 4 -- python train.py --epochs 3   four ranks on this host
  weft run -n 8 --hosts a,b -- ./prog           four on a, four on b, by ssh
  weft run --hosts a:2,b:6 -- ./prog            two on a, six on b
  weft run -n 2 --max-restarts 3 -- ./prog      restart all ranks if one fails
  weft run -n 8 --keep-going -- ./prog          survivors may shrink and go on
  weft run -n 2 --output-dir logs -- ./prog     logs/rank-0.out, rank-0.err ...
  weft run -n 2 --gpus all -- ./prog            a GPU for each rank
  weft run -n 4 --gpus shared --mps -- ./prog   four ranks on shared GPUs
  weft run -n 2 --nccl -- python train.py       Weft in place of NCCL

Ranks get the environment that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...), and WEFT_RENDEZVOUS and \
WEFT_SECRET for Weft's communicators. Their standard input is empty.

When a rank fails, the others get SIGTERM one second later and SIGKILL after --grace, unless --keep-going is given. SIGINT, \
SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are forwarded to the ranks; a second SIGINT (Ctrl-C) or SIGTERM kills them.

Exit code: 0 if all ranks exit with 0; otherwise that of the rank that failed first, or 128 plus the signal that killed it; \
124 after --timeout; 1 if a host is lost; 2 for wrong arguments.")]
pub(crate) struct Args {
    /// Start RANKS ranks (also -np) [default: one for each slot of the hosts]
    #[arg(short = 'n', long = "ranks", alias = "np", value_name = "RANKS", value_parser = between(1, RANKS_MAX))]
    ranks: Option<u32>,
    /// Start RANKS ranks on each host, as torchrun does
    #[arg(long, alias = "nproc_per_node", value_name = "RANKS", conflicts_with = "ranks", value_parser = between(1, RANKS_MAX))]
    nproc_per_node: Option<u32>,
    /// The hosts: a,b (ranks divided evenly) or a:4,b:4 (with slots)
    #[arg(long, short_alias = 'H', value_name = "HOSTS", conflicts_with = "hostfile")]
    hosts: Option<String>,
    /// Read the hosts from FILE, one per line: `a`, `a slots=4` or `a:4`; # begins a comment
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// The command that starts a command on another host; {host} stands for the host [default place: the end]
    #[arg(long, value_name = "COMMAND", default_value = "ssh -o BatchMode=yes")]
    rsh: String,
    /// The path of weft on the other hosts [default: the same as here]
    #[arg(long, value_name = "PATH")]
    weft_path: Option<String>,
    /// The address of the host of rank 0, for the other hosts [default: its name in --hosts]
    #[arg(long, value_name = "HOST")]
    address: Option<String>,
    /// Set a variable for all ranks, or forward it from this environment; WEFT_* variables are always forwarded
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// The working directory of the ranks on every host [default: this one]
    #[arg(long, value_name = "DIR")]
    workdir: Option<String>,
    /// The name of the job (WEFT_JOB), which `weft why --attach` takes [default: a random one]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Bind each rank to cores of its own, to a NUMA node, or to nothing
    #[arg(long, value_name = "WHAT", default_value = "core")]
    bind: Bind,
    /// Print the cores of each rank
    #[arg(long)]
    report_bindings: bool,
    /// Give each rank a GPU: all, or numbers such as 0,2; or let ranks share GPUs: shared
    #[arg(long, value_name = "GPUS", value_parser = gpus::which)]
    gpus: Option<Which>,
    /// With --gpus shared: start MPS for this job, so that ranks on a GPU compute at the same time, and stop it at the end
    #[arg(long)]
    mps: bool,
    /// With --gpus shared: show each rank all GPUs and its place on the host, instead of one GPU and LOCAL_RANK 0
    #[arg(long)]
    true_local_rank: bool,
    /// Load Weft's libnccl.so.2 into the ranks (LD_PRELOAD) in place of NCCL
    #[arg(long)]
    nccl: bool,
    /// With --nccl: the path of libnccl.so.2, the same on every host [default: beside weft, in ../lib/weft or ../lib, or in the Python package]
    #[arg(long, value_name = "PATH", requires = "nccl")]
    nccl_library: Option<PathBuf>,
    /// Prefix each line of output with its rank [default: if there are several ranks]
    #[arg(long, conflicts_with = "no_tag")]
    tag_output: bool,
    /// Do not prefix lines of output
    #[arg(long)]
    no_tag: bool,
    /// Write the output of rank N to DIR/rank-N.out and DIR/rank-N.err on this host instead of printing it
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Send SIGKILL this long after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    grace: Duration,
    /// Restart all ranks up to TIMES times when one fails
    #[arg(long, value_name = "TIMES", default_value_t = 0, value_parser = between(0_u32, 1_000_000))]
    max_restarts: u32,
    /// Do not stop the other ranks when one fails: they may shrink the group and go on
    #[arg(long, conflicts_with = "max_restarts")]
    keep_going: bool,
    /// Stop the job after TIME, restarts included: 90s, 5m, 2h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    /// Print the commands and environments of the ranks and start nothing
    #[arg(long)]
    dry_run: bool,
    /// Print a report as JSON; the ranks' standard output then goes to standard error
    #[arg(long)]
    json: bool,
    /// The helper that `weft run` starts on every host; orders come on standard input
    #[arg(long, hide = true, exclusive = true)]
    pub(super) as_host: bool,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true)]
    program: Vec<String>,
}

const RANKS_MAX: u32 = 4096;

/// What a rank is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bind {
    /// The kernel places the ranks
    None,
    /// Whole physical cores that no other rank uses
    Core,
    /// The cores of a NUMA node
    Numa,
}

/// The job to start.
pub(super) struct Job {
    pub(super) name: String,
    pub(super) size: usize,
    pub(super) hosts: Vec<Placed>,
    pub(super) rsh: Vec<String>,
    pub(super) weft: String,
    pub(super) address: Option<String>,
    /// For ranks of other hosts.
    pub(super) forwarded: Vec<(String, String)>,
    /// For all ranks.
    pub(super) given: Vec<(String, String)>,
    /// The limit of open files before this process raised it.
    pub(super) files_limit: Option<u64>,
    pub(super) workdir: String,
    pub(super) bind: Bind,
    pub(super) report_bindings: bool,
    pub(super) gpus: Option<Gpus>,
    /// The library to load in place of NCCL.
    pub(super) nccl: Option<String>,
    pub(super) tags: bool,
    pub(super) output_dir: Option<PathBuf>,
    pub(super) grace: Duration,
    pub(super) restarts_max: u32,
    pub(super) keep_going: bool,
    pub(super) timeout: Option<Duration>,
    pub(super) dry_run: bool,
    pub(super) json: bool,
    pub(super) program: Vec<String>,
}

impl Args {
    pub(super) fn job(&self) -> Result<Job, Failure> {
        self.understood().map_err(Failure::Misuse)
    }

    fn understood(&self) -> anyhow::Result<Job> {
        if self.program.is_empty() {
            return Err(anyhow!("name a program: weft run -n 2 -- python train.py"));
        }
        let per_host = self.nproc_per_node.map(|ranks| ranks as usize);
        let ranks = self.ranks.map(|ranks| ranks as usize);
        let mut slots = match (&self.hosts, &self.hostfile) {
            (Some(list), _) => hosts::from_list(list).map_err(|error| anyhow!("--hosts {list}: {error}"))?,
            (None, Some(path)) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                hosts::from_file(&text).map_err(|error| anyhow!("{}: {error}", path.display()))?
            }
            (None, None) => {
                if ranks.or(per_host).is_none() {
                    return Err(anyhow!("give the number of ranks, such as -n 2"));
                }
                vec![Slot { host: "localhost".into(), slots: ranks }]
            }
        };
        if let Some(per_host) = per_host {
            if slots.iter().any(|slot| slot.slots.is_some()) {
                return Err(anyhow!(
                    "--nproc-per-node {per_host} contradicts the slots of the hosts; give one of the two"
                ));
            }
            slots.iter_mut().for_each(|slot| slot.slots = Some(per_host));
        }
        let hosts = hosts::place(&slots, ranks, &hosts::own_name()).map_err(|error| anyhow!(error))?;
        let size: usize = hosts.iter().map(|host| host.ranks.len()).sum();
        if size > RANKS_MAX as usize {
            return Err(anyhow!("{size} ranks; a job has at most {RANKS_MAX}"));
        }
        let rsh: Vec<String> =
            hosts::words(&self.rsh).map_err(|error| anyhow!("--rsh {:?}: {error}", self.rsh))?;
        let here = std::env::current_exe().context("cannot find the path of this program")?;
        let name = match &self.name {
            Some(name)
                if name.is_empty() || name.len() > 64 || !name.chars().all(|c| c.is_ascii_graphic()) =>
            {
                return Err(anyhow!(
                    "--name {name:?}: use 1 to 64 letters, digits and punctuation marks, without spaces"
                ));
            }
            Some(name) => name.clone(),
            None => format!("weft-{}-{}", std::process::id(), &secret::random()?[..8]),
        };
        Ok(Job {
            name,
            size,
            hosts,
            rsh,
            weft: self.weft_path.clone().unwrap_or_else(|| here.to_string_lossy().into_owned()),
            address: self.address.clone(),
            forwarded: forwarded(),
            given: self.given()?,
            files_limit: None,
            workdir: self.folder()?,
            bind: self.bind,
            report_bindings: self.report_bindings,
            gpus: self.gpus()?,
            nccl: if self.nccl { Some(nccl::find(self.nccl_library.as_deref())?) } else { None },
            tags: self.tag_output || (size > 1 && !self.no_tag),
            output_dir: self.output_dir.clone(),
            grace: self.grace,
            restarts_max: self.max_restarts,
            keep_going: self.keep_going,
            timeout: self.timeout,
            dry_run: self.dry_run,
            json: self.json,
            program: self.program.clone(),
        })
    }

    fn folder(&self) -> anyhow::Result<String> {
        let here = std::env::current_dir().context("cannot find the working directory")?;
        let folder = here.join(self.workdir.as_deref().unwrap_or_default());
        let text =
            folder.to_str().ok_or_else(|| anyhow!("{} is not UTF-8; use --workdir", folder.display()))?;
        // Joining nothing leaves a slash at the end.
        Ok(if text.len() > 1 { text.trim_end_matches('/').to_owned() } else { text.to_owned() })
    }

    fn gpus(&self) -> anyhow::Result<Option<Gpus>> {
        for (option, is_given) in [("--mps", self.mps), ("--true-local-rank", self.true_local_rank)] {
            if is_given && self.gpus != Some(Which::Shared) {
                return Err(anyhow!("{option} is for ranks that share GPUs; add --gpus shared"));
            }
        }
        let mut given =
            self.env.iter().map(|text| text.split_once('=').map_or(text.as_str(), |(name, _)| name));
        if self.mps && given.any(|name| name == mps::PIPES) {
            return Err(anyhow!(
                "--mps starts an MPS daemon, and --env {} names another; give one of the two",
                mps::PIPES
            ));
        }
        let (true_local_rank, mps) = (self.true_local_rank, self.mps);
        Ok(self.gpus.clone().map(|which| Gpus { which, true_local_rank, mps }))
    }

    fn given(&self) -> anyhow::Result<Vec<(String, String)>> {
        let read = |text: &String| {
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => (
                    text.as_str(),
                    std::env::var(text)
                        .with_context(|| format!("--env {text}: cannot forward it; write {text}=VALUE"))?,
                ),
            };
            match name {
                "" => Err(anyhow!("--env {text}: write NAME or NAME=VALUE")),
                "WEFT_SECRET" | "WEFT_SECRET_FILE" | "WEFT_RENDEZVOUS" | "RANK" | "WORLD_SIZE" => {
                    Err(anyhow!("--env {name}: weft run sets this variable for each rank"))
                }
                _ => Ok((name.to_owned(), value)),
            }
        };
        self.env.iter().map(read).collect()
    }
}

/// The variables that are always forwarded to other hosts.
fn forwarded() -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let ours = |name: &str| name.starts_with("WEFT_") && name != "WEFT_SECRET" && !UNSET.contains(&name);
    std::env::vars_os().filter_map(text).filter(|(name, _)| ours(name)).collect()
}
