//! What the profiler reads from the environment, once.

use std::path::PathBuf;
use std::sync::OnceLock;

use weftlink_knobs::{Knobs, variable};

use crate::event::Kind;

/// The settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// `WEFT_PROFILE`: the file for the trace, with placeholders.
    pub(crate) trace: Option<PathBuf>,
    /// `WEFT_RECORD_DIR`: the folder for flight records.
    pub(crate) records: Option<PathBuf>,
    /// `WEFT_RECORD`: the calls of a flight record.
    pub(crate) record_calls: u32,
    /// `WEFT_PROFILE_EVENTS`: the events that are kept.
    pub(crate) events: usize,
    /// `NCCL_PROFILE_EVENT_MASK`, or what the files need.
    pub(crate) mask: u32,
    /// A problem with these settings.
    pub(crate) problem: Option<String>,
}

/// Events that are kept by default: about 16 MB.
const EVENTS: usize = 1 << 16;
const EVENTS_RANGE: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 22;

/// What a flight record is made of.
const OF_RECORDS: [Kind; 5] = [Kind::Coll, Kind::ProxyOp, Kind::ProxyStep, Kind::KernelCh, Kind::CeColl];

/// The settings of this process.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let text = |name: &str| {
            variable(name).and_then(|value| value.into_string().ok()).filter(|text| !text.is_empty())
        };
        let calls = Knobs::from_variable("WEFT_RECORD").map(|knobs| knobs.record);
        let mut read = of(
            variable("WEFT_PROFILE").filter(|path| !path.is_empty()).map(PathBuf::from),
            weftlink_knobs::path("WEFT_RECORD_DIR"),
            text("WEFT_PROFILE_EVENTS").as_deref(),
            text("NCCL_PROFILE_EVENT_MASK").as_deref(),
        );
        match calls {
            Ok(calls) => read.record_calls = calls,
            Err(error) => read.problem = Some(error.to_string()),
        }
        read
    })
}

fn of(
    trace: Option<PathBuf>,
    records: Option<PathBuf>,
    events: Option<&str>,
    mask: Option<&str>,
) -> Settings {
    let mut problem = None;
    let events = match events.map(|text| (text, text.trim().parse::<usize>())) {
        None => EVENTS,
        Some((_, Ok(events))) if EVENTS_RANGE.contains(&events) => events,
        Some((text, _)) => {
            let (least, most) = (EVENTS_RANGE.start(), EVENTS_RANGE.end());
            problem = Some(format!(
                "WEFT_PROFILE_EVENTS={text}: expected a number from {least} to {most}; {EVENTS} are kept"
            ));
            EVENTS
        }
    };
    let all =
        Kind::ALL.iter().filter(|kind| **kind != Kind::ProxyCtrl).fold(0, |mask, kind| mask | kind.bit());
    let needed = match (&trace, &records) {
        (Some(_), _) => all,
        (None, Some(_)) => OF_RECORDS.iter().fold(0, |mask, kind| mask | kind.bit()),
        (None, None) => 0,
    };
    let mask = match mask.map(|text| (text, bits(text))) {
        Some((_, Some(mask))) if needed != 0 => mask,
        Some((text, None)) => {
            problem = Some(format!("NCCL_PROFILE_EVENT_MASK={text}: expected a number such as 74 or 0x4a"));
            needed
        }
        _ => needed,
    };
    Settings { trace, records, record_calls: 1024, events, mask, problem }
}

/// A mask as NCCL's example reads it, or in hexadecimal.
fn bits(text: &str) -> Option<u32> {
    let text = text.trim();
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_what_the_files_need_unless_it_is_given() {
        let path = || Some(PathBuf::from("x"));
        for (trace, records, mask, expected) in [
            (None, None, None, 0),
            (None, None, Some("4095"), 0),
            (path(), None, None, 0xffdf),
            (None, path(), None, 0x105a),
            (path(), path(), None, 0xffdf),
            (path(), None, Some("74"), 74),
            (path(), None, Some("0x4A"), 74),
            (path(), None, Some("0"), 0),
        ] {
            let read = of(trace, records, None, mask);
            assert_eq!((read.mask, read.problem), (expected, None), "{mask:?}");
        }
    }

    #[test]
    fn wrong_settings_are_named_and_replaced() {
        let path = Some(PathBuf::from("x"));
        let read = of(path.clone(), None, Some("12"), None);
        assert_eq!(read.events, EVENTS);
        assert!(read.problem.unwrap().starts_with("WEFT_PROFILE_EVENTS=12: expected a number from 1024"));
        let read = of(path, None, Some("2048"), Some("all"));
        assert_eq!((read.events, read.mask), (2048, 0xffdf));
        assert!(read.problem.unwrap().contains("NCCL_PROFILE_EVENT_MASK=all"));
    }
}
