//! How long it takes.

use pyo3::prelude::*;
use weftlink::sim::library;
use weftlink::sim::predict::Options;
use weftlink::sim::setup::{algorithm_from_name, protocol_from_name};

use crate::fabric::{Target, misuse, told};
use crate::plan::{Size, kind};

/// What `weft sim COLLECTIVE FABRIC --json` prints.
#[pyfunction]
#[pyo3(signature = (collective, fabric, sizes, library=None, algorithm=None, protocol=None))]
pub(crate) fn predict(
    py: Python<'_>,
    collective: &str,
    fabric: Target<'_>,
    sizes: Vec<Size>,
    library: Option<&str>,
    algorithm: Option<&str>,
    protocol: Option<&str>,
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
    let options = Options {
        program: program.map(read).transpose()?,
        library,
        algorithm: algorithm.map(algorithm_from_name).transpose().map_err(wrong)?.flatten(),
        protocol: protocol.map(protocol_from_name).transpose().map_err(wrong)?.flatten(),
        ..Options::default()
    };
    let fabric = fabric.fabric(py)?;
    let predicted = py.detach(|| weftlink::sim::predict(kind, &fabric, &sizes, &options));
    predicted
        .map(|predicted| predicted.to_json().to_string())
        .map_err(|error| told(py, error.is_misuse(), &error))
}
