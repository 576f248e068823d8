//! Values on the command line: names in every spelling, of which shells complete one, and durations.

use std::ffi::OsStr;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use weftlink_plan::Kind;

/// Parses a name with [`FromStr`] and lists the names to complete.
#[derive(Clone)]
pub(crate) struct Named<T> {
    names: Vec<&'static str>,
    read: fn(&str) -> Result<T, String>,
}

/// A collective of `weft plan`.
pub(crate) fn collective() -> Named<Kind> {
    named(Kind::ALL.map(Kind::name).to_vec())
}

/// Any type that parses itself; `names` are those to complete.
pub(crate) fn named<T>(names: Vec<&'static str>) -> Named<T>
where
    T: FromStr<Err: Display>,
{
    Named { names, read: |text| text.parse().map_err(|error: T::Err| error.to_string()) }
}

/// A year: larger values would overflow sums of times.
const SECONDS_MAX: f64 = 365.25 * 86400.0;

/// `5s`, `500ms`, `2m`, `1h`, or seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let found = units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)));
    let (number, unit) = found.unwrap_or((text, 1.0));
    let seconds = number.trim().parse::<f64>().ok().map(|number| number * unit);
    match seconds.filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => Err("write a time, such as 500ms, 5s, 2m or 1h".to_owned()),
    }
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Named<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        let text = value.to_string_lossy();
        (self.read)(&text).map_err(|reason| {
            let mut error = Error::raw(ErrorKind::ValueValidation, format!("{reason}\n")).with_cmd(command);
            if let Some(arg) = arg {
                error.insert(ContextKind::InvalidArg, ContextValue::String(arg.to_string()));
            }
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(|name| PossibleValue::new(*name))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let ms = |text| duration(text).map(|time| time.as_millis());
        assert_eq!(
            [ms("500ms"), ms("5s"), ms("2m"), ms("1h"), ms("0.5"), ms("0")].map(Result::unwrap),
            [500, 5000, 120_000, 3_600_000, 500, 0]
        );
        for bad in ["", "s", "-1s", "1d", "nan", "inf", "1e300"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
