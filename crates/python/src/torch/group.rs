//! One rank's end of a process group.

use pyo3::prelude::*;

/// One rank's end of a process group.
#[pyclass(module = "weftlink._native", frozen)]
pub(crate) struct Group {
    rank: usize,
}

#[pymethods]
impl Group {
    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }
}
