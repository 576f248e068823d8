//! The log that `NCCL_DEBUG` asks for, in the form of NCCL: `host:pid:tid [gpu] NCCL INFO text`, to standard output or a file.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use weftlink::knobs::{expanded, host};

use crate::lock::lock;
use crate::settings::given;

/// How much is logged. Each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    None,
    Version,
    Warn,
    Info,
    Trace,
}

struct Log {
    level: Level,
    has_calls: bool,
    file: Option<Mutex<File>>,
}

fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let level = given("NCCL_DEBUG").map_or(Level::None, |name| level_named(&name));
        let names = given("NCCL_DEBUG_SUBSYS").unwrap_or_default().to_uppercase();
        let has_calls = names.split(',').any(|name| ["COLL", "P2P", "CALL", "ALL"].contains(&name));
        let path = given("NCCL_DEBUG_FILE").filter(|_| level > Level::Version);
        let open = |path: String| {
            let path = expanded(Path::new(&path), None);
            OpenOptions::new().create(true).append(true).open(path).ok()
        };
        Log {
            level,
            has_calls: has_calls || level == Level::Trace,
            file: path.and_then(open).map(Mutex::new),
        }
    })
}

fn level_named(name: &str) -> Level {
    match name.trim().to_uppercase().as_str() {
        "VERSION" => Level::Version,
        "WARN" => Level::Warn,
        "INFO" | "ABORT" => Level::Info,
        "TRACE" => Level::Trace,
        _ => Level::None,
    }
}

/// Whether this level is logged.
pub(crate) fn is_on(level: Level) -> bool {
    log().level >= level
}

/// Whether calls are logged.
pub(crate) fn has_calls() -> bool {
    is_on(Level::Info) && log().has_calls
}

/// Logs an error.
pub(crate) fn warn(text: &str) {
    if is_on(Level::Warn) {
        write("WARN", None, text);
    }
}

/// Logs a decision, of the rank on that GPU if it is known.
pub(crate) fn info(device: Option<usize>, text: &str) {
    if is_on(Level::Info) {
        write("INFO", device, text);
    }
}

/// Logs the version, once in the process.
pub(crate) fn version() {
    static LOGGED: OnceLock<()> = OnceLock::new();
    if is_on(Level::Version) {
        LOGGED.get_or_init(|| {
            let code = crate::settings::version();
            let (major, minor, patch) = (code / 10_000, code / 100 % 100, code % 100);
            let own = env!("CARGO_PKG_VERSION");
            line(&format!("NCCL version {major}.{minor}.{patch}+weft{own}\n"));
        });
    }
}

fn write(level: &str, device: Option<usize>, text: &str) {
    let (process, thread) = (std::process::id(), rustix::thread::gettid().as_raw_nonzero());
    let device = device.map_or_else(|| "-".to_owned(), |device| device.to_string());
    for text in text.lines() {
        line(&format!("{}:{process}:{thread} [{device}] NCCL {level} {text}\n", host()));
    }
}

/// Writes a line at once, because processes share standard output. A full disk must not fail the job.
fn line(text: &str) {
    let _ = match &log().file {
        Some(file) => lock(file).write_all(text.as_bytes()),
        None => {
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        }
    };
}
