//! Fabrics.

use pyo3::prelude::*;
use weftlink::Error;
use weftlink::fabric::catalog::gpus;
use weftlink::fabric::format::{self, document, dot, svg};
use weftlink::fabric::rate::Rate;
use weftlink::fabric::summary::Summary;
use weftlink::fabric::{DeviceId, Paths};

use crate::error::{failed, raised};

/// A machine or cluster: hosts, devices, and the links between them. ``weftlink.fabric.parse``, ``read`` and ``here`` return one.
#[pyclass(frozen, module = "weftlink._native")]
pub(crate) struct Fabric {
    fabric: weftlink::fabric::Fabric,
}

/// A fabric as Python passes it: an object or a name.
#[derive(FromPyObject)]
pub(crate) enum Target<'py> {
    Fabric(PyRef<'py, Fabric>),
    /// A system, a cluster or a file, as on the command line.
    Name(String),
}

impl Target<'_> {
    pub(crate) fn fabric(self, py: Python<'_>) -> PyResult<weftlink::fabric::Fabric> {
        match self {
            Self::Fabric(fabric) => Ok(fabric.fabric.clone()),
            Self::Name(name) => {
                let opened = py.detach(|| weftlink_probe::open(Some(&name), None));
                opened.map_err(|error| unanswered(py, error.is_misuse(), &error))
            }
        }
    }
}

/// A path between two devices: its type, hops, links, GB/s each way (nominal and effective, None if unknown), and the devices on
/// it.
type PathFacts = (&'static str, u32, u64, Option<f64>, Option<f64>, Vec<Vec<String>>);

#[pymethods]
impl Fabric {
    /// A system of the catalog (``"hgx-h100"``) or a cluster (``"2x hgx-h100 + 8x ndr"``).
    #[staticmethod]
    fn parse(py: Python<'_>, text: &str) -> PyResult<Self> {
        let fabric = weftlink::fabric::resolve(text).map_err(|error| misuse(py, error.to_string()))?;
        Ok(Self { fabric })
    }

    /// Reads a file: XML of NCCL, RCCL or lstopo, Weft's TOML or JSON, the output of ``ibnetdiscover``, Slurm's ``topology.conf``, or
    /// the text of ``nvidia-smi topo -m``, for which ``gpu`` names the model.
    #[staticmethod]
    #[pyo3(signature = (content, name, gpu=None))]
    fn read(py: Python<'_>, content: &[u8], name: &str, gpu: Option<&str>) -> PyResult<Self> {
        let unknown = |id: &str| {
            misuse(py, format!("unknown GPU {id:?}; `weft topo --list gpus` prints the known ones"))
        };
        let gpu = gpu.map(|id| gpus::by_id(id).ok_or_else(|| unknown(id))).transpose()?;
        let read = format::read(content, name, gpu);
        Ok(Self { fabric: read.map_err(|error| misuse(py, format!("{name}: {error}")))? })
    }

    /// This machine.
    #[staticmethod]
    fn here(py: Python<'_>) -> PyResult<Self> {
        let found = py.detach(weftlink_probe::this_machine);
        Ok(Self { fabric: found.map_err(|error| misuse(py, error.to_string()))? })
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        self.fabric.name()
    }

    /// The names of its hosts.
    #[getter]
    fn hosts(&self) -> Vec<String> {
        self.fabric.hosts().iter().map(|host| host.name.to_string()).collect()
    }

    /// The names of its GPUs, in the order of ranks.
    #[getter]
    fn gpus(&self) -> Vec<String> {
        self.names(self.fabric.gpus())
    }

    /// A summary, in a sentence or two.
    fn summary(&self, py: Python<'_>) -> String {
        py.detach(|| Summary::of(&Paths::of(&self.fabric)).sentence())
    }

    /// The path from one device to another, by name.
    fn path(&self, py: Python<'_>, source: &str, target: &str) -> PyResult<PathFacts> {
        let device = |name: &str| {
            let unknown = || {
                misuse(
                    py,
                    format!(
                        "no device {name:?} on {}; the attribute gpus lists the names of GPUs",
                        self.fabric.name()
                    ),
                )
            };
            self.fabric.find(name).ok_or_else(unknown)
        };
        let route = Paths::of(&self.fabric).route(device(source)?, device(target)?);
        let path = &route.path;
        let known = |rate| (rate > Rate::ZERO).then(|| Rate::gb(rate));
        let stations = route.stations.iter().map(|station| self.names(station)).collect();
        let (nominal, effective) = (known(path.width.nominal), known(path.width.effective));
        Ok((path.kind.name(), path.hops, path.width.links.into(), nominal, effective, stations))
    }

    /// A drawing.
    fn svg(&self) -> String {
        svg::svg(&self.fabric)
    }

    /// The graph, for Graphviz.
    fn dot(&self) -> String {
        dot::dot(&self.fabric)
    }

    /// The fabric as JSON, for `read`.
    fn json(&self, py: Python<'_>) -> PyResult<String> {
        document::write_json(&self.fabric).map_err(|error| misuse(py, error.to_string()))
    }

    /// The fabric as TOML, for `read`.
    fn toml(&self, py: Python<'_>) -> PyResult<String> {
        document::write_toml(&self.fabric).map_err(|error| misuse(py, error.to_string()))
    }

    fn __repr__(&self) -> String {
        format!("<weftlink.fabric.Fabric: {}>", self.fabric.name())
    }
}

impl Fabric {
    fn names(&self, devices: &[DeviceId]) -> Vec<String> {
        devices.iter().map(|id| self.fabric.device_name(*id)).collect()
    }
}

pub(crate) fn misuse(py: Python<'_>, what: String) -> PyErr {
    raised(py, &Error::Misuse(what), None)
}

/// The exception for a question without an answer: `UsageError` if other arguments would have one, else `Error`.
pub(crate) fn unanswered(py: Python<'_>, is_misuse: bool, why: &dyn std::fmt::Display) -> PyErr {
    if is_misuse { misuse(py, why.to_string()) } else { failed(py, &why.to_string()) }
}
