//! What the tuner reads: `WEFT_TUNER_TABLE`, `WEFT_TUNER_CALIBRATION`, `WEFT_TUNER_FABRIC` and, without the last, the local machine.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use weftlink_sim::Setup;
use weftlink_sim::calibrate::file::Calibration;
use weftlink_sim::corrections::Calibrated;

use crate::model::survey;
use crate::table::{self, Row};

/// What all communicators of the process choose by.
pub(crate) struct Sources {
    /// The rows of a table, and its path.
    pub(crate) table: Option<(String, Vec<Row>)>,
    /// What predictions rest on, and where that is from.
    pub(crate) calibrated: (Calibrated, String),
    /// The machine; an error says why it is unknown.
    pub(crate) machine: Result<Setup, String>,
}

/// The sources, which are read once; an error says which file cannot be used.
pub(crate) fn sources() -> Result<&'static Sources, &'static str> {
    static SOURCES: OnceLock<Result<Sources, String>> = OnceLock::new();
    SOURCES.get_or_init(read).as_ref().map_err(String::as_str)
}

/// A file that is named and cannot be used is an error: to choose by something else would not be what the user asked for.
fn read() -> Result<Sources, String> {
    let table = match path("WEFT_TUNER_TABLE") {
        None => None,
        Some(path) => {
            let rows = text(&path, table::BYTES_MAX)
                .and_then(|text| table::read(&text).map_err(|error| error.to_string()));
            let shown = path.display().to_string();
            Some(
                rows.map(|rows| (shown.clone(), rows))
                    .map_err(|error| format!("WEFT_TUNER_TABLE={shown}: {error}"))?,
            )
        }
    };
    let calibrated = match path("WEFT_TUNER_CALIBRATION") {
        None => (Calibrated::default(), "shipped constants".to_owned()),
        Some(path) => {
            let shown = path.display();
            let read = text(&path, CALIBRATION_BYTES_MAX)
                .and_then(|text| Calibration::read(&text).map_err(|error| error.to_string()))
                .map_err(|error| format!("WEFT_TUNER_CALIBRATION={shown}: {error}"))?;
            (read.calibrated(), format!("{shown}, {} calls on {}", read.calls, read.machine))
        }
    };
    let named = weftlink_knobs::variable("WEFT_TUNER_FABRIC").filter(|name| !name.is_empty());
    let machine = match named.map(|name| name.into_string()) {
        Some(Ok(name)) => {
            Ok(named_machine(&name).map_err(|error| format!("WEFT_TUNER_FABRIC={name}: {error}"))?)
        }
        Some(Err(_)) => return Err("WEFT_TUNER_FABRIC is not text".to_owned()),
        None => weftlink_probe::this_machine()
            .map_err(|error| error.to_string())
            .and_then(|fabric| survey(&fabric))
            .map_err(|error| format!("this machine: {error}; name one in WEFT_TUNER_FABRIC")),
    };
    Ok(Sources { table, calibrated, machine })
}

fn path(name: &str) -> Option<PathBuf> {
    weftlink_knobs::variable(name).filter(|path| !path.is_empty()).map(PathBuf::from)
}

const CALIBRATION_BYTES_MAX: u64 = 1 << 20;

fn named_machine(name: &str) -> Result<Setup, String> {
    if name == "-" {
        return Err("standard input belongs to the program; name a file".to_owned());
    }
    weftlink_probe::open(Some(name), None)
        .map_err(|error| error.to_string())
        .and_then(|fabric| survey(&fabric))
}

fn text(path: &Path, bytes_max: u64) -> Result<String, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(bytes_max + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > bytes_max {
        return Err(format!("the file has more than {bytes_max} bytes"));
    }
    Ok(text)
}
