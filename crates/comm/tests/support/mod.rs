//! One rank that runs cases of the suite, and what all ranks' outcomes are held to.

#![allow(dead_code, reason = "not every test uses all of it")]

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

/// Traces are replayed for calls up to so many elements of a block: longer ones have more of the same tiles.
const TRACED_COUNT_MAX: usize = 100_000;

/// Bytes on either side of a buffer that nobody may touch.
const MARGIN: usize = 192;
/// What is in them.
const CANARY: u8 = 0xa5;

/// Ranks that wait for each other as tests want it: long enough that only a hang reaches it.
pub(crate) fn options(memory: Memory) -> Options {
    let single_copy = Some(memory == Memory::Readable);
    Options { deadline: Duration::from_secs(120), single_copy, ..Options::default() }
}

/// Does the work on so many ranks, each a thread, on hosts that are pretended.
pub(crate) fn on_hosts(size: usize, per_host: usize, options: Options, work: impl Fn(Communicator) + Sync) {
    let place = RendezvousAddress::Tcp { host: "127.0.0.1".to_owned(), ports: reserved_range() };
    let meeting = Rendezvous::new(place, Token::random().unwrap(), size, Duration::from_secs(60));
    // Each host believes to have all cores for itself; together they make way to each other where there are too few.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options { spin: options.spin.or(Some(size <= cores)), ..options };
    std::thread::scope(|scope| {
        for rank in 0..size {
            let network =
                Network { pretended_host: Some(1 + (rank / per_host) as u64), ..Network::default() };
            let meeting = Rendezvous { network, ..meeting.clone() };
            let work = &work;
            scope.spawn(move || {
                let met =
                    if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
                work(Communicator::new(met.unwrap(), options).unwrap());
            });
        }
    });
}

/// What one rank has to show for a case.
pub(crate) struct Outcome {
    plan: Arc<Verified>,
    /// The cut of each length of block there is, and the bytes of what is cut.
    cuts: BTreeMap<usize, Cut>,
    pub(crate) output: Vec<u8>,
    taken: Vec<TracedStep>,
}

/// Cases that ranks which are threads run together, each with a number, and what came of them.
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

    /// One rank's part. The last rank to come through with a case looks at what all of them did.
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

    /// Why cases were skipped, and how often by any rank.
    pub(crate) fn skipped(self) -> BTreeMap<&'static str, usize> {
        self.skipped.into_inner().unwrap()
    }
}

/// Why cases of readable memory are skipped.
pub(crate) const UNREADABLE: &str = "ranks do not read each other's memory here";

/// One rank, with windows long enough for all its cases.
pub(crate) struct Rank {
    pub(crate) comm: Communicator,
    /// For inputs and outputs, of both kinds.
    pub(crate) windows: [Window<u8>; 2],
    ordinary: [Vec<u8>; 2],
    /// What ranks give.
    inputs: fn(&Case, u32) -> Vec<u8>,
    plans: Vec<(String, PlanId, Arc<Verified>)>,
}

/// Plans that were proved, by what they are for: once in a process, however many of its threads are ranks.
static PROVED: Mutex<BTreeMap<String, Arc<Verified>>> = Mutex::new(BTreeMap::new());

/// The plan of a case, proved; nothing if the communicator chooses.
///
/// # Panics
/// If there is none, or it is wrong.
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

    /// One that gives other values than most tests do.
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

    /// Runs a case, or tells why it cannot be run here.
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
        // Where buffers lie differs from rank to rank, and must not matter; nor that elements are aligned.
        let first = MARGIN + 16 * rank as usize + if number % 4 == 3 { 1 } else { 0 };
        let in_place = case.aliasing == Aliasing::InPlace;
        let (input_at, output_at, total) = case.in_one_buffer(rank);
        let (input_length, output_length) = (bytes(given.clone()), bytes(gotten.clone()));
        // Ranks that give or get nothing may pass something all the same: it is neither read nor written.
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
                return Err("the plan does more between hosts than send and receive");
            }
            Err(error) => panic!("{case}: {error}"),
        };
        if is_multiplied_elsewhere(case)
            && case.memory == Memory::Symmetric
            && case.by != By::Chosen
            && plan.needs_windows()
        {
            return Err("a pre-multiplied sum that may not write its input is made in ordinary memory");
        }
        let are_places_known = matches!(
            case.collective,
            Collective::AllGather | Collective::ReduceScatter | Collective::Gather { .. }
        );
        if matches!(case.counts, Counts::Uneven(_)) && plan.needs_windows() && !are_places_known {
            return Err("the plan reaches into blocks whose places only their rank knows");
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
            // What may be written is multiplied where it is.
            around[whole.clone()].copy_from_slice(&after[1][whole]);
        }
        around[output_range].copy_from_slice(&output);
        assert!(after[1] == around, "{case}: something beside rank {rank}'s output was changed");
        let cuts = self.cuts(case, id);
        Ok(Outcome { plan, cuts, output, taken })
    }

    /// The plan of a case, as it was loaded.
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

    /// The plan that the communicator chooses. Unless all memory is symmetric, it is the one for ordinary memory.
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

/// Whether peers can reach the buffers of all ranks that have any.
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

/// Whether some rank's input is multiplied before the call and must not be changed, so that a copy takes its place.
fn is_multiplied_elsewhere(case: &Case) -> bool {
    let gets = |rank| case.collective.gets(rank, case.ranks) > 0;
    case.reduction == Some(Reduction::PremultipliedSum)
        && (case.aliasing == Aliasing::OutOfPlace || !(0..case.ranks).all(gets))
}

/// The elements of a block, where some ranks have none to tell.
fn stated_count(case: &Case) -> Option<usize> {
    match (&case.collective, case.counts) {
        (Collective::SendReceive { .. }, Counts::Even(count)) => Some(count),
        _ => None,
    }
}

/// How many of what is cut an element is, and how many bytes that has: what is only moved is moved as bytes.
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
                        DataType::Bool => unreachable!("truths are not multiplied"),
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

/// What each rank should hold, and the steps.
pub(crate) fn oracle(case: &Case, outcome: &Outcome) -> (Vec<Vec<u8>>, Vec<Event>) {
    expected(case, &outcome.plan, |count, _| outcome.cuts[&count])
}

/// Whether what one rank got is what the oracle says.
pub(crate) fn is_right(case: &Case, rank: usize, outcome: &Outcome) -> bool {
    outcome.output == oracle(case, outcome).0[rank]
}

/// Compares what all ranks did with the interpreter.
pub(crate) fn check(case: &Case, outcomes: &[Outcome]) {
    // A rank without elements does not know what kind of memory the others have, and so not the plan beforehand.
    let knows = |outcome: &&(u32, &Outcome)| has_elements(case, outcome.0);
    let numbered: Vec<(u32, &Outcome)> = (0..).zip(outcomes).collect();
    let one = numbered.iter().find(knows).map_or(&outcomes[0], |(_, outcome)| outcome);
    let (outputs, events) = oracle(case, one);
    let mut order = Vec::new();
    for (rank, outcome) in (0..).zip(outcomes) {
        let same_plan = outcome.plan.name == one.plan.name || !has_elements(case, rank);
        assert!(same_plan, "{case}: all ranks take one plan");
        assert!(
            outcome.output == outputs[rank as usize],
            "{case}: rank {rank} holds other bits than the oracle"
        );
        let event = |taken: &TracedStep| {
            let TracedStep { ticket, lane, tile, ordinal } = *taken;
            (ticket, Event { rank, lane, call: 0, tile, ordinal })
        };
        order.extend(outcome.taken.iter().map(event));
    }
    assert_eq!(order.len(), events.len(), "{case}: as many steps as the plan has");
    let longest = one.cuts.values().max_by_key(|cut| cut.count()).unwrap();
    if longest.count() <= TRACED_COUNT_MAX {
        order.sort_by_key(|(ticket, _)| *ticket);
        let order: Vec<_> = order.into_iter().map(|(_, event)| event).collect();
        let shape = Shape { calls: 1, tiles: longest.tiles() as u32, aliasing: case.aliasing };
        replay(&one.plan, shape, &order).unwrap_or_else(|what| panic!("{case}: {what}"));
    }
}
