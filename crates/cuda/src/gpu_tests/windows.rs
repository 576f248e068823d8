//! Windows between ranks on one GPU, as threads and as processes: a ring of puts and signals, enqueued by the host, captured in graphs, and in
//! kernels of the program.

use super::processes::each_process;
use super::*;
use crate::cache;
use crate::driver::{Function, Launch, Module, Parameters};
use crate::nvrtc::{Nvrtc, Program};
use crate::{Error, Rank, WINDOW_H, devices, on_threads};
use weftlink_plan::{Algorithm, DataType};

const RANKS: usize = 4;
/// No multiple of a vector.
const COUNT: usize = 100_003;
const ROUNDS: usize = 5;
const BLOCKS: usize = 8;

/// Sends to the next rank and reads what the rank before has sent.
const KERNELS: &str = r#"
extern "C" __global__ void ring(weft::Window window, const float *from, float *into, unsigned long long bytes) {
    unsigned int next = (window.rank + 1) % window.ranks, before = (window.rank + window.ranks - 1) % window.ranks;
    weft::put(window, next, 0, from, bytes);
    weft::signal(window, next);
    if (!weft::wait(window, before)) return;
    weft::get(window, window.rank, 0, into, bytes);
}

// Each block sends a part and signals.
extern "C" __global__ void send_parts(weft::Window window, const float *from, unsigned long long bytes) {
    unsigned int next = (window.rank + 1) % window.ranks;
    unsigned long long part = (bytes / gridDim.x + 15) / 16 * 16, first = blockIdx.x * part;
    if (first > bytes) first = bytes;
    unsigned long long last = first + part < bytes ? first + part : bytes;
    weft::put(window, next, first, (const char *)from + first, last - first);
    weft::signal(window, next);
}
"#;

fn values(rank: usize, round: usize) -> Vec<f32> {
    (0..COUNT).map(|at| (at % 1009 + 10_000 * rank + 100_000 * round) as f32).collect()
}

fn neighbours(rank: &Rank) -> [usize; 2] {
    let (own, size) = (rank.rank(), rank.size());
    [(own + 1) % size, (own + size - 1) % size]
}

/// Copies and signals that the host enqueues.
fn ring_of_host(rank: &mut Rank) -> Result<(), Error> {
    let [next, before] = neighbours(rank);
    let window = rank.window::<f32>(COUNT)?;
    let (mut sent, mut got) = (rank.buffer(COUNT)?, rank.buffer(COUNT)?);
    for round in 0..ROUNDS {
        rank.write(&mut sent, &values(rank.rank(), round))?;
        if round > 0 {
            rank.wait(&window, next)?;
        }
        // In two parts, of which the second is not aligned.
        rank.put(sent.part(0..COUNT / 2), &window, next, 0)?;
        rank.put(sent.part(COUNT / 2..COUNT), &window, next, COUNT / 2)?;
        rank.signal(&window, next)?;
        rank.wait(&window, before)?;
        rank.get(&window, rank.rank(), 0, got.part_mut(0..1000))?;
        rank.get(&window, rank.rank(), 1000, got.part_mut(1000..COUNT))?;
        if round + 1 < ROUNDS {
            rank.signal(&window, before)?;
        }
        assert_eq!(rank.read(&got)?, values(before, round), "round {round}");
    }
    // Out of the window of another rank.
    rank.barrier()?;
    rank.get(&window, before, 0, &mut got)?;
    assert_eq!(rank.read(&got)?, values((before + rank.size() - 1) % rank.size(), ROUNDS - 1));
    let outside = rank.put(&sent, &window, next, 1).unwrap_err();
    assert!(matches!(outside, Error::Misuse { .. }), "{outside}");
    // Peers may still read this rank's memory; it is freed when they are done.
    drop(window);
    rank.synchronize()
}

fn functions(rank: &Rank) -> Result<[Function; 2], Error> {
    let context = rank.stream().context();
    let device = context.device();
    let nvrtc = Nvrtc::find(device.architecture, device.driver().version().ok())?;
    let architecture = nvrtc.target_for(device.architecture).unwrap_or(device.architecture);
    let source = format!("{WINDOW_H}{KERNELS}");
    let program = Program { name: "windows.cu", source: &source, options: &[], architecture };
    let module = Module::load(context, &cache::cubin(&nvrtc, &program)?.0)?;
    let functions = [module.function("ring")?, module.function("send_parts")?];
    // Loads them before kernels wait.
    functions.iter().try_for_each(|function| function.attributes().map(|_| ()))?;
    Ok(functions)
}

/// Copies and signals in kernels, of which some are waited for by the host.
fn ring_of_kernels(rank: &mut Rank) -> Result<(), Error> {
    let [_, before] = neighbours(rank);
    let window = rank.window::<f32>(COUNT)?;
    let [ring, send_parts] = functions(rank)?;
    let (mut sent, mut got) = (rank.buffer(COUNT)?, rank.buffer(COUNT)?);
    let bytes = (COUNT * size_of::<f32>()) as u64;
    for round in 0..ROUNDS {
        rank.write(&mut sent, &values(rank.rank(), round))?;
        // All ranks have read what they got.
        rank.barrier()?;
        let (parameter, from, into) = (rank.device_window(&window)?, sent.address(), got.address());
        let [parameter, from, into, bytes] = [
            (&raw const parameter).cast(),
            (&raw const from).cast(),
            (&raw const into).cast(),
            (&raw const bytes).cast(),
        ];
        let launch = |blocks: usize| Launch {
            blocks: blocks as u32,
            threads: 256,
            shared_bytes: 0,
            is_cooperative: false,
        };
        if round % 2 == 0 {
            // SAFETY: these are the kernel's parameters; buffers and window live until the rank has read.
            unsafe {
                ring.launch(rank.stream(), launch(1), Parameters::Pointers(&[parameter, from, into, bytes]))
            }?;
        } else {
            // SAFETY: as above.
            unsafe {
                send_parts.launch(
                    rank.stream(),
                    launch(BLOCKS),
                    Parameters::Pointers(&[parameter, from, bytes]),
                )
            }?;
            (0..BLOCKS).try_for_each(|_| rank.wait(&window, before))?;
            rank.get(&window, rank.rank(), 0, &mut got)?;
        }
        assert_eq!(rank.read(&got)?, values(before, round), "round {round}");
    }
    rank.barrier()?;
    rank.synchronize()
}

/// Small and large calls in windows, whole and in part, as in buffers.
fn collectives_in_windows(rank: &mut Rank) -> Result<(), Error> {
    const LARGE: usize = 1 << 16;
    let (own, ranks) = (rank.rank(), rank.size());
    let mut window = rank.window::<f32>(ranks * LARGE)?;
    for count in [1000, LARGE] {
        let values = |rank: usize| (0..count).map(move |at| (at % 509 + 1000 * rank) as f32);
        let mut buffer = rank.buffer_of(&values(own).collect::<Vec<f32>>())?;
        rank.put(&buffer, &window, own, 0)?;
        rank.all_reduce(window.part_mut(0..count), Reduction::Sum)?;
        rank.get(&window, own, 0, &mut buffer)?;
        let sum = |at: usize| (ranks * (at % 509) + 1000 * (ranks * (ranks - 1) / 2)) as f32;
        assert_eq!(rank.read(&buffer)?, (0..count).map(sum).collect::<Vec<f32>>(), "{count} elements");
        rank.write(&mut buffer, &values(own).collect::<Vec<f32>>())?;
        rank.all_gather((&buffer, window.part_mut(0..ranks * count)))?;
        rank.get(&window, own, (ranks - 1) * count, &mut buffer)?;
        assert_eq!(rank.read(&buffer)?, values(ranks - 1).collect::<Vec<f32>>(), "{count} elements");
    }
    let outside = rank.broadcast(window.part_mut(1..ranks * LARGE + 1), 0).unwrap_err();
    assert!(outside.to_string().contains("of a window"), "{outside}");
    // Peers may still read this rank's memory.
    rank.barrier()?;
    drop(window);
    rank.synchronize()
}

macro_rules! jobs {
    ($($threads:ident, $processes:ident: $job:ident;)*) => {
        $(#[test]
        #[ignore = "needs a GPU: `make gpu-test`"]
        fn $threads() {
            on_threads(&devices().unwrap()[0], RANKS, $job).unwrap();
        }

        #[test]
        #[ignore = "needs a GPU: `make gpu-test`"]
        fn $processes() {
            each_process(concat!("gpu_tests::windows::", stringify!($processes)), RANKS, |group| {
                let mut rank = Rank::new(group, &devices().unwrap()[0], TIMEOUT).unwrap();
                rank.set_call_timeout(TIMEOUT);
                $job(&mut rank).unwrap();
            });
        })*
    };
}

jobs! {
    windows_of_threads, windows_of_processes: ring_of_host;
    windows_of_threads_in_kernels, windows_of_processes_in_kernels: ring_of_kernels;
    collectives_in_windows_of_threads, collectives_in_windows_of_processes: collectives_in_windows;
}

/// A graph of copies, signals and waits is launched again and again. With host memory, copies go through it.
#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn windows_in_graphs() {
    for memory in [Memory::Device, Memory::Host] {
        let Ranks { comms, streams, .. } = Ranks::new(RANKS as u32, memory);
        let captured = std::sync::Barrier::new(RANKS);
        together(std::iter::zip(comms, streams).collect(), |(mut comm, stream)| {
            let (own, bytes) = (comm.rank(), COUNT * size_of::<f32>());
            let [next, before] = [(own + 1) % RANKS, (own + RANKS - 1) % RANKS];
            let window = comm.window(bytes).unwrap();
            let [sent, got] = [0; 2].map(|_| DeviceMemory::new(comm.context(), bytes).unwrap());
            // SAFETY: all of it lives until the stream is idle, and the graph is launched before that.
            unsafe {
                // The rank before may write.
                comm.signal(&window, &stream, before).unwrap();
                stream.begin_capture().unwrap();
                comm.wait(&window, &stream, next).unwrap();
                stream.copy(window.address(next).unwrap(), sent.address(), bytes).unwrap();
                comm.signal(&window, &stream, next).unwrap();
                comm.wait(&window, &stream, before).unwrap();
                stream.copy(got.address(), window.address(own).unwrap(), bytes).unwrap();
                comm.signal(&window, &stream, before).unwrap();
            }
            let graph = stream.end_capture().unwrap();
            // No thread captures while a kernel waits.
            captured.wait();
            for round in 0..ROUNDS {
                sent.write(&stream, 0, bytemuck::cast_slice(&values(own, round))).unwrap();
                // SAFETY: as above.
                unsafe { graph.launch(&stream) }.unwrap();
                let mut found = vec![0_f32; COUNT];
                got.read(&stream, 0, bytemuck::cast_slice_mut(&mut found)).unwrap();
                assert_eq!(comm.failure(), None);
                assert_eq!(found, values(before, round), "{memory:?}, round {round}");
            }
            // Memory is freed, which waits for kernels, when all ranks are here.
            (comm, stream, window, sent, got, graph)
        });
    }
}

#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn a_peer_that_left_or_is_late_ends_waits() {
    let gpu = &devices().unwrap()[0];
    let left = on_threads(gpu, 2, |rank| {
        let window = rank.window::<u32>(8)?;
        if rank.rank() == 0 {
            rank.wait(&window, 1)?;
            rank.synchronize()?;
        }
        Ok(())
    });
    let text = left.unwrap_err().to_string();
    assert!(text.contains("rank 1 has left the communicator, and rank 0 waited for it to signal"), "{text}");
    let late = on_threads(gpu, 2, |rank| {
        rank.set_call_timeout(Duration::from_millis(200));
        let window = rank.window::<u32>(8)?;
        if rank.rank() == 0 {
            rank.wait(&window, 1)?;
            rank.synchronize()?;
        } else {
            std::thread::sleep(Duration::from_secs(2));
        }
        Ok(())
    });
    let text = late.unwrap_err().to_string();
    assert!(text.contains("timed out: rank 0 waited for rank 1 to signal"), "{text}");
}

#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn multicast_windows_are_refused_where_ranks_share_a_gpu() {
    let refused = on_threads(&devices().unwrap()[0], 2, |rank| rank.multicast_window::<f32>(8).map(|_| ()));
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("does not support multicast objects") || text.contains("2 ranks share a GPU"),
        "{text}"
    );
}

#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn plans_with_a_switch_are_refused_without_multicast_windows() {
    let plan = verify(Algorithm::Nvls.flat(&Collective::AllReduce, 2, 1).unwrap()).unwrap();
    let mut job = Ranks::new(2, Memory::Device);
    let plans = job.load("nvls".to_owned(), &plan);
    for (comm, plan) in std::iter::zip(&mut job.comms, plans) {
        let refused = comm.prepare_call(plan, [4096; 2], 64, DataType::F32, Reduction::Sum).unwrap_err();
        assert!(refused.to_string().contains("is in no multicast window"), "{refused}");
    }
}
