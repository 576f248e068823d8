//! The protocol between `weft run` and its helpers (`weft run --as-host`): lines of JSON, orders on the helper's standard input,
//! events on its standard output. When its standard input closes, the helper stops its ranks.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use weftlink_comm::Blame;

use super::args::Bind;
use super::gpus::Gpus;

/// To the helper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Start the ranks; once.
    Start(Box<Start>),
    /// Forward a signal to all ranks.
    Signal(i32),
    /// SIGTERM to all ranks, SIGKILL to those that remain after the grace period.
    Stop,
    /// SIGKILL to all ranks.
    Kill,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) program: Vec<String>,
    pub(super) workdir: String,
    /// For all ranks.
    pub(super) environment: Vec<(String, String)>,
    /// Variables to unset first.
    pub(super) unset: Vec<String>,
    pub(super) ranks: Vec<RankStart>,
    pub(super) bind: Bind,
    pub(super) gpus: Option<Gpus>,
    /// The library to load in place of NCCL.
    pub(super) nccl: Option<String>,
    /// Whether to forward output in whole lines or as it arrives.
    pub(super) by_lines: bool,
    pub(super) grace_ms: u64,
    /// The limit of open files of a rank, if the helper has another one.
    pub(super) files_limit: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RankStart {
    pub(super) rank: usize,
    pub(super) environment: Vec<(String, String)>,
}

/// From the helper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Event {
    /// The helper runs; these ports of its host are free.
    Ready { version: String, ports: [u16; 2] },
    /// A message for the user.
    Note(String),
    /// The helper started an MPS daemon whose files are in this folder; it removes the folder when it has stopped the daemon.
    Mps(PathBuf),
    /// A rank was started.
    Started { rank: usize, pid: u32, binding: Option<Binding> },
    /// Output of a rank. `cut`: the line continues in the next piece.
    Output { rank: usize, stream: Stream, piece: Piece, cut: bool },
    /// A rank has exited; the time counts from the start of the host's first rank. `told`: after the helper asked it to. `stopped`:
    /// a signal or a debugger had suspended it by then. `said`: why its communicator failed, if it did, and the ranks it blames.
    Ended {
        rank: usize,
        end: End,
        after_us: u64,
        told: bool,
        stopped: bool,
        said: Option<String>,
        blamed: Vec<Blame>,
    },
    /// A rank of this host has made an NCCL communicator of Weft.
    UsesNccl,
    /// The ranks cannot be started because of wrong arguments.
    Misuse(String),
    /// The helper failed.
    Failed(String),
}

/// Where a rank may run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Binding {
    pub(super) cpus: String,
    pub(super) cores: usize,
    pub(super) numa: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stream {
    Out,
    Err,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum End {
    Code(i32),
    Signal(i32),
}

impl End {
    /// The exit code that a shell would return.
    pub(super) fn exit_code(self) -> u8 {
        match self {
            End::Code(code) => code as u8,
            End::Signal(signal) => (128 + signal) as u8,
        }
    }
}

/// Bytes that a rank printed: text as text, the rest in hexadecimal digits.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Piece {
    Text(String),
    Hex(String),
}

impl Piece {
    pub(super) fn new(bytes: &[u8]) -> Piece {
        match std::str::from_utf8(bytes) {
            Ok(text) => Piece::Text(text.to_owned()),
            Err(_) => Piece::Hex(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        match self {
            Piece::Text(text) => text.into_bytes(),
            Piece::Hex(digits) => {
                let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
                digits.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_as_they_are() {
        for bytes in [&b"plain\n"[..], "é\n".as_bytes(), &[0xff, 0, 0x80, b'\n'], b""] {
            let json = serde_json::to_string(&Piece::new(bytes)).unwrap();
            assert_eq!(serde_json::from_str::<Piece>(&json).unwrap().into_bytes(), bytes);
        }
    }
}
