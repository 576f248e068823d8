//! Plans.

use pyo3::prelude::*;
use weftlink::Error;
use weftlink::fabric::bytes::Bytes;
use weftlink::plan::choose::{ChooseError, Options};
use weftlink::plan::draw;
use weftlink::plan::{Algorithm, Kind, UnknownKind, Verified, verify};

use crate::error::raised;
use crate::fabric::{Target, misuse, unanswered};
use crate::request::collective_named;

/// The steps of one collective for a number of ranks. ``weftlink.plan.build`` and ``read`` make one.
#[pyclass(frozen, module = "weftlink._native")]
pub(crate) struct Plan {
    plan: weftlink::plan::Plan,
}

#[pymethods]
impl Plan {
    /// The plan of an algorithm for ranks that are equally far from each other.
    #[staticmethod]
    fn flat(py: Python<'_>, algorithm: &str, collective: &str, ranks: u32, root: usize) -> PyResult<Self> {
        let algorithm = self::algorithm(py, algorithm)?;
        let collective = collective_named(collective, root).map_err(|error| raised(py, &error, None))?;
        if let Some(why) = collective.misfit(ranks) {
            return Err(misuse(py, why));
        }
        let built = py.detach(|| algorithm.flat(&collective, ranks, 1));
        Ok(Self { plan: built.map_err(|why| misuse(py, why.to_string()))? })
    }

    /// Reads a plan in Weft's JSON.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Self> {
        let plan = weftlink::plan::Plan::from_json(text).map_err(|error| misuse(py, error.to_string()))?;
        Ok(Self { plan })
    }

    /// Reads a program in MSCCL's XML, without verifying it.
    #[staticmethod]
    fn from_msccl(py: Python<'_>, text: &str) -> PyResult<Self> {
        let plan = weftlink::plan::Plan::from_msccl(text).map_err(|error| misuse(py, error.to_string()))?;
        Ok(Self { plan })
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.plan.name
    }

    /// The collective that it implements.
    #[getter]
    fn collective(&self) -> String {
        self.plan.collective.to_string()
    }

    /// Its number of ranks.
    #[getter]
    fn ranks(&self) -> u32 {
        self.plan.ranks
    }

    /// Verifies that the plan implements its collective and returns its hash; raises `PlanError` with rank, lane and step otherwise.
    fn verify(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("{:016x}", self.verified(py)?.hash()))
    }

    /// The plan as JSON.
    fn json(&self) -> String {
        self.plan.to_json()
    }

    /// The plan as MSCCL's XML, if that can express it.
    fn msccl(&self, py: Python<'_>) -> PyResult<String> {
        self.plan.to_msccl().map_err(|why| misuse(py, why.to_string()))
    }

    /// A drawing of its steps. The plan is verified first.
    fn svg(&self, py: Python<'_>) -> PyResult<String> {
        let verified = self.verified(py)?;
        let drawn = draw::svg(verified.well_formed(), &self.islands());
        drawn.ok_or_else(|| misuse(py, "the plan has too many ranks for a drawing".to_owned()))
    }

    /// The traffic between ranks, for Graphviz. The plan is verified first.
    fn dot(&self, py: Python<'_>) -> PyResult<String> {
        Ok(draw::dot(self.verified(py)?.well_formed(), &self.islands()))
    }

    fn __repr__(&self) -> String {
        format!(
            "<weftlink.plan.Plan: {} for {} ranks, {}>",
            self.plan.name, self.plan.ranks, self.plan.collective
        )
    }
}

impl Plan {
    fn verified(&self, py: Python<'_>) -> PyResult<Verified> {
        let verified = py.detach(|| verify(self.plan.clone()));
        verified.map_err(|refusal| raised(py, &Error::from(refusal), None))
    }

    /// All ranks are on one island.
    fn islands(&self) -> Vec<u32> {
        vec![0; self.plan.ranks as usize]
    }
}

/// The output of `weft plan COLLECTIVE FABRIC --json`.
#[pyfunction]
#[pyo3(signature = (collective, fabric, bytes=None, root=None, without=Vec::new(), sharp=false))]
pub(crate) fn choose(
    py: Python<'_>,
    collective: &str,
    fabric: Target<'_>,
    bytes: Option<Size>,
    root: Option<u32>,
    without: Vec<String>,
    sharp: bool,
) -> PyResult<String> {
    let kind = kind(py, collective)?;
    let bytes = bytes.map(|size| size.bytes(py)).transpose()?;
    let without = without.iter().map(|name| algorithm(py, name)).collect::<PyResult<_>>()?;
    let fabric = fabric.fabric(py)?;
    let options = Options { root, without, sharp, ..Options::default() };
    let chosen = py.detach(|| weftlink::plan::choose(kind, &fabric, bytes, &options));
    chosen.map(|chosen| chosen.to_json().to_string()).map_err(|error| no_plan(py, &error))
}

/// The verified plan of an algorithm on a fabric, by default of the fastest one.
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
    let built = built.map_err(|error| no_plan(py, &error))?;
    let plan = py.detach(|| built.plan()).map_err(|why| misuse(py, why.to_string()))?;
    let plan = Plan { plan };
    plan.verified(py)?;
    Ok(plan)
}

/// The exception for an error of the planner, which names the command's flags; Python has arguments.
fn no_plan(py: Python<'_>, error: &ChooseError) -> PyErr {
    let why = match error {
        ChooseError::Option { option, collective } => {
            format!("the argument {option} does not apply to {collective}")
        }
        ChooseError::LeftOut { collective, fabric } => {
            format!("the argument without leaves no algorithm that does {collective} on {fabric}")
        }
        other => other.to_string(),
    };
    unanswered(py, error.is_misuse(), &why)
}

/// A size in bytes as Python passes it: a number, or text such as `64MiB`.
#[derive(FromPyObject)]
pub(crate) enum Size {
    Number(i128),
    Text(String),
}

impl Size {
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
