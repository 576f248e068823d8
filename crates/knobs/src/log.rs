//! `WEFT_DEBUG` and `WEFT_DEBUG_FILE`: a subscriber that writes Weft's log lines.
//!
//! ```text
//! weft INFO 4711.345678 host:pid [rank 3] plan: all-reduce up to 1120 bytes takes exchange-ll
//! ```
//!
//! Weft logs through [`tracing`], with targets `weft::meet`, `weft::net`, `weft::plan`, `weft::call` and `weft::fault`, and the
//! field `rank`. A program with a subscriber of its own, installed before its first communicator, receives these events;
//! otherwise [`install`] installs this one. It ignores the events of other crates.
//!
//! The number is seconds of the host's monotonic clock, so that lines of all ranks of a host can be sorted. Each line is one
//! write.
//!
//! Deliberately absent: levels above WARN. A failure is a returned error.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use weftlink_shm::clock::now_ns;
use weftlink_shm::limits;

use crate::filter::{Filter, subsystem};
use crate::paths::{expanded, host};
use crate::registry::{KnobError, Knobs, path};

/// Installs the subscriber that `WEFT_DEBUG` describes, unless the program has one. Reads the environment once.
pub fn install() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let filter =
            Knobs::from_variable("WEFT_DEBUG").map(|knobs| knobs.debug).unwrap_or_else(|error: KnobError| {
                complain(&error.to_string());
                Filter::default()
            });
        let _ = tracing::subscriber::set_global_default(Lines { filter });
    });
}

/// Writes an event as a line. Weft has no spans.
struct Lines {
    filter: Filter,
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.is_span() && self.filter.allows(metadata.target(), *metadata.level())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(self.filter.most()))
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let Line { rank, text } = line;
        let now_us = now_ns() / 1000;
        let rank_text = rank.map_or_else(String::new, |rank| format!(" [rank {rank}]"));
        let line = format!(
            "weft {} {}.{:06} {}:{}{rank_text} {}: {text}\n",
            event.metadata().level(),
            now_us / 1_000_000,
            now_us % 1_000_000,
            host(),
            std::process::id(),
            subsystem(event.metadata().target()).unwrap_or_default(),
        );
        if !write_to_file(rank, &line) {
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// The fields of an event.
#[derive(Default)]
struct Line {
    rank: Option<usize>,
    text: String,
}

impl Visit for Line {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "rank" {
            self.rank = Some(value as usize);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.text, "{value:?}");
        }
    }
}

/// The limit of open files; lines for others go to standard error.
const FILES_MAX: usize = 1024;

static FILES: Mutex<Vec<(PathBuf, File)>> = Mutex::new(Vec::new());

fn target() -> Option<&'static Path> {
    static TARGET: OnceLock<Option<PathBuf>> = OnceLock::new();
    TARGET.get_or_init(|| path("WEFT_DEBUG_FILE")).as_deref()
}

/// Writes a line to the log file of a rank; false if there is none or it cannot be opened.
fn write_to_file(rank: Option<usize>, line: &str) -> bool {
    let Some(target) = target() else { return false };
    let path = expanded(target, rank);
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    if !files.iter().any(|(open, _)| *open == path) && files.len() < FILES_MAX {
        match open(&path) {
            Ok(file) => files.push((path.clone(), file)),
            Err(error) => {
                static REPORTED: OnceLock<()> = OnceLock::new();
                let text = || format!("cannot write WEFT_DEBUG_FILE={}: {error}", path.display());
                REPORTED.get_or_init(|| complain(&text()));
            }
        }
    }
    let file = files.iter_mut().find(|(open, _)| *open == path);
    // A full disk must not fail the job.
    file.is_some_and(|(_, file)| limits::append(file, line.as_bytes()).is_ok())
}

/// Writes a line in one system call, since the ranks of a host share standard error.
fn complain(text: &str) {
    let _ = std::io::stderr().write_all(format!("weft: {text}\n").as_bytes());
}

/// Opens a file to append to. Others may write to its folder, so symbolic links count only if this user or root made them
/// (`/dev/stderr` is one).
fn open(path: &Path) -> std::io::Result<File> {
    let link = path.symlink_metadata().ok().filter(|found| found.file_type().is_symlink());
    let trusted = [0, rustix::process::geteuid().as_raw()];
    if let Some(owner) = link.as_ref().map(MetadataExt::uid).filter(|owner| !trusted.contains(owner)) {
        return Err(std::io::Error::other(format!("it is a symbolic link of user {owner}")));
    }
    let flags = if link.is_some() { 0 } else { libc::O_NOFOLLOW };
    OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags).open(path)
}
