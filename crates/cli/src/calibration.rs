//! `--calibration FILE`: the constants of one machine instead of the shipped ones.

use std::io::{self, Write};
use std::sync::Arc;

use serde_json::{Value, json};
use weftlink_sim::Constants;
use weftlink_sim::calibrate::file::Calibration;
use weftlink_sim::corrections::Calibrated;

use crate::screen::say;

#[derive(clap::Args, Clone, Default)]
pub(crate) struct CalibrationArgs {
    /// Predict with the constants of one machine, which `weft sim calibrate` wrote to FILE
    #[arg(long, value_name = "FILE", value_parser = read)]
    calibration: Option<Arc<Calibration>>,
}

impl CalibrationArgs {
    /// The constants to predict with.
    pub(crate) fn constants(&self) -> Constants {
        self.calibration.as_ref().map_or_else(Constants::shipped, |calibration| calibration.constants.clone())
    }

    /// What predictions of GPUs rest on.
    pub(crate) fn calibrated(&self) -> Calibrated {
        self.calibration.as_ref().map(|calibration| calibration.calibrated()).unwrap_or_default()
    }

    /// Names the calibration in a JSON document.
    pub(crate) fn add_to(&self, document: &mut Value) {
        if let Some(note) = self.note() {
            document["calibration"] = json!(note);
        }
    }

    /// Names the calibration below or above a table.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        self.note().map_or(Ok(()), |note| say!(out, "{note}"))
    }

    /// What predictions rest on beside the shipped constants.
    fn note(&self) -> Option<String> {
        let calibration = self.calibration.as_ref()?;
        let Calibration { machine, library, calls, .. } = calibration.as_ref();
        Some(format!("calibrated on {calls} calls of {library} on {machine}"))
    }
}

fn read(file: &str) -> Result<Arc<Calibration>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}"))?;
    Calibration::read(&text).map(Arc::new).map_err(|error| format!("{file}: {error}"))
}
