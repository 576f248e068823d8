//! More streams than the 8 hardware queues that a process has by default: several communicators at once, with work behind their calls.

use weftlink_plan::{Algorithm, DataType};

use super::*;
use crate::driver::Event;

const COMMUNICATORS: usize = 12;
const COUNT: usize = 1000;

/// Rank 0 enqueues all its calls, each with work behind it, before rank 1 enqueues the first, in the opposite order. With 8 queues, a call of rank 1
/// would lie behind work that waits for another.
#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn calls_of_more_streams_than_default_queues_do_not_wait_for_each_other() {
    let plan = verify(Algorithm::TwoShot.flat(&Collective::AllReduce, 2, 1).unwrap()).unwrap();
    let bytes = COUNT * size_of::<f32>();
    let mut all: Vec<_> = (0..COMMUNICATORS)
        .map(|number| {
            let mut ranks = Ranks::new(2, Memory::Device);
            let plans = ranks.load("all-reduce".to_owned(), &plan);
            let context = ranks.comms[0].context().clone();
            let buffers: Vec<_> = std::iter::zip(0.., &ranks.streams)
                .map(|(rank, stream)| {
                    let buffers = [0; 2].map(|_| DeviceMemory::new(&context, bytes).unwrap());
                    let input = vec![(10 * number + rank) as f32; COUNT];
                    buffers[0].write(stream, 0, bytemuck::cast_slice(&input)).unwrap();
                    buffers
                })
                .collect();
            // No kernel is loaded while others wait.
            let prepared = ranks.comms.iter_mut().zip(&plans).zip(&buffers).collect();
            together(prepared, |((comm, &plan), buffers)| {
                let addresses = buffers.each_ref().map(DeviceBuffer::address);
                comm.prepare_call(plan, addresses, COUNT, DataType::F32, Reduction::Sum).unwrap();
            });
            (ranks, plans, buffers)
        })
        .collect();
    let order = (0..COMMUNICATORS).map(|at| (0, at)).chain((0..COMMUNICATORS).rev().map(|at| (1, at)));
    for (rank, at) in order {
        let (ranks, plans, buffers) = &mut all[at];
        let addresses = buffers[rank].each_ref().map(DeviceBuffer::address);
        let (comm, stream) = (&mut ranks.comms[rank], &ranks.streams[rank]);
        // SAFETY: the buffers live until the streams are idle.
        unsafe { comm.run(plans[rank], stream, addresses, COUNT, DataType::F32, Reduction::Sum).unwrap() };
        // Behind the call.
        buffers[rank][0].fill(stream, 0, bytes, 0).unwrap();
    }
    for (number, (ranks, _, buffers)) in all.iter().enumerate() {
        for (rank, stream) in ranks.streams.iter().enumerate() {
            let mut output = vec![0_f32; COUNT];
            buffers[rank][1].read(stream, 0, bytemuck::cast_slice_mut(&mut output)).unwrap();
            assert_eq!(ranks.comms[rank].failure(), None, "communicator {number}");
            assert_eq!(output, vec![(20 * number + 1) as f32; COUNT], "communicator {number}");
        }
    }
}

/// Each call doubles a buffer in place, on another stream than the call before. Nothing but the communicator orders them in the graph.
#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn captured_calls_of_two_streams_are_ordered() {
    const CALLS: usize = 12;
    let plan = verify(Algorithm::TwoShot.flat(&Collective::AllReduce, 2, 1).unwrap()).unwrap();
    let mut ranks = Ranks::new(2, Memory::Device);
    let plans = ranks.load("all-reduce".to_owned(), &plan);
    let context = ranks.comms[0].context().clone();
    let buffers = [0; 2].map(|_| DeviceMemory::new(&context, COUNT * size_of::<f32>()).unwrap());
    let prepared = ranks.comms.iter_mut().zip(&plans).zip(&buffers).collect();
    together(prepared, |((comm, &plan), buffer)| {
        comm.prepare_call(plan, [buffer.address(); 2], COUNT, DataType::F32, Reduction::Sum).unwrap();
    });
    let graphs: Vec<_> = (0..2)
        .map(|rank| {
            let (comm, first) = (&mut ranks.comms[rank], &ranks.streams[rank]);
            let second = Stream::new(&context).unwrap();
            let event = Event::new(&context).unwrap();
            first.begin_capture().unwrap();
            event.record(first).unwrap();
            second.wait_for(&event).unwrap();
            for call in 0..CALLS {
                let (stream, addresses) = ([first, &second][call % 2], [buffers[rank].address(); 2]);
                // SAFETY: the buffers live until the graphs have run.
                unsafe { comm.run(plans[rank], stream, addresses, COUNT, DataType::F32, Reduction::Sum) }
                    .unwrap();
            }
            event.record(&second).unwrap();
            first.wait_for(&event).unwrap();
            first.end_capture().unwrap()
        })
        .collect();
    for _ in 0..5 {
        for (buffer, stream) in std::iter::zip(&buffers, &ranks.streams) {
            buffer.write(stream, 0, bytemuck::cast_slice(&[1_f32; COUNT])).unwrap();
            stream.synchronize().unwrap();
        }
        for (graph, stream) in std::iter::zip(&graphs, &ranks.streams) {
            // SAFETY: the buffers and communicators live until the end.
            unsafe { graph.launch(stream) }.unwrap();
        }
        for (buffer, stream) in std::iter::zip(&buffers, &ranks.streams) {
            stream.synchronize().unwrap();
            let mut output = vec![0_f32; COUNT];
            buffer.read(stream, 0, bytemuck::cast_slice_mut(&mut output)).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(output, vec![(1 << CALLS) as f32; COUNT]);
        }
    }
}
