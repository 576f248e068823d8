//! A calibration as a file, for people to read and for `--calibration`.

use std::fmt;

use thiserror::Error;
use weftlink_fabric::nearest::did_you_mean;

use super::Fitted;
use crate::constants::{Constants, TABLE, hash};
use crate::corrections::{Calibrated, Corrections, Key};
use crate::setup::{Library, Operation};

/// Maximum size of a file.
const BYTES_MAX: usize = 1 << 20;

/// How many times smaller or larger than the shipped constant one may be.
const FACTOR_MAX: f64 = 100.0;

/// The smallest and largest standard deviation.
const DEVIATIONS: (f64, f64) = (1e-6, 10.0);

/// A standard deviation below which a constant counts as determined, as a part of what it was before the measurements.
const DETERMINED: f64 = 0.5;

/// The constants of one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// The machine, in words.
    pub machine: String,
    /// The library, with its version if it has one.
    pub library: String,
    /// Number of measured calls.
    pub calls: usize,
    /// All constants.
    pub constants: Constants,
    /// The constants on which the measurements depend; the others have their shipped values.
    pub found: Vec<Found>,
    /// What the constants leave of the errors, by collective.
    pub corrections: Corrections,
}

/// A constant that measurements say something about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Its position in [`TABLE`].
    pub index: usize,
    /// Its standard deviation before the measurements, as a fraction.
    pub before: f64,
    /// Its standard deviation now, as a fraction.
    pub now: f64,
}

impl Found {
    /// Whether the measurements determine it, more than the prior.
    pub fn is_determined(&self) -> bool {
        self.now < DETERMINED * self.before
    }
}

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file is too long.
    #[error("the file has {bytes} bytes; a calibration has at most {BYTES_MAX}")]
    TooLong {
        /// Size of the file.
        bytes: usize,
    },
    /// The file is not TOML, or lacks a key.
    #[error("{0}; `weft sim calibrate LOG... -o FILE` writes such files")]
    Form(String),
    /// An unknown constant.
    #[error("unknown constant `{name}`.{} docs/model.md lists them.", did_you_mean(name, TABLE.iter().map(|constant| constant.name)))]
    Unknown {
        /// The name.
        name: String,
    },
    /// A value that a constant cannot have.
    #[error("{name} is {value}; expected a number from {least} to {most}")]
    Value {
        /// The constant.
        name: String,
        /// The value in the file.
        value: String,
        /// The smallest value.
        least: String,
        /// The largest value.
        most: String,
    },
    /// The shipped constants have changed since.
    #[error("made with the constants {found}, and this Weft has {expected}; run `weft sim calibrate` again")]
    Stale {
        /// The fingerprint in the file.
        found: String,
        /// That of this build.
        expected: String,
    },
}

/// Raised with each change of the model that changes predictions: corrections are what a model leaves of the errors.
const MODEL: u32 = 2;

/// A hash of the model and of all shipped constants: a calibration moves them, and means nothing for others.
fn fingerprint() -> u64 {
    let constants = TABLE.iter().map(|constant| format!("{} {};", constant.name, constant.value));
    hash(constants.chain([format!("model {MODEL}")]).flat_map(String::into_bytes))
}

/// A hash of the moved constants, as the file has them: corrections are what these leave of the errors.
fn moved(calibration: &Calibration) -> String {
    let value =
        |found: &Found| format!("{} {:?};", found.index, rounded(calibration.constants.at(found.index)));
    format!("{:#018x}", hash(calibration.found.iter().flat_map(|found| value(found).into_bytes())))
}

impl Calibration {
    /// What was fitted to `calls` calls.
    pub fn of(fitted: &Fitted, (machine, library): (String, String), calls: usize) -> Self {
        let found = fitted.free.iter().zip(&fitted.undetermined).map(|(free, part)| Found {
            index: free.index,
            before: free.spread,
            now: free.spread * part,
        });
        let (constants, corrections) = (fitted.constants.clone(), fitted.corrections.clone());
        Self { machine, library, calls, constants, found: found.collect(), corrections }
    }

    /// What predictions of the machine rest on.
    pub fn calibrated(&self) -> Calibrated {
        Calibrated { constants: self.constants.clone(), corrections: self.corrections.clone() }
    }

    /// Reads a file.
    pub fn read(text: &str) -> Result<Self, FileError> {
        if text.len() > BYTES_MAX {
            return Err(FileError::TooLong { bytes: text.len() });
        }
        let file: toml::Table =
            text.parse().map_err(|error: toml::de::Error| FileError::Form(error.message().to_owned()))?;
        let word = |key: &str| {
            let word = file.get(key).and_then(toml::Value::as_str);
            word.map(str::to_owned).ok_or_else(|| FileError::Form(format!("`{key}` is missing, a text")))
        };
        let (found, expected) = (word("constants")?, format!("{:#018x}", fingerprint()));
        if found != expected {
            return Err(FileError::Stale { found, expected });
        }
        let calls =
            file.get("calls").and_then(toml::Value::as_integer).and_then(|calls| usize::try_from(calls).ok());
        let mut calibration = Self {
            machine: word("machine")?,
            library: word("library")?,
            calls: calls.ok_or_else(|| FileError::Form("`calls` is missing, a number".to_owned()))?,
            constants: Constants::shipped(),
            found: Vec::new(),
            corrections: Corrections::default(),
        };
        for (name, value) in &file {
            let Some(of) = value.as_table().filter(|_| name != "corrections") else {
                match name.as_str() {
                    "constants" | "machine" | "library" | "calls" | "corrections_of" => continue,
                    "corrections" => {
                        calibration.corrections = corrections(value)?;
                        continue;
                    }
                    _ => return Err(FileError::Unknown { name: name.clone() }),
                }
            };
            let index = TABLE.iter().position(|constant| constant.name == name);
            let index = index.ok_or_else(|| FileError::Unknown { name: name.clone() })?;
            let number = |key: &str, (least, most): (f64, f64)| {
                let value = of.get(key);
                let number =
                    value.and_then(|value| value.as_float().or_else(|| Some(value.as_integer()? as f64)));
                number.filter(|number| (least..=most).contains(number)).ok_or_else(|| FileError::Value {
                    name: format!("{name}.{key}"),
                    value: value.map_or("missing".to_owned(), ToString::to_string),
                    least: least.to_string(),
                    most: most.to_string(),
                })
            };
            let shipped = TABLE[index].value;
            *calibration.constants.at_mut(index) =
                number("value", (rounded(shipped / FACTOR_MAX), rounded(shipped * FACTOR_MAX)))?;
            let [before, now] = [number("before", DEVIATIONS)?, number("now", DEVIATIONS)?];
            calibration.found.push(Found { index, before, now });
        }
        calibration.found.sort_by_key(|found| found.index);
        if !calibration.corrections.is_empty() && word("corrections_of")? != moved(&calibration) {
            return Err(FileError::Form(
                "the constants were changed, and the corrections are what the former ones leave of the errors: delete all \
                 [[corrections]]"
                    .to_owned(),
            ));
        }
        Ok(calibration)
    }

    /// The constants that the measurements determine, the best first.
    pub fn determined(&self) -> Vec<Found> {
        let mut found: Vec<Found> = self.found.iter().copied().filter(Found::is_determined).collect();
        found.sort_by(|one, other| (one.now / one.before).total_cmp(&(other.now / other.before)));
        found
    }
}

/// The file.
impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# The constants of one machine, for --calibration. `before` and `now` are standard deviations, as fractions,"
        )?;
        writeln!(
            f,
            "# without and with the measurements. Constants that are not here have their shipped values (docs/model.md)."
        )?;
        writeln!(f, "constants = \"{:#018x}\" # the shipped ones", fingerprint())?;
        writeln!(f, "machine = {}", toml::Value::from(self.machine.as_str()))?;
        writeln!(f, "library = {}", toml::Value::from(self.library.as_str()))?;
        writeln!(f, "calls = {}", self.calls)?;
        if !self.corrections.is_empty() {
            writeln!(f, "corrections_of = \"{}\" # the values below", moved(self))?;
        }
        for found in &self.found {
            let constant = &TABLE[found.index];
            let unit = if constant.unit.is_empty() { String::new() } else { format!("{} ", constant.unit) };
            writeln!(
                f,
                "\n# {}: {} Shipped: {} {unit}",
                constant.belongs_to, constant.meaning, constant.value
            )?;
            writeln!(f, "[{}]", constant.name)?;
            writeln!(f, "value = {:?}", rounded(self.constants.at(found.index)))?;
            writeln!(
                f,
                "before = {:?}\nnow = {:?}",
                rounded(found.before),
                rounded(found.now.max(DEVIATIONS.0))
            )?;
        }
        if !self.corrections.curves.is_empty() {
            writeln!(
                f,
                "\n# How many times longer calls take than these constants say: for these collectives alone."
            )?;
        }
        for (key, curve) in &self.corrections.curves {
            let text = |text: &str| toml::Value::from(text);
            writeln!(f, "\n[[corrections]]\nlibrary = {}", text(&key.library))?;
            writeln!(f, "collective = {}\nnode = {}", text(&key.collective), text(&key.node))?;
            let bytes: Vec<u64> = curve.iter().map(|(bytes, _)| *bytes).collect();
            let factor = |(_, log_ratio): &(u64, f64)| {
                rounded(libm::exp(*log_ratio).clamp(1.0 / FACTOR_MAX, FACTOR_MAX))
            };
            let factors: Vec<f64> = curve.iter().map(factor).collect();
            let Key { version, nodes, islands, ranks, .. } = key;
            writeln!(f, "version = {}\nnodes = {nodes}\nislands = {islands}", text(version))?;
            writeln!(f, "ranks = {ranks}\nbytes = {bytes:?}\nfactors = {factors:?}")?;
        }
        Ok(())
    }
}

/// Reads the corrections.
fn corrections(value: &toml::Value) -> Result<Corrections, FileError> {
    let wrong = |what: &str| FileError::Form(format!("`corrections`: {what}"));
    let mut corrections = Corrections::default();
    for curve in value.as_array().ok_or_else(|| wrong("write [[corrections]] with two brackets"))? {
        let word = |key: &str| {
            let word = curve.get(key).and_then(toml::Value::as_str);
            word.map(str::to_owned).ok_or_else(|| wrong(&format!("`{key}` is missing, a text")))
        };
        let list = |key: &str| {
            let list = curve.get(key).and_then(toml::Value::as_array);
            list.ok_or_else(|| wrong(&format!("`{key}` is missing, an array")))
        };
        let count = |key: &str| {
            let number = curve.get(key).and_then(toml::Value::as_integer);
            let number = number.ok_or_else(|| wrong(&format!("`{key}` is missing, a number")))?;
            let count = u32::try_from(number).ok().filter(|count| *count > 0);
            count.ok_or_else(|| wrong(&format!("`{key}` is {number}; expected a number above 0")))
        };
        let known = |key: &str, names: &[&str]| {
            let name = word(key)?;
            let near = did_you_mean(&name, names.iter().copied());
            let message = format!("unknown {key} `{name}`.{near}");
            names.contains(&name.as_str()).then_some(name).ok_or_else(|| wrong(&message))
        };
        let libraries: Vec<&str> = Library::ALL.iter().map(|library| library.name()).collect();
        let collectives: Vec<&str> = Operation::ALL.iter().map(|operation| operation.name()).collect();
        let key = Key {
            library: known("library", &libraries)?,
            version: word("version")?,
            collective: known("collective", &collectives)?,
            node: word("node")?,
            nodes: count("nodes")?,
            islands: count("islands")?,
            ranks: count("ranks")?,
        };
        let (sizes, factors) = (list("bytes")?, list("factors")?);
        if sizes.len() != factors.len() {
            return Err(wrong("`bytes` and `factors` differ in length"));
        }
        let point = |(bytes, factor): (&toml::Value, &toml::Value)| {
            let bytes = bytes.as_integer().and_then(|bytes| u64::try_from(bytes).ok());
            let factor = factor.as_float().or_else(|| Some(factor.as_integer()? as f64));
            let factor = factor.filter(|factor| (1.0 / FACTOR_MAX..=FACTOR_MAX).contains(factor));
            bytes.zip(factor).map(|(bytes, factor)| (bytes, libm::log(factor)))
        };
        let points: Option<Vec<(u64, f64)>> = sizes.iter().zip(factors).map(point).collect();
        let points = points.ok_or_else(|| {
            wrong(&format!("expected whole bytes, and factors from {} to {FACTOR_MAX}", 1.0 / FACTOR_MAX))
        })?;
        let twice = format!("{} on {} nodes stands twice", key.collective, key.nodes);
        if corrections.curves.insert(key, points).is_some() {
            return Err(wrong(&twice));
        }
    }
    Ok(corrections)
}

/// A number with six significant digits.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calibration() -> Calibration {
        let mut constants = Constants::shipped();
        *constants.at_mut(0) = 5.5;
        let found = vec![Found { index: 0, before: 0.2, now: 0.02 }];
        let key = Key {
            library: "nccl".into(),
            collective: "all_reduce".into(),
            version: "2.28".into(),
            node: "8 x h100 (nvswitch)".into(),
            nodes: 1,
            islands: 1,
            ranks: 8,
        };
        let mut corrections = Corrections::default();
        corrections.curves.insert(key, vec![(8, libm::log(1.25)), (1 << 30, 0.0)]);
        let (machine, library) = ("2x \"a\"".into(), "nccl:2.28".into());
        Calibration { machine, library, calls: 3, constants, found, corrections }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let written = calibration();
        assert_eq!(Calibration::read(&written.to_string()).unwrap(), written);
        assert_eq!(written.determined().len(), 1);
    }

    #[test]
    fn wrong_files_get_advice() {
        let text = calibration().to_string();
        let why = |text: &str| Calibration::read(text).unwrap_err().to_string();
        assert!(why(&text.replace("[LaunchUs]", "[LaunchsUs]")).contains("Did you mean `LaunchUs`"));
        assert!(
            why(&text.replace("value = 5.5", "value = -1"))
                .starts_with("LaunchUs.value is -1; expected a number from 0.0431 to 431")
        );
        assert!(
            why(&text.replace("constants = \"0x", "constants = \"0x1"))
                .ends_with("run `weft sim calibrate` again")
        );
        assert!(why(&text.replace("[8, ", "[")).contains("`bytes` and `factors` differ in length"));
        assert!(why(&text.replace("[1.25, ", "[1e9, ")).contains("factors from 0.01 to 100"));
        assert!(why(&text.replace("all_reduce", "all_reduced")).contains("Did you mean `all_reduce`"));
        assert!(why(&text.replace("nodes = 1", "nodes = -1")).contains("`nodes` is -1"));
        assert!(why(&text.replace("[[corrections]]", "[corrections]")).contains("two brackets"));
        assert!(why(&text.replace("value = 5.5", "value = 5.6")).contains("delete all [[corrections]]"));
        let twice = text.split_once("[[corrections]]").unwrap().1;
        assert!(why(&format!("{text}[[corrections]]{twice}")).contains("stands twice"));
        let whole = text.replace("1.25, 1.0]", "2, 1]");
        assert!(whole != text && Calibration::read(&whole).is_ok());
        assert!(why("").contains("`constants` is missing"));
        assert!(why("[").contains("weft sim calibrate"));
    }
}
