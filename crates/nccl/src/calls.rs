//! Collectives and messages: checks what the program passes.

// Takes addresses of the program.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use weftlink::DataType;
use weftlink::plan::Collective;

use crate::abi::{self, Stream};
use crate::comm::Comm;
use crate::failure::{Failure, check_place};
use crate::open::Open;
use crate::operations::type_of;
use crate::work::{Call, What, Work};
use crate::{gpu, group, log, registry};

/// A rank of a communicator that has started.
pub(crate) fn peer(open: &Open, rank: c_int, what: &str) -> Result<usize, Failure> {
    let size = open.size;
    let found = usize::try_from(rank).ok().filter(|rank| *rank < size);
    found.ok_or_else(|| Failure::argument(format!("{what} {rank} is not one of {size} ranks")))
}

/// The arguments that all calls have.
struct Arguments {
    name: &'static str,
    count: usize,
    data_type: c_int,
    comm: abi::Comm,
    stream: Stream,
}

impl Arguments {
    /// Checks a call and makes it, now or when the group ends.
    fn make(
        self,
        addresses: [u64; 2],
        what: impl FnOnce(&Comm, &Open, DataType) -> Result<What, Failure>,
    ) -> Result<(), Failure> {
        self.checked(addresses, what)
            .inspect_err(group::note)
            .and_then(|(comm, work)| work.map_or(Ok(()), |work| group::call(comm, Call::Work(work))))
    }

    fn checked(
        self,
        addresses: [u64; 2],
        what: impl FnOnce(&Comm, &Open, DataType) -> Result<What, Failure>,
    ) -> Result<(Arc<Comm>, Option<Work>), Failure> {
        let Arguments { name, count, data_type, comm: pointer, stream } = self;
        let comm = registry::find(pointer)?;
        let data_type = type_of(data_type)?;
        let open = comm.open()?;
        let what = what(&comm, &open, data_type)?;
        let ranks = open.size;
        if count.checked_mul(data_type.bytes()).and_then(|bytes| bytes.checked_mul(ranks)).is_none() {
            return Err(Failure::argument(format!("{count} elements are more than there is memory")));
        }
        if log::has_calls() {
            let [input, output] = addresses;
            let text = format!(
                "{name}: sendbuff {input:#x} recvbuff {output:#x} count {count} datatype {data_type} comm {pointer:p} [nranks={ranks}] stream {stream:p}"
            );
            log::info(comm.device, &text);
        }
        if count == 0 {
            return Ok((comm, None));
        }
        // Those that the rank uses.
        let used = match what {
            What::Collective { input, output, .. } => [input, output],
            What::Send { .. } | What::Receive { .. } => addresses,
        };
        let Some(address) = used.into_iter().find(|address| *address != 0) else {
            return Err(Failure::argument("the buffers are NULL"));
        };
        let on_gpu = gpu::uses(address)?;
        Ok((comm, Some(Work { what, count, data_type, stream: stream as u64, on_gpu })))
    }
}

/// A collective, of the addresses that this rank uses.
fn collective(
    arguments: Arguments,
    [input, output]: [u64; 2],
    operation: Option<c_int>,
    of: impl FnOnce(&Open) -> Result<Collective, Failure>,
) -> Result<(), Failure> {
    let count = arguments.count;
    arguments.make([input, output], |comm, open, data_type| {
        let operation = operation.map(|number| comm.factors.operation(number, data_type)).transpose()?;
        let collective = of(open)?;
        let (rank, size) = (open.rank as u32, open.size as u32);
        let needs = [collective.gives(rank, size) > 0, collective.gets(rank, size) > 0];
        if [input, output].into_iter().zip(needs).any(|(address, needed)| needed && address == 0) && count > 0
        {
            return Err(Failure::argument("a buffer that this rank uses is NULL"));
        }
        // NCCL ignores the others, which may be anything.
        let [input, output] =
            [needs[0].then_some(input), needs[1].then_some(output)].map(Option::unwrap_or_default);
        Ok(What::Collective { collective, input, output, operation })
    })
}

macro_rules! addresses {
    ($input:expr, $output:expr) => {
        [$input as u64, $output as u64]
    };
}

macro_rules! arguments {
    ($name:literal, $count:ident, $data_type:ident, $comm:ident, $stream:ident) => {
        Arguments { name: $name, count: $count, data_type: $data_type, comm: $comm, stream: $stream }
    };
}

nccl! {
    fn ncclAllReduce(
        input: *const c_void, output: *mut c_void, count: usize, data_type: c_int, operation: c_int, comm: abi::Comm, stream: Stream,
    ) {
        let arguments = arguments!("AllReduce", count, data_type, comm, stream);
        collective(arguments, addresses!(input, output), Some(operation), |_| Ok(Collective::AllReduce))
    }
}

nccl! {
    fn ncclReduce(
        input: *const c_void, output: *mut c_void, count: usize, data_type: c_int, operation: c_int, root: c_int, comm: abi::Comm,
        stream: Stream,
    ) {
        let arguments = arguments!("Reduce", count, data_type, comm, stream);
        let of = |open: &Open| Ok(Collective::Reduce { root: peer(open, root, "root")? as u32 });
        collective(arguments, addresses!(input, output), Some(operation), of)
    }
}

fn broadcast(arguments: Arguments, addresses: [u64; 2], root: c_int) -> Result<(), Failure> {
    let of = |open: &Open| Ok(Collective::Broadcast { root: peer(open, root, "root")? as u32 });
    collective(arguments, addresses, None, of)
}

nccl! {
    fn ncclBroadcast(
        input: *const c_void, output: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: abi::Comm, stream: Stream,
    ) {
        broadcast(arguments!("Broadcast", count, data_type, comm, stream), addresses!(input, output), root)
    }
}

nccl! {
    fn ncclBcast(buffer: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: abi::Comm, stream: Stream) {
        broadcast(arguments!("Bcast", count, data_type, comm, stream), addresses!(buffer, buffer), root)
    }
}

nccl! {
    fn ncclReduceScatter(
        input: *const c_void, output: *mut c_void, count: usize, data_type: c_int, operation: c_int, comm: abi::Comm, stream: Stream,
    ) {
        let arguments = arguments!("ReduceScatter", count, data_type, comm, stream);
        collective(arguments, addresses!(input, output), Some(operation), |_| Ok(Collective::ReduceScatter))
    }
}

nccl! {
    fn ncclAllGather(
        input: *const c_void, output: *mut c_void, count: usize, data_type: c_int, comm: abi::Comm, stream: Stream,
    ) {
        let arguments = arguments!("AllGather", count, data_type, comm, stream);
        collective(arguments, addresses!(input, output), None, |_| Ok(Collective::AllGather))
    }
}

nccl! {
    fn ncclAlltoAll(
        input: *const c_void, output: *mut c_void, count: usize, data_type: c_int, comm: abi::Comm, stream: Stream,
    ) {
        let arguments = arguments!("AlltoAll", count, data_type, comm, stream);
        collective(arguments, addresses!(input, output), None, |_| Ok(Collective::AllToAll))
    }
}

nccl! {
    fn ncclGather(
        input: *const c_void, output: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: abi::Comm, stream: Stream,
    ) {
        let arguments = arguments!("Gather", count, data_type, comm, stream);
        let of = |open: &Open| Ok(Collective::Gather { root: peer(open, root, "root")? as u32 });
        collective(arguments, addresses!(input, output), None, of)
    }
}

nccl! {
    fn ncclScatter(
        input: *const c_void, output: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: abi::Comm, stream: Stream,
    ) {
        let arguments = arguments!("Scatter", count, data_type, comm, stream);
        let of = |open: &Open| Ok(Collective::Scatter { root: peer(open, root, "root")? as u32 });
        collective(arguments, addresses!(input, output), None, of)
    }
}

nccl! {
    fn ncclSend(input: *const c_void, count: usize, data_type: c_int, to: c_int, comm: abi::Comm, stream: Stream) {
        let arguments = arguments!("Send", count, data_type, comm, stream);
        let what = |_: &Comm, open: &Open, _| Ok(What::Send { to: peer(open, to, "peer")?, from: input as u64 });
        arguments.make(addresses!(input, std::ptr::null::<u8>()), what)
    }
}

nccl! {
    fn ncclRecv(output: *mut c_void, count: usize, data_type: c_int, from: c_int, comm: abi::Comm, stream: Stream) {
        let arguments = arguments!("Recv", count, data_type, comm, stream);
        let what = |_: &Comm, open: &Open, _| Ok(What::Receive { from: peer(open, from, "peer")?, into: output as u64 });
        arguments.make(addresses!(std::ptr::null::<u8>(), output), what)
    }
}

/// The factor is read when the operation is made.
const HOST_IMMEDIATE: c_int = 1;

nccl! {
    fn ncclRedOpCreatePreMulSum(
        operation: *mut c_int, factor: *mut c_void, data_type: c_int, residence: c_int, comm: abi::Comm,
    ) {
        check_place(operation, "the reduction")?;
        check_place(factor, "the factor")?;
        let (comm, data_type) = (registry::find(comm)?, type_of(data_type)?);
        if ![0, HOST_IMMEDIATE].contains(&residence) {
            return Err(Failure::argument(format!("there is no residence {residence}")));
        }
        let number = comm.factors.add(data_type, factor as u64, residence == HOST_IMMEDIATE)?;
        // SAFETY: the program's place.
        unsafe { operation.write_unaligned(number) };
        Ok(())
    }
}

nccl! {
    fn ncclRedOpDestroy(operation: c_int, comm: abi::Comm) {
        registry::find(comm)?.factors.remove(operation)
    }
}
