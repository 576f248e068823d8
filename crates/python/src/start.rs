//! How ranks join a group.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use weftlink::bootstrap::{Bootstrap, Environment, EnvironmentError, Network, Rendezvous, Token};
use weftlink::knobs::Knobs;
use weftlink::{Error, Options};

use crate::communicator::Communicator;
use crate::error::raised;
use crate::request::seconds;
use crate::wait::interruptible;

/// Arguments that override the environment.
#[derive(Clone, Copy)]
struct Overrides {
    deadline: Option<f64>,
    deterministic: Option<bool>,
}

impl Overrides {
    fn options(self, mut options: Options) -> Result<Options, Error> {
        if let Some(deadline) = self.deadline {
            options.deadline = seconds(deadline)?;
        }
        options.deterministic = self.deterministic.unwrap_or(options.deterministic);
        Ok(options)
    }
}

/// Joins the job of this process, as its launcher describes it.
#[pyfunction]
#[pyo3(signature = (deadline=None, deterministic=None))]
pub(crate) fn init(
    py: Python<'_>,
    deadline: Option<f64>,
    deterministic: Option<bool>,
) -> PyResult<Communicator> {
    let overrides = Overrides { deadline, deterministic };
    join(py, "init", move || {
        let mut knobs = Knobs::from_environment()?;
        let options = overrides.options(Options::of(&knobs))?;
        knobs.deadline = options.deadline;
        Communicator::new(weftlink::Communicator::new(Bootstrap::from_environment(&knobs)?, options)?)
    })
}

/// The environment variables of torch, from those of mpirun or srun. Empty if this process is no rank, or if its launcher sets torch's
/// variables itself.
#[pyfunction]
pub(crate) fn launcher_variables(py: Python<'_>) -> PyResult<BTreeMap<&'static str, String>> {
    match Environment::for_torch() {
        Ok(variables) => Ok(variables.into_iter().collect()),
        Err(EnvironmentError::Nobody | EnvironmentError::Missing { present: "WORLD_SIZE", .. }) => {
            Ok(BTreeMap::new())
        }
        Err(error) => Err(raised(py, &Error::Misuse(error.to_string()), None)),
    }
}

/// Joins a group that meets at an address.
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
    let overrides = Overrides { deadline, deterministic };
    join(py, "meet", move || {
        let knobs = Knobs::from_environment()?;
        let options = overrides.options(Options::of(&knobs))?;
        let place = Environment::address_of(&address, rank, size);
        let place = place.map_err(|error| Error::Misuse(error.to_string()))?;
        let meeting = Rendezvous {
            network: Network::of(&knobs),
            ..Rendezvous::new(place, Token::new(secret)?, size, options.deadline)
        };
        let joined = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
        Communicator::new(weftlink::Communicator::new(joined?, options)?)
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
    let overrides = Overrides { deadline, deterministic };
    join(py, "threads", move || {
        let options = overrides.options(Options::from_environment()?)?;
        weftlink::Communicator::threads(size, options)?.into_iter().map(Communicator::new).collect()
    })
}

fn join<R: Send + 'static>(
    py: Python<'_>,
    operation: &'static str,
    work: impl FnOnce() -> Result<R, Error> + Send + 'static,
) -> PyResult<R> {
    interruptible(py, work)?.map_err(|error| raised(py, &error, Some(operation)))
}
