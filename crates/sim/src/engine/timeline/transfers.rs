//! The transfers of a step: starting them, and updating their rates.

use std::cmp::Reverse;

use weftlink_plan::plan::{Input, Output, Protocol, Step};

use super::super::SimError;
use super::super::wires::Wire;
use super::{Event, FlowState, Time, Timeline};

impl Timeline<'_> {
    /// Starts the transfers of a step; returns the duration of a copy within the rank, or 0.
    pub(super) fn start_transfers(
        &mut self,
        lane: u32,
        rank: u32,
        channel: u32,
        step: &Step<u32>,
    ) -> Result<Time, SimError> {
        let number = self.lanes[lane as usize].job as usize;
        let checked = self.jobs[number].plan.well_formed();
        let protocol = checked.channels.get(channel as usize).map(|channel| channel.protocol);
        let throttle = self.throttle(number, rank);
        let (mut copies, mut moves) = (false, false);
        for input in &step.inputs {
            let job_wires = &mut self.jobs[number].job_wires;
            let wire = match *input {
                Input::Peer(remote) if remote.rank != rank => {
                    self.wires.wire(job_wires, remote.rank, rank, &mut self.shares)?
                }
                Input::Switch(all) => {
                    let group = &checked.groups[all.group as usize];
                    self.wires.group_wire(job_wires, rank, group, all.group, true, &mut self.shares)?
                }
                Input::Received { .. } => {
                    moves = true;
                    continue;
                }
                Input::Local(_) | Input::Peer(_) => continue,
            };
            self.start_transfer(lane, &wire, None, throttle);
            moves = true;
        }
        for output in &step.outputs {
            let job_wires = &mut self.jobs[number].job_wires;
            let (wire, protocol) = match *output {
                Output::Sent { to } if to != rank => {
                    (self.wires.wire(job_wires, rank, to, &mut self.shares)?, protocol)
                }
                Output::Peer(remote) if remote.rank != rank => {
                    (self.wires.wire(job_wires, rank, remote.rank, &mut self.shares)?, None)
                }
                Output::Multicast(all) => {
                    let group = &checked.groups[all.group as usize];
                    (self.wires.group_wire(job_wires, rank, group, all.group, false, &mut self.shares)?, None)
                }
                Output::Local(_) | Output::Sent { .. } | Output::Peer(_) => {
                    copies = true;
                    continue;
                }
            };
            self.start_transfer(lane, &wire, protocol, throttle);
            moves = true;
        }
        // A step that moves data writes the local copy on the way, at no cost.
        let is_copy = copies && !moves;
        let job = &self.jobs[number];
        let rate = job.job_wires.costs.copy() * throttle.map_or(1.0, |(_, fraction)| fraction);
        let bytes = self.lanes[lane as usize].bytes;
        Ok(if is_copy { (bytes / rate * 1e12) as Time } else { 0 })
    }

    /// The most throttled GPU of a rank's class, if any, and the fraction of its rate.
    fn throttle(&self, job: usize, rank: u32) -> Option<(u32, f64)> {
        if self.wires.has_no_throttled_gpu() {
            return None;
        }
        let job_wires = &self.jobs[job].job_wires;
        let of = |rank: &u32| Some((job_wires.gpu(*rank), self.wires.throttle(job_wires.gpu(*rank))?));
        job_wires.class_of(rank).iter().filter_map(of).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn start_transfer(
        &mut self,
        lane: u32,
        wire: &Wire,
        protocol: Option<Protocol>,
        throttle: Option<(u32, f64)>,
    ) {
        let state = &self.lanes[lane as usize];
        let job = &mut self.jobs[state.job as usize];
        let bytes = job.job_wires.costs.on_the_wire(wire, protocol, state.bytes);
        let mut cap = job.job_wires.costs.lane(wire, protocol);
        if bytes <= 0.0 {
            return;
        }
        job.moved.resize(self.wires.resources.len().max(job.moved.len()), 0.0);
        for (resource, weight) in &wire.uses {
            job.moved[*resource as usize] += bytes * weight;
        }
        let flow = match throttle {
            None => self.shares.begin(&wire.uses, cap),
            Some((gpu, fraction)) => {
                cap *= fraction;
                let throttled_resource = self.wires.throttled_resource(wire, gpu, fraction, &mut self.shares);
                let uses: Vec<_> = wire.uses.iter().copied().chain(throttled_resource).collect();
                self.shares.begin(&uses, cap)
            }
        } as usize;
        if flow == self.flows.len() {
            self.flows.push(FlowState::default());
        }
        let version = self.flows[flow].version;
        self.flows[flow] = FlowState { lane, left: bytes, rate: 0.0, since: self.now, version };
        self.flows_active += 1;
        self.lanes[lane as usize].transfers += 1;
    }

    /// Updates the rates of all transfers and schedules their ends.
    pub(super) fn update_rates(&mut self) {
        let (shares, flows, events, now) = (&mut self.shares, &mut self.flows, &mut self.events, self.now);
        let sequence = &mut self.sequence;
        shares.update(|id, rate| {
            let flow = &mut flows[id as usize];
            flow.left -= flow.rate * (now - flow.since) as f64 * 1e-12;
            flow.since = now;
            flow.rate = rate;
            flow.version += 1;
            // A stopped transfer has no end yet.
            if rate <= 0.0 {
                return;
            }
            let time = (flow.left.max(0.0) / rate * 1e12).ceil() as Time;
            *sequence += 1;
            events.push(Reverse((now.saturating_add(time), *sequence, Event::FlowDone(id, flow.version))));
        });
    }
}
