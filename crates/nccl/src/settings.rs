//! The variables of NCCL in the environment: those that mean something here, and those that do not.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::OnceLock;

use weftlink::knobs::{KnobError, Knobs, variable, variable_names};

/// A variable of NCCL that means something here.
pub(crate) struct Known {
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
}

/// All of them, by name.
pub(crate) const KNOWN: [Known; 8] = [
    Known {
        name: "NCCL_COMM_BLOCKING",
        meaning: "0: functions do not wait, as with `blocking = 0`; 1: they do",
    },
    Known { name: "NCCL_COMM_ID", meaning: "host:port at which rank 0 listens, instead of an identifier" },
    Known { name: "NCCL_DEBUG", meaning: "VERSION, WARN, INFO or TRACE: what to log" },
    Known { name: "NCCL_DEBUG_FILE", meaning: "where to log; %h is the host, %p the process" },
    Known { name: "NCCL_DEBUG_SUBSYS", meaning: "COLL, CALL or ALL: log calls, too" },
    Known { name: "NCCL_P2P_DISABLE", meaning: "1: GPUs exchange data through host memory (WEFT_P2P=off)" },
    Known { name: "NCCL_SHM_DISABLE", meaning: "1: no shared memory between ranks of a host (WEFT_SHM=off)" },
    Known { name: "NCCL_SOCKET_IFNAME", meaning: "network interfaces (WEFT_INTERFACE)" },
];

/// A variable that is set.
pub(crate) fn given(name: &str) -> Option<String> {
    variable(name).and_then(|value| value.into_string().ok()).filter(|value| !value.is_empty())
}

/// A variable that switches something on or off.
pub(crate) fn switch(name: &str) -> Option<bool> {
    given(name).and_then(|value| value.trim().parse::<i64>().ok()).map(|value| value != 0)
}

/// The number that `ncclGetVersion` returns.
pub(crate) fn version() -> i32 {
    Knobs::from_variable("WEFT_NCCL_VERSION").map_or(0, |knobs| knobs.nccl_version as i32)
}

/// The settings of Weft, with those of NCCL in place of what is not set.
pub(crate) fn knobs() -> Result<Knobs, KnobError> {
    Knobs::from(|name| variable(name).or_else(|| translated(name)))
}

fn translated(name: &str) -> Option<OsString> {
    let off = |name: &str| switch(name).filter(|is_off| *is_off).map(|_| OsString::from("off"));
    match name {
        "WEFT_INTERFACE" => variable("NCCL_SOCKET_IFNAME"),
        "WEFT_SHM" => off("NCCL_SHM_DISABLE"),
        "WEFT_P2P" => off("NCCL_P2P_DISABLE"),
        _ => None,
    }
}

/// Variables of NCCL that are set and mean nothing here; returned once.
pub(crate) fn unknown_once() -> Vec<String> {
    static TOLD: OnceLock<()> = OnceLock::new();
    let mut unknown = BTreeSet::new();
    TOLD.get_or_init(|| {
        let names = variable_names().filter_map(|name| name.into_string().ok());
        unknown = names
            .filter(|name| name.starts_with("NCCL_") && KNOWN.iter().all(|known| known.name != name))
            .collect();
    });
    unknown.into_iter().collect()
}
