//! Predictions.

use pyo3::prelude::*;
use weftlink::sim::calibrate::file::Calibration;
use weftlink::sim::predict::{Options, PredictError};
use weftlink::sim::setup::{algorithm_from_name, protocol_from_name};
use weftlink::sim::{SurveyError, library};

use crate::fabric::{Target, misuse, unanswered};
use crate::plan::{Size, kind};

/// The output of `weft sim COLLECTIVE FABRIC --json`.
#[pyfunction]
#[pyo3(signature = (collective, fabric, sizes, library=None, algorithm=None, protocol=None, calibration=None))]
#[expect(clippy::too_many_arguments, reason = "they are those of the Python function")]
pub(crate) fn predict(
    py: Python<'_>,
    collective: &str,
    fabric: Target<'_>,
    sizes: Vec<Size>,
    library: Option<&str>,
    algorithm: Option<&str>,
    protocol: Option<&str>,
    calibration: Option<String>,
) -> PyResult<String> {
    let kind = kind(py, collective)?;
    let sizes = sizes.iter().map(|size| size.bytes(py)).collect::<PyResult<Vec<u64>>>()?;
    let wrong = |why: String| misuse(py, why);
    let library =
        library.map(library::parse_library).transpose().map_err(|error| misuse(py, error.to_string()))?;
    let program = library.as_ref().and_then(|library| library.program.clone());
    let read = |file: String| {
        std::fs::read_to_string(&file).map_err(|error| misuse(py, format!("cannot read {file}: {error}")))
    };
    let calibrated = |file: String| {
        Calibration::read(&read(file.clone())?).map_err(|error| misuse(py, format!("{file}: {error}")))
    };
    let calibration = calibration.map(calibrated).transpose()?;
    let calibrated = calibration.as_ref().map(Calibration::calibrated).unwrap_or_default();
    let options = Options {
        constants: calibrated.constants,
        corrections: calibrated.corrections,
        program: program.map(read).transpose()?,
        library,
        algorithm: algorithm.map(algorithm_from_name).transpose().map_err(wrong)?.flatten(),
        protocol: protocol.map(protocol_from_name).transpose().map_err(wrong)?.flatten(),
        ..Options::default()
    };
    let fabric = fabric.fabric(py)?;
    let predicted = py.detach(|| weftlink::sim::predict(kind, &fabric, &sizes, &options));
    predicted.map(|predicted| predicted.to_json().to_string()).map_err(|error| no_prediction(py, &error))
}

/// The exception for an error of the simulator, which names the command's flags; Python has arguments.
fn no_prediction(py: Python<'_>, error: &PredictError) -> PyErr {
    let why = match error {
        PredictError::Library { library, gpu } => {
            format!("{library} does not run on {gpu}; pass another library")
        }
        PredictError::Survey { fabric, error: SurveyError::UnknownGpu } => format!(
            "{fabric} does not say which GPUs it has, and predictions depend on them; read it with weftlink.fabric.read(file, gpu=...) \
             (`weft topo --list gpus` prints the known GPUs)"
        ),
        other => other.to_string(),
    };
    unanswered(py, error.is_misuse(), &why)
}
