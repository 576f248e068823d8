//! A rank that runs the cases of the suite, and the checks of all ranks' outcomes.

#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weftlink_comm::bootstrap::{Bootstrap, Network, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{
    Buffers, Communicator, Error, Operation, Options, PlanId, Reduction, Request, TracedStep, Window,
};
use weftlink_plan::element::{Complex, F8E4m3, F8E5m2, bf16, f16};
use weftlink_plan::interpret::{Event, Shape};
use weftlink_plan::{Aliasing, Collective, Cut, DataType, Verified, verify};
use weftlink_testkit::cases::values::{expected, factor, input};
use weftlink_testkit::cases::{By, Case, Counts, Memory};
use weftlink_testkit::ports::reserved_range;
use weftlink_testkit::trace::replay;

/// Traces are replayed for blocks of up to this many elements: longer ones have more tiles of the same kind.
const TRACED_COUNT_MAX: usize = 100_000;

/// Bytes on either side of a buffer that no rank may write.
const MARGIN: usize = 192;
/// Their value.
const CANARY: u8 = 0xa5;

/// Options with a deadline that only a hang reaches.
pub(crate) fn options(memory: Memory) -> Options {
    let single_copy = Some(memory == Memory::Readable);
    Options { deadline: Duration::from_secs(120), single_copy, ..Options::default() }
}

/// Runs `work` on `size` ranks, each a thread, on pretended hosts of `per_host` ranks.
pub(crate) fn on_hosts(size: usize, per_host: usize, options: Options, work: impl Fn(Communicator) + Sync) {
    let address = RendezvousAddress::Tcp { host: "127.0.0.1".to_owned(), ports: reserved_range() };
    let rendezvous = Rendezvous::new(address, Token::random().unwrap(), size, Duration::from_secs(60));
    // Each pretended host assumes that it has all cores: spin only if there are enough for all.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options { spin: options.spin.or(Some(size <= cores)), ..options };
    std::thread::scope(|scope| {
        for rank in 0..size {
            let network =
                Network { pretended_host: Some(1 + (rank / per_host) as u64), ..Network::default() };
            let rendezvous = Rendezvous { network, ..rendezvous.clone() };
            let work = &work;
            scope.spawn(move || {
                let bootstrap = if rank == 0 {
                    Bootstrap::listen(&rendezvous)
                } else {
                    Bootstrap::join(&rendezvous, rank)
                };
                work(Communicator::new(bootstrap.unwrap(), options).unwrap());
            });
        }
    });
}

/// The outcome of a case on one rank.
pub(crate) struct Outcome {
    plan: Arc<Verified>,
    /// The cut of each length of block.
    cuts: BTreeMap<usize, Cut>,
    pub(crate) output: Vec<u8>,
    taken: Vec<TracedStep>,
}

/// Numbered cases that the threads of a process run together, and their outcomes.
pub(crate) struct Together {
    cases: Vec<(usize, Case)>,
    tickets: AtomicU64,
    outcomes: Vec<Mutex<BTreeMap<usize, Outcome>>>,
    skipped: Mutex<BTreeMap<&'static str, usize>>,
}

impl Together {
    pub(crate) fn new(cases: Vec<(usize, Case)>) -> Self {
        let outcomes = cases.iter().map(|_| Mutex::default()).collect();
        Self { cases, tickets: AtomicU64::new(0), outcomes, skipped: Mutex::default() }
    }

    /// Runs all cases on one rank. The last rank to finish a case checks the outcomes of all.
    pub(crate) fn run(&self, comm: Communicator) {
        let (number, size) = (comm.rank(), comm.size());
        let all: Vec<Case> = self.cases.iter().map(|(_, case)| case.clone()).collect();
        let mut rank = Rank::new(comm, &all).unwrap();
        for ((at, case), of_all) in self.cases.iter().zip(&self.outcomes) {
            match rank.run(*at, case, &self.tickets) {
                Err(why) => *self.skipped.lock().unwrap().entry(why).or_default() += 1,
                Ok(outcome) => {
                    let mut of_all = of_all.lock().unwrap();
                    of_all.insert(number, outcome);
                    if of_all.len() == size {
                        let of_all = std::mem::take(&mut *of_all);
                        check(case, &of_all.into_values().collect::<Vec<_>>());
                    }
                }
            }
        }
    }

    /// The reasons for skipped cases, and their numbers over all ranks.
    pub(crate) fn skipped(self) -> BTreeMap<&'static str, usize> {
        self.skipped.into_inner().unwrap()
    }
}

/// Why cases with readable memory are skipped.
pub(crate) const UNREADABLE: &str = "ranks do not read each other's memory here";

/// One rank, with windows long enough for all its cases.
pub(crate) struct Rank {
    pub(crate) comm: Communicator,
    /// Windows for inputs and outputs.
    pub(crate) windows: [Window<u8>; 2],
    ordinary: [Vec<u8>; 2],
    /// The input of a rank.
    inputs: fn(&Case, u32) -> Vec<u8>,
    plans: Vec<(String, PlanId, Arc<Verified>)>,
}

/// Proved plans by key. Each is proved once per process, for all ranks that are threads of it.
static PROVED: Mutex<BTreeMap<String, Arc<Verified>>> = Mutex::new(BTreeMap::new());

/// The proved plan of a case; none if the communicator chooses.
///
/// # Panics
/// If the algorithm has no plan, or the verifier refuses it.
pub(crate) fn proved(case: &Case) -> Option<Arc<Verified>> {
    let mut proved = PROVED.lock().unwrap();
    let key = key(case);
    if let Some(plan) = proved.get(&key) {
        return Some(Arc::clone(plan));
    }
    let plan = Arc::new(verify(case.plan()?.unwrap()).unwrap());
    proved.insert(key, Arc::clone(&plan));
    Some(plan)
}

fn key(case: &Case) -> String {
    format!("{:?} {} {:?}", case.collective, case.ranks, case.by)
}

impl Rank {
    pub(crate) fn new(comm: Communicator, cases: &[Case]) -> Result<Self, Error> {
        Self::giving(input, comm, cases)
    }

    /// A rank with other inputs than the default.
    pub(crate) fn giving(
        inputs: fn(&Case, u32) -> Vec<u8>,
        mut comm: Communicator,
        cases: &[Case],
    ) -> Result<Self, Error> {
        let longest = |case: &Case| {
            let sides = |rank| [case.given(rank), case.gotten(rank)].map(|side| side.iter().sum::<usize>());
            (0..case.ranks).flat_map(sides).max().unwrap_or(0) * case.data_type.bytes()
        };
        let length = cases.iter().map(longest).max().unwrap_or(0) + 2 * MARGIN + 16 * comm.size() + 16;
        let windows = [comm.window(length)?, comm.window(length)?];
        let ordinary = [vec![0; length], vec![0; length]];
        Ok(Self { comm, windows, ordinary, inputs, plans: Vec::new() })
    }

    /// Runs a case, or returns why it is skipped.
    pub(crate) fn run(
        &mut self,
        number: usize,
        case: &Case,
        tickets: &AtomicU64,
    ) -> Result<Outcome, &'static str> {
        if case.memory == Memory::Readable && !self.comm.reads_peers() {
            return Err(UNREADABLE);
        }
        let rank = self.comm.rank() as u32;
        let size = case.data_type.bytes();
        let bytes = |lengths: Vec<usize>| lengths.iter().sum::<usize>() * size;
        let (given, gotten) = (case.given(rank), case.gotten(rank));
        let given_input = (self.inputs)(case, rank);
        let is_symmetric = match case.memory {
            Memory::Ordinary | Memory::Readable => false,
            Memory::Symmetric => true,
            Memory::Mixed => rank.is_multiple_of(2),
        };
        // Offsets of buffers differ from rank to rank, and some elements are unaligned.
        let first = MARGIN + 16 * rank as usize + if number % 4 == 3 { 1 } else { 0 };
        let in_place = case.aliasing == Aliasing::InPlace;
        let (input_at, output_at, total) = case.in_one_buffer(rank);
        let (input_length, output_length) = (bytes(given.clone()), bytes(gotten.clone()));
        // Ranks without input or output may pass a buffer, which is neither read nor written.
        let idle = if number.is_multiple_of(2) { size * 3 } else { 0 };
        let [input_range, output_range] = if in_place {
            [(input_at * size, input_length), (output_at * size, output_length)]
                .map(|(at, length)| first + at..first + at + length)
        } else {
            [first..first + input_length, first..first + output_length]
        };
        let sides: &mut [&mut [u8]; 2] = &mut match &mut self.windows {
            [one, other] if is_symmetric => [&mut one[..], &mut other[..]],
            _ => {
                let [one, other] = &mut self.ordinary;
                [&mut one[..], &mut other[..]]
            }
        };
        let span = ..first + input_length.max(output_length).max(total * size).max(idle) + MARGIN;
        sides.iter_mut().for_each(|side| side[span].fill(CANARY));
        sides[usize::from(in_place)][input_range].copy_from_slice(&given_input);
        let before = [sides[0][span].to_vec(), sides[1][span].to_vec()];

        let (id, plan) = match self.plan(case, is_symmetric) {
            Ok(found) => found,
            Err(Error::Misuse(why)) if why.contains("between hosts") => {
                return Err("the plan does more than send and receive between hosts");
            }
            Err(error) => panic!("{case}: {error}"),
        };
        if is_multiplied_elsewhere(case)
            && case.memory == Memory::Symmetric
            && case.by != By::Chosen
            && plan.needs_windows()
        {
            return Err("a pre-multiplied sum that may not write its input uses ordinary memory");
        }
        let are_places_known = matches!(
            case.collective,
            Collective::AllGather | Collective::ReduceScatter | Collective::Gather { .. }
        );
        if matches!(case.counts, Counts::Uneven(_)) && plan.needs_windows() && !are_places_known {
            return Err("the plan accesses blocks whose offsets only their rank knows");
        }
        let Self { comm, windows, ordinary, .. } = self;
        let ranges = [
            first..first + if given.is_empty() { idle } else { input_length },
            first..first + if gotten.is_empty() { idle } else { output_length },
        ];
        let whole = first..first + total * size;
        let buffers = buffers(case, windows, ordinary, is_symmetric, ranges, whole.clone());
        let counts =
            matches!(case.counts, Counts::Uneven(_)).then_some(weftlink_comm::Counts::new(&given, &gotten));
        let by = (case.by != By::Chosen).then_some(id);
        let operation = case.reduction.map(|reduction| operation(case, reduction, rank));
        let count = stated_count(case);
        let new = Request::new(&case.collective, buffers);
        let request = Request { operation, counts, count, plan: by, ..new };
        let taken = comm.run_traced(request, tickets).unwrap_or_else(|error| panic!("{case}: {error}"));

        let after: [&[u8]; 2] = match &self.windows {
            [one, other] if is_symmetric => [&one[span], &other[span]],
            _ => [&self.ordinary[0][span], &self.ordinary[1][span]],
        };
        let output = after[1][output_range.clone()].to_vec();
        assert!(after[0] == before[0], "{case}: rank {rank}'s input was changed");
        let mut around = before[1].clone();
        if in_place && case.reduction == Some(Reduction::PremultipliedSum) {
            // An input that may be written is multiplied in place.
            around[whole.clone()].copy_from_slice(&after[1][whole]);
        }
        around[output_range].copy_from_slice(&output);
        assert!(after[1] == around, "{case}: memory outside of rank {rank}'s output was changed");
        let cuts = self.cuts(case, id);
        Ok(Outcome { plan, cuts, output, taken })
    }

    /// The plan of a case, loaded.
    fn plan(&mut self, case: &Case, is_symmetric: bool) -> Result<(PlanId, Arc<Verified>), Error> {
        let key = key(case);
        if let Some((_, id, plan)) = self.plans.iter().find(|(loaded, ..)| *loaded == key) {
            return Ok((*id, Arc::clone(plan)));
        }
        let Some(plan) = proved(case) else { return self.chosen(case, is_symmetric) };
        let id = self.comm.load(Arc::clone(&plan))?;
        self.plans.push((key, id, Arc::clone(&plan)));
        Ok((id, plan))
    }

    /// The plan that the communicator chooses: that for ordinary memory, unless all memory is symmetric.
    fn chosen(&mut self, case: &Case, is_symmetric: bool) -> Result<(PlanId, Arc<Verified>), Error> {
        let rank = self.comm.rank() as u32;
        let size = case.data_type.bytes();
        let (given, gotten) = (case.given(rank), case.gotten(rank));
        let [input, output] = [&given, &gotten].map(|side| 0..side.iter().sum::<usize>() * size);
        let whole = 0..case.in_one_buffer(rank).2 * size;
        let Self { comm, windows, ordinary, .. } = self;
        let is_symmetric = is_symmetric && are_all_symmetric(case) && !is_multiplied_elsewhere(case);
        let buffers = buffers(case, windows, ordinary, is_symmetric, [input, output], whole);
        let counts =
            matches!(case.counts, Counts::Uneven(_)).then_some(weftlink_comm::Counts::new(&given, &gotten));
        let operation = case.reduction.map(|reduction| operation(case, reduction, rank));
        let count = stated_count(case);
        let new = Request::new(&case.collective, buffers);
        let plan = comm.plan_of(Request { operation, counts, count, ..new })?;
        let id = comm.load(Arc::clone(&plan))?;
        Ok((id, plan))
    }

    fn cuts(&self, case: &Case, id: PlanId) -> BTreeMap<usize, Cut> {
        let scale = scale(case);
        let cut = |length: usize| self.comm.cut(id, length * scale.0, scale.1).unwrap().unwrap();
        let lengths = (0..case.ranks).flat_map(|rank| case.given(rank)).chain([0]);
        lengths.map(|length| (length * scale.0, cut(length))).collect()
    }
}

/// Whether the buffers of all ranks that have any are symmetric.
fn are_all_symmetric(case: &Case) -> bool {
    match case.memory {
        Memory::Ordinary | Memory::Readable => false,
        Memory::Symmetric => true,
        Memory::Mixed => (0..case.ranks).all(|rank| rank.is_multiple_of(2) || !has_elements(case, rank)),
    }
}

fn has_elements(case: &Case, rank: u32) -> bool {
    case.given(rank).iter().chain(&case.gotten(rank)).any(|length| *length > 0)
}

/// Whether some rank's input is multiplied in a copy, because the call must not change it.
fn is_multiplied_elsewhere(case: &Case) -> bool {
    let gets = |rank| case.collective.gets(rank, case.ranks) > 0;
    case.reduction == Some(Reduction::PremultipliedSum)
        && (case.aliasing == Aliasing::OutOfPlace || !(0..case.ranks).all(gets))
}

/// The elements of a block, for calls in which some ranks have no block.
fn stated_count(case: &Case) -> Option<usize> {
    match (&case.collective, case.counts) {
        (Collective::SendReceive { .. }, Counts::Even(count)) => Some(count),
        _ => None,
    }
}

/// The cut units per element, and the bytes of a unit: collectives without a reduction move bytes.
fn scale(case: &Case) -> (usize, usize) {
    let bytes = case.data_type.bytes();
    if case.reduction.is_some() { (1, bytes) } else { (bytes, 1) }
}

fn buffers<'a>(
    case: &Case,
    windows: &'a mut [Window<u8>; 2],
    ordinary: &'a mut [Vec<u8>; 2],
    is_symmetric: bool,
    [input, output]: [Range<usize>; 2],
    whole: Range<usize>,
) -> Buffers<'a> {
    let ([first, second], [one, other]) = (windows, ordinary);
    let buffers: Buffers<'a> = match (is_symmetric, case.aliasing) {
        (true, Aliasing::InPlace) => second.part_mut(whole).into(),
        (false, Aliasing::InPlace) => (&mut other[whole]).into(),
        (true, Aliasing::OutOfPlace) => (first.part(input), second.part_mut(output)).into(),
        (false, Aliasing::OutOfPlace) => (&one[input], &mut other[output]).into(),
    };
    buffers.of_type(case.data_type).unwrap()
}

fn operation(case: &Case, reduction: Reduction, rank: u32) -> Operation<'static> {
    match reduction {
        Reduction::PremultipliedSum => {
            macro_rules! by_type {
                ($($name:ident: $type:ty),*) => {
                    match case.data_type {
                        $(DataType::$name => Operation::premultiplied_sum(factor::<$type>(rank)),)*
                        DataType::Bool => unreachable!("booleans are not multiplied"),
                    }
                };
            }
            by_type!(
                I8: i8, U8: u8, I16: i16, U16: u16, I32: i32, U32: u32, I64: i64, U64: u64, F16: f16, Bf16: bf16,
                F32: f32, F64: f64, F8E4m3: F8E4m3, F8E5m2: F8E5m2, Complex64: Complex<f32>, Complex128: Complex<f64>
            )
        }
        reduction => reduction.into(),
    }
}

/// The expected outputs, and the steps in a valid order.
pub(crate) fn oracle(case: &Case, outcome: &Outcome) -> (Vec<Vec<u8>>, Vec<Event>) {
    expected(case, &outcome.plan, |count, _| outcome.cuts[&count])
}

/// Whether the output of a rank is that of the oracle.
pub(crate) fn is_right(case: &Case, rank: usize, outcome: &Outcome) -> bool {
    outcome.output == oracle(case, outcome).0[rank]
}

/// Compares the outputs and steps of all ranks with the interpreter.
pub(crate) fn check(case: &Case, outcomes: &[Outcome]) {
    // A rank without elements does not know the memory of the others, and so not their plan.
    let knows = |outcome: &&(u32, &Outcome)| has_elements(case, outcome.0);
    let numbered: Vec<(u32, &Outcome)> = (0..).zip(outcomes).collect();
    let one = numbered.iter().find(knows).map_or(&outcomes[0], |(_, outcome)| outcome);
    let (outputs, events) = oracle(case, one);
    let mut order = Vec::new();
    for (rank, outcome) in (0..).zip(outcomes) {
        let same_plan = outcome.plan.name == one.plan.name || !has_elements(case, rank);
        assert!(same_plan, "{case}: ranks use different plans");
        assert!(
            outcome.output == outputs[rank as usize],
            "{case}: the output of rank {rank} differs from the oracle"
        );
        let event = |taken: &TracedStep| {
            let TracedStep { ticket, lane, tile, ordinal } = *taken;
            (ticket, Event { rank, lane, call: 0, tile, ordinal })
        };
        order.extend(outcome.taken.iter().map(event));
    }
    assert_eq!(order.len(), events.len(), "{case}: the number of steps differs from the plan");
    let longest = one.cuts.values().max_by_key(|cut| cut.count()).unwrap();
    if longest.count() <= TRACED_COUNT_MAX {
        order.sort_by_key(|(ticket, _)| *ticket);
        let order: Vec<_> = order.into_iter().map(|(_, event)| event).collect();
        let shape = Shape { calls: 1, tiles: longest.tiles() as u32, aliasing: case.aliasing };
        replay(&one.plan, shape, &order).unwrap_or_else(|what| panic!("{case}: {what}"));
    }
}
