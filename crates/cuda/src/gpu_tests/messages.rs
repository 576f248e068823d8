//! Messages between ranks on one GPU, as threads and as processes: random groups, all-to-all, large messages, graphs, and groups between
//! collectives.

use super::processes::each_process;
use super::*;
use crate::{AddressedCall, AddressedRank, Message};
use weftlink_plan::DataType;

const RANKS: usize = 4;
const ROUNDS: usize = 12;
/// Of the buffers of a rank.
const ARENA: usize = 32 << 20;
const POISON: u8 = 0xa5;
/// Elements of a collective.
const SUMS: usize = 1000;

/// All ranks draw the same numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % limit as u64) as usize
    }
}

/// A rank with a stream, and memory to send from and to receive into.
struct Endpoint {
    rank: AddressedRank,
    stream: Stream,
    memory: [DeviceMemory; 2],
    /// Of a collective. Kept to the end: memory that is freed waits for the kernels of all ranks of the process.
    sums: DeviceMemory,
}

/// A message of a round, where it lies in the memory of its two ranks.
struct Planned {
    ranks: [usize; 2],
    bytes: usize,
    at: [usize; 2],
    first: u8,
}

impl Planned {
    fn data(&self) -> Vec<u8> {
        (0..self.bytes).map(|at| self.first.wrapping_add((at % 251) as u8)).collect()
    }
}

/// Messages between any two ranks, some from a rank to itself.
fn draw(random: &mut Random, ranks: usize) -> Vec<Planned> {
    let mut used = vec![[0; 2]; ranks];
    let mut all = Vec::new();
    for _ in 0..1 + random.below(4 * ranks) {
        let pair = [random.below(ranks), random.below(ranks)];
        let bytes = match random.below(6) {
            0 => 0,
            1 => 8,
            2 | 3 => random.below(5000),
            4 => random.below(300_000),
            _ => random.below(2 << 20),
        };
        let at = [0, 1].map(|end| {
            // At any address.
            let at = used[pair[end]][end] + random.below(40);
            used[pair[end]][end] = at + bytes;
            at
        });
        all.push(Planned { ranks: pair, bytes, at, first: random.below(256) as u8 });
    }
    let fits = |used: &[usize; 2]| used.iter().all(|used| *used <= ARENA);
    assert!(used.iter().all(fits), "the messages of a round fit");
    all
}

impl Endpoint {
    fn new(group: Bootstrap) -> Endpoint {
        let mut rank = AddressedRank::new(group, 0, TIMEOUT).unwrap();
        rank.enable_messages().unwrap();
        let context = rank.collectives().context().clone();
        let memory = [0; 2].map(|_| DeviceMemory::new(&context, ARENA).unwrap());
        let sums = DeviceMemory::new(&context, SUMS * size_of::<f32>()).unwrap();
        Endpoint { stream: Stream::new(&context).unwrap(), rank, memory, sums }
    }

    /// The sends and receives of this rank.
    fn messages(&self, all: &[Planned]) -> [Vec<Message>; 2] {
        let own = self.rank.collectives().rank();
        [0, 1].map(|end| {
            let of_rank = all.iter().filter(|message| message.ranks[end] == own);
            let message = |message: &Planned| Message {
                peer: message.ranks[1 - end],
                address: self.memory[end].address() + message.at[end] as u64,
                bytes: message.bytes,
            };
            of_rank.map(message).collect()
        })
    }

    fn write(&self, all: &[Planned]) {
        let own = self.rank.collectives().rank();
        self.memory[1].fill(&self.stream, 0, ARENA, POISON).unwrap();
        for message in all.iter().filter(|message| message.ranks[0] == own) {
            self.memory[0].write(&self.stream, message.at[0], &message.data()).unwrap();
        }
    }

    fn exchange(&mut self, [sends, receives]: &[Vec<Message>; 2]) {
        let stream = self.stream.raw().addr() as u64;
        // SAFETY: the memory lives as long as the rank, and no receive overlaps another message.
        unsafe { self.rank.exchange(stream, sends, receives) }.unwrap();
    }

    /// Compares all memory that messages were received into.
    fn check(&self, all: &[Planned], what: &str) {
        let own = self.rank.collectives().rank();
        let (mut expected, mut found) = (vec![POISON; ARENA], vec![0; ARENA]);
        for message in all.iter().filter(|message| message.ranks[1] == own) {
            expected[message.at[1]..][..message.bytes].copy_from_slice(&message.data());
        }
        self.memory[1].read(&self.stream, 0, &mut found).unwrap();
        self.stream.synchronize().unwrap();
        assert_eq!(self.rank.collectives().failure(), None, "{what}");
        let differs = std::iter::zip(&found, &expected).position(|(one, other)| one != other);
        assert_eq!(differs, None, "{what}, rank {own}");
    }
}

/// Random groups, with collectives between some of them.
fn random_groups(endpoint: &mut Endpoint) {
    let ranks = endpoint.rank.collectives().ranks() as usize;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let call = AddressedCall {
        collective: Collective::AllReduce,
        count: SUMS,
        data_type: DataType::F32,
        reduction: Reduction::Sum,
    };
    endpoint.sums.fill(&endpoint.stream, 0, SUMS * size_of::<f32>(), 0).unwrap();
    let addresses = [endpoint.sums.address(); 2];
    endpoint.rank.prepare(call.clone(), addresses, None).unwrap();
    for round in 0..ROUNDS {
        let all = draw(&mut random, ranks);
        endpoint.write(&all);
        if round % 3 == 0 {
            let stream = endpoint.stream.raw().addr() as u64;
            // SAFETY: the memory lives as long as the rank.
            unsafe { endpoint.rank.enqueue(&call, addresses, stream, None, Reduction::Sum.into()) }.unwrap();
        }
        let messages = endpoint.messages(&all);
        endpoint.exchange(&messages);
        endpoint.check(&all, &format!("round {round}"));
    }
}

/// Every rank sends every rank as much as slots hold many times.
fn all_to_all(endpoint: &mut Endpoint) {
    let ranks = endpoint.rank.collectives().ranks() as usize;
    for bytes in [8, 4096, 1 << 20, (5 << 20) + 3] {
        let mut all = Vec::new();
        for from in 0..ranks {
            for to in 0..ranks {
                let at = [to * (bytes + 16), from * (bytes + 16)];
                all.push(Planned { ranks: [from, to], bytes, at, first: (10 * from + to) as u8 });
            }
        }
        endpoint.write(&all);
        let messages = endpoint.messages(&all);
        (0..3).for_each(|_| endpoint.exchange(&messages));
        endpoint.check(&all, &format!("all-to-all of {bytes} bytes"));
    }
}

/// More messages than a kernel has parameters for.
fn many_messages(endpoint: &mut Endpoint) {
    let ranks = endpoint.rank.collectives().ranks() as usize;
    let mut all = Vec::new();
    for number in 0..2000 {
        let (from, bytes) = (number % ranks, 1 + number % 300);
        let at = [number * 512, number * 512];
        all.push(Planned { ranks: [from, (from + 1) % ranks], bytes, at, first: number as u8 });
    }
    endpoint.write(&all);
    let messages = endpoint.messages(&all);
    endpoint.exchange(&messages);
    endpoint.check(&all, "2000 messages");
}

/// A group that is launched again and again.
fn graphs(endpoint: &mut Endpoint) {
    let ranks = endpoint.rank.collectives().ranks() as usize;
    let mut random = Random(77);
    let mut all = draw(&mut random, ranks);
    let messages = endpoint.messages(&all);
    endpoint.stream.begin_capture().unwrap();
    endpoint.exchange(&messages);
    let graph = endpoint.stream.end_capture().unwrap();
    for round in 0..5 {
        all.iter_mut().for_each(|message| message.first = message.first.wrapping_add(round));
        endpoint.write(&all);
        // SAFETY: memory and rank live until the graph is dropped.
        unsafe { graph.launch(&endpoint.stream) }.unwrap();
        endpoint.check(&all, &format!("launch {round}"));
    }
    // Groups of the graph and others share counters.
    let others = draw(&mut random, ranks);
    endpoint.write(&others);
    let messages = endpoint.messages(&others);
    endpoint.exchange(&messages);
    endpoint.check(&others, "after the graph");
}

macro_rules! jobs {
    ($($threads:ident, $processes:ident: $job:ident;)*) => {
        $(#[test]
        #[ignore = "needs a GPU: `make gpu-test`"]
        fn $threads() {
            // Memory is freed, which waits for kernels, when all ranks are done.
            together(Bootstrap::threads(RANKS), |group| {
                let mut endpoint = Endpoint::new(group);
                $job(&mut endpoint);
                endpoint
            });
        }

        #[test]
        #[ignore = "needs a GPU: `make gpu-test`"]
        fn $processes() {
            each_process(concat!("gpu_tests::messages::", stringify!($processes)), RANKS, |group| {
                $job(&mut Endpoint::new(group));
            });
        })*
    };
}

jobs! {
    random_groups_of_threads, random_groups_of_processes: random_groups;
    all_to_all_of_threads, all_to_all_of_processes: all_to_all;
    many_messages_of_threads, many_messages_of_processes: many_messages;
}

/// Threads of one process would capture while kernels of others wait.
#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn graphs_of_processes() {
    each_process("gpu_tests::messages::graphs_of_processes", RANKS, |group| {
        graphs(&mut Endpoint::new(group))
    });
}

#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn a_receive_of_another_length_fails() {
    let failures = together(Bootstrap::threads(2), |group| {
        let mut endpoint = Endpoint::new(group);
        let own = endpoint.rank.collectives().rank();
        let bytes = [3 << 20, 1 << 20][own];
        let message = Message { peer: 1 - own, address: endpoint.memory[own].address(), bytes };
        let messages = [vec![message; 1 - own], vec![message; own]];
        endpoint.exchange(&messages);
        endpoint.stream.synchronize().unwrap();
        (endpoint.rank.collectives().failure(), endpoint)
    });
    let text = failures[1].0.clone().unwrap();
    assert!(
        text.contains("rank 0 sent a message of 3145728 bytes, and rank 1 received one of 1048576 bytes"),
        "{text}"
    );
}

#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn only_the_two_ranks_of_a_message_take_part() {
    together(Bootstrap::threads(3), |group| {
        let mut endpoint = Endpoint::new(group);
        let all = [Planned { ranks: [0, 2], bytes: 5000, at: [3, 9], first: 5 }];
        endpoint.write(&all);
        let messages = endpoint.messages(&all);
        if endpoint.rank.collectives().rank() != 1 {
            endpoint.exchange(&messages);
        }
        endpoint.check(&all, "one message");
        endpoint
    });
}
