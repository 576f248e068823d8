//! 2 to 8 ranks exchange messages under many seeded schedules of delays and faults; see `world` for what is checked.
//!
//! `weftlink_testkit::schedules` has the environment variables.

mod world;

use std::time::Duration;

use weftlink_p2p::Direction;
use weftlink_plan::DataType;
use weftlink_testkit::random::Random;
use weftlink_testkit::schedules;
use world::{Fault, Posted, Shape, Summary, World};

/// As many as `make test` has time for.
const SCHEDULES: u64 = 50_000;
/// Of this number of operations, some have each outcome.
const OPERATIONS_MIN: usize = 20_000;
const TYPES: [Option<DataType>; 3] = [None, Some(DataType::F32), Some(DataType::I32)];

fn shape(random: &mut Random) -> Shape {
    let size = 2 + random.below(7) as usize;
    Shape {
        size,
        hosts: 1 + random.below(size.min(3) as u64) as usize,
        eager_bytes_max: random.pick(&[0, 16, 64]),
        self_bytes_max: random.pick(&[0, 16]),
        window_bytes: random.pick(&[64, 200, 1000, 100_000]),
        frame_bytes_max: random.pick(&[32, 64]),
        pull_bytes_min: random.pick(&[None, Some(0), Some(50)]),
        depth: random.pick(&[1, 2, 4, 16]),
        is_calm: random.one_in(4),
    }
}

fn timeout(random: &mut Random, is_calm: bool) -> Option<Duration> {
    match random.below(8) {
        _ if is_calm => Some(Duration::from_secs(600)),
        0 => None,
        1 => Some(Duration::ZERO),
        2 => Some(Duration::from_micros(random.below(200))),
        3 | 4 => Some(Duration::from_micros(random.below(200_000))),
        _ => Some(Duration::from_secs(1 + random.below(30))),
    }
}

/// Posts both ends of a message, which mostly agree.
fn message(world: &mut World, random: &mut Random, shape: &Shape) {
    let (from, to) = (random.below(shape.size as u64) as usize, random.below(shape.size as u64) as usize);
    let tag = 1 + random.below(2);
    let mut bytes = random.pick(&[0, 8, 16, 17, 64, 65, 200]);
    let mut data_type = random.pick(&TYPES);
    let mut source = (!random.one_in(3)).then_some(from);
    if shape.is_calm {
        // Messages that a receive may take in any order are alike.
        source = (tag == 1).then_some(from);
        let kind = if tag == 1 { from * 3 + to } else { to };
        (bytes, data_type) = ([8, 65, 16, 200, 64, 0][kind % 6], TYPES[kind % 3]);
    }
    let latest = random.pick(&[10, 10_000, 300_000]);
    let mut at = || Duration::from_micros(random.below(latest));
    let (sent_at, received_at) = (at(), at());
    let timeouts = [timeout(random, shape.is_calm), timeout(random, shape.is_calm)];
    let send =
        Posted { rank: from, direction: Direction::SendTo(to), tag, bytes, data_type, timeout: timeouts[0] };
    let mut receive =
        Posted { rank: to, direction: Direction::ReceiveFrom(source), timeout: timeouts[1], ..send };
    if !shape.is_calm {
        match random.below(30) {
            0 => receive.bytes = random.pick(&[0, 8, 64, 200]),
            1 => receive.data_type = random.pick(&TYPES),
            2 => return world.post(sent_at, send),
            3 => return world.post(received_at, receive),
            _ => {}
        }
    }
    world.post(sent_at, send);
    world.post(received_at, receive);
}

fn schedule(seed: u64, is_shown: bool) -> Result<Summary, String> {
    let mut random = schedules::random(seed);
    let shape = shape(&mut random);
    let mut world = World::new(random.draw(), shape);
    if is_shown {
        world.queue.begin_trace(format!("{shape:?}"));
    }
    for _ in 0..=random.below(20) {
        message(&mut world, &mut random, &shape);
    }
    if !shape.is_calm && random.one_in(10) {
        // All ranks but one leave.
        let stays = random.below(shape.size as u64) as usize;
        for rank in (0..shape.size).filter(|rank| *rank != stays) {
            world.fault(Duration::from_micros(random.below(400_000)), Fault::Leave(rank));
        }
    }
    for _ in 0..random.below(if shape.is_calm { 1 } else { 4 }) {
        let mut rank = || random.below(shape.size as u64) as usize;
        let (one, other) = (rank(), rank());
        let latest = random.pick(&[50, 10_000, 1_000_000]);
        let at = Duration::from_micros(random.below(latest));
        let fault = match random.below(10) {
            0 | 1 => Fault::Kill(one),
            2 | 3 => Fault::Leave(one),
            4 => Fault::Abort(one),
            5 | 6 => Fault::Cut(one, other, random.one_in(3)),
            _ => Fault::Stop(one, Duration::from_millis(1 + random.below(3000))),
        };
        world.fault(at, fault);
    }
    world.run()
}

#[test]
fn schedules_hold() {
    let all = schedules::run(SCHEDULES, schedule, |all: &mut Summary, one| all.add(one));
    // Schedules in which nothing happens would hold as well.
    if let Some(all) = all.filter(|all| all.operations >= OPERATIONS_MIN) {
        for (what, times) in all.parts() {
            assert!(times > 0, "no operation of {} {what}", all.operations);
        }
    }
}

/// A sender is stopped for the whole timeout of its receiver, which finds no room for its answer until then.
#[test]
fn an_answer_that_found_no_room_is_sent_later() {
    let shape = Shape {
        size: 2,
        hosts: 1,
        eager_bytes_max: 64,
        self_bytes_max: 0,
        window_bytes: 100_000,
        frame_bytes_max: 64,
        pull_bytes_min: Some(0),
        depth: 1,
        is_calm: false,
    };
    let op = |rank, direction, bytes, seconds| {
        let (tag, timeout) = (bytes as u64, Some(Duration::from_secs(seconds)));
        Posted { rank, direction, tag, bytes, data_type: None, timeout }
    };
    let ms = Duration::from_millis;
    for seed in 0..200 {
        let mut world = World::new(seed, shape);
        world.post(ms(0), op(0, Direction::SendTo(1), 200, 60));
        world.fault(ms(1), Fault::Stop(0, ms(3000)));
        // Fills the ring to the sender.
        world.post(ms(2), op(1, Direction::SendTo(0), 8, 1));
        world.post(ms(3), op(1, Direction::ReceiveFrom(Some(0)), 200, 1));
        if let Err(error) = world.run() {
            panic!("seed {seed}: {error}");
        }
    }
}
