//! Names on the command line: every spelling is read, and shells complete the usual one.

use std::ffi::OsStr;
use std::fmt::Display;
use std::str::FromStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use weftlink_plan::Kind;

/// Reads a name with [`FromStr`], and knows the names to complete.
#[derive(Clone)]
pub(crate) struct Named<T> {
    names: Vec<&'static str>,
    read: fn(&str) -> Result<T, String>,
}

/// A collective of `weft plan`.
pub(crate) fn collective() -> Named<Kind> {
    named(Kind::ALL.map(Kind::name).to_vec())
}

/// A value that reads itself, which `names` lists.
pub(crate) fn named<T>(names: Vec<&'static str>) -> Named<T>
where
    T: FromStr<Err: Display>,
{
    Named { names, read: |text| text.parse().map_err(|error: T::Err| error.to_string()) }
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
