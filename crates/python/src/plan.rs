//! What moves when.

use pyo3::prelude::*;
use weftlink::Error;
use weftlink::fabric::bytes::Bytes;
use weftlink::plan::choose::Options;
use weftlink::plan::draw;
use weftlink::plan::{Algorithm, Kind, UnknownKind, Verified, verify};

use crate::error::raised;
use crate::fabric::{Target, misuse, told};
use crate::request::Asked;

/// What moves when, for one collective on so many ranks. Made by ``weftlink.plan.build`` and ``read``.
#[pyclass(frozen, module = "weftlink._native")]
pub(crate) struct Plan {
    plan: weftlink::plan::Plan,
}

#[pymethods]
impl Plan {
    /// A built-in algorithm for ranks that reach each other alike.
    #[staticmethod]
    fn flat(py: Python<'_>, algorithm: &str, collective: &str, ranks: u32, root: usize) -> PyResult<Self> {
        let algorithm = self::algorithm(py, algorithm)?;
        let collective = Asked::collective_of(collective, root).map_err(|error| raised(py, &error, None))?;
        if let Some(why) = collective.misfit(ranks) {
            return Err(misuse(py, why));
        }
        let built = py.detach(|| algorithm.flat(&collective, ranks, 1));
        Ok(Self { plan: built.map_err(|why| misuse(py, why.to_string()))? })
    }

    /// A plan in Weft's JSON.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Self> {
        let plan = weftlink::plan::Plan::from_json(text).map_err(|error| misuse(py, error.to_string()))?;
        Ok(Self { plan })
    }

    /// A program in MSCCL's XML. It is not proved.
    #[staticmethod]
    fn from_msccl(py: Python<'_>, text: &str) -> PyResult<Self> {
        let plan = weftlink::plan::Plan::from_msccl(text).map_err(|error| misuse(py, error.to_string()))?;
        Ok(Self { plan })
    }

    /// What it is called.
    #[getter]
    fn name(&self) -> &str {
        &self.plan.name
    }

    /// What it computes.
    #[getter]
    fn collective(&self) -> String {
        self.plan.collective.to_string()
    }

    /// For how many ranks.
    #[getter]
    fn ranks(&self) -> u32 {
        self.plan.ranks
    }

    /// Proves that the plan computes its collective, and gives its hash; raises `PlanError`, which tells rank, lane and step, if it does
    /// not.
    fn verify(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("{:016x}", self.proved(py)?.hash()))
    }

    /// The plan as JSON.
    fn json(&self) -> String {
        self.plan.to_json()
    }

    /// The plan as MSCCL's XML, where that can say it.
    fn msccl(&self, py: Python<'_>) -> PyResult<String> {
        self.plan.to_msccl().map_err(|why| misuse(py, why.to_string()))
    }

    /// A drawing of what moves when. The plan is proved first.
    fn svg(&self, py: Python<'_>) -> PyResult<String> {
        let proved = self.proved(py)?;
        let drawn = draw::svg(proved.well_formed(), &self.islands());
        drawn.ok_or_else(|| misuse(py, "the plan has too many ranks to be drawn".to_owned()))
    }

    /// Graphviz: who sends how much to whom. The plan is proved first.
    fn dot(&self, py: Python<'_>) -> PyResult<String> {
        Ok(draw::dot(self.proved(py)?.well_formed(), &self.islands()))
    }

    fn __repr__(&self) -> String {
        format!(
            "<weftlink.plan.Plan: {} for {} ranks, {}>",
            self.plan.name, self.plan.ranks, self.plan.collective
        )
    }
}

impl Plan {
    fn proved(&self, py: Python<'_>) -> PyResult<Verified> {
        let proved = py.detach(|| verify(self.plan.clone()));
        proved.map_err(|refusal| raised(py, &Error::from(refusal), None))
    }

    /// All ranks on one.
    fn islands(&self) -> Vec<u32> {
        vec![0; self.plan.ranks as usize]
    }
}

/// What `weft plan COLLECTIVE FABRIC --json` prints.
#[pyfunction]
#[pyo3(signature = (collective, fabric, bytes=None, root=None, without=Vec::new()))]
pub(crate) fn choose(
    py: Python<'_>,
    collective: &str,
    fabric: Target<'_>,
    bytes: Option<Size>,
    root: Option<u32>,
    without: Vec<String>,
) -> PyResult<String> {
    let kind = kind(py, collective)?;
    let bytes = bytes.map(|size| size.bytes(py)).transpose()?;
    let without = without.iter().map(|name| algorithm(py, name)).collect::<PyResult<_>>()?;
    let fabric = fabric.fabric(py)?;
    let options = Options { root, without, ..Options::default() };
    let chosen = py.detach(|| weftlink::plan::choose(kind, &fabric, bytes, &options));
    chosen.map(|chosen| chosen.to_json().to_string()).map_err(|error| told(py, error.is_misuse(), &error))
}

/// The proved plan of an algorithm on a fabric, or of the fastest one.
#[pyfunction]
#[pyo3(signature = (collective, fabric, bytes=None, algorithm=None, root=None))]
pub(crate) fn build(
    py: Python<'_>,
    collective: &str,
    fabric: Target<'_>,
    bytes: Option<Size>,
    algorithm: Option<&str>,
    root: Option<u32>,
) -> PyResult<Plan> {
    let kind = kind(py, collective)?;
    let bytes = bytes.map(|size| size.bytes(py)).transpose()?;
    let algorithm = algorithm.map(|name| self::algorithm(py, name)).transpose()?;
    let fabric = fabric.fabric(py)?;
    let options = Options { root, ..Options::default() };
    let built = py.detach(|| weftlink::plan::choose::build(kind, &fabric, bytes, algorithm, &options));
    let built = built.map_err(|error| told(py, error.is_misuse(), &error))?;
    let plan = py.detach(|| built.plan()).map_err(|why| misuse(py, why.to_string()))?;
    let plan = Plan { plan };
    plan.proved(py)?;
    Ok(plan)
}

/// Bytes as Python passes them: a number, or a text such as `64MiB`.
#[derive(FromPyObject)]
pub(crate) enum Size {
    Number(i128),
    Text(String),
}

impl Size {
    /// How many.
    pub(crate) fn bytes(&self, py: Python<'_>) -> PyResult<u64> {
        let text = match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        };
        text.parse::<Bytes>().map(|bytes| bytes.0).map_err(|error| misuse(py, error.to_string()))
    }
}

/// A collective by its name.
pub(crate) fn kind(py: Python<'_>, name: &str) -> PyResult<Kind> {
    name.parse().map_err(|error: UnknownKind| misuse(py, error.to_string()))
}

fn algorithm(py: Python<'_>, name: &str) -> PyResult<Algorithm> {
    name.parse().map_err(|why: String| misuse(py, why))
}
