//! What can be wrong with what a launcher told. Every one is for the person who starts the job to mend.

use super::{SECRET_BYTES_MAX, SECRET_BYTES_MIN};

/// The environment does not say who a process is, or where its job meets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// No launcher has left anything.
    #[error(
        "this process was not started as a rank of a job: RANK and WORLD_SIZE are not set, nor is there anything of mpirun \
         or srun. Start it by `weft run -n 2 -- PROGRAM`, torchrun, mpirun or srun"
    )]
    Nobody,
    /// A launcher left some of its variables, but not this one.
    #[error("{present} is set, but {missing} is not. {advice}")]
    Missing {
        /// What is there.
        present: &'static str,
        /// What is not.
        missing: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A value that makes no sense.
    #[error("{name} is {value:?}, and should be {wanted}")]
    Unreadable {
        /// The variable.
        name: &'static str,
        /// What it says.
        value: String,
        /// What it should.
        wanted: &'static str,
    },
    /// Two variables that cannot both be right.
    #[error("{one} contradicts {other}: {advice}")]
    Conflict {
        /// `NAME=value`.
        one: String,
        /// `NAME=value`.
        other: String,
        /// What to do.
        advice: &'static str,
    },
    /// Nothing says where ranks of several hosts meet.
    #[error(
        "{launcher} started {size} ranks and does not say where they can meet: set WEFT_RENDEZVOUS to a \
         host and port of rank 0's host that the others can reach, for all ranks: {example}"
    )]
    NoAddress {
        /// Who started them.
        launcher: &'static str,
        /// How many there are.
        size: usize,
        /// How it is done with that launcher.
        example: &'static str,
    },
    /// Both a secret and a file with one.
    #[error("WEFT_SECRET and WEFT_SECRET_FILE={file} are both set: keep one of them")]
    TwoSecrets {
        /// The file.
        file: String,
    },
    /// The file with the secret cannot be read.
    #[error("WEFT_SECRET_FILE={path} cannot be read: {reason}. Every rank reads it, on every host")]
    SecretFile {
        /// The file.
        path: String,
        /// Why not.
        reason: String,
    },
    /// Set, but to nothing.
    #[error("{name} is set and empty: set it to the job's secret on every rank, or unset it")]
    EmptySecret {
        /// The variable.
        name: &'static str,
    },
    /// Too short or too long.
    #[error(
        "the secret of {name} has {length} bytes; it must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}, such as what \
         `openssl rand -hex 32` prints"
    )]
    SecretLength {
        /// The variable.
        name: &'static str,
        /// How long it is.
        length: usize,
    },
}
