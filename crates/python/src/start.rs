//! How ranks meet.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use weftlink::bootstrap::{
    Bootstrap, Environment, EnvironmentError, EnvironmentSource, Network, Rendezvous, RendezvousAddress,
    Token,
};
use weftlink::knobs::Knobs;
use weftlink::{Error, Options};

use crate::communicator::Communicator;
use crate::error::raised;
use crate::request::seconds;
use crate::wait::patiently;

/// What may be said beside what the environment does.
#[derive(Clone, Copy)]
struct Said {
    deadline: Option<f64>,
    deterministic: Option<bool>,
}

impl Said {
    fn options(self, mut options: Options) -> Result<Options, Error> {
        if let Some(deadline) = self.deadline {
            options.deadline = seconds(deadline)?;
        }
        options.deterministic = self.deterministic.unwrap_or(options.deterministic);
        Ok(options)
    }
}

/// This rank's end of the job that the process is part of, as its launcher tells.
#[pyfunction]
#[pyo3(signature = (deadline=None, deterministic=None))]
pub(crate) fn init(
    py: Python<'_>,
    deadline: Option<f64>,
    deterministic: Option<bool>,
) -> PyResult<Communicator> {
    let said = Said { deadline, deterministic };
    met(py, "init", move || {
        let mut knobs = Knobs::from_environment()?;
        let options = said.options(Options::of(&knobs))?;
        knobs.deadline = options.deadline;
        Communicator::new(weftlink::Communicator::new(Bootstrap::from_environment(&knobs)?, options)?)
    })
}

/// The variables that torch wants and a launcher has told in words of its own. Nothing if nobody started this process as a rank, or if
/// somebody did who says the rank otherwise.
#[pyfunction]
pub(crate) fn launched(py: Python<'_>) -> PyResult<BTreeMap<&'static str, String>> {
    match Environment::for_torch() {
        Ok(variables) => Ok(variables.into_iter().collect()),
        Err(EnvironmentError::Nobody | EnvironmentError::Missing { present: "WORLD_SIZE", .. }) => {
            Ok(BTreeMap::new())
        }
        Err(error) => Err(raised(py, &Error::Misuse(error.to_string()), None)),
    }
}

/// One rank's end of a group that meets at an address.
#[pyfunction]
#[pyo3(signature = (address, rank, size, secret, deadline=None, deterministic=None))]
pub(crate) fn meet(
    py: Python<'_>,
    address: String,
    rank: usize,
    size: usize,
    secret: String,
    deadline: Option<f64>,
    deterministic: Option<bool>,
) -> PyResult<Communicator> {
    let said = Said { deadline, deterministic };
    met(py, "meet", move || {
        let knobs = Knobs::from_environment()?;
        let options = said.options(Options::of(&knobs))?;
        let place = place(&address, rank, size)?;
        let meeting = Rendezvous {
            network: Network::of(&knobs),
            ..Rendezvous::new(place, Token::new(secret)?, size, options.deadline)
        };
        let met = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
        Communicator::new(weftlink::Communicator::new(met?, options)?)
    })
}

/// A group whose ranks are threads of this process.
#[pyfunction]
#[pyo3(signature = (size, deadline=None, deterministic=None))]
pub(crate) fn threads(
    py: Python<'_>,
    size: usize,
    deadline: Option<f64>,
    deterministic: Option<bool>,
) -> PyResult<Vec<Communicator>> {
    let said = Said { deadline, deterministic };
    met(py, "threads", move || {
        let options = said.options(Options::from_environment()?)?;
        weftlink::Communicator::threads(size, options)?.into_iter().map(Communicator::new).collect()
    })
}

/// An address as `WEFT_RENDEZVOUS` would have it.
fn place(address: &str, rank: usize, size: usize) -> Result<RendezvousAddress, Error> {
    let variable = |name: &str| match name {
        "WEFT_RENDEZVOUS" => Some(address.to_owned()),
        "RANK" => Some(rank.to_string()),
        "WORLD_SIZE" => Some(size.to_string()),
        _ => None,
    };
    let file = |_: &str| Err("no file is read for a meeting".to_owned());
    let process = std::process::id();
    let around = EnvironmentSource { variable: &variable, file: &file, user: 0, process, parent: 0 };
    let told = Environment::read(&around).map_err(|error| Error::Misuse(error.to_string()))?;
    Ok(told.address)
}

fn met<R: Send + 'static>(
    py: Python<'_>,
    operation: &'static str,
    meet: impl FnOnce() -> Result<R, Error> + Send + 'static,
) -> PyResult<R> {
    patiently(py, meet)?.map_err(|error| raised(py, &error, Some(operation)))
}
