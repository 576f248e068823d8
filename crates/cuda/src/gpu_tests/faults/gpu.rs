//! Calls on the first GPU.

use std::time::Duration;

use weftlink_bootstrap::Bootstrap;
use weftlink_plan::{Collective, DataType, Reduction};

use super::draw::{Call, Place};
use super::rank::Backend;
use crate::driver::{Context, Device, DeviceBuffer, DeviceMemory, Driver, Graph, Stream};
use crate::{Collectives, Error};

/// Elements of small calls, which are packets, and of large ones.
const SMALL: usize = 256;
const LARGE: usize = 1 << 18;
/// For ranks to join, and for the first calls: kernels compile.
const START: Duration = Duration::from_secs(60);
const POISON: u8 = 0xa5;

/// What calls use while a rank lives.
pub(super) struct GpuMemory {
    device: Device,
    stream: Stream,
    input: DeviceMemory,
    output: DeviceMemory,
}

pub(super) struct Gpu {
    /// Before the communicator whose calls it has.
    graph: Option<Graph>,
    collectives: Collectives,
    stream: Stream,
    /// Addresses of input and output.
    buffers: [u64; 2],
}

/// The arguments of a call.
struct Arguments {
    collective: Collective,
    count: usize,
    data_type: DataType,
    reduction: Reduction,
}

impl Arguments {
    fn of(call: Call) -> Arguments {
        let all_reduce = |count, data_type, reduction| Arguments {
            collective: Collective::AllReduce,
            count,
            data_type,
            reduction,
        };
        match call {
            Call::Small => all_reduce(SMALL, DataType::F32, Reduction::Sum),
            Call::Large => all_reduce(LARGE, DataType::F32, Reduction::Sum),
            Call::OtherCount => all_reduce(SMALL - 1, DataType::F32, Reduction::Sum),
            Call::OtherType => all_reduce(SMALL, DataType::I32, Reduction::Sum),
            Call::OtherOperation => all_reduce(SMALL, DataType::F32, Reduction::Maximum),
            Call::OtherCollective => Arguments {
                collective: Collective::AllGather,
                ..all_reduce(SMALL, DataType::F32, Reduction::Sum)
            },
        }
    }
}

fn input_of(rank: usize, at: usize) -> f32 {
    (rank + 1) as f32 + (at % 7) as f32
}

impl Gpu {
    /// Waits for the stream, as a program does that has enqueued calls there: the communicator explains an error of the driver.
    fn wait(&self) -> Result<(), Error> {
        let waited = self.stream.synchronize();
        self.collectives.check()?;
        waited
    }

    fn clear_output(&self) -> Result<(), Error> {
        // SAFETY: the output has the elements of the longest call, and the streams of other ranks do not write to it now.
        let cleared = unsafe { self.stream.fill_bytes(self.buffers[1], POISON, LARGE * size_of::<f32>()) };
        cleared.or_else(|error| self.collectives.check().and(Err(error)))
    }

    fn enqueue(&mut self, call: Call) -> Result<(), Error> {
        let Arguments { collective, count, data_type, reduction } = Arguments::of(call);
        // SAFETY: the buffers have the elements of the longest call and live as long as the rank's thread.
        unsafe { self.collectives.call(&collective, &self.stream, self.buffers, count, data_type, reduction) }
    }

    fn check_output(&self, call: Call) -> Result<(), Error> {
        let (ranks, count) = (self.ranks(), Arguments::of(call).count);
        let mut output = vec![0_f32; count];
        let bytes = size_of_val(&output[..]);
        // SAFETY: both have these bytes, and the stream is idle when this returns.
        let read = unsafe { self.stream.copy_to_host(output.as_mut_ptr().cast(), self.buffers[1], bytes) };
        self.stream.synchronize().and(read).or_else(|error| self.collectives.check().and(Err(error)))?;
        for (at, found) in output.iter().enumerate() {
            let sum: f32 = (0..ranks).map(|rank| input_of(rank, at)).sum();
            if *found != sum {
                return Err(Error::Failed {
                    why: format!("WRONG: element {at} is {found} instead of {sum}"),
                });
            }
        }
        Ok(())
    }
}

impl Backend for Gpu {
    /// Longer than a killed process takes to exit, which is when its death is known: up to 1.6 s.
    const TIMEOUT: Duration = Duration::from_secs(3);
    type Memory = GpuMemory;

    fn memory() -> Result<GpuMemory, Error> {
        let device = Driver::load()?.devices()?.remove(0);
        let context = Context::primary(&device)?;
        let stream = Stream::new(&context)?;
        let bytes = LARGE * size_of::<f32>();
        let (input, output) = (DeviceMemory::new(&context, bytes)?, DeviceMemory::new(&context, bytes)?);
        Ok(GpuMemory { device, stream, input, output })
    }

    fn join(group: Bootstrap, memory: &GpuMemory, place: Place) -> Result<Gpu, Error> {
        let GpuMemory { device, stream, input, output } = memory;
        if device.is_shared_by_mps != (place == Place::Mps) {
            eprintln!("{place}: but the driver says that MPS is in use: {}", device.is_shared_by_mps);
        }
        let rank = group.rank();
        let values: Vec<f32> = (0..LARGE).map(|at| input_of(rank, at)).collect();
        input.write(stream, 0, bytemuck::cast_slice(&values))?;
        let mut collectives = Collectives::new(group, device, START)?;
        collectives.set_call_timeout(START);
        let stream = stream.clone();
        let buffers = [input.address(), output.address()];
        // All that a fault may need, so that no kernel is compiled while others wait.
        for call in [
            Call::Small,
            Call::Large,
            Call::OtherCount,
            Call::OtherType,
            Call::OtherOperation,
            Call::OtherCollective,
        ] {
            let Arguments { collective, count, data_type, reduction } = Arguments::of(call);
            let plan = collectives.plan_of(&collective, count, data_type)?;
            collectives.prepare_call(&plan, buffers, count, data_type, reduction)?;
        }
        // Loading a plan waits for all ranks. A rank that still loads kernels might wait for the calls of others in its process.
        collectives.plan_of(&Collective::Broadcast { root: 0 }, SMALL, DataType::F32)?;
        let mut gpu = Gpu { graph: None, collectives, stream, buffers };
        gpu.call(Call::Large)?;
        gpu.call(Call::Small)?;
        gpu.collectives.set_call_timeout(Self::TIMEOUT);
        Ok(gpu)
    }

    fn rank(&self) -> usize {
        self.collectives.rank()
    }

    fn ranks(&self) -> usize {
        self.collectives.ranks() as usize
    }

    fn start(&mut self, call: Call) -> Result<(), Error> {
        self.clear_output()?;
        self.enqueue(call)
    }

    fn finish(&mut self, call: Call) -> Result<(), Error> {
        self.wait()?;
        self.check_output(call)
    }

    fn capture(&mut self, call: Call) -> Result<(), Error> {
        self.stream.begin_capture()?;
        let enqueued = self.enqueue(call);
        // The capture must end, also after an error.
        let graph = self.stream.end_capture();
        enqueued?;
        self.graph = Some(graph?);
        Ok(())
    }

    fn launch(&mut self, call: Call) -> Result<(), Error> {
        self.clear_output()?;
        if let Some(graph) = &self.graph {
            // SAFETY: the communicator and the buffers live, and this waits for the end.
            let launched = unsafe { graph.launch(&self.stream) };
            launched.or_else(|error| self.collectives.check().and(Err(error)))?;
        }
        self.finish(call)
    }

    fn aborter(&self) -> impl FnOnce() + Send + 'static {
        let aborter = self.collectives.aborter();
        move || aborter.abort()
    }

    fn shrink(mut self, timeout: Duration) -> Result<Bootstrap, Error> {
        self.graph = None;
        self.collectives.shrink(timeout)
    }
}
