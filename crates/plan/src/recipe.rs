//! A plan whose programs are written on demand.
//!
//! One rank of 100,000 needs only its own program. So an algorithm returns a recipe, which holds what all programs share
//! and writes any one of them. The verifier and files need the whole plan, which is the recipe written out.

use crate::classes::Classes;
use crate::collective::Collective;
use crate::plan::{Agreement, Aliasing, Chunks, Format, Plan, Program, Protocol};
use crate::well_formed::WellFormed;

/// An outline, and a function that writes each rank's program.
pub struct Recipe<'a> {
    outline: Plan,
    program: Box<dyn Fn(u32) -> Program + Send + Sync + 'a>,
}

impl<'a> Recipe<'a> {
    /// A recipe; any programs of the outline are dropped.
    pub fn new(outline: Plan, program: impl Fn(u32) -> Program + Send + Sync + 'a) -> Self {
        Self { outline: Plan { programs: Vec::new(), ..outline }, program: Box::new(program) }
    }

    /// The recipe of a plan that already has all its programs.
    pub fn of(plan: &'a Plan) -> Self {
        Self::new(plan.clone(), |rank| plan.programs[rank as usize].clone())
    }

    /// The plan without programs.
    pub fn outline(&self) -> &Plan {
        &self.outline
    }

    /// The same plan with another protocol for all its messages. The protocol does not change a plan's meaning.
    pub fn with_protocol(mut self, protocol: Protocol) -> Self {
        self.outline.channels.iter_mut().for_each(|channel| channel.protocol = protocol);
        self
    }

    /// The same plan with at least `depth` slots in each FIFO. Senders may then run further ahead, so the plan needs a new proof.
    pub fn with_depth_of(mut self, depth: u32) -> Self {
        self.outline.channels.iter_mut().for_each(|channel| channel.depth = channel.depth.max(depth));
        self
    }

    /// The program of one rank.
    pub fn program(&self, rank: u32) -> Program {
        (self.program)(rank)
    }

    /// The part of the plan that a simulator of many ranks needs to run it by classes, whose turns are by multiples of `multiple`
    /// ranks (1: all turns). Checks neither the programs nor their symmetry: recipes come from this crate's algorithms, whose plans
    /// tests verify at sizes that can be proved.
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

/// A plan with the programs of its classes' representatives only.
pub struct Partial {
    plan: Plan,
    classes: Classes,
}

impl Partial {
    /// The plan, for the interpreter, which runs it by its [classes](Partial::classes).
    pub fn well_formed(&self) -> WellFormed<'_> {
        WellFormed::trusted(&self.plan)
    }

    /// The classes of the ranks.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }
}

impl Plan {
    /// A plan without programs, channels or counters, whose blocks are cut into `chunks` each, for calls in place and out of
    /// place: a start for [`Recipe::new`] and for plans written by hand.
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
