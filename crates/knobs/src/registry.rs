//! Settings from the environment: the one registry, and the one place that reads them.
//!
//! [`KNOBS`] lists name, values, default and meaning of each; `docs/knobs.md` and `weft knobs` are written from it. [`Knobs`] holds
//! the typed values. An invalid value is an error that names the variable, never a silent default. An empty variable counts as
//! unset.
//!
//! A program's `Options` take precedence; `Options::from_environment` reads these settings. Programs always read `WEFT_TUNING`
//! and the settings for diagnosis (`WEFT_DEBUG`, `WEFT_RECORD_DIR`, `WEFT_METRICS` and similar) from the environment.
//!
//! Deliberately absent: variables of launchers (torchrun, mpirun), which `bootstrap` reads.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use crate::environment::{variable, variable_names};
use crate::filter::Filter;
use crate::parse::{self, Interfaces, Ports, Secret};

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// The environment variable.
    pub name: &'static str,
    /// The values it takes, in words.
    pub takes: &'static str,
    /// The default, in words or as a value.
    pub default: &'static str,
    /// Its meaning: a noun phrase or an imperative.
    pub meaning: &'static str,
    /// Whether all ranks of a job must have the same value.
    pub all_alike: bool,
    /// Whether the value must not be shown.
    pub is_secret: bool,
}

const ON_OFF: &str = "on or off";
const AUTO_ON_OFF: &str = "auto, on or off";
const DURATION: &str = "a duration: 300s, 1500ms, 5m, 1h";
const PATH: &str = "a path";

const fn knob(name: &'static str, takes: &'static str, default: &'static str, meaning: &'static str) -> Knob {
    Knob { name, takes, default, meaning, all_alike: false, is_secret: false }
}

const fn alike(knob: Knob) -> Knob {
    Knob { all_alike: true, ..knob }
}

/// Every setting there is.
pub const KNOBS: [Knob; 22] = [
    alike(knob(
        "WEFT_RENDEZVOUS",
        "host:port or host:port-port",
        "none",
        "address of rank 0, where ranks join the job",
    )),
    Knob {
        is_secret: true,
        ..alike(knob(
            "WEFT_SECRET",
            "16 to 4096 bytes of text",
            "none",
            "secret of the job; a rank must prove that it knows it to join",
        ))
    },
    knob("WEFT_SECRET_FILE", PATH, "none", "file with the secret, instead of WEFT_SECRET"),
    knob(
        "WEFT_INTERFACE",
        "names or prefixes, separated by commas: eth,ib0; ^docker excludes, =eth0 matches exactly",
        "any",
        "network interfaces to use between hosts, in the syntax of NCCL_SOCKET_IFNAME",
    ),
    knob("WEFT_PORTS", "a range: 20000-20100", "any", "TCP ports to listen on"),
    alike(knob("WEFT_SHM", ON_OFF, "on", "use shared memory between ranks of a host; off: TCP")),
    alike(knob("WEFT_STREAMS", "a number from 1 to 16", "2", "number of TCP connections between two ranks")),
    alike(knob(
        "WEFT_ENCRYPT",
        ON_OFF,
        "off",
        "encrypt and authenticate traffic between hosts; off: a CRC32C detects accidental changes only, and others on the network can read and change the data",
    )),
    knob(
        "WEFT_DEADLINE",
        DURATION,
        "300s",
        "fail a call that waits this long for another rank, and name that rank",
    ),
    knob("WEFT_WARN_AFTER", DURATION, "10s", "log a warning that names the rank when a call waits this long"),
    knob(
        "WEFT_SPIN",
        AUTO_ON_OFF,
        "auto",
        "waiting ranks spin instead of sleeping; auto: if every rank has a core of its own",
    ),
    knob(
        "WEFT_SINGLE_COPY",
        AUTO_ON_OFF,
        "auto",
        "read the memory of other ranks through the kernel, which saves a copy; off on one rank turns it off for all; auto: where it is allowed and faster",
    ),
    alike(knob(
        "WEFT_DETERMINISTIC",
        ON_OFF,
        "off",
        "produce the same bits for the same inputs with every algorithm, transport and placement of ranks",
    )),
    knob(
        "WEFT_TUNING",
        PATH,
        "none",
        "tuning table of `weft bench --tune`: the algorithm for each size; all ranks use that of rank 0",
    ),
    knob(
        "WEFT_DEBUG",
        "WARN, INFO or TRACE, also per subsystem: INFO,net=TRACE (meet, net, plan, call, fault)",
        "WARN",
        "log level",
    ),
    knob("WEFT_DEBUG_FILE", PATH, "standard error", "log file; %h is the host, %r the rank, %p the process"),
    knob(
        "WEFT_RECORD",
        "a number from 16 to 65536",
        "1024",
        "number of calls in the flight recorder, rounded up to a power of two",
    ),
    knob(
        "WEFT_RECORD_DIR",
        PATH,
        "none",
        "folder for the flight recorders of ranks that fail or are killed; `weft why` reads it",
    ),
    knob(
        "WEFT_METRICS",
        "file:PATH",
        "none",
        "file for counters in the text format of Prometheus, replaced every five seconds; %r is the rank, %p the process",
    ),
    knob(
        "WEFT_CACHE",
        PATH,
        "~/.cache/weft",
        "folder for compiled GPU kernels, at most 256 MiB; other users must not be able to write it; the default is $XDG_CACHE_HOME/weft where that is set",
    ),
    knob(
        "WEFT_P2P",
        ON_OFF,
        "on",
        "ranks on GPUs access each other's memory where they can; off on one rank: data goes through host memory",
    ),
    knob(
        "WEFT_NCCL_VERSION",
        "a number: 22809 is 2.28.9",
        "23007",
        "version that libnccl.so.2 of Weft reports",
    ),
];

/// Variables of this project's own tests, not misspelt settings.
const OF_TESTS: [&str; 3] = ["WEFT_BLESS", "WEFT_SHARED", "WEFT_MUTANTS"];
/// Variables that `weft run` sets for its ranks.
const OF_LAUNCHERS: [&str; 4] = ["WEFT_JOB", "WEFT_LAST_WORDS", "WEFT_LOCAL_RANK", "WEFT_LOCAL_WORLD_SIZE"];
/// Settings of the plugins for NCCL, which no rank of Weft reads (docs/plugins.md).
const OF_PLUGINS: [&str; 5] = [
    "WEFT_TUNER_TABLE",
    "WEFT_TUNER_CALIBRATION",
    "WEFT_TUNER_FABRIC",
    "WEFT_PROFILE",
    "WEFT_PROFILE_EVENTS",
];
const OF_TESTS_PREFIX: &str = "WEFT_TEST_";

/// The typed values of all settings.
#[derive(Clone, Debug)]
pub struct Knobs {
    /// `WEFT_RENDEZVOUS`.
    pub rendezvous: Option<String>,
    /// `WEFT_SECRET`.
    pub secret: Option<Secret>,
    /// `WEFT_SECRET_FILE`.
    pub secret_file: Option<PathBuf>,
    /// `WEFT_INTERFACE`.
    pub interfaces: Interfaces,
    /// `WEFT_PORTS`.
    pub ports: Option<Ports>,
    /// `WEFT_SHM`.
    pub shared_memory: bool,
    /// `WEFT_STREAMS`.
    pub streams: u32,
    /// `WEFT_ENCRYPT`.
    pub encrypt: bool,
    /// `WEFT_DEADLINE`.
    pub deadline: Duration,
    /// `WEFT_WARN_AFTER`.
    pub warn_after: Duration,
    /// `WEFT_SPIN`; `None` is auto.
    pub spin: Option<bool>,
    /// `WEFT_SINGLE_COPY`; `None` is auto.
    pub single_copy: Option<bool>,
    /// `WEFT_DETERMINISTIC`.
    pub deterministic: bool,
    /// `WEFT_TUNING`.
    pub tuning: Option<PathBuf>,
    /// `WEFT_DEBUG`.
    pub debug: Filter,
    /// `WEFT_DEBUG_FILE`.
    pub debug_file: Option<PathBuf>,
    /// `WEFT_RECORD`.
    pub record: u32,
    /// `WEFT_RECORD_DIR`.
    pub record_dir: Option<PathBuf>,
    /// `WEFT_METRICS`, without `file:`.
    pub metrics: Option<PathBuf>,
    /// `WEFT_CACHE`.
    pub cache: Option<PathBuf>,
    /// `WEFT_P2P`.
    pub peer_access: bool,
    /// `WEFT_NCCL_VERSION`.
    pub nccl_version: u32,
    /// The variables that are set, with secrets hidden.
    given: Vec<(&'static str, String)>,
}

/// The value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The variable.
    pub name: &'static str,
    /// Its value, hidden if it is a secret.
    pub value: String,
    /// Where the value comes from.
    pub origin: Origin,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The variable is not set.
    Default,
    /// The environment variable.
    Environment,
}

/// A variable with an invalid value. Correct it or unset it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value}: {why}; it takes {takes}")]
pub struct KnobError {
    /// The variable.
    pub name: &'static str,
    /// Its value, hidden if it is a secret.
    pub value: String,
    /// Why the value is invalid.
    pub why: String,
    /// The values it takes.
    pub takes: &'static str,
}

impl Knobs {
    /// Reads the environment.
    pub fn from_environment() -> Result<Knobs, KnobError> {
        Knobs::from(variable)
    }

    /// The settings with one variable of the environment; all others have their defaults. For code that must not fail because of another.
    pub fn from_variable(name: &str) -> Result<Knobs, KnobError> {
        Knobs::from(|asked| if asked == name { variable(asked) } else { None })
    }

    /// Reads variables through `lookup`.
    pub fn from(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Knobs, KnobError> {
        let mut reader = Reader { lookup, given: Vec::new() };
        let reader = &mut reader;
        Ok(Knobs {
            rendezvous: reader.text("WEFT_RENDEZVOUS", parse::address)?,
            secret: reader.text("WEFT_SECRET", parse::secret)?,
            secret_file: reader.path("WEFT_SECRET_FILE"),
            interfaces: reader.text("WEFT_INTERFACE", parse::interfaces)?.unwrap_or_default(),
            ports: reader.text("WEFT_PORTS", parse::ports)?,
            shared_memory: reader.text("WEFT_SHM", parse::switch)?.unwrap_or(true),
            streams: reader.text("WEFT_STREAMS", |text| parse::number(text, 1, 16))?.unwrap_or(2),
            encrypt: reader.text("WEFT_ENCRYPT", parse::switch)?.unwrap_or(false),
            deadline: reader.text("WEFT_DEADLINE", parse::duration)?.unwrap_or(Duration::from_secs(300)),
            warn_after: reader.text("WEFT_WARN_AFTER", parse::duration)?.unwrap_or(Duration::from_secs(10)),
            spin: reader.text("WEFT_SPIN", parse::automatic)?.flatten(),
            single_copy: reader.text("WEFT_SINGLE_COPY", parse::automatic)?.flatten(),
            deterministic: reader.text("WEFT_DETERMINISTIC", parse::switch)?.unwrap_or(false),
            tuning: reader.path("WEFT_TUNING"),
            debug: reader.text("WEFT_DEBUG", str::parse)?.unwrap_or_default(),
            debug_file: reader.path("WEFT_DEBUG_FILE"),
            record: reader.text("WEFT_RECORD", |text| parse::number(text, 16, 1 << 16))?.unwrap_or(1024),
            record_dir: reader.path("WEFT_RECORD_DIR"),
            metrics: reader.text("WEFT_METRICS", parse::file)?,
            cache: reader.path("WEFT_CACHE"),
            peer_access: reader.text("WEFT_P2P", parse::switch)?.unwrap_or(true),
            nccl_version: reader
                .text("WEFT_NCCL_VERSION", |text| parse::number(text, 20_000, 99_999))?
                .unwrap_or(23_007),
            given: std::mem::take(&mut reader.given),
        })
    }

    /// The settings that must be the same on all ranks, except the secret, which ranks prove, and the rendezvous.
    pub fn terms(&self) -> Vec<(String, String)> {
        let is_term = |setting: &Setting| {
            let is_alike = |knob: &Knob| knob.name == setting.name && knob.all_alike && !knob.is_secret;
            setting.name != "WEFT_RENDEZVOUS" && KNOBS.iter().any(is_alike)
        };
        self.settings().filter(is_term).map(|setting| (setting.name.to_owned(), setting.value)).collect()
    }

    /// Every setting in the order of [`KNOBS`], and where it comes from.
    pub fn settings(&self) -> impl Iterator<Item = Setting> {
        KNOBS.iter().map(|knob| match self.given.iter().find(|(name, _)| *name == knob.name) {
            Some((name, value)) => Setting { name, value: value.clone(), origin: Origin::Environment },
            None => Setting { name: knob.name, value: knob.default.to_owned(), origin: Origin::Default },
        })
    }

    /// The variables that are set, as `NAME=VALUE`.
    pub fn given(&self) -> impl Iterator<Item = String> {
        self.given.iter().map(|(name, value)| format!("{name}={value}"))
    }
}

/// Reads one variable that names a file or folder.
pub fn path(name: &str) -> Option<PathBuf> {
    Reader { lookup: variable, given: Vec::new() }.path(name)
}

/// Variables of the environment that look like settings and are none, if no launcher has checked them already.
pub fn unknown_in_environment() -> Vec<(String, Option<&'static str>)> {
    match variable("WEFT_JOB") {
        Some(_) => Vec::new(),
        None => unknown(variable_names()),
    }
}

/// Variables that begin with `WEFT_` and are no settings, each with the nearest setting, if one is near.
pub fn unknown(names: impl IntoIterator<Item = OsString>) -> Vec<(String, Option<&'static str>)> {
    let is_unknown = |name: &String| {
        name.starts_with("WEFT_")
            && !name.starts_with(OF_TESTS_PREFIX)
            && !OF_TESTS.contains(&name.as_str())
            && !OF_LAUNCHERS.contains(&name.as_str())
            && !OF_PLUGINS.contains(&name.as_str())
            && KNOBS.iter().all(|knob| knob.name != name)
    };
    let mut found: Vec<_> = names.into_iter().filter_map(|name| name.into_string().ok()).collect();
    found.retain(is_unknown);
    found.sort();
    found.into_iter().map(|name| (nearest(&name), name)).map(|(near, name)| (name, near)).collect()
}

/// The setting whose name is nearest, if one is near.
pub fn nearest(name: &str) -> Option<&'static str> {
    let near = KNOBS.iter().map(|knob| (parse::distance(name, knob.name), knob.name)).min();
    near.filter(|(distance, _)| *distance <= 2).map(|(_, name)| name)
}

struct Reader<F> {
    lookup: F,
    given: Vec<(&'static str, String)>,
}

impl<F: Fn(&str) -> Option<OsString>> Reader<F> {
    fn text<T>(
        &mut self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, KnobError> {
        let Some((knob, value)) = self.look(name) else { return Ok(None) };
        let shown = shown(knob, &value);
        let error = |why: String| KnobError { name: knob.name, value: shown.clone(), why, takes: knob.takes };
        let text = value.to_str().ok_or_else(|| error("it is not UTF-8".to_owned()))?;
        let parsed = parse(text.trim()).map_err(error)?;
        self.given.push((knob.name, shown));
        Ok(Some(parsed))
    }

    fn path(&mut self, name: &str) -> Option<PathBuf> {
        let (knob, value) = self.look(name)?;
        self.given.push((knob.name, shown(knob, &value)));
        Some(value.into())
    }

    /// A setting and its value, if it has one.
    fn look(&self, name: &str) -> Option<(&'static Knob, OsString)> {
        let knob = KNOBS.iter().find(|knob| knob.name == name);
        debug_assert!(knob.is_some(), "{name} is in the table");
        Some((knob?, (self.lookup)(name).filter(|value| !value.is_empty())?))
    }
}

fn shown(knob: &Knob, value: &OsStr) -> String {
    if knob.is_secret { "(hidden)".to_owned() } else { value.to_string_lossy().into_owned() }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn with(name: &str, value: &str) -> Result<Knobs, KnobError> {
        Knobs::from(|asked| (asked == name).then(|| value.into()))
    }

    #[test]
    fn every_setting_is_looked_up_once() {
        let asked = RefCell::new(Vec::new());
        let knobs = Knobs::from(|name| {
            asked.borrow_mut().push(name.to_owned());
            None
        });
        assert_eq!(knobs.unwrap().given().count(), 0);
        let mut asked = asked.into_inner();
        asked.sort();
        let mut names: Vec<_> = KNOBS.iter().map(|knob| knob.name).collect();
        names.sort_unstable();
        assert_eq!(asked, names);
    }

    #[test]
    fn defaults_are_as_the_table_says() {
        let unset = format!("{:?}", Knobs::from(|_| None).unwrap());
        let in_words = ["none", "any", "standard error", "~/.cache/weft"];
        for knob in KNOBS.iter().filter(|knob| !in_words.contains(&knob.default)) {
            let mut said = with(knob.name, knob.default).unwrap();
            assert_eq!(said.given().collect::<Vec<_>>(), [format!("{}={}", knob.name, knob.default)]);
            said.given.clear();
            assert_eq!(format!("{said:?}"), unset, "{}", knob.name);
        }
    }

    #[test]
    fn invalid_values_are_errors_that_list_the_valid_ones() {
        for (name, value, told) in [
            ("WEFT_STREAMS", "17", "WEFT_STREAMS=17: 17 is larger than 16; it takes a number from 1 to 16"),
            (
                "WEFT_STREAMS",
                "two",
                "WEFT_STREAMS=two: it is not a whole number; it takes a number from 1 to 16",
            ),
            ("WEFT_SHM", "yes", "WEFT_SHM=yes: unknown value; it takes on or off"),
            ("WEFT_SPIN", "1", "WEFT_SPIN=1: unknown value; it takes auto, on or off"),
            ("WEFT_DEADLINE", "0", "WEFT_DEADLINE=0: it must be longer than 0; it takes a duration"),
            ("WEFT_DEADLINE", "5 parsecs", "unknown unit \"parsecs\""),
            ("WEFT_DEADLINE", "99999999999999999999h", "too long"),
            ("WEFT_PORTS", "20100-20000", "the range ends before it starts"),
            ("WEFT_PORTS", "0-10", "0 is not a port"),
            ("WEFT_DEBUG", "LOUD", "unknown level \"LOUD\""),
            ("WEFT_DEBUG", "INFO,nte=TRACE", "unknown subsystem \"nte\""),
            ("WEFT_METRICS", "/tmp/x", "it does not start with file:"),
            ("WEFT_RENDEZVOUS", "here", "the port is missing"),
            ("WEFT_INTERFACE", "^", "a name is missing"),
        ] {
            let error = with(name, value).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let knobs = with("WEFT_SECRET", "swordfish").unwrap();
        assert_eq!(knobs.secret.as_ref().map(Secret::reveal), Some("swordfish"));
        let said = format!("{knobs:?} {:?}", knobs.settings().collect::<Vec<_>>());
        assert!(!said.contains("swordfish") && said.contains("(hidden)"), "{said}");
        let error = with("WEFT_SECRET", "swordfish\0").unwrap_err().to_string();
        assert!(!error.contains("swordfish"), "{error}");
    }

    #[test]
    fn empty_is_unset() {
        assert_eq!(with("WEFT_STREAMS", "").unwrap().given().count(), 0);
    }

    #[test]
    fn names_that_are_nearly_right_are_pointed_out() {
        let names = [
            "WEFT_STREAM",
            "WEFT_STREAMS",
            "PATH",
            "WEFT_JOB",
            "WEFT_BLESS",
            "WEFT_TEST_ROLE",
            "WEFT_COLOUR_OF_THREAD",
        ];
        let found = unknown(names.map(OsString::from));
        let wanted =
            [("WEFT_COLOUR_OF_THREAD".to_owned(), None), ("WEFT_STREAM".to_owned(), Some("WEFT_STREAMS"))];
        assert_eq!(found, wanted);
    }
}
