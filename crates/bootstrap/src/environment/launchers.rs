//! Who started this process, and what it told: one reader for each kind of launcher.

use super::{EnvironmentError, Launcher, Variables, nodelist};

/// What a launcher told, but for where to meet.
pub(super) struct LauncherInfo {
    pub(super) launcher: Launcher,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) local_rank: Option<usize>,
    pub(super) local_size: Option<usize>,
    /// Something that all ranks of this job are told alike and other jobs are not, if there is any.
    pub(super) job: Option<String>,
}

/// How a job is named after the parent of its ranks.
pub(super) const PARENT: &str = "parent-";

/// More ranks than anybody starts: what is larger is no number of ranks.
const RANKS_MAX: usize = 1 << 20;

/// The innermost launcher's word.
pub(super) fn read(variables: &Variables<'_>) -> Result<LauncherInfo, EnvironmentError> {
    let by_name = variables.is_set("WEFT_JOB")
        || variables.is_set("TORCHELASTIC_RUN_ID")
        || variables.is_set("TORCHELASTIC_RESTART_COUNT");
    let pair = (variables.is_set("RANK"), variables.is_set("WORLD_SIZE"));
    let below = below(variables)?;
    let info = match (pair, below) {
        ((true, true), None) => named(variables)?,
        ((true, true), Some((below, variable))) => {
            let info = named(variables)?;
            if !by_name && (info.rank, info.size) != (below.rank, below.size) {
                return Err(EnvironmentError::Conflict {
                    one: format!("RANK={} of WORLD_SIZE={}", info.rank, info.size),
                    other: format!("{variable}={} of {}", below.rank, below.size),
                    advice: "unset RANK and WORLD_SIZE, if they are left over from something else, or the other's variables",
                });
            }
            // The launcher below knows more: which host, which job.
            if by_name { info } else { below }
        }
        (_, Some((below, _))) => below,
        ((true, false), None) => return Err(missing("RANK", "WORLD_SIZE")),
        ((false, true), None) => return Err(missing("WORLD_SIZE", "RANK")),
        ((false, false), None) => return Err(EnvironmentError::Nobody),
    };
    check(&info)?;
    Ok(info)
}

fn missing(present: &'static str, missing: &'static str) -> EnvironmentError {
    let advice = "A rank is told both: which it is, from 0, and how many there are";
    EnvironmentError::Missing { present, missing, advice }
}

/// A launcher that has variables of its own, and the one that says the rank.
fn below(variables: &Variables<'_>) -> Result<Option<(LauncherInfo, &'static str)>, EnvironmentError> {
    // An allocation's shell has SLURM_PROCID too; only a step of srun has a number of its own.
    let srun = variables.is_set("SLURM_PROCID") && variables.is_set("SLURM_STEP_ID");
    // Under srun --mpi=pmi2 or pmix both are set. Hydra sets local ranks of its own, srun does not.
    let hydra = variables.is_set("PMI_RANK") && (variables.is_set("MPI_LOCALRANKID") || !srun);
    Ok(Some(if variables.is_set("OMPI_COMM_WORLD_RANK") {
        (open_mpi(variables)?, "OMPI_COMM_WORLD_RANK")
    } else if hydra {
        (self::hydra(variables)?, "PMI_RANK")
    } else if srun {
        (slurm(variables)?, "SLURM_PROCID")
    } else if variables.is_set("PMIX_RANK") {
        (without_size(variables, "PMIX_RANK", "PMIX_NAMESPACE")?, "PMIX_RANK")
    } else if variables.is_set("PMI_ID") {
        (without_size(variables, "PMI_ID", "PMI_PORT")?, "PMI_ID")
    } else {
        return Ok(None);
    }))
}

fn check(info: &LauncherInfo) -> Result<(), EnvironmentError> {
    let conflict = |one: String, other: String| {
        Err(EnvironmentError::Conflict { one, other, advice: "one of them is not of this job" })
    };
    if info.size == 0 || info.size > RANKS_MAX {
        let value = info.size.to_string();
        return Err(EnvironmentError::Unreadable {
            name: names(info.launcher)[1],
            value,
            wanted: "a number of ranks, from 1 to 1048576",
        });
    }
    let [rank, size, local_rank, local_size] = names(info.launcher);
    if info.rank >= info.size {
        return conflict(format!("{rank}={}", info.rank), format!("{size}={}", info.size));
    }
    if let (Some(one), Some(of)) = (info.local_rank, info.local_size)
        && one >= of
    {
        return conflict(format!("{local_rank}={one}"), format!("{local_size}={of}"));
    }
    match info.local_size {
        Some(of) if of > info.size => conflict(format!("{local_size}={of}"), format!("{size}={}", info.size)),
        _ => Ok(()),
    }
}

/// The variables that tell rank, size, local rank and local size.
fn names(launcher: Launcher) -> [&'static str; 4] {
    match launcher {
        Launcher::WeftRun | Launcher::Torchrun | Launcher::Variables => {
            ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
        }
        Launcher::OpenMpi => [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ],
        Launcher::Hydra => ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
        Launcher::Pmi => ["PMIX_RANK or PMI_ID", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
        Launcher::Slurm => ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"],
    }
}

fn required(
    variables: &Variables<'_>,
    present: &'static str,
    missing: &'static str,
) -> Result<usize, EnvironmentError> {
    let advice = "Its launcher sets both: start the job afresh, or unset what is left over";
    variables.number(missing)?.ok_or(EnvironmentError::Missing { present, missing, advice })
}

fn named(variables: &Variables<'_>) -> Result<LauncherInfo, EnvironmentError> {
    let (launcher, job) = match (variables.text("WEFT_JOB")?, variables.text("TORCHELASTIC_RUN_ID")?) {
        (Some(job), _) => (Launcher::WeftRun, Some(job)),
        (None, Some(run)) => (Launcher::Torchrun, Some(run)),
        (None, None) if variables.is_set("TORCHELASTIC_RESTART_COUNT") => (Launcher::Torchrun, None),
        (None, None) => (Launcher::Variables, None),
    };
    Ok(LauncherInfo {
        launcher,
        rank: required(variables, "WORLD_SIZE", "RANK")?,
        size: required(variables, "RANK", "WORLD_SIZE")?,
        local_rank: variables.first_number(&["WEFT_LOCAL_RANK", "LOCAL_RANK"])?.map(|(_, rank)| rank),
        local_size: variables
            .first_number(&["WEFT_LOCAL_WORLD_SIZE", "LOCAL_WORLD_SIZE"])?
            .map(|(_, size)| size),
        job,
    })
}

fn open_mpi(variables: &Variables<'_>) -> Result<LauncherInfo, EnvironmentError> {
    let [rank, size, local_rank, local_size] = names(Launcher::OpenMpi);
    // Version 4 names the job to ORTE, all versions to PMIx.
    let job = match variables.text("PMIX_NAMESPACE")? {
        Some(job) => Some(job),
        None => variables.text("OMPI_MCA_ess_base_jobid")?,
    };
    Ok(LauncherInfo {
        launcher: Launcher::OpenMpi,
        rank: required(variables, rank, rank)?,
        size: required(variables, rank, size)?,
        local_rank: variables.number(local_rank)?,
        local_size: variables.number(local_size)?,
        job,
    })
}

fn hydra(variables: &Variables<'_>) -> Result<LauncherInfo, EnvironmentError> {
    let [rank, size, local_rank, local_size] = names(Launcher::Hydra);
    let mut job = None;
    for name in ["I_MPI_HYDRA_UUID", "PMI_JOBID", "PMI_PORT", "WEFT_JOB"] {
        job = job.or(variables.text(name)?);
    }
    let local_size = variables.number(local_size)?;
    let size = required(variables, rank, size)?;
    // MPICH tells its ranks nothing that another job is not told too. On one host they have one parent, its proxy; with a
    // shell in between they do not, and then they miss each other instead of meeting strangers.
    if local_size == Some(size) {
        job = job.or(Some(format!("{PARENT}{}", variables.around.parent)));
    }
    let local_rank = variables.number(local_rank)?;
    Ok(LauncherInfo {
        launcher: Launcher::Hydra,
        rank: required(variables, rank, rank)?,
        size,
        local_rank,
        local_size,
        job,
    })
}

/// PMIx and PMI by a port tell the number of ranks on request only, by a connection that is not ours to use.
fn without_size(
    variables: &Variables<'_>,
    rank: &'static str,
    job: &'static str,
) -> Result<LauncherInfo, EnvironmentError> {
    let size = variables.first_number(&["PMI_SIZE", "WORLD_SIZE"])?;
    let (_, size) = size.ok_or(EnvironmentError::Missing {
        present: rank,
        missing: "WORLD_SIZE",
        advice: "This launcher does not tell how many ranks there are: set WORLD_SIZE for all ranks, and WEFT_RENDEZVOUS \
                 to host:port of rank 0",
    })?;
    Ok(LauncherInfo {
        launcher: Launcher::Pmi,
        rank: required(variables, rank, rank)?,
        size,
        local_rank: variables.first_number(&["PMIX_LOCAL_RANK", "LOCAL_RANK"])?.map(|(_, rank)| rank),
        local_size: variables.number("LOCAL_WORLD_SIZE")?,
        job: variables.text(job)?,
    })
}

fn slurm(variables: &Variables<'_>) -> Result<LauncherInfo, EnvironmentError> {
    let size = variables.first_number(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"])?;
    let (_, size) = match size {
        Some(size) => size,
        None => ("SLURM_NTASKS", required(variables, "SLURM_PROCID", "SLURM_NTASKS")?),
    };
    let nodes = variables.first_number(&["SLURM_STEP_NUM_NODES", "SLURM_NNODES"])?.map(|(_, nodes)| nodes);
    let here = match (variables.text("SLURM_STEP_TASKS_PER_NODE")?, variables.number("SLURM_NODEID")?) {
        (Some(text), Some(node)) => match nodelist::count_at(&text, node) {
            Some(count) => Some(count),
            None => {
                let wanted = "a list of counts such as 4(x2),3 with one for every node";
                let name = "SLURM_STEP_TASKS_PER_NODE";
                return Err(EnvironmentError::Unreadable { name, value: text, wanted });
            }
        },
        _ => None,
    };
    let each = variables.number("SLURM_NTASKS_PER_NODE")?;
    // What was asked for per node is what there is only if it adds up.
    let even = each.filter(|&each| nodes.is_some_and(|nodes| each.checked_mul(nodes) == Some(size)));
    let job = variables.text("SLURM_JOB_ID")?.ok_or(EnvironmentError::Missing {
        present: "SLURM_PROCID",
        missing: "SLURM_JOB_ID",
        advice: "srun sets both: start the job afresh, or unset what is left over",
    })?;
    let step = variables.text("SLURM_STEP_ID")?.unwrap_or_default();
    Ok(LauncherInfo {
        launcher: Launcher::Slurm,
        rank: required(variables, "SLURM_PROCID", "SLURM_PROCID")?,
        size,
        local_rank: variables.number("SLURM_LOCALID")?,
        local_size: here.or(even).or((nodes == Some(1)).then_some(size)),
        job: Some(format!("{job}.{step}")),
    })
}
