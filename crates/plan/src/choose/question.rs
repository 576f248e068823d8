//! One function for each question about a fabric: the fastest algorithm for a size, for each size of a range, and its plan.

use thiserror::Error;
use weftlink_fabric::Fabric;

use super::{Breakpoints, Choice, Chooser, Range, RankedCandidate, Verdict};
use crate::algorithms::{Algorithm, Impossible};
use crate::cost::Placement;
use crate::cost::constants::Constants;
use crate::wiring::Bound;
use crate::{Collective, Kind, Layout, Plan, Recipe};

/// Bytes of a call where no size is given.
pub const BYTES_DEFAULT: u64 = 64 << 20;

/// Details of a collective, and algorithms to leave out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The constants of the cost model: the shipped ones, or those of one machine.
    pub constants: Constants,
    /// The root of a rooted collective; rank 0 if none is given.
    pub root: Option<u32>,
    /// Ranks of neighbours in each dimension; a ring if none is given.
    pub torus: Option<[u32; 3]>,
    /// Messages of a send-receive, from which rank to which; each rank to the next if none are given.
    pub messages: Option<Vec<(u32, u32)>>,
    /// Algorithms that must not be chosen.
    pub without: Vec<Algorithm>,
    /// Whether the switches of the network reduce (SHARP). A plan that needs them is otherwise built only if it is named.
    pub sharp: bool,
}

/// The collective and the fabric that an answer is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The collective.
    pub collective: Collective,
    /// Whether blocks may differ in length.
    pub uneven: bool,
    /// The fabric's name.
    pub fabric: String,
    /// Its ranks: one for each GPU.
    pub ranks: u32,
    /// Its islands.
    pub islands: u32,
    /// Ranks of each island, where all have the same number.
    pub per_island: Option<u32>,
    /// Ranks of the largest island.
    pub largest_island: u32,
    /// How fast the collective can be on this fabric.
    pub bound: Option<Bound>,
    /// Whether only sums computed by switches come near the bound.
    pub switches_add: bool,
}

/// All candidates for one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Collective and fabric.
    pub subject: Subject,
    /// The candidates, the fastest first.
    pub choice: Choice,
}

/// The algorithm for each size of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenSizes {
    /// Collective and fabric.
    pub subject: Subject,
    /// Where the algorithm changes.
    pub breakpoints: Breakpoints,
    /// For each range, the chosen candidate at its first and last size.
    pub ends: Vec<[RankedCandidate; 2]>,
}

/// One candidate, ready to be written as a plan.
#[derive(Clone, Debug)]
pub struct Built {
    /// Collective and fabric.
    pub subject: Subject,
    /// Bytes of the call.
    pub bytes: u64,
    /// The candidate.
    pub candidate: RankedCandidate,
    /// The ranks' places on the fabric.
    pub layout: Layout,
}

/// A question about a fabric has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChooseError {
    /// A detail was given that the collective does not have.
    #[error("{option} does not apply to {collective}")]
    Option {
        /// `root`, `torus`, `messages`, `size` or `sizes`.
        option: &'static str,
        /// The collective.
        collective: &'static str,
    },
    /// The collective is impossible on this number of ranks.
    #[error("{0}")]
    Misfit(String),
    /// The fabric has no ranks.
    #[error("{fabric} has no GPU, so there are no ranks to plan for")]
    NoGpu {
        /// Its name.
        fabric: String,
    },
    /// The caller left out every algorithm for the collective.
    #[error("every algorithm for {collective} on {fabric} is left out; leave out fewer")]
    LeftOut {
        /// The collective.
        collective: String,
        /// The fabric.
        fabric: String,
    },
    /// No algorithm is possible for the collective on this fabric.
    #[error("no algorithm for {collective} on {fabric}: {why}")]
    NoAlgorithm {
        /// The collective.
        collective: String,
        /// The fabric.
        fabric: String,
        /// Why.
        why: String,
    },
    /// The algorithm that the caller named is impossible for the collective on this fabric.
    #[error("{algorithm} is impossible here: {why}")]
    RuledOut {
        /// The algorithm.
        algorithm: Algorithm,
        /// Why.
        why: String,
    },
}

impl ChooseError {
    /// Whether the caller has to change the arguments; otherwise the arguments are valid and the fabric has no answer.
    pub fn is_misuse(&self) -> bool {
        matches!(self, Self::Option { .. } | Self::Misfit(_) | Self::RuledOut { .. })
    }
}

/// All candidates for a collective on a fabric, with predicted times and the reason why each one lost. Without `bytes`, for
/// [`BYTES_DEFAULT`].
///
/// ```
/// use weftlink_plan::choose::Options;
/// let fabric = weftlink_fabric::resolve("hgx-h100").unwrap();
/// let kind = "all-reduce".parse().unwrap();
/// let chosen = weftlink_plan::choose(kind, &fabric, Some(64 << 20), &Options::default()).unwrap();
/// assert_eq!(chosen.subject.ranks, 8);
/// assert!(chosen.choice.chosen().is_some());
/// ```
pub fn choose(
    kind: Kind,
    fabric: &Fabric,
    bytes: Option<u64>,
    options: &Options,
) -> Result<Chosen, ChooseError> {
    let question = Question::new(kind, fabric, options)?;
    let bytes = question.bytes(bytes)?;
    let chooser = question.chooser(None);
    let choice = question.choice(&chooser, bytes)?;
    Ok(Chosen { subject: question.subject(&chooser), choice })
}

/// The fastest algorithm for every size of a range, both ends included.
pub fn choose_sizes(
    kind: Kind,
    fabric: &Fabric,
    sizes: (u64, u64),
    options: &Options,
) -> Result<ChosenSizes, ChooseError> {
    let question = Question::new(kind, fabric, options)?;
    if kind == Kind::Barrier {
        return Err(ChooseError::Option { option: "sizes", collective: kind.name() });
    }
    let chooser = question.chooser(None);
    question.choice(&chooser, sizes.0)?;
    let mut breakpoints = chooser.breakpoints(sizes);
    let chosen = |bytes: u64| chooser.choose(bytes).chosen().cloned();
    let ends = |range: &Range| Some([chosen(range.from)?, chosen(range.to)?]);
    // Every range has a choice at both ends; this only keeps the two lists aligned.
    breakpoints.ranges.retain(|range| ends(range).is_some());
    let ends = breakpoints.ranges.iter().filter_map(ends).collect();
    Ok(ChosenSizes { subject: question.subject(&chooser), breakpoints, ends })
}

/// The candidate of an algorithm, or the fastest candidate if none is named.
pub fn build(
    kind: Kind,
    fabric: &Fabric,
    bytes: Option<u64>,
    algorithm: Option<Algorithm>,
    options: &Options,
) -> Result<Built, ChooseError> {
    let question = Question::new(kind, fabric, options)?;
    let bytes = question.bytes(bytes)?;
    let chooser = question.chooser(algorithm);
    let choice = question.choice(&chooser, bytes)?;
    let is_wanted =
        |candidate: &&RankedCandidate| algorithm.is_none_or(|wanted| candidate.algorithm == wanted);
    // The fastest protocol comes first.
    let candidate = match choice.candidates.iter().find(is_wanted) {
        Some(RankedCandidate { algorithm, verdict: Verdict::RuledOut(why), .. }) => {
            return Err(ChooseError::RuledOut { algorithm: *algorithm, why: why.clone() });
        }
        Some(candidate) => candidate.clone(),
        None => return Err(question.no_algorithm(&choice)),
    };
    let built = Built {
        subject: question.subject(&chooser),
        bytes,
        candidate,
        layout: question.placement.layout().clone(),
    };
    let algorithm = built.candidate.algorithm;
    built.recipe().map_err(|why| ChooseError::RuledOut { algorithm, why: why.0 })?;
    Ok(built)
}

impl Built {
    /// The plan's recipe, with the candidate's protocol.
    pub fn recipe(&self) -> Result<Recipe<'_>, Impossible> {
        let recipe = self.candidate.algorithm.recipe(&self.subject.collective, &self.layout)?;
        Ok(match self.candidate.protocol {
            Some(protocol) => recipe.with_protocol(protocol),
            None => recipe,
        })
    }

    /// The plan of all ranks. It is not proved.
    pub fn plan(&self) -> Result<Plan, Impossible> {
        Ok(self.recipe()?.plan())
    }
}

impl Kind {
    /// The collective of a number of ranks.
    pub fn collective(self, ranks: u32, options: &Options) -> Result<Collective, ChooseError> {
        let root = options.root.unwrap_or(0);
        let collective = match self {
            Kind::AllReduce => Collective::AllReduce,
            Kind::Reduce => Collective::Reduce { root },
            Kind::Broadcast => Collective::Broadcast { root },
            Kind::AllGather | Kind::AllGatherV => Collective::AllGather,
            Kind::ReduceScatter | Kind::ReduceScatterV => Collective::ReduceScatter,
            Kind::AllToAll | Kind::AllToAllV => Collective::AllToAll,
            Kind::Gather => Collective::Gather { root },
            Kind::Scatter => Collective::Scatter { root },
            Kind::Scan => Collective::Scan,
            Kind::ExclusiveScan => Collective::ExclusiveScan,
            Kind::Barrier => Collective::Barrier,
            Kind::Neighbours => Collective::Neighbours { torus: options.torus.unwrap_or([1, 1, ranks]) },
            Kind::SendReceive => {
                let to_the_next = || (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect();
                Collective::SendReceive { messages: options.messages.clone().unwrap_or_else(to_the_next) }
            }
        };
        for (option, is_given, fits) in [
            ("root", options.root.is_some(), collective.root().is_some()),
            ("torus", options.torus.is_some(), self == Kind::Neighbours),
            ("messages", options.messages.is_some(), self == Kind::SendReceive),
        ] {
            if is_given && !fits {
                return Err(ChooseError::Option { option, collective: self.name() });
            }
        }
        match collective.misfit(ranks) {
            Some(what) => Err(ChooseError::Misfit(what)),
            None => Ok(collective),
        }
    }
}

struct Question<'f> {
    kind: Kind,
    collective: Collective,
    placement: Placement<'f>,
    without: Vec<Algorithm>,
    sharp: bool,
}

impl<'f> Question<'f> {
    fn new(kind: Kind, fabric: &'f Fabric, options: &Options) -> Result<Self, ChooseError> {
        if fabric.gpus().is_empty() {
            return Err(ChooseError::NoGpu { fabric: fabric.name().to_owned() });
        }
        let placement = Placement::with(fabric, &options.constants);
        let collective = kind.collective(placement.layout().ranks(), options)?;
        Ok(Self { kind, collective, placement, without: options.without.clone(), sharp: options.sharp })
    }

    /// The bytes of a call. A barrier moves nothing, so it has no size.
    fn bytes(&self, bytes: Option<u64>) -> Result<u64, ChooseError> {
        match (self.kind, bytes) {
            (Kind::Barrier, None) => Ok(0),
            (Kind::Barrier, Some(_)) => {
                Err(ChooseError::Option { option: "size", collective: self.kind.name() })
            }
            (_, bytes) => Ok(bytes.unwrap_or(BYTES_DEFAULT)),
        }
    }

    fn chooser(&self, named: Option<Algorithm>) -> Chooser<'_, 'f> {
        let chooser = Chooser::new(&self.collective, self.kind.is_uneven(), &self.placement);
        let chooser = if self.sharp { chooser } else { chooser.without_sharp(named) };
        chooser.without(&self.without)
    }

    /// All candidates, of which one is chosen.
    fn choice(&self, chooser: &Chooser<'_, '_>, bytes: u64) -> Result<Choice, ChooseError> {
        let choice = chooser.choose(bytes);
        if choice.chosen().is_some() {
            return Ok(choice);
        }
        let all = Chooser::new(&self.collective, self.kind.is_uneven(), &self.placement).choose(bytes);
        if all.chosen().is_some() {
            let fabric = self.placement.fabric().name().to_owned();
            return Err(ChooseError::LeftOut { collective: self.collective.to_string(), fabric });
        }
        Err(self.no_algorithm(&choice))
    }

    fn no_algorithm(&self, choice: &Choice) -> ChooseError {
        let why = choice.candidates.iter().find_map(|candidate| match &candidate.verdict {
            Verdict::RuledOut(why) if candidate.algorithm.does(&self.collective) => Some(why.clone()),
            _ => None,
        });
        ChooseError::NoAlgorithm {
            collective: self.collective.to_string(),
            fabric: self.placement.fabric().name().to_owned(),
            why: why
                .unwrap_or_else(|| "`weft plan --list` prints the collectives of each algorithm".to_owned()),
        }
    }

    fn subject(&self, chooser: &Chooser<'_, '_>) -> Subject {
        let (islands, largest_island) = self.placement.grid();
        Subject {
            collective: self.collective.clone(),
            uneven: self.kind.is_uneven(),
            fabric: self.placement.fabric().name().to_owned(),
            ranks: self.placement.layout().ranks(),
            islands,
            per_island: self.placement.layout().per_island(),
            largest_island,
            bound: chooser.bound().cloned(),
            switches_add: chooser.switches_add_in_bound(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weftlink_fabric::resolve;

    fn ask(kind: Kind, bytes: Option<u64>, options: &Options) -> Result<Chosen, ChooseError> {
        choose(kind, &resolve("2x-rtx4090").unwrap(), bytes, options)
    }

    #[test]
    fn options_that_do_not_apply_are_refused() {
        let rooted = Options { root: Some(1), ..Options::default() };
        assert!(ask(Kind::Broadcast, None, &rooted).is_ok());
        let error = ask(Kind::AllReduce, None, &rooted).unwrap_err();
        assert_eq!(error.to_string(), "root does not apply to all-reduce");
        assert!(error.is_misuse());
        assert!(ask(Kind::Barrier, Some(8), &Options::default()).unwrap_err().is_misuse());
        assert!(ask(Kind::Barrier, None, &Options::default()).is_ok());
    }

    #[test]
    fn leaving_out_every_algorithm_is_an_error() {
        let none = Options { without: Algorithm::ALL.to_vec(), ..Options::default() };
        let error = ask(Kind::AllReduce, None, &none).unwrap_err();
        assert!(matches!(error, ChooseError::LeftOut { .. }) && !error.is_misuse());
    }

    #[test]
    fn a_range_agrees_with_its_sizes() {
        let fabric = resolve("hgx-h100").unwrap();
        let found = choose_sizes(Kind::AllReduce, &fabric, (8, 1 << 30), &Options::default()).unwrap();
        assert_eq!(found.ends.len(), found.breakpoints.ranges.len());
        for range in &found.breakpoints.ranges {
            let at = choose(Kind::AllReduce, &fabric, Some(range.to), &Options::default()).unwrap();
            assert_eq!(at.choice.chosen().map(|chosen| chosen.algorithm), Some(range.algorithm));
            let built = build(Kind::AllReduce, &fabric, Some(range.to), None, &Options::default()).unwrap();
            assert_eq!(built.candidate.algorithm, range.algorithm);
            assert_eq!(built.plan().unwrap().ranks, 8);
        }
    }
}
