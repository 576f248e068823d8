//! From the arguments of a Python call to a raw request.

use std::ptr::null_mut;
use std::str::FromStr;
use std::time::Duration;

use weftlink::plan::Collective;
use weftlink::plan::reduction::Kind;
use weftlink::{Counts, DataType, Error, Operation, RawBuffers, Reduction, Request};

use crate::array::Array;
use crate::raw::RawRequest;

/// The keyword arguments of a call. Those that the collective does not need are None.
pub(crate) struct CallOptions {
    pub(crate) operation: Option<String>,
    pub(crate) factor: Option<f64>,
    pub(crate) root: usize,
    pub(crate) counts: Option<(Vec<usize>, Vec<usize>)>,
    pub(crate) count: Option<usize>,
    pub(crate) messages: Option<Vec<(u32, u32)>>,
    pub(crate) torus: Option<[u32; 3]>,
    pub(crate) timeout: Option<f64>,
}

impl CallOptions {
    /// The collective of a method.
    pub(crate) fn collective(&self, name: &str) -> Result<Collective, Error> {
        match name {
            "send_receive" => {
                Ok(Collective::SendReceive { messages: self.messages.clone().unwrap_or_default() })
            }
            "neighbours" => Ok(Collective::Neighbours { torus: self.torus.unwrap_or([1; 3]) }),
            _ => collective_named(name, self.root),
        }
    }

    /// The request, on the memory of these arrays.
    pub(crate) fn request(
        self,
        collective: Collective,
        input: Option<&Array>,
        output: Option<&Array>,
        single: SingleArray,
    ) -> Result<RawRequest, Error> {
        let data_type = input.or(output).map_or(DataType::U8, |array| array.data_type);
        let buffers = buffers(data_type, input, output, single)?;
        let operation = self.operation.map(|name| operation(&name, self.factor, data_type)).transpose()?;
        let deadline = self.timeout.map(seconds).transpose()?;
        let counts = self.counts.map(|(input, output)| Counts::new(input, output));
        let count = self.count;
        Ok(Request { operation, counts, count, deadline, ..Request::new(collective, buffers) })
    }
}

/// The collective of a name, with dashes or underscores, if it needs no arguments but a root.
pub(crate) fn collective_named(name: &str, root: usize) -> Result<Collective, Error> {
    let root = u32::try_from(root).unwrap_or(u32::MAX);
    Ok(match name.replace('-', "_").as_str() {
        "all_reduce" => Collective::AllReduce,
        "reduce" => Collective::Reduce { root },
        "broadcast" => Collective::Broadcast { root },
        "all_gather" => Collective::AllGather,
        "reduce_scatter" => Collective::ReduceScatter,
        "all_to_all" => Collective::AllToAll,
        "gather" => Collective::Gather { root },
        "scatter" => Collective::Scatter { root },
        "scan" => Collective::Scan,
        "exclusive_scan" => Collective::ExclusiveScan,
        "barrier" => Collective::Barrier,
        _ => return Err(Error::Misuse(format!("unknown collective {name:?}"))),
    })
}

/// How a call uses an array if only one was passed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SingleArray {
    /// As input and output.
    InPlace,
    /// As input: this rank gets no result, and a second array is ignored.
    Input,
    /// As the one that it was passed as; the other side is empty.
    AsPassed,
}

impl SingleArray {
    /// How a rank uses it in a collective.
    pub(crate) fn of(collective: &Collective, rank: u32, size: u32) -> Self {
        // The call itself reports a collective that does not fit the number of ranks.
        let gets = collective.misfit(size).is_some() || collective.gets(rank, size) > 0;
        match collective {
            Collective::SendReceive { .. } => SingleArray::AsPassed,
            _ if collective.root().is_some() && !gets => SingleArray::Input,
            _ => SingleArray::InPlace,
        }
    }
}

/// The name of a collective's method.
pub(crate) fn method(collective: &Collective) -> &'static str {
    const METHODS: [&str; 13] = [
        "all_reduce",
        "reduce",
        "broadcast",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "gather",
        "scatter",
        "scan",
        "exclusive_scan",
        "send_receive",
        "neighbours",
        "barrier",
    ];
    METHODS[collective.kind()]
}

/// A timeout in Python's seconds.
pub(crate) fn seconds(seconds: f64) -> Result<Duration, Error> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| Error::Misuse(format!("a timeout of {seconds} s is not possible")))
}

fn buffers(
    data_type: DataType,
    input: Option<&Array>,
    output: Option<&Array>,
    single: SingleArray,
) -> Result<RawBuffers, Error> {
    if let (Some(input), Some(output)) = (input, output) {
        same_type(input, output)?;
    }
    let (input, output) = match (input, output) {
        (Some(input), _) if single == SingleArray::Input => (Some(input), None),
        (Some(one), None) | (None, Some(one)) if single == SingleArray::InPlace => (Some(one), Some(one)),
        (_, None) | (None, _) => (input, output),
        (Some(input), Some(output)) if input.is_apart_from(output)? => (Some(input), Some(output)),
        (_, output) => (output, output),
    };
    if output.is_some_and(|array| array.read_only) {
        let what = "the array that the call writes is read-only: pass a copy, or a writable array as out=";
        return Err(Error::Misuse(what.to_owned()));
    }
    let side = |array: Option<&Array>| array.map_or((null_mut(), 0), |array| (array.address, array.length));
    let ((input, input_length), (output, output_length)) = (side(input), side(output));
    Ok(RawBuffers { data_type, input, input_length, output, output_length })
}

fn same_type(input: &Array, output: &Array) -> Result<(), Error> {
    if input.data_type == output.data_type {
        return Ok(());
    }
    let (input, output) = (input.data_type, output.data_type);
    Err(Error::Misuse(format!(
        "array has elements of type {input} and out of type {output}: they must be the same"
    )))
}

fn operation(name: &str, factor: Option<f64>, data_type: DataType) -> Result<Operation<'static>, Error> {
    let reduction = Reduction::from_str(name).map_err(Error::Misuse)?;
    let Some(factor) = factor else { return Ok(reduction.into()) };
    let multiplied = Operation::premultiplied_sum_of(data_type, factor);
    let refused = || Error::Misuse(format!("a factor needs floating-point elements, not {data_type}"));
    multiplied.filter(|_| data_type.kind() == Kind::Float).ok_or_else(refused)
}
