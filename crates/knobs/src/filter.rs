//! `WEFT_DEBUG`: the log level, in general and by subsystem.

use std::str::FromStr;

use tracing::Level;

/// The subsystems: the target of an event is `weft::` and one of these.
pub(crate) const SUBSYSTEMS: [&str; 5] = ["meet", "net", "plan", "call", "fault"];

/// Log levels: `INFO,net=TRACE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    levels: [Level; SUBSYSTEMS.len()],
}

impl Default for Filter {
    fn default() -> Self {
        Self { levels: [Level::WARN; SUBSYSTEMS.len()] }
    }
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut filter = Self::default();
        let level = |text: &str| match text.to_ascii_uppercase().as_str() {
            "WARN" => Ok(Level::WARN),
            "INFO" => Ok(Level::INFO),
            "TRACE" => Ok(Level::TRACE),
            _ => Err(format!("unknown level {text:?}")),
        };
        let (general, special): (Vec<_>, Vec<_>) =
            text.split(',').map(str::trim).partition(|part| !part.contains('='));
        match general[..] {
            [] => {}
            [one] => filter.levels = [level(one)?; SUBSYSTEMS.len()],
            [..] => return Err("more than one general level".to_owned()),
        }
        for part in special {
            let (name, wanted) = part.split_once('=').unwrap_or((part, ""));
            let at = SUBSYSTEMS.iter().position(|subsystem| *subsystem == name);
            let at = at.ok_or_else(|| format!("unknown subsystem {name:?}"))?;
            filter.levels[at] = level(wanted)?;
        }
        Ok(filter)
    }
}

impl Filter {
    /// Whether an event with this target and level is logged. Events of other crates are not.
    pub(crate) fn allows(&self, target: &str, level: Level) -> bool {
        let subsystem = subsystem(target).and_then(|name| SUBSYSTEMS.iter().position(|known| *known == name));
        subsystem.is_some_and(|at| level <= self.levels[at])
    }

    /// The most verbose level of all subsystems.
    pub(crate) fn most(&self) -> Level {
        self.levels.into_iter().max().unwrap_or(Level::WARN)
    }
}

/// The subsystem of a target: `net` of `weft::net`.
pub(crate) fn subsystem(target: &str) -> Option<&str> {
    target.strip_prefix("weft::")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(text: &str) -> Vec<Level> {
        text.parse::<Filter>().unwrap().levels.to_vec()
    }

    #[test]
    fn filters_are_general_and_by_subsystem() {
        let (warn, info, trace) = (Level::WARN, Level::INFO, Level::TRACE);
        assert_eq!(levels("info"), [info; 5]);
        assert_eq!(levels("net=TRACE"), [warn, trace, warn, warn, warn]);
        assert_eq!(levels("call=WARN, TRACE"), [trace, trace, trace, warn, trace]);
        assert!("INFO,WARN".parse::<Filter>().is_err());
    }

    #[test]
    fn only_events_of_weft_are_allowed() {
        let filter: Filter = "INFO,meet=WARN,fault=TRACE".parse().unwrap();
        assert!(filter.allows("weft::fault", Level::TRACE) && filter.allows("weft::plan", Level::INFO));
        assert!(!filter.allows("weft::meet", Level::INFO) && filter.allows("weft::meet", Level::WARN));
        assert!(!filter.allows("hyper", Level::ERROR) && !filter.allows("weft::other", Level::ERROR));
        assert_eq!(filter.most(), Level::TRACE);
    }
}
