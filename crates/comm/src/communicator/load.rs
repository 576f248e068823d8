//! Loading a plan: its engine gets memory, connections and a name in the recorder. All ranks load the same plans in the same order.

use std::sync::Arc;
use std::time::Duration;

use weftlink_bootstrap::{Failure, Reason, list};
use weftlink_plan::{Algorithm, Collective, Verified};
use weftlink_recorder::header::{CallKind, Header};

use super::{Communicator, Options};
use crate::choose::{self, Choice, Key, PlanOffer};
use crate::engine::Engine;
use crate::error::Error;
use crate::failure::code_of_preparing;
use crate::layout::Layout;
use crate::request::PlanId;
use crate::shared::Call;

/// From this many ranks on, rank 0 proves plans for all. For fewer, a proof takes milliseconds, as sending one does.
const SHARED_PROOF_RANKS_MIN: usize = 16;

impl Communicator {
    /// Loads a verified plan, which allocates shared memory. All ranks load the same plans in the same order. A plan that is loaded
    /// already is not loaded again.
    pub fn load(&mut self, plan: impl Into<Arc<Verified>>) -> Result<PlanId, Error> {
        let plan = plan.into();
        self.usable()?;
        if plan.ranks as usize != self.size {
            let (name, ranks, size) = (&plan.name, plan.ranks, self.size);
            let what = format!("the plan {name:?} is for {ranks} ranks, but this communicator has {size}");
            return Err(Error::Misuse(what));
        }
        if choose::needs_switches(&plan) {
            let name = &plan.name;
            return Err(Error::Misuse(format!(
                "the plan {name:?} needs a switch that reduces, and CPU ranks have none; use `Plan::without_switches`"
            )));
        }
        if !choose::carries(&plan, &self.hosts) {
            let name = &plan.name;
            return Err(Error::Misuse(format!(
                "the plan {name:?} needs more than send and receive between hosts; use a ring, tree or hierarchical plan"
            )));
        }
        let header = Header::allocating(CallKind::Load, plan.hash(), 0, (None, 1));
        let index = self.load_under(header, plan)?;
        Ok(PlanId { index, owner: self.identity })
    }

    /// Loads the plan of a built-in algorithm for a collective, unless it is loaded already.
    pub fn built_in(&mut self, algorithm: Algorithm, collective: &Collective) -> Result<PlanId, Error> {
        let choice = Choice { algorithm, packets: false };
        self.load(choose::proved(choice, collective, &self.hosts)?)
    }

    /// Loads the plan that a call needs, under the call's own header, so that ranks that make another call get a mismatch.
    #[cold]
    pub(super) fn load_for(&mut self, key: Key, header: &Header) -> Result<usize, Error> {
        let plan = self.plan_for(&key, header)?;
        let (call, memory, name) = (&key.collective, key.memory.name(), &plan.name);
        // A choice is the name of a plan, and a protocol where several are possible: `linear:ll`.
        let choice = key.choice.to_string();
        match choice.split(':').next() == Some(name.as_str()) {
            true => {
                tracing::info!(target: "weft::plan", rank = self.rank, "{call} in {memory} memory takes {choice}")
            }
            false => {
                tracing::info!(target: "weft::plan", rank = self.rank, "{call} in {memory} memory takes {name} instead of {choice}");
            }
        }
        let index = self.load_under(*header, plan)?;
        self.chosen.push((key, index));
        Ok(index)
    }

    /// The verified plan for a call. With many processes rank 0 proves it and sends the proof; with few, every rank proves it.
    fn plan_for(&mut self, key: &Key, header: &Header) -> Result<Arc<Verified>, Error> {
        let processes = &self.shared.processes;
        // Threads of one process share its proofs.
        if self.size < SHARED_PROOF_RANKS_MIN || processes.iter().all(|one| one.pid == processes[0].pid) {
            return Ok(choose::plan_for(key, &self.hosts)?.1);
        }
        let own = (self.rank == 0).then(|| choose::plan_for(key, &self.hosts));
        let proved = own.as_ref().and_then(|own| own.as_ref().ok());
        let offer = proved.and_then(|(choice, plan)| PlanOffer::of(*choice, plan));
        let offer = offer.and_then(|offer| postcard::to_stdvec(&offer).ok()).unwrap_or_default();
        let received = self.exchange_all(*header, offer)?;
        if let Some(own) = own {
            return Ok(own?.1);
        }
        match postcard::from_bytes(&received[0]) {
            Ok(offer) => {
                choose::plan_of_offer(offer, key, &self.hosts).map_err(|error| self.abandon(header, error))
            }
            // Rank 0 found none, and every rank reports why.
            Err(_) => Ok(choose::plan_for(key, &self.hosts)?.1),
        }
    }

    /// Loads a plan, unless it is loaded: two engines of one plan would have counters of their own, and ranks that use different ones
    /// would wait forever. All ranks load the same plans in the same order, so all find it.
    pub(super) fn load_under(&mut self, header: Header, plan: Arc<Verified>) -> Result<usize, Error> {
        if let Some(index) = self.engines.iter().position(|engine| engine.plan == plan) {
            return Ok(index);
        }
        let rank = self.rank as u32;
        let layout = self.ports.place(&plan, &self.hosts, self.hosts[self.rank]);
        let memory = self.share(header, layout.bytes)?;
        self.connect(&header, &layout)?;
        self.shared.recorder.name_plan(self.engines.len(), &plan.name);
        self.engines.push(Engine::new(plan, rank, layout.clone(), &memory));
        self.ports.open(&layout, rank, memory);
        Ok(self.engines.len() - 1)
    }

    /// Connects to the ranks on other hosts with which the plan exchanges messages. All ranks do so in the same call.
    fn connect(&mut self, header: &Header, layout: &Layout) -> Result<(), Error> {
        let peers = self.ports.unconnected(layout, self.rank as u32);
        if peers.is_empty() {
            return Ok(());
        }
        let Options { streams, encrypt, deadline, .. } = self.options;
        let rank = self.rank as u32;
        let connected = self.bootstrap.connect(&peers, streams, deadline);
        let taken = connected.map_err(Error::from).and_then(|connections| {
            peers.iter().zip(connections).try_for_each(|(&peer, connections)| {
                let connected = self.ports.transports().connect(peer, connections, encrypt);
                let refused = |error: std::io::Error| Error::System {
                    rank,
                    what: "watch a connection",
                    error: error.to_string(),
                };
                connected.map_err(refused)
            })
        });
        if taken.is_ok() {
            let peers: Vec<usize> = peers.iter().map(|&rank| rank as usize).collect();
            let (ranks, way) = (list(&peers), if encrypt { "encrypted" } else { "checksummed" });
            tracing::info!(target: "weft::net", rank = self.rank, "connected to {ranks}, {streams} streams each, frames are {way}");
        }
        taken.map_err(|error| self.abandon(header, error))
    }

    /// Aborts a call that cannot be set up, on all ranks.
    pub(super) fn abandon(&mut self, header: &Header, error: Error) -> Error {
        let call = Call::without_buffers(header, self.calls, &Collective::Barrier);
        let first = self.shared.waiter.abort(code_of_preparing(&error, self.rank as u32));
        let died = Reason::is(first, Reason::Died);
        let error = if died { self.died(&call, first.rank, Duration::ZERO) } else { error };
        let failure = Failure::from(&error);
        self.bootstrap.give_up(&failure, first.rank, first.reason.get());
        self.failed = Some(failure);
        error
    }
}
