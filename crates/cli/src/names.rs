//! Values on the command line: names in every spelling, of which shells complete one, numbers and durations.

use std::ffi::OsStr;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use weftlink_fabric::nearest::{fold, nearest};
use weftlink_plan::{Kind, UnknownKind};

use crate::advice::quoted;

/// Parses a name and lists the names to complete.
#[derive(Clone)]
pub(crate) struct Named<T> {
    names: Vec<&'static str>,
    read: fn(&str) -> Result<T, String>,
    is_collective: bool,
}

/// A collective of `weft plan`.
pub(crate) fn collective() -> Named<Kind> {
    collective_of(Kind::ALL.map(Kind::name).to_vec(), |text| {
        text.parse().map_err(|error: UnknownKind| error.to_string())
    })
}

/// One of the collectives that a command takes.
pub(crate) fn collective_of<T>(names: Vec<&'static str>, read: fn(&str) -> Result<T, String>) -> Named<T> {
    Named { names, read, is_collective: true }
}

/// The names of collectives that people shorten.
const SHORT_COLLECTIVES: [(&str, &str); 7] = [
    ("ar", "all-reduce"),
    ("ag", "all-gather"),
    ("rs", "reduce-scatter"),
    ("a2a", "all-to-all"),
    ("all2all", "all-to-all"),
    ("p2p", "send-receive"),
    ("bc", "broadcast"),
];

/// Advice for a fabric in the place of the collective.
pub(crate) fn fabric_first(command: &str, text: &str) -> String {
    let fabric = quoted(text);
    format!("`{text}` is a fabric; write the collective first: weft {command} all-reduce {fabric}")
}

/// Advice for a word that is no collective: a short form, a subcommand, or a fabric before the collective.
fn instead_of_collective(text: &str, names: &[&str], command: &Command) -> Option<String> {
    if let Some((_, full)) =
        SHORT_COLLECTIVES.iter().find(|(short, full)| *short == fold(text) && names.contains(full))
    {
        return Some(format!("unknown collective `{text}`. Did you mean `{full}`?"));
    }
    if weftlink_fabric::resolve(text).is_ok() {
        let fabric = quoted(text);
        return Some(match command.get_name() {
            "bench" => format!(
                "`{text}` is a fabric; weft bench measures this host. `weft sim all-reduce {fabric}` predicts others"
            ),
            command => fabric_first(command, text),
        });
    }
    let subcommands = command.get_subcommands().map(Command::get_name);
    let near = nearest(text, subcommands).first().map(|name| (*name).to_owned())?;
    nearest(text, names.iter().copied())
        .is_empty()
        .then(|| format!("unknown collective or command `{text}`. Did you mean `{near}`?"))
}

/// A whole number from `least` to `most`.
pub(crate) fn between<T>(
    least: T,
    most: T,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    move |text| match text.trim().parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("must be a whole number between {least} and {most}")),
    }
}

/// A whole number of `least` or more.
pub(crate) fn at_least<T>(least: T) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    move |text| match text.trim().parse() {
        Ok(number) if number >= least => Ok(number),
        _ => Err(format!("must be a whole number of {least} or more")),
    }
}

/// Any type that parses itself; `names` are those to complete.
pub(crate) fn named<T>(names: Vec<&'static str>) -> Named<T>
where
    T: FromStr<Err: Display>,
{
    Named {
        names,
        read: |text| text.parse().map_err(|error: T::Err| error.to_string()),
        is_collective: false,
    }
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
            let is_known = Kind::from_name(&text).is_some();
            let advice = (self.is_collective && !is_known)
                .then(|| instead_of_collective(&text, &self.names, command))
                .flatten();
            let reason = advice.unwrap_or(reason);
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
    fn numbers_have_limits() {
        let (some, many) = (between(2_u32, 1024), at_least(2_u64));
        assert_eq!((some("2"), many("9")), (Ok(2), Ok(9)));
        assert_eq!(some("-1").unwrap_err(), "must be a whole number between 2 and 1024");
        assert_eq!(many("1").unwrap_err(), "must be a whole number of 2 or more");
        assert!(some("p").is_err() && some("1025").is_err());
    }

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
