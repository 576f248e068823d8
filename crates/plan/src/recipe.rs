//! A plan that is written rank by rank, on demand.
//!
//! A rank of 100,000 needs its own program and not those of the others: an algorithm returns a recipe, which holds what
//! all programs have in common and writes any one of them. The whole plan is the recipe written out, for the verifier
//! and for files.

use crate::classes::Classes;
use crate::collective::Collective;
use crate::plan::{Agreement, Aliasing, Chunks, Format, Plan, Program, Protocol};
use crate::well_formed::WellFormed;

/// An outline, and how to write each rank's program.
pub struct Recipe<'a> {
    outline: Plan,
    program: Box<dyn Fn(u32) -> Program + Send + Sync + 'a>,
}

impl<'a> Recipe<'a> {
    /// A recipe; the outline's own programs are left out.
    pub fn new(outline: Plan, program: impl Fn(u32) -> Program + Send + Sync + 'a) -> Self {
        Self { outline: Plan { programs: Vec::new(), ..outline }, program: Box::new(program) }
    }

    /// What all ranks have in common: a plan without programs.
    pub fn outline(&self) -> &Plan {
        &self.outline
    }

    /// The same plan with another protocol for all its messages. Protocols do not change what a plan means.
    pub fn with_protocol(mut self, protocol: Protocol) -> Self {
        self.outline.channels.iter_mut().for_each(|channel| channel.protocol = protocol);
        self
    }

    /// The same plan with at least so many messages under way in each FIFO. Senders may then run further ahead, which is for
    /// the verifier to judge.
    pub fn with_depth_of(mut self, depth: u32) -> Self {
        self.outline.channels.iter_mut().for_each(|channel| channel.depth = channel.depth.max(depth));
        self
    }

    /// What one rank does.
    pub fn program(&self, rank: u32) -> Program {
        (self.program)(rank)
    }

    /// As much of the plan as is needed to run it by classes whose turns keep a rank's number within each `multiple` of them (1: all
    /// turns there are): what a simulator of many ranks runs. Recipes are written by this crate's algorithms, each of which is held
    /// against the verifier at sizes that can be proved, so neither the programs nor their symmetry are checked here.
    pub fn partial(&self, multiple: u32) -> Partial {
        let ranks = self.outline.ranks;
        let symmetry = self.outline.symmetry.as_ref().and_then(|symmetry| symmetry.coarser(multiple));
        let classes =
            symmetry.map_or_else(|| Classes::trivial(ranks), |symmetry| Classes::of(ranks, &symmetry));
        let mut programs = vec![Program { lanes: Vec::new() }; ranks as usize];
        for &rank in classes.representatives() {
            programs[rank as usize] = self.program(rank);
        }
        Partial { plan: Plan { programs, ..self.outline.clone() }, classes }
    }

    /// The whole plan.
    pub fn plan(&self) -> Plan {
        let programs = (0..self.outline.ranks).map(|rank| self.program(rank)).collect();
        Plan { programs, ..self.outline.clone() }
    }
}

/// A plan of which only some programs are written: those of the ranks that stand for the others.
pub struct Partial {
    plan: Plan,
    classes: Classes,
}

impl Partial {
    /// The plan, for the interpreter, which runs it by its [classes](Partial::classes).
    pub fn well_formed(&self) -> WellFormed<'_> {
        WellFormed::trusted(&self.plan)
    }

    /// Which ranks stand for which.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }
}

impl Plan {
    /// A plan without programs, channels or counters, whose blocks are cut into `chunks` each, right in place and out
    /// of place: a start for [`Recipe::new`] and for plans written by hand.
    pub fn outline(name: &str, collective: Collective, ranks: u32, chunks: u32) -> Self {
        let (input, output) = collective.blocks(ranks);
        Self {
            weft: Format::default(),
            name: name.to_owned(),
            collective,
            ranks,
            chunks: Chunks { input: input * chunks, output: output * chunks, scratch: 0 },
            aliasing: Aliasing::BOTH.to_vec(),
            uneven: false,
            agreement: Agreement::SameBits,
            channels: Vec::new(),
            groups: Vec::new(),
            counters: 0,
            symmetry: None,
            programs: Vec::new(),
        }
    }
}
