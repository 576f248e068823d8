//! What was typed, and what it means.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::hosts::{self, Placed, Slot};
use super::secret;
use crate::Failure;

/// Start the ranks of a job, here or on several hosts, as torchrun and mpirun would
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft run -n 4 -- python train.py --epochs 3        four ranks here, each with cores of its own
  weft run -n 8 --hosts a,b -- ./prog                four on a, four on b, by ssh
  weft run --hosts a:2,b:6 -- ./prog                 as many as the hosts have slots
  weft run -n 2 --max-restarts 3 -- ./prog           all ranks afresh when one fails, at most three times
  weft run -n 8 --keep-going -- ./prog               those who are left may shrink and go on when one dies
  weft run -n 2 --output-dir logs -- ./prog          logs/rank-0.out, logs/rank-0.err, ...
  weft run -n 2 --hosts red,blue --rsh 'ip netns exec' --address 10.0.0.1 -- ./prog

Ranks are told who they are as torchrun tells them (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...) and where Weft's \
communicators meet (WEFT_RENDEZVOUS, WEFT_SECRET). Their standard input is empty.

When one fails, the others have a second to notice, then they get SIGTERM and after --grace SIGKILL, unless --keep-going. SIGINT, \
SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on; a second SIGINT (Ctrl-C) or SIGTERM kills.

Exit code: 0 if all ranks ended with 0; that of the rank that failed first, or 128 and the number of the signal that killed it; \
124 after --timeout; 1 if a host was lost; 2 if nothing could be started as asked.")]
pub(crate) struct Args {
    /// How many ranks, also as -np [default: as many as the hosts have slots]
    #[arg(short = 'n', long = "ranks", alias = "np", value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..=RANKS_MAX))]
    ranks: Option<u32>,
    /// How many ranks on each host, as torchrun has it
    #[arg(long, alias = "nproc_per_node", value_name = "RANKS", conflicts_with = "ranks", value_parser = clap::value_parser!(u32).range(1..=RANKS_MAX))]
    nproc_per_node: Option<u32>,
    /// On which hosts, as a,b (the ranks divided evenly) or a:4,b:4 (so many slots each)
    #[arg(long, value_name = "HOSTS", conflicts_with = "hostfile")]
    hosts: Option<String>,
    /// A file with a host on each line: `a`, `a slots=4` or `a:4`; # begins a comment
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// What starts a command on another host; the host is put at {host}, or at the end
    #[arg(long, value_name = "COMMAND", default_value = "ssh -o BatchMode=yes")]
    rsh: String,
    /// Where weft is on the other hosts [default: where it is here]
    #[arg(long, value_name = "PATH")]
    weft_path: Option<String>,
    /// How the other hosts reach that of rank 0 [default: its name, as given]
    #[arg(long, value_name = "HOST")]
    address: Option<String>,
    /// Pass a variable of this environment, or a value, to ranks of other hosts too; those that begin with WEFT_ always are
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// The folder that ranks run in, on every host [default: this one]
    #[arg(long, value_name = "DIR")]
    workdir: Option<String>,
    /// The name of the job, as ranks see it in WEFT_JOB [default: a new one]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// What ranks are bound to: cores of their own, a NUMA node, or nothing
    #[arg(long, value_name = "WHAT", default_value = "core")]
    bind: Bind,
    /// Say which rank runs on which cores
    #[arg(long)]
    report_bindings: bool,
    /// Begin lines of output with their rank [default: if there are several]
    #[arg(long, conflicts_with = "no_tag")]
    tag_output: bool,
    /// Leave lines of output as they are
    #[arg(long)]
    no_tag: bool,
    /// Write what ranks print to DIR/rank-N.out and DIR/rank-N.err, on this host, and not here
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// How long ranks may take to end after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    grace: Duration,
    /// How often all ranks are started again after one failed
    #[arg(long, value_name = "TIMES", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    max_restarts: u32,
    /// When a rank fails, let the others go on: they may shrink to those who are left
    #[arg(long, conflicts_with = "max_restarts")]
    keep_going: bool,
    /// End the job after so long, restarts included: 90s, 5m, 2h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    /// Print what would be started, where, with which environment, and start nothing
    #[arg(long)]
    dry_run: bool,
    /// Print how it went as JSON; what ranks write to standard output then comes on standard error
    #[arg(long)]
    json: bool,
    /// What `weft run` starts on every host: it is told what to do on standard input
    #[arg(long, hide = true, exclusive = true)]
    pub(super) as_host: bool,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true)]
    program: Vec<String>,
}

const RANKS_MAX: i64 = 4096;
/// A year: past it, sums of times would no longer fit.
const SECONDS_MAX: f64 = 365.25 * 86400.0;

/// What a rank is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bind {
    /// Wherever the kernel puts it
    None,
    /// Whole physical cores that no other rank uses
    Core,
    /// The cores of a NUMA node
    Numa,
}

/// What is to be started.
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
    /// How many files this process might have open, before it was allowed more.
    pub(super) files_limit: Option<u64>,
    pub(super) workdir: String,
    pub(super) bind: Bind,
    pub(super) report_bindings: bool,
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
            return Err(anyhow!("say what to run, such as: weft run -n 2 -- python train.py"));
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
                    return Err(anyhow!("say how many ranks, such as -n 2"));
                }
                vec![Slot { host: "localhost".into(), slots: ranks }]
            }
        };
        if let Some(per_host) = per_host {
            if slots.iter().any(|slot| slot.slots.is_some()) {
                return Err(anyhow!(
                    "--nproc-per-node {per_host}: the hosts have slots; give one of the two"
                ));
            }
            slots.iter_mut().for_each(|slot| slot.slots = Some(per_host));
        }
        let hosts = hosts::place(&slots, ranks, &hosts::own_name()).map_err(|error| anyhow!(error))?;
        let size: usize = hosts.iter().map(|host| host.ranks.len()).sum();
        if size > RANKS_MAX as usize {
            return Err(anyhow!("{size} ranks are more than the {RANKS_MAX} that a job may have"));
        }
        let rsh: Vec<String> =
            hosts::words(&self.rsh).map_err(|error| anyhow!("--rsh {:?}: {error}", self.rsh))?;
        let here = std::env::current_exe().context("cannot tell where this program is")?;
        let name = match &self.name {
            Some(name)
                if name.is_empty() || name.len() > 64 || !name.chars().all(|c| c.is_ascii_graphic()) =>
            {
                return Err(anyhow!(
                    "--name {name:?} should have 1 to 64 letters, digits and signs, without spaces"
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
        let here = std::env::current_dir().context("cannot tell which folder this is")?;
        let folder = here.join(self.workdir.as_deref().unwrap_or_default());
        let text =
            folder.to_str().ok_or_else(|| anyhow!("{} is not UTF-8; use --workdir", folder.display()))?;
        // Joining nothing leaves a slash at the end.
        Ok(if text.len() > 1 { text.trim_end_matches('/').to_owned() } else { text.to_owned() })
    }

    fn given(&self) -> anyhow::Result<Vec<(String, String)>> {
        let read = |text: &String| {
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => (
                    text.as_str(),
                    std::env::var(text).with_context(|| {
                        format!("--env {text}: cannot pass it on; give a value as {text}=VALUE")
                    })?,
                ),
            };
            match name {
                "" => Err(anyhow!("--env {text}: say NAME or NAME=VALUE")),
                // These are what the command is there to set.
                "WEFT_SECRET" | "WEFT_SECRET_FILE" | "WEFT_RENDEZVOUS" | "RANK" | "WORLD_SIZE" => {
                    Err(anyhow!("--env {name}: weft run sets this itself, for each rank and job"))
                }
                _ => Ok((name.to_owned(), value)),
            }
        };
        self.env.iter().map(read).collect()
    }
}

/// What ranks of other hosts are told of this environment without being asked.
fn forwarded() -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let ours = |name: &str| name.starts_with("WEFT_") && !["WEFT_SECRET", "WEFT_SECRET_FILE"].contains(&name);
    std::env::vars_os().filter_map(text).filter(|(name, _)| ours(name)).collect()
}

/// `5s`, `500ms`, `2m`, `1h`, or seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let found = units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)));
    let (number, unit) = found.unwrap_or((text, 1.0));
    let seconds = number.trim().parse::<f64>().ok().map(|number| number * unit);
    match seconds.filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => Err("say how long, such as 500ms, 5s, 2m or 1h".to_owned()),
    }
}

/// What was typed, with mpirun's `-np` as `-n`: to clap it would be `-n` with the value `p`. Only options of `weft run` are looked
/// at, not those of the program.
pub(crate) fn spelled(mut words: Vec<OsString>, weft: &clap::Command) -> Vec<OsString> {
    let run = weft.find_subcommand("run").filter(|_| words.get(1).is_some_and(|word| word == "run"));
    let Some(run) = run else { return words };
    let takes_value = |word: &str| {
        let is = |option: &&clap::Arg| match word.strip_prefix("--") {
            Some(long) => {
                option.get_long_and_visible_aliases().is_some_and(|names| names.contains(&long))
                    || option.get_all_aliases().is_some_and(|names| names.contains(&long))
            }
            None => option
                .get_short()
                .is_some_and(|short| word.strip_prefix('-') == Some(short.to_string().as_str())),
        };
        run.get_arguments().find(is).is_some_and(|option| option.get_action().takes_values())
    };
    let mut at = 2;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()).map(str::to_owned) {
        match word.as_str() {
            "--" => break,
            "-np" => {
                words[at] = "-n".into();
                at += 2;
            }
            option if option.starts_with('-') => at += 1 + usize::from(takes_value(option)),
            _ => break,
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let ms = |text| duration(text).map(|time| time.as_millis());
        assert_eq!(
            [ms("500ms"), ms("5s"), ms("2m"), ms("1h"), ms("0.5"), ms("0")].map(Result::unwrap),
            [500, 5000, 120_000, 3_600_000, 500, 0]
        );
        for bad in ["", "s", "-1s", "1d", "nan", "inf", "1e300"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn np_is_n_before_the_program() {
        use clap::CommandFactory;
        #[derive(clap::Parser)]
        struct Weft {
            #[command(subcommand)]
            _command: Only,
        }
        #[derive(clap::Subcommand)]
        enum Only {
            Run(Box<Args>),
        }
        let weft = Weft::command();
        let of = |line: &str| {
            let words = spelled(line.split(' ').map(OsString::from).collect(), &weft);
            words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("weft run -np 2 -- prog -np 3"), "weft run -n 2 -- prog -np 3");
        assert_eq!(of("weft run --json -np 2 prog -np 3"), "weft run --json -n 2 prog -np 3");
        assert_eq!(of("weft run --name -np -np 2 prog"), "weft run --name -np -n 2 prog");
        assert_eq!(of("weft run --hosts=a,b -x A -np 2 prog"), "weft run --hosts=a,b -x A -n 2 prog");
        assert_eq!(of("weft run --json prog -np 3"), "weft run --json prog -np 3");
        assert_eq!(of("weft bench -np 3"), "weft bench -np 3");
    }
}
