//! What is told while it runs, to people: `WEFT_DEBUG` says how much, by subsystem, and `WEFT_DEBUG_FILE` where.
//!
//! ```text
//! weft INFO 4711.345678 host:pid [rank 3] plan: all-reduce up to 1120 bytes takes exchange-ll
//! ```
//!
//! The number is seconds of the host's monotonic clock, so lines of all ranks of a host can be put in order. A line is
//! written in one piece.
//!
//! What is not told costs one relaxed load and a comparison. Calls are told at TRACE, and there is nothing at all about
//! them on the way of a call that is the same again: while calls are traced, none is.
//!
//! Deliberately absent: levels above WARN. What fails is an error that is returned, and its text says all.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::knobs::{self, KnobError, Knobs};
use crate::limits;
use crate::recorder::now_ns;

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subsystem {
    /// How ranks find each other.
    Meet,
    /// What goes between hosts.
    Net,
    /// Which plan is taken.
    Plan,
    /// Calls.
    Call,
    /// What goes wrong.
    Fault,
}

/// How much is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Level {
    #[default]
    Warn = 1,
    Info = 2,
    Trace = 3,
}

const SUBSYSTEMS: [&str; 5] = ["meet", "net", "plan", "call", "fault"];

/// How much is told of what: `INFO,net=TRACE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    levels: [Level; SUBSYSTEMS.len()],
}

impl Default for Filter {
    fn default() -> Self {
        Self { levels: [Level::Warn; SUBSYSTEMS.len()] }
    }
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut filter = Self::default();
        let level = |text: &str| match text.to_ascii_uppercase().as_str() {
            "WARN" => Ok(Level::Warn),
            "INFO" => Ok(Level::Info),
            "TRACE" => Ok(Level::Trace),
            _ => Err(format!("there is no level {text:?}")),
        };
        let (general, special): (Vec<_>, Vec<_>) =
            text.split(',').map(str::trim).partition(|part| !part.contains('='));
        match general[..] {
            [] => {}
            [one] => filter.levels = [level(one)?; SUBSYSTEMS.len()],
            [..] => return Err("there is more than one level for everything".to_owned()),
        }
        for part in special {
            let (name, wanted) = part.split_once('=').unwrap_or((part, ""));
            let at = SUBSYSTEMS.iter().position(|subsystem| *subsystem == name);
            let at = at.ok_or_else(|| format!("there is no subsystem {name:?}"))?;
            filter.levels[at] = level(wanted)?;
        }
        Ok(filter)
    }
}

impl Filter {
    /// A byte for each subsystem, and one that says that there is something.
    fn pack(self) -> u64 {
        self.levels.iter().rev().fold(1, |word, level| word << 8 | *level as u64)
    }
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Warn => "WARN",
            Level::Info => "INFO",
            Level::Trace => "TRACE",
        }
    }
}

/// 0 until somebody has looked into the environment.
static FILTER: AtomicU64 = AtomicU64::new(0);

/// Whether a line of this level is told.
#[inline]
pub(crate) fn is_told(subsystem: Subsystem, level: Level) -> bool {
    let filter = FILTER.load(Ordering::Relaxed);
    let filter = if filter == 0 { start() } else { filter };
    (filter >> (8 * subsystem as u32)) as u8 >= level as u8
}

/// Tells a line, which has been asked about before.
#[cold]
pub(crate) fn tell(subsystem: Subsystem, level: Level, rank: Option<usize>, text: fmt::Arguments<'_>) {
    let now_us = now_ns() / 1000;
    let rank_text = rank.map_or_else(String::new, |rank| format!(" [rank {rank}]"));
    let line = format!(
        "weft {} {}.{:06} {}:{}{rank_text} {}: {text}\n",
        level.name(),
        now_us / 1_000_000,
        now_us % 1_000_000,
        host(),
        std::process::id(),
        SUBSYSTEMS[subsystem as usize],
    );
    if !write_to_file(rank, &line) {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

macro_rules! at_level {
    ($level:ident, $subsystem:ident, $rank:expr, $($text:tt)*) => {
        if $crate::log::is_told($crate::log::Subsystem::$subsystem, $crate::log::Level::$level) {
            let (subsystem, level) = ($crate::log::Subsystem::$subsystem, $crate::log::Level::$level);
            $crate::log::tell(subsystem, level, ($rank).into(), format_args!($($text)*));
        }
    };
}

/// Tells something that a person should look at: `warn!(Fault, rank, "...")`; the rank may be `None`.
macro_rules! warn_ { ($($all:tt)*) => { $crate::log::at_level!(Warn, $($all)*) }; }
/// Tells something that happens once.
macro_rules! info { ($($all:tt)*) => { $crate::log::at_level!(Info, $($all)*) }; }
/// Tells something that happens often.
macro_rules! trace { ($($all:tt)*) => { $crate::log::at_level!(Trace, $($all)*) }; }
pub(crate) use {at_level, info, trace, warn_ as warn};

/// The name of this host, as it is told and as records have it.
pub(crate) fn host() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

/// A path with `%h`, `%r` and `%p` put in; `%%` is a percent sign. Of what has no rank, it is `unknown`.
pub(crate) fn expanded(path: &Path, rank: Option<usize>) -> PathBuf {
    let text = path.to_string_lossy();
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        match characters.next() {
            Some('h') => out += host(),
            Some('r') => out += &rank.map_or("unknown".to_owned(), |rank| rank.to_string()),
            Some('p') => out += &std::process::id().to_string(),
            Some('%') => out.push('%'),
            other => out.extend(['%'].into_iter().chain(other)),
        }
    }
    out.into()
}

/// More files than this are not opened: their lines go to standard error.
const FILES_MAX: usize = 1024;

static FILES: Mutex<Vec<(PathBuf, File)>> = Mutex::new(Vec::new());

fn target() -> Option<&'static Path> {
    static TARGET: OnceLock<Option<PathBuf>> = OnceLock::new();
    TARGET.get_or_init(|| knobs::path("WEFT_DEBUG_FILE")).as_deref()
}

/// Writes a line to the file for lines of a rank, if there is to be one and it can be opened.
fn write_to_file(rank: Option<usize>, line: &str) -> bool {
    let Some(target) = target() else { return false };
    let path = expanded(target, rank);
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    if !files.iter().any(|(open, _)| *open == path) && files.len() < FILES_MAX {
        match open(&path) {
            Ok(file) => files.push((path.clone(), file)),
            Err(error) => {
                static TOLD: OnceLock<()> = OnceLock::new();
                TOLD.get_or_init(|| {
                    let path = path.display();
                    let _ = writeln!(std::io::stderr(), "weft: cannot write WEFT_DEBUG_FILE={path}: {error}");
                });
            }
        }
    }
    let file = files.iter_mut().find(|(open, _)| *open == path);
    // A disk that is full is not worth a job.
    file.is_some_and(|(_, file)| limits::append(file, line.as_bytes()).is_ok())
}

/// Opens a file to append to. It may be in a folder that others write to, so links are followed only if this user or root made them
/// (`/dev/stderr` is one).
fn open(path: &Path) -> std::io::Result<File> {
    let link = path.symlink_metadata().ok().filter(|found| found.file_type().is_symlink());
    let trusted = [0, rustix::process::geteuid().as_raw()];
    if let Some(owner) = link.as_ref().map(MetadataExt::uid).filter(|owner| !trusted.contains(owner)) {
        return Err(std::io::Error::other(format!("it is a link that user {owner} made")));
    }
    let flags = if link.is_some() { 0 } else { libc::O_NOFOLLOW };
    OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags).open(path)
}

/// Looks into the environment, once. What makes no sense there is told, and then nothing but warnings is.
#[cold]
fn start() -> u64 {
    static STARTED: OnceLock<u64> = OnceLock::new();
    *STARTED.get_or_init(|| {
        let only = |name: &str| if name == "WEFT_DEBUG" { std::env::var_os(name) } else { None };
        let filter = Knobs::from(only).map(|knobs| knobs.debug).unwrap_or_else(|error: KnobError| {
            let _ = writeln!(std::io::stderr(), "weft: {error}");
            Filter::default()
        });
        FILTER.store(filter.pack(), Ordering::Relaxed);
        filter.pack()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(text: &str) -> Vec<Level> {
        text.parse::<Filter>().unwrap().levels.to_vec()
    }

    #[test]
    fn filters_are_general_and_by_subsystem() {
        use Level::{Info, Trace, Warn};
        assert_eq!(levels("info"), [Info; 5]);
        assert_eq!(levels("net=TRACE"), [Warn, Trace, Warn, Warn, Warn]);
        assert_eq!(levels("call=WARN, TRACE"), [Trace, Trace, Trace, Warn, Trace]);
        assert!("INFO,WARN".parse::<Filter>().is_err());
    }

    #[test]
    fn packed_levels_are_each_subsystems_own() {
        let packed = "INFO,meet=WARN,fault=TRACE".parse::<Filter>().unwrap().pack();
        let level = |subsystem: Subsystem| (packed >> (8 * subsystem as u32)) as u8;
        assert_eq!((level(Subsystem::Meet), level(Subsystem::Plan), level(Subsystem::Fault)), (1, 2, 3));
        assert_ne!(Filter::default().pack(), 0, "0 is unset");
    }

    #[test]
    fn places_are_put_in() {
        let path = expanded(Path::new("/tmp/%h.%r.%p.%%.%x%"), Some(3));
        let wanted = format!("/tmp/{}.3.{}.%.%x%", host(), std::process::id());
        assert_eq!(path.to_str(), Some(wanted.as_str()));
        assert_eq!(expanded(Path::new("%r"), None).to_str(), Some("unknown"));
    }
}
