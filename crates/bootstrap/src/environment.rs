//! The rank of this process and the address of its job, from the variables that launchers set.
//!
//! | launcher | rank and size | address, unless `WEFT_RENDEZVOUS` or `MASTER_ADDR` is set |
//! |---|---|---|
//! | `weft run` | `RANK`, `WORLD_SIZE`, ... | always set |
//! | torchrun, Kubernetes, a person | `RANK`, `WORLD_SIZE`, ... | `MASTER_ADDR`, ports from `MASTER_PORT` + 1: that one is torch's |
//! | Open MPI's mpirun | `OMPI_COMM_WORLD_RANK`, ... | one host only |
//! | MPICH's and Intel's mpiexec | `PMI_RANK`, `MPI_LOCALRANKID`, ... | one host only |
//! | PMIx, PMI-1 by port | `PMIX_RANK` or `PMI_ID`, and `WORLD_SIZE`, which these do not set | one host only |
//! | srun | `SLURM_PROCID`, ... | the step's first host, ports from the job's number |
//!
//! Launchers are started by launchers (srun starts torchrun, mpirun runs within an allocation), so several may have
//! left their variables. The innermost counts: `weft run` and torchrun are known by variables of their own, and so on in
//! the order of the table. A plain `RANK` that contradicts the launcher below it is an error, since one of them is left
//! over from something else. An empty variable is one that is not set.
//!
//! Seen with Open MPI 4.1, MPICH 4.0, Intel MPI 2021.19 and Slurm 22.05 on one machine. What is read of torchrun and of PMIx
//! launchers without Open MPI is from their documentation, unverified.
//!
//! Pure: [`Environment::read`] looks only at the [`EnvironmentSource`] it is given. Deliberately absent: whether two ranks
//! really are on one host. The rendezvous finds that out; here it decides only the address.

mod address;
mod error;
mod launchers;
mod nodelist;
#[cfg(test)]
mod tests;
mod torch;

pub use error::EnvironmentError;
pub use nodelist::expand as expand_nodelist;

use std::fmt;

use super::rendezvous_address::RendezvousAddress;

/// What a process knows of its job before the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// The launcher.
    pub launcher: Launcher,
    /// The rank of this process.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// The rank on this host, where the launcher sets it.
    pub local_rank: Option<usize>,
    /// The number of ranks on this host, where the launcher sets it.
    pub local_size: Option<usize>,
    /// Where rank 0 listens.
    pub address: RendezvousAddress,
    /// The secret by which ranks recognise each other.
    pub secret: Secret,
    /// True if no secret was given: it was derived from what others can find out too (the job's number, its address). Then
    /// any process that reaches the address can join, and a rank that listens there should warn.
    pub secret_is_guessable: bool,
}

/// A secret of the ranks of one job. It never appears in messages.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// What `WEFT_SECRET` or `WEFT_SECRET_FILE` gives this process, if one of them is set.
    pub fn of_this_process() -> Result<Option<Secret>, EnvironmentError> {
        of_this_process(|around| Variables { around }.secret())
    }

    /// The bytes: of any length from 16 to [`SECRET_BYTES_MAX`], and not evenly random, so they are to be hashed.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The program that started the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// `weft run`.
    WeftRun,
    /// torchrun, or anything else that is torch's elastic launcher.
    Torchrun,
    /// `RANK` and `WORLD_SIZE`, set by a person, by Kubernetes, by torch's older launchers.
    Variables,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's or Intel MPI's `mpiexec`.
    Hydra,
    /// Another launcher that speaks PMIx, or PMI by a port.
    Pmi,
    /// Slurm's `srun`.
    Slurm,
}

impl Launcher {
    /// Its name as a word.
    pub fn name(self) -> &'static str {
        match self {
            Launcher::WeftRun => "weft-run",
            Launcher::Torchrun => "torchrun",
            Launcher::Variables => "variables",
            Launcher::OpenMpi => "open-mpi",
            Launcher::Hydra => "mpiexec",
            Launcher::Pmi => "pmi",
            Launcher::Slurm => "srun",
        }
    }
}

/// All that [`Environment::read`] looks at.
pub struct EnvironmentSource<'a> {
    /// The value of a variable.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// What the file of this name holds, for `WEFT_SECRET_FILE`; at most [`SECRET_BYTES_MAX`] + 1 bytes are looked at.
    pub file: &'a dyn Fn(&str) -> Result<Vec<u8>, String>,
    /// The number of the user.
    pub user: u32,
    /// This process.
    pub process: u32,
    /// The parent process, which stands for the job where MPICH names none.
    pub parent: u32,
}

/// The longest secret.
pub const SECRET_BYTES_MAX: usize = 4096;
/// Fewer are guessed in no time.
const SECRET_BYTES_MIN: usize = 16;
/// The longest value that is looked at: lists of a hundred thousand hosts are shorter.
const VALUE_BYTES_MAX: usize = 1 << 20;

impl Environment {
    /// Reads the environment of this process.
    pub fn of_this_process() -> Result<Environment, EnvironmentError> {
        of_this_process(Environment::read)
    }

    /// An address in the format of `WEFT_RENDEZVOUS`, for a rank that no launcher describes.
    pub fn address_of(text: &str, rank: usize, size: usize) -> Result<RendezvousAddress, EnvironmentError> {
        let variable = |name: &str| match name {
            "WEFT_RENDEZVOUS" => Some(text.to_owned()),
            "RANK" => Some(rank.to_string()),
            "WORLD_SIZE" => Some(size.to_string()),
            _ => None,
        };
        let file = |_: &str| Err("no file is read here".to_owned());
        let (user, process, parent) = (0, std::process::id(), 0);
        let around = EnvironmentSource { variable: &variable, file: &file, user, process, parent };
        Environment::read(&around).map(|environment| environment.address)
    }

    /// Reads the variables of a launcher.
    pub fn read(around: &EnvironmentSource<'_>) -> Result<Environment, EnvironmentError> {
        let variables = Variables { around };
        let info = launchers::read(&variables)?;
        let address = address::of(&variables, &info)?;
        let given = variables.secret()?;
        let secret_is_guessable = given.is_none();
        let secret = given.unwrap_or_else(|| {
            // Derived only from what is the same on all ranks.
            let job = info.job.as_deref().unwrap_or_default();
            let restarts = variables.text("TORCHELASTIC_RESTART_COUNT").ok().flatten().unwrap_or_default();
            let (name, size) = (info.launcher.name(), info.size);
            Secret(format!("weft without a secret: {name} {job} {restarts} {size} {address}").into_bytes())
        });
        Ok(Environment {
            launcher: info.launcher,
            rank: info.rank,
            size: info.size,
            local_rank: info.local_rank,
            local_size: info.local_size,
            address,
            secret,
            secret_is_guessable,
        })
    }
}

/// Reads the environment of this process.
fn of_this_process<T>(read: impl FnOnce(&EnvironmentSource<'_>) -> T) -> T {
    let file = |name: &str| {
        use std::io::Read;
        let mut bytes = Vec::new();
        std::fs::File::open(name)
            .and_then(|file| file.take(SECRET_BYTES_MAX as u64 + 2).read_to_end(&mut bytes))
            .map(|_| bytes)
            .map_err(|error| error.to_string())
    };
    read(&EnvironmentSource {
        variable: &|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()),
        file: &file,
        user: rustix::process::geteuid().as_raw(),
        process: std::process::id(),
        parent: rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs()),
    })
}

/// Variables, read as what they should be.
struct Variables<'a> {
    around: &'a EnvironmentSource<'a>,
}

impl Variables<'_> {
    /// A variable's text without surrounding space; none if it is unset or empty.
    fn text(&self, name: &'static str) -> Result<Option<String>, EnvironmentError> {
        let Some(value) = (self.around.variable)(name) else { return Ok(None) };
        if value.len() > VALUE_BYTES_MAX {
            let value = format!("{} bytes of text", value.len());
            return Err(EnvironmentError::Unreadable { name, value, wanted: "something shorter" });
        }
        let value = value.trim();
        Ok((!value.is_empty()).then(|| value.to_owned()))
    }

    fn is_set(&self, name: &'static str) -> bool {
        matches!(self.text(name), Ok(Some(_)) | Err(_))
    }

    fn number(&self, name: &'static str) -> Result<Option<usize>, EnvironmentError> {
        let read = |text: String| {
            // `usize::from_str` takes a plus sign, which no launcher writes.
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| digits).ok_or(EnvironmentError::Unreadable {
                name,
                value: text,
                wanted: "a number of at least 0",
            })
        };
        self.text(name)?.map(read).transpose()
    }

    /// The first of several names that is set.
    fn first_number(
        &self,
        names: &[&'static str],
    ) -> Result<Option<(&'static str, usize)>, EnvironmentError> {
        for name in names {
            if let Some(number) = self.number(name)? {
                return Ok(Some((name, number)));
            }
        }
        Ok(None)
    }

    fn secret(&self) -> Result<Option<Secret>, EnvironmentError> {
        // A secret that is set and empty did not reach this rank: going on without one would let anybody in.
        for name in ["WEFT_SECRET", "WEFT_SECRET_FILE"] {
            if (self.around.variable)(name).is_some() && self.text(name)?.is_none() {
                return Err(EnvironmentError::EmptySecret { name });
            }
        }
        let (name, bytes) = match (self.text("WEFT_SECRET")?, self.text("WEFT_SECRET_FILE")?) {
            (None, None) => return Ok(None),
            (Some(_), Some(file)) => {
                return Err(EnvironmentError::TwoSecrets { file });
            }
            (Some(text), None) => ("WEFT_SECRET", text.into_bytes()),
            (None, Some(path)) => {
                let bytes = (self.around.file)(&path)
                    .map_err(|reason| EnvironmentError::SecretFile { path, reason })?;
                // An editor's newline at the end is no part of it, or a copy without it would be another secret.
                ("WEFT_SECRET_FILE", bytes.trim_ascii().to_vec())
            }
        };
        match bytes.len() {
            SECRET_BYTES_MIN..=SECRET_BYTES_MAX => Ok(Some(Secret(bytes))),
            length => Err(EnvironmentError::SecretLength { name, length }),
        }
    }
}
