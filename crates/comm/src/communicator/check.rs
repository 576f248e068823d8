//! Checks a call and lays out its buffers: where this rank's blocks are and how long. A call that is refused here has not been
//! announced, so the communicator stays usable.

use weftlink_kernels::Kernels;
use weftlink_plan::{Aliasing, Collective, Order, Reduction};
use weftlink_recorder::header::Location;

use super::Communicator;
use super::current::Current;
use crate::buffers::{Buffers, ORDINARY};
use crate::choose::{self, Memory};
use crate::compile::{Lengths, Shape};
use crate::data::Elements;
use crate::engine::Engine;
use crate::error::Error;
use crate::operation::{Arithmetic, Detail, OperationRef};
use crate::request::CallArgs;
use crate::transport::to_buffers_in;

/// A call with its buffers laid out.
pub(super) struct Fitted {
    pub(super) input: *const u8,
    pub(super) output: *mut u8,
    pub(super) input_location: Location,
    pub(super) output_location: Location,
    pub(super) elements: Elements,
    pub(super) shape: Shape,
}

impl Fitted {
    /// A call without buffers.
    pub(super) fn nothing(shape: Shape) -> Self {
        let (input, output) = (std::ptr::null(), std::ptr::null_mut());
        let none = Location::NONE;
        Self { input, output, input_location: none, output_location: none, elements: Elements::BYTES, shape }
    }
}

/// The rank that makes the call.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) identity: u64,
}

impl Communicator {
    /// Checks a call, unless it repeats the call before. Returns how it combines elements.
    #[inline]
    pub(super) fn check<'a>(&mut self, request: &CallArgs<'a>) -> Result<Arithmetic<'a>, Error> {
        match self.current.again(request) {
            Some(arithmetic) => Ok(arithmetic),
            None => self.check_anew(request),
        }
    }

    /// Checks a call that does not repeat the one before.
    #[inline(never)]
    fn check_anew<'a>(&mut self, request: &CallArgs<'a>) -> Result<Arithmetic<'a>, Error> {
        let (fitted, arithmetic, plan) = self.check_own(request)?;
        let header = self.header(request, &fitted);
        let engines = match plan {
            Some(index) => (index, index),
            None => self.engines_for(request, &fitted, &header)?,
        };
        let finishing = self.finishing(request, fitted.elements.data_type);
        let Buffers { input_length, output_length, elements, .. } = request.buffers;
        let bytes = input_length.max(output_length) as u64 * elements.bytes as u64;
        self.shared.recorder.describe(self.calls.wrapping_add(1), &header, bytes, Some(engines));
        self.current = Current::new(request, fitted, &arithmetic, header, engines, finishing);
        self.current.compare_with(&self.signatures);
        if tracing::enabled!(target: "weft::call", tracing::Level::TRACE) {
            self.trace_current();
        }
        Ok(arithmetic)
    }

    /// Checks what concerns this rank alone: its buffers, the operation and the plan.
    pub(super) fn check_own<'a>(
        &self,
        request: &CallArgs<'a>,
    ) -> Result<(Fitted, Arithmetic<'a>, Option<usize>), Error> {
        let fitted = fit(request, self.caller())?;
        let arithmetic = arithmetic(request.operation.as_ref(), fitted.elements, &self.shared.kernels)?;
        if request.collective.reduces() != request.operation.is_some() {
            return Err(operation_misuse(request));
        }
        let plan = request.plan.map(|plan| self.index(plan)).transpose()?;
        if let Some(index) = plan {
            check_plan(&self.engines[index], request, self.readable, self.order(request))?;
        }
        Ok((fitted, arithmetic, plan))
    }

    /// Logs the call that is about to be made. While calls are logged none counts as a repetition, so that each is logged.
    #[cold]
    fn trace_current(&mut self) {
        self.current.forget();
        let Current { header, engines, .. } = &self.current;
        let name = |index: usize| &self.engines[index].plan.name;
        let (number, ordinary, symmetric) = (self.calls.wrapping_add(1), name(engines.0), name(engines.1));
        if engines.0 == engines.1 {
            tracing::trace!(target: "weft::call", rank = self.rank, "#{number}: {header}, by {ordinary}");
        } else {
            tracing::trace!(target: "weft::call", rank = self.rank,
                "#{number}: {header}, by {ordinary}, or {symmetric} if all buffers are symmetric"
            );
        }
    }

    pub(super) fn caller(&self) -> Caller {
        Caller { rank: self.rank as u32, size: self.size as u32, identity: self.identity }
    }
}

/// Lays a request's buffers out as the blocks of its collective.
#[inline]
pub(super) fn fit(request: &CallArgs<'_>, caller: Caller) -> Result<Fitted, Error> {
    let CallArgs { collective, buffers, .. } = request;
    let Caller { rank, size, identity } = caller;
    if buffers.owner != ORDINARY && buffers.owner != identity {
        return misuse("the buffers are in a window of another communicator".to_owned());
    }
    if let Some(what) = collective.misfit(size) {
        return misuse(what);
    }
    let (gives, gets) = (collective.gives(rank, size) as usize, collective.gets(rank, size) as usize);
    // Data that is only moved is moved as bytes.
    let elements = if collective.reduces() { buffers.elements } else { Elements::BYTES };
    if elements.bytes == 0 {
        return misuse("zero-sized elements cannot be reduced".to_owned());
    }
    let scale = buffers.elements.bytes / elements.bytes;
    let shape = match request.counts {
        None => Shape {
            aliasing: buffers.aliasing,
            element_bytes: elements.bytes,
            count: count(request, gives, gets)? * scale,
            uneven: None,
        },
        Some((input, output)) => uneven(request, input, output, gives, gets, elements, scale)?,
    };
    let (mut input, mut input_location) = (buffers.input, buffers.input_location);
    let (mut output, mut output_location) = (buffers.output, buffers.output_location);
    if buffers.aliasing == Aliasing::InPlace && gives > 0 && gets > 0 {
        // The smaller side is the rank's own block of the larger one.
        let own = own_offset(&shape, collective, rank) * elements.bytes;
        match collective {
            Collective::AllGather | Collective::Gather { .. } => {
                (input, input_location) = (input.wrapping_add(own), input_location.after(own));
            }
            Collective::ReduceScatter | Collective::Scatter { .. } => {
                (output, output_location) = (output.wrapping_add(own), output_location.after(own));
            }
            _ => {}
        }
    }
    if gives == 0 {
        (input, input_location) = (std::ptr::null(), Location::NONE);
    }
    if gets == 0 {
        (output, output_location) = (std::ptr::null_mut(), Location::NONE);
    }
    Ok(Fitted { input, output, input_location, output_location, elements, shape })
}

/// Where the rank's own block starts in the larger buffer, in elements.
fn own_offset(shape: &Shape, collective: &Collective, rank: u32) -> usize {
    match &shape.uneven {
        None => rank as usize * shape.count,
        Some(lengths) => {
            let is_gather = matches!(collective, Collective::AllGather | Collective::Gather { .. });
            let larger = if is_gather { &lengths.output } else { &lengths.input };
            larger.iter().take(rank as usize).sum()
        }
    }
}

/// The number of elements of each block.
#[inline]
fn count(request: &CallArgs<'_>, gives: usize, gets: usize) -> Result<usize, Error> {
    let Buffers { input_length, output_length, aliasing, .. } = request.buffers;
    let sides = match aliasing {
        Aliasing::InPlace => [(gives.max(gets), output_length), (0, 0)],
        Aliasing::OutOfPlace => [(gives, input_length), (gets, output_length)],
    };
    let mut found = request.count;
    for (blocks, length) in sides {
        let count = match blocks {
            0 => continue,
            1 => length,
            _ if length.is_multiple_of(blocks) => length / blocks,
            _ => return misuse(unfit(request, gives, gets)),
        };
        if found.is_some_and(|found| found != count) {
            return misuse(unfit(request, gives, gets));
        }
        found = Some(count);
    }
    Ok(found.unwrap_or(0))
}

#[cold]
fn unfit(request: &CallArgs<'_>, gives: usize, gets: usize) -> String {
    let CallArgs { collective, buffers, .. } = request;
    let Buffers { input_length, output_length, aliasing, .. } = buffers;
    let blocks = |count: usize| if count == 1 { "1 block".to_owned() } else { format!("{count} blocks") };
    let has = match aliasing {
        Aliasing::InPlace => format!("a buffer of {output_length} elements"),
        Aliasing::OutOfPlace => {
            format!("an input of {input_length} elements and an output of {output_length}")
        }
    };
    let wants = match aliasing {
        Aliasing::InPlace => format!("needs a buffer of {}", blocks(gives.max(gets))),
        Aliasing::OutOfPlace => {
            format!("needs an input of {} and an output of {}", blocks(gives), blocks(gets))
        }
    };
    format!("this {collective} {wants} of equal length on this rank, but got {has}")
}

#[cold]
fn uneven(
    request: &CallArgs<'_>,
    input: &[usize],
    output: &[usize],
    gives: usize,
    gets: usize,
    elements: Elements,
    scale: usize,
) -> Result<Shape, Error> {
    let CallArgs { collective, buffers, .. } = request;
    if !collective.may_be_uneven() {
        return misuse(format!("{collective} takes no counts: all its blocks have the same length"));
    }
    for (name, counts, blocks) in [("input", input, gives), ("output", output, gets)] {
        if counts.len() != blocks {
            let given = counts.len();
            return misuse(format!("the {name} of this rank has {blocks} blocks, but got {given} counts"));
        }
    }
    let sum = |counts: &[usize]| counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count));
    let (inputs, outputs) = (sum(input), sum(output));
    let length = match buffers.aliasing {
        Aliasing::InPlace if !is_one_sided(collective) && input != output => {
            return misuse(format!("an in-place {collective} needs the same counts for input and output"));
        }
        Aliasing::InPlace => [inputs.max(outputs), inputs.max(outputs)],
        Aliasing::OutOfPlace => [inputs, outputs],
    };
    let has = [buffers.input_length, buffers.output_length];
    for (side, name, blocks) in [(0, "input", gives), (1, "output", gets)] {
        if blocks > 0 && length[side] != Some(has[side]) {
            let (has, wanted) =
                (has[side], length[side].map_or("too many".to_owned(), |sum| sum.to_string()));
            return misuse(format!(
                "the counts of the {name} add up to {wanted}, but its buffer has {has} elements"
            ));
        }
    }
    let scaled = |counts: &[usize]| counts.iter().map(|count| count * scale).collect::<Vec<_>>();
    let lengths = Lengths { input: scaled(input), output: scaled(output) };
    let count = lengths.input.iter().chain(&lengths.output).max().copied().unwrap_or(0);
    let (aliasing, uneven) = (buffers.aliasing, Some(Box::new(lengths)));
    Ok(Shape { aliasing, element_bytes: elements.bytes, count, uneven })
}

/// Whether in place the smaller side is part of the larger one.
fn is_one_sided(collective: &Collective) -> bool {
    matches!(
        collective,
        Collective::AllGather
            | Collective::Gather { .. }
            | Collective::ReduceScatter
            | Collective::Scatter { .. }
    )
}

/// How a call combines elements, if it does.
#[inline]
pub(super) fn arithmetic<'a>(
    operation: Option<&OperationRef<'a>>,
    elements: Elements,
    kernels: &Kernels,
) -> Result<Arithmetic<'a>, Error> {
    let Some(operation) = operation else { return Ok(Arithmetic::None) };
    match (operation.detail, elements.data_type) {
        (Detail::User(user), _) if elements.id == Some(user.id()) => Ok(Arithmetic::User(user)),
        (Detail::User(_), _) => {
            misuse("the operation is for another element type than that of the buffers".to_owned())
        }
        (Detail::None, _) if operation.reduction == Reduction::PremultipliedSum => {
            misuse("a pre-multiplied sum needs a factor: use Operation::premultiplied_sum".to_owned())
        }
        (_, Some(data_type)) => match kernels.reduction(data_type, operation.reduction) {
            Some(kernel) => Ok(Arithmetic::Kernel(kernel)),
            None => misuse(format!("there is no {} of {}", operation.reduction, data_type.name())),
        },
        (_, None) => misuse(format!(
            "there is no {} of elements of {} bytes: use Operation::user_defined",
            operation.reduction, elements.bytes
        )),
    }
}

/// Whether the plan that the caller chose can run on its buffers.
#[inline]
fn check_plan(engine: &Engine, request: &CallArgs<'_>, readable: bool, order: Order) -> Result<(), Error> {
    let buffers = &request.buffers;
    let memory = match (buffers.is_symmetric(), readable) {
        (true, _) => Memory::Symmetric,
        (false, true) => Memory::Readable,
        (false, false) => Memory::Ordinary,
    };
    let needed = choose::needs_of_buffers(engine.reaches_users(), engine.writes_to_peers());
    let reachable = to_buffers_in(memory).cover(needed);
    let claimed = engine.claims(buffers.aliasing) || request.collective.root().is_some();
    let right = engine.plan.collective == *request.collective;
    let even = request.counts.is_none() || engine.plan.uneven;
    let ordered = engine.plan.order() >= order;
    if claimed && reachable && right && even && ordered {
        return Ok(());
    }
    let (name, collective) = (&engine.plan.name, &engine.plan.collective);
    Err(Error::Misuse(if !right {
        format!("the plan {name:?} computes {collective}, not {}", request.collective)
    } else if !reachable {
        format!("the plan {name:?} accesses peers' buffers: pass windows (symmetric memory)")
    } else if !even {
        format!("the plan {name:?} is not verified for blocks of different lengths")
    } else if !ordered {
        let why = if order == Order::Ranks { "the operation does not commute" } else { DETERMINISTIC };
        format!("the plan {name:?} {}, and {why}", choose::out_of_order(order))
    } else {
        format!("the plan {name:?} is not verified for buffers that are passed {}", buffers.aliasing)
    }))
}

/// Why a deterministic communicator refuses a plan, and what to do.
const DETERMINISTIC: &str = "this communicator is deterministic, so all its plans must give the same bits: \
                             let it choose, or use a plan that combines all ranks in one step";

#[cold]
fn operation_misuse(request: &CallArgs<'_>) -> Error {
    let collective = request.collective;
    Error::Misuse(match request.operation {
        Some(_) => format!("{collective} takes no operation"),
        None => format!("{collective} needs an operation"),
    })
}

#[cold]
fn misuse<T>(what: String) -> Result<T, Error> {
    Err(Error::Misuse(what))
}
