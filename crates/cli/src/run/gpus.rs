//! `--gpus`: which GPUs the ranks of a host see, and how many hardware queues each rank gets.
//!
//! The helper of each host counts its own GPUs, with `nvidia-smi -L`, or by the kernel's list of them where that is not
//! installed, and does not load CUDA. A GPU is an entry of `CUDA_VISIBLE_DEVICES`: a number or a UUID, in CUDA's order.
//!
//! Queues: a collective is a kernel that waits for other ranks, and blocks every stream on its hardware queue. CUDA's default is
//! 8 queues per process and 2 under MPS. MPS has about 120 per GPU, and a process that finds none left fails.
//!
//! Deliberately absent: MIG. `nvidia-smi -L` lists its instances below their GPU; they are not counted.

use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weftlink_cuda::queues::{QUEUES_BY_DEFAULT, QUEUES_MAX, VARIABLE as QUEUES};
use weftlink_knobs::variable;
use weftlink_probe::{Folder, Tree};

use super::tool::{self, ToolError};
use super::wire::Start;
use crate::counted;

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// Queues to divide among the ranks of a GPU. MPS failed with 128 on an H200 (driver 580).
const QUEUES_OF_A_GPU: usize = 96;
const QUEUES_OF_MPS: usize = 120;
/// The most processes that MPS admits to a GPU: 48 up to CUDA 13.0, 60 later.
const MPS_PROCESSES_MAX: usize = 48;
/// A driver without persistence mode initialises every GPU first, which takes seconds.
const COUNTED_WITHIN: Duration = Duration::from_secs(60);
/// The kernel's list of GPUs.
const KERNEL_LIST: &str = "proc/driver/nvidia/gpus";
const LIST_MAX: usize = 1024;

/// The options of a job for GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gpus {
    pub(super) which: Which,
    /// Show ranks that share GPUs their place on the host, and all GPUs.
    pub(super) true_local_rank: bool,
    /// Start an MPS daemon.
    pub(super) mps: bool,
}

/// `--gpus`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Which {
    /// One for each rank.
    All,
    /// One of these for each rank.
    List(Vec<usize>),
    /// Several ranks may have the same.
    Shared,
}

impl Gpus {
    /// Whether each rank is shown one GPU as if it was alone on its host.
    pub(super) fn ranks_are_alone(&self) -> bool {
        self.which == Which::Shared && !self.true_local_rank
    }

    /// The option, for messages.
    fn option(&self) -> String {
        match &self.which {
            Which::All => "--gpus all".to_owned(),
            Which::Shared => "--gpus shared".to_owned(),
            Which::List(list) => {
                let list: Vec<String> = list.iter().map(usize::to_string).collect();
                format!("--gpus {}", list.join(","))
            }
        }
    }
}

/// Parses `--gpus`.
pub(super) fn which(text: &str) -> Result<Which, String> {
    match text {
        "all" => return Ok(Which::All),
        "shared" => return Ok(Which::Shared),
        _ => {}
    }
    let wrong = || "use all, shared, or numbers of GPUs such as 0,2 or 0-3".to_owned();
    let number =
        |text: &str| text.trim().parse::<usize>().ok().filter(|gpu| *gpu < LIST_MAX).ok_or_else(wrong);
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err(wrong());
        }
        list.extend(first..=last);
    }
    let mut sorted = list.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => Err(format!("GPU {} is listed twice; ranks share GPUs with --gpus shared", twice[0])),
        None => Ok(Which::List(list)),
    }
}

/// The variables of each rank of a host.
#[derive(Debug, PartialEq, Eq)]
struct Assigned {
    ranks: Vec<Vec<(String, String)>>,
    /// The most ranks on one GPU.
    on_a_gpu_max: usize,
    notes: Vec<String>,
}

/// Adds the variables for GPUs to the ranks of this host. Returns the most ranks on one GPU, and notes for the user.
pub(super) fn assign(start: &mut Start) -> Result<(usize, Vec<String>), String> {
    let Some(gpus) = &start.gpus else { return Ok((0, Vec::new())) };
    let count = count().map_err(|error| format!("{}: {error}", gpus.option()))?;
    let set = value(start, VISIBLE);
    let queues = value(start, QUEUES).filter(|value| !value.is_empty());
    let assigned =
        assigned(gpus, start.ranks.len(), &visible(count, set.as_deref()), count, queues.as_deref())?;
    for (rank, own) in start.ranks.iter_mut().zip(assigned.ranks) {
        rank.environment.extend(own);
    }
    Ok((assigned.on_a_gpu_max, assigned.notes))
}

/// What `--dry-run` shows for another host.
pub(super) fn assign_elsewhere(start: &mut Start) {
    let Some(gpus) = &start.gpus else { return };
    let own = |name: &str| (name.to_owned(), "(by the GPUs there)".to_owned());
    for rank in &mut start.ranks {
        rank.environment.push(own(QUEUES));
        if gpus.which != Which::All {
            rank.environment.push(own(VISIBLE));
        }
    }
}

/// The value that a rank would have: of `--env`, or of this process.
pub(super) fn value(start: &Start, name: &str) -> Option<String> {
    let given = start.environment.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    given.or_else(|| variable(name)?.into_string().ok())
}

/// The number of GPUs of this host.
fn count() -> Result<usize, String> {
    match tool::output(Command::new("nvidia-smi").arg("-L"), "", COUNTED_WITHIN) {
        Ok(text) => Ok(listed(&text)),
        Err(ToolError::Missing) => match in_kernel(&Folder::new("/")) {
            0 => Err(format!(
                "no GPU found: nvidia-smi is not in PATH, and /{KERNEL_LIST} lists none. Install the NVIDIA driver"
            )),
            count => Ok(count),
        },
        Err(ToolError::TimedOut(limit)) => {
            Err(format!("`nvidia-smi -L` did not answer within {} s; check the driver", limit.as_secs()))
        }
        Err(ToolError::Failed(how)) => Err(format!("cannot count the GPUs: `nvidia-smi -L` {how}")),
    }
}

/// The GPUs in the output of `nvidia-smi -L`.
fn listed(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with("GPU ")).count()
}

fn in_kernel(tree: &dyn Tree) -> usize {
    tree.list(KERNEL_LIST).len()
}

/// The GPUs that CUDA shows to a process, given the value of `CUDA_VISIBLE_DEVICES`. Like CUDA, it stops at the first number that is no
/// GPU. Instances of MIG are not counted, nor is an entry that stands there twice. UUIDs are not compared with those of the host.
fn visible(count: usize, set: Option<&str>) -> Vec<String> {
    let Some(set) = set else { return (0..count).map(|gpu| gpu.to_string()).collect() };
    let exists = |entry: &&str| match entry.parse::<i64>() {
        Ok(number) => usize::try_from(number).is_ok_and(|number| number < count),
        Err(_) => entry.starts_with("GPU-"),
    };
    let mut seen = Vec::new();
    for entry in set.split(',').map(str::trim).take_while(exists).map(str::to_owned) {
        if !seen.contains(&entry) {
            seen.push(entry);
        }
    }
    seen
}

/// Assigns GPUs to `ranks` ranks of a host that has `count`, of which some are visible. `set` is the user's number of queues.
fn assigned(
    gpus: &Gpus,
    ranks: usize,
    visible: &[String],
    count: usize,
    set: Option<&str>,
) -> Result<Assigned, String> {
    let option = gpus.option();
    let has = match (count, visible.len()) {
        (0, _) => "this host has none".to_owned(),
        (count, seen) if seen == count => format!("this host has {}", counted(count, "GPU")),
        (count, seen) => {
            format!("this host has {}, of which {VISIBLE} shows {seen}", counted(count, "GPU"))
        }
    };
    let mine: Vec<&String> = match &gpus.which {
        Which::All | Which::Shared => visible.iter().collect(),
        Which::List(list) => list
            .iter()
            .map(|gpu| {
                visible
                    .get(*gpu)
                    .ok_or_else(|| format!("{option}: there is no GPU {gpu}; {has}, numbered from 0"))
            })
            .collect::<Result<_, _>>()?,
    };
    if mine.is_empty() {
        return Err(format!("{option}: {}, and {has}", needs(ranks)));
    }
    let is_shared = gpus.which == Which::Shared;
    if !is_shared && ranks > mine.len() {
        let given = match gpus.which {
            Which::List(_) => format!("the list has {}", counted(mine.len(), "GPU")),
            _ => has,
        };
        return Err(format!(
            "{option}: {}, and {given}. Start fewer ranks, or use --gpus shared to let ranks share GPUs",
            needs(ranks)
        ));
    }
    // Contiguous groups whose sizes differ by at most one.
    let used = mine.len().min(ranks);
    let gpu_of = |rank: usize| rank * used / ranks;
    let on = |gpu: usize| (0..ranks).filter(|rank| gpu_of(*rank) == gpu).count();
    let on_a_gpu_max = ranks.div_ceil(used);
    let all = mine.iter().map(|gpu| gpu.as_str()).collect::<Vec<_>>().join(",");
    let of = |rank: usize| {
        let seen = match &gpus.which {
            Which::All => None,
            Which::Shared if gpus.ranks_are_alone() => Some(mine[gpu_of(rank)].clone()),
            Which::Shared | Which::List(_) => Some(all.clone()),
        };
        // A rank that chooses its GPU itself may choose a full one.
        let sharing = if gpus.ranks_are_alone() { on(gpu_of(rank)) } else { on_a_gpu_max };
        let queues = (QUEUES_OF_A_GPU / sharing).clamp(1, QUEUES_MAX).to_string();
        let pairs = [seen.map(|seen| (VISIBLE, seen)), set.is_none().then_some((QUEUES, queues))];
        pairs.into_iter().flatten().map(|(name, value)| (name.to_owned(), value)).collect()
    };
    let notes = [crowded(on_a_gpu_max, gpus.mps), queues_note(set, on_a_gpu_max, is_shared)];
    Ok(Assigned {
        ranks: (0..ranks).map(of).collect(),
        on_a_gpu_max,
        notes: notes.into_iter().flatten().collect(),
    })
}

/// `4 ranks of this host need a GPU each`.
fn needs(ranks: usize) -> String {
    match ranks {
        1 => "the rank of this host needs a GPU".to_owned(),
        ranks => format!("{ranks} ranks of this host need a GPU each"),
    }
}

fn crowded(on_a_gpu: usize, mps: bool) -> Option<String> {
    (mps && on_a_gpu > MPS_PROCESSES_MAX).then(|| {
        format!(
            "{on_a_gpu} ranks on a GPU: MPS admits {MPS_PROCESSES_MAX} processes up to CUDA 13.0 and 60 later; the others will fail"
        )
    })
}

/// What is wrong with the user's number of queues.
fn queues_note(set: Option<&str>, on_a_gpu: usize, is_shared: bool) -> Option<String> {
    let queues: usize = set?.trim().parse().ok()?;
    // Programs are tested with the default.
    let enough = (QUEUES_OF_A_GPU / on_a_gpu).clamp(1, QUEUES_BY_DEFAULT);
    if queues < enough {
        return Some(format!(
            "{QUEUES}={queues} is low: a collective that waits for another rank blocks every stream on its hardware queue. If the \
             job hangs, unset it, or set at least {enough}"
        ));
    }
    let all = queues.min(QUEUES_MAX) * on_a_gpu;
    (is_shared && on_a_gpu > 1 && all > QUEUES_OF_MPS).then(|| {
        let most = (QUEUES_OF_A_GPU / on_a_gpu).clamp(1, QUEUES_MAX);
        format!(
            "{QUEUES}={queues} is high for {on_a_gpu} ranks on a GPU: MPS has about {QUEUES_OF_MPS} queues per GPU, and a rank that \
             finds none left fails. Unset it, or set at most {most}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(which: Which) -> Gpus {
        Gpus { which, true_local_rank: false, mps: false }
    }

    /// The visible GPU and the queues of each rank.
    fn shares(gpus: &Gpus, ranks: usize, count: usize, set: Option<&str>) -> Vec<(String, String)> {
        let assigned = assigned(gpus, ranks, &visible(count, set), count, None).unwrap();
        let value = |own: &[(String, String)], name: &str| {
            own.iter().find(|(key, _)| key == name).map_or("-".to_owned(), |(_, value)| value.clone())
        };
        assigned.ranks.iter().map(|own| (value(own, VISIBLE), value(own, QUEUES))).collect()
    }

    fn pairs(wanted: &[(&str, &str)]) -> Vec<(String, String)> {
        wanted.iter().map(|(gpu, queues)| ((*gpu).to_owned(), (*queues).to_owned())).collect()
    }

    #[test]
    fn options_are_read() {
        assert_eq!(which("all"), Ok(Which::All));
        assert_eq!(which("shared"), Ok(Which::Shared));
        assert_eq!(which("2,0"), Ok(Which::List(vec![2, 0])));
        assert_eq!(which("4-6,1"), Ok(Which::List(vec![4, 5, 6, 1])));
        for wrong in ["", "some", "0,", "3-1", "-1", "0-99999", "1024"] {
            assert!(which(wrong).unwrap_err().starts_with("use all, shared, or numbers"), "{wrong}");
        }
        assert!(which("0-2,1").unwrap_err().starts_with("GPU 1 is listed twice"));
    }

    #[test]
    fn gpus_are_counted() {
        let text = "GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb     Device  0: (UUID: MIG-2)\nGPU 1: NVIDIA H200 (UUID: GPU-3)\n";
        assert_eq!(listed(text), 2);
        assert_eq!(listed("No devices were found\n"), 0);
        let folder = std::env::temp_dir().join(format!("weft-gpus-{}", std::process::id()));
        assert_eq!(in_kernel(&Folder::new(&folder)), 0);
        for bus in ["0000:19:00.0", "0000:3b:00.0"] {
            std::fs::create_dir_all(folder.join(KERNEL_LIST).join(bus)).unwrap();
        }
        assert_eq!(in_kernel(&Folder::new(&folder)), 2);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn visible_devices_are_read_as_cuda_does() {
        for (set, seen) in [
            (None, "0 1 2 3"),
            (Some("2, 0"), "2 0"),
            (Some("1,-1,2"), "1"),
            (Some("1,7,2"), "1"),
            (Some(""), ""),
            (Some("NoDevFiles"), ""),
            (Some("GPU-8932f937,3"), "GPU-8932f937 3"),
            (Some("1,1"), "1"),
            (Some("MIG-8932f937"), ""),
        ] {
            assert_eq!(visible(4, set).join(" "), seen, "{set:?}");
        }
    }

    #[test]
    fn a_rank_has_a_gpu_of_its_own() {
        assert_eq!(shares(&gpus(Which::All), 2, 4, None), pairs(&[("-", "32"), ("-", "32")]));
        let list = gpus(Which::List(vec![2, 0]));
        assert_eq!(shares(&list, 2, 4, None), pairs(&[("2,0", "32"), ("2,0", "32")]));
        assert_eq!(shares(&list, 1, 4, Some("3,1,GPU-5")), pairs(&[("GPU-5,3", "32")]));
    }

    #[test]
    fn shared_gpus_get_contiguous_groups_of_ranks() {
        let shared = gpus(Which::Shared);
        let five = [("0", "32"), ("0", "32"), ("0", "32"), ("1", "32"), ("1", "32")];
        assert_eq!(shares(&shared, 5, 2, None), pairs(&five));
        assert_eq!(shares(&shared, 2, 8, None), pairs(&[("0", "32"), ("1", "32")]));
        assert_eq!(shares(&shared, 8, 1, None), vec![("0".to_owned(), "12".to_owned()); 8]);
        assert_eq!(shares(&shared, 16, 1, Some("GPU-5")), vec![("GPU-5".to_owned(), "6".to_owned()); 16]);
        assert_eq!(shares(&shared, 200, 1, None)[199].1, "1");
        for (ranks, count) in [(7, 3), (64, 8), (9, 8), (100, 7)] {
            let shares = shares(&shared, ranks, count, None);
            assert!(shares.is_sorted_by_key(|(gpu, _)| gpu.parse::<usize>().unwrap()));
            for (gpu, _) in &shares {
                let on = shares.iter().filter(|(other, _)| other == gpu).count();
                assert!([ranks / count, ranks.div_ceil(count)].contains(&on), "{on} of {ranks} on {gpu}");
            }
        }
        let shown = Gpus { true_local_rank: true, ..shared };
        assert_eq!(shares(&shown, 7, 2, None), vec![("0,1".to_owned(), "24".to_owned()); 7]);
    }

    #[test]
    fn missing_gpus_are_errors() {
        let error = |which: Which, ranks, count, set: Option<&str>| {
            assigned(&gpus(which), ranks, &visible(count, set), count, None).unwrap_err()
        };
        assert_eq!(
            error(Which::All, 4, 2, None),
            "--gpus all: 4 ranks of this host need a GPU each, and this host has 2 GPUs. Start fewer ranks, or use --gpus shared to \
             let ranks share GPUs"
        );
        assert!(
            error(Which::All, 2, 4, Some("3")).contains("has 4 GPUs, of which CUDA_VISIBLE_DEVICES shows 1.")
        );
        assert!(
            error(Which::List(vec![0, 1]), 3, 4, None).contains("need a GPU each, and the list has 2 GPUs.")
        );
        assert_eq!(
            error(Which::List(vec![0, 5]), 1, 2, None),
            "--gpus 0,5: there is no GPU 5; this host has 2 GPUs, numbered from 0"
        );
        assert_eq!(
            error(Which::Shared, 1, 0, None),
            "--gpus shared: the rank of this host needs a GPU, and this host has none"
        );
        assert!(
            error(Which::Shared, 1, 1, Some("")).contains("has 1 GPU, of which CUDA_VISIBLE_DEVICES shows 0")
        );
    }

    #[test]
    fn queues_of_the_user_are_kept() {
        let notes =
            |set: &str, ranks, is_shared| queues_note(Some(set), ranks, is_shared).unwrap_or_default();
        assert!(notes("1", 1, false).contains("set at least 8"));
        assert!(notes("4", 16, true).contains("set at least 6"));
        assert!(notes("16", 8, true).contains("set at most 12"));
        for (set, ranks, is_shared) in [("8", 1, false), ("6", 16, true), ("12", 8, true), ("x", 1, false)] {
            assert_eq!(notes(set, ranks, is_shared), "", "{set} {ranks}");
        }
        let kept = assigned(&gpus(Which::All), 1, &visible(1, None), 1, Some("4")).unwrap();
        assert_eq!((kept.ranks, kept.notes.len()), (vec![vec![]], 1));
        assert!(crowded(49, true).is_some() && crowded(48, true).is_none());
    }
}
