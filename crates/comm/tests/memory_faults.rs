//! The buffers of a failed call: the caller may write them at once, and no other rank returns what it writes as data.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "calls on memory that is known by its address")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Barrier;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use weftlink_comm::bootstrap::{Bootstrap, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{
    Background, Communicator, DataType, Endpoint, Error, FlightRecorder, Options, RawBuffers, Reduction,
    Request, Window,
};
use weftlink_plan::Collective;
use weftlink_testkit::processes::this_program;

/// Long enough that only a real wait for nothing reaches it.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

/// The environment variable with the role of a process: its rank, its call and the rendezvous.
const ROLE: &str = "WEFT_TEST_MEMORY_FAULTS";
/// The prefix of a line for the test, which distinguishes it from those of the test harness.
const SAYS: &str = "rank says ";

fn say(what: &str) {
    println!("\n{SAYS}{what}");
    std::io::stdout().flush().unwrap();
}

/// Waits for a command of the test, or for its end.
fn wait_for_command() {
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
}

/// Reports when the next call waits for other ranks: it has announced itself by then.
fn report_wait(recorder: FlightRecorder) {
    std::thread::spawn(move || {
        while recorder.record().waiting.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        say("waits");
    });
}

/// A rank in a separate process.
struct Rank {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Rank {
    fn start(test: &str, role: &str) -> Rank {
        let mut process = this_program()
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Rank { process, input, output: BufReader::new(output) }
    }

    fn send_go(&mut self) {
        self.input.write_all(b"go\n").unwrap();
    }

    fn read_line(&mut self) -> String {
        let mut lines = (&mut self.output).lines().map_while(Result::ok);
        lines.find_map(|line| line.strip_prefix(SAYS).map(str::to_owned)).expect("the rank printed a line")
    }

    /// Stops the process, and waits until it has stopped.
    fn stop(&self) {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    fn resume(&self) {
        kill_process(Pid::from_child(&self.process), Signal::CONT).unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Elements of a block: enough that ranks read them from each other's memory.
const COUNT: usize = 1 << 18;

/// Rank 0 sends a message to rank 1. Says so when it can be received, or sent.
fn message(endpoint: &Endpoint, input: &[u32], output: &mut [u32]) -> Result<(), Error> {
    let (sender, receiver) = channel();
    let bytes = size_of_val(output);
    // SAFETY: both are borrowed until the message is over, which is waited for.
    unsafe {
        match endpoint.rank() {
            0 => endpoint
                .start_send(1, 1, input.as_ptr().cast(), bytes, LONG, move |sent| sender.send(sent).unwrap()),
            1 => {
                endpoint.start_receive(Some(0), 1, output.as_mut_ptr().cast(), bytes, LONG, move |received| {
                    sender.send(received.map(|_| ())).unwrap();
                })
            }
            _ => return Ok(()),
        }
    }
    say("waits");
    receiver.recv().unwrap()
}

/// One of three ranks: rank 0 gives ones to the others, and overwrites them when its call has failed.
fn rank_that_reads(role: &str) {
    let [rank, call, place] = role.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let rank: usize = rank.parse().unwrap();
    let meeting = Rendezvous::new(
        RendezvousAddress::Abstract(place.to_owned()),
        Token::new("memory").unwrap(),
        3,
        LONG,
    );
    let met = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
    let options = Options { deadline: LONG, single_copy: Some(true), ..Options::default() };
    let mut comm = Communicator::new(met.unwrap(), options).unwrap();
    let endpoint = comm.endpoint().unwrap();
    let blocks = if call == "scatter" { 3 } else { 2 };
    let mut input = vec![1_u32; if rank == 0 { blocks * COUNT } else { 0 }];
    let mut output = vec![0_u32; COUNT];
    let make = |comm: &mut Communicator, input: &[u32], output: &mut [u32]| match (call, rank) {
        ("message", _) => message(&endpoint, input, output),
        ("scatter", 0) => comm.scatter((input, output), 0),
        ("scatter", _) => comm.scatter(output, 0),
        (_, 0) => comm.send_receive((input, &mut output[..0]), &[(0, 1), (0, 2)], COUNT),
        (..) => comm.send_receive((input, output), &[(0, 1), (0, 2)], COUNT),
    };
    if call != "message" {
        // Warm up, so that slow first-time work is done.
        make(&mut comm, &input, &mut output).unwrap();
        output.fill(0);
    }
    comm.barrier().unwrap();
    say(if comm.reads_peers() { "reads" } else { "does not read" });
    wait_for_command();
    if call != "message" {
        report_wait(comm.flight_recorder());
    }
    let made = make(&mut comm, &input, &mut output);
    if made.is_err() {
        input.fill(2);
    }
    let is_right = rank == 0 || output.iter().all(|&value| value == 1);
    say(&match made {
        Ok(()) if is_right => "right".to_owned(),
        Ok(()) => format!("wrong: {:?}", output.iter().find(|&&value| value != 1)),
        Err(Error::Died { died, .. }) => format!("rank {} died", died.rank),
        Err(error) => format!("another error: {error}"),
    });
    wait_for_command();
}

/// Rank 1 is stopped while it waits for rank 0. Meanwhile rank 2 dies, and rank 0 has its error and writes to its buffer. Rank 1 goes
/// on, finds that rank 0 had entered the call, and reads.
#[test]
fn returned_buffers_are_not_read_as_data() {
    const NAME: &str = "returned_buffers_are_not_read_as_data";
    if let Ok(role) = std::env::var(ROLE) {
        return rank_that_reads(&role);
    }
    for call in ["scatter", "send-receive", "message"] {
        let place = format!("{NAME}-{}-{call}", std::process::id());
        let start = |rank: usize| Rank::start(NAME, &format!("{rank} {call} {place}"));
        let mut ranks = [0, 1, 2].map(start);
        if ranks.each_mut().map(Rank::read_line).iter().any(|said| said != "reads") {
            eprintln!("skipped: this system does not let ranks read each other's memory");
            return;
        }
        ranks[1].send_go();
        assert_eq!(ranks[1].read_line(), "waits", "{call}");
        ranks[1].stop();
        ranks[0].send_go();
        assert_eq!(ranks[0].read_line(), "waits", "{call}");
        ranks[2].process.kill().unwrap();
        assert_eq!(ranks[0].read_line(), "rank 2 died", "{call}");
        ranks[1].resume();
        assert_eq!(ranks[1].read_line(), "rank 2 died", "{call}");
    }
}

/// Elements of each half of a window: enough that peers access it directly.
const HALF: usize = 50_000;

/// Two communicators of a rank that share a window: the first uses one half of it, the second the other.
struct Lanes {
    lanes: [Background; 2],
    window: Window<u32>,
    recorders: [FlightRecorder; 2],
}

impl Lanes {
    fn of(mut comm: Communicator) -> Lanes {
        let key = comm.rank() as i64;
        let mut other = comm.split(Some(0), key).unwrap().unwrap();
        let window = comm.window::<u32>(2 * HALF).unwrap();
        other.adopt(&window).unwrap();
        let recorders = [&comm, &other].map(Communicator::flight_recorder);
        let lanes = [comm, other].map(|comm| comm.into_background().unwrap());
        let mut lanes = Lanes { lanes, window, recorders };
        for lane in [0, 1] {
            // Warm up, so that slow first-time work is done.
            assert_eq!(lanes.sum_of(lane, lanes.rank() as u32), Ok(vec![1; HALF]));
        }
        lanes
    }

    fn rank(&self) -> usize {
        self.lanes[0].rank()
    }

    fn half(&mut self, lane: usize) -> &mut [u32] {
        &mut self.window[lane * HALF..][..HALF]
    }

    /// Starts an all-reduce of a lane's half, in place.
    fn start(&mut self, lane: usize, deadline: Duration) -> Receiver<Result<(), Error>> {
        let half = self.half(lane).as_mut_ptr().cast();
        let buffers = RawBuffers {
            data_type: DataType::U32,
            input: half,
            input_length: HALF,
            output: half,
            output_length: HALF,
        };
        let request =
            Request::new(Collective::AllReduce, buffers).operation(Reduction::Sum).deadline(deadline);
        let (done, ended) = channel();
        // SAFETY: the half is this call's alone until it is over: all tests wait for that.
        let _ = unsafe { self.lanes[lane].start_raw(request, move |result| done.send(result).unwrap()) };
        ended
    }

    /// The sum of all ranks' values in each place of a lane's half.
    fn sum_of(&mut self, lane: usize, value: u32) -> Result<Vec<u32>, Error> {
        self.half(lane).fill(value);
        self.start(lane, LONG).recv().unwrap()?;
        Ok(self.half(lane).to_vec())
    }
}

/// The sum of 5 and 6 in all places, if there is one.
fn assert_right_or_error(rank: usize, sum: Result<Vec<u32>, Error>) {
    let wrong = sum.iter().flatten().find(|&&value| value != 11);
    assert_eq!(wrong, None, "rank {rank}");
}

/// Runs something on two ranks, each a thread.
fn on_two_ranks(work: impl Fn(Lanes) + Sync) {
    let ranks = Communicator::threads(2, Options { deadline: LONG, ..Options::default() }).unwrap();
    std::thread::scope(|scope| {
        ranks.into_iter().for_each(|comm| drop(scope.spawn(|| work(Lanes::of(comm)))));
    });
}

/// A call of one lane fails on rank 0, which keeps a copy of its part of the window. Later calls of the other lane would use the copy on
/// rank 0, and what it was made of on rank 1.
#[test]
fn failed_lanes_leave_no_stale_window() {
    for failing in [0, 1] {
        let failed = Barrier::new(2);
        on_two_ranks(|mut lanes| {
            let rank = lanes.rank();
            if rank == 0 {
                let error = lanes.start(failing, SHORT).recv().unwrap().unwrap_err();
                assert!(matches!(error, Error::Deadline { .. }), "{error}");
            }
            failed.wait();
            let sum = lanes.sum_of(1 - failing, 5 + rank as u32);
            // Neither leaves before the other has made its call.
            failed.wait();
            assert_right_or_error(rank, sum);
        });
    }
}

/// The same while a call of the other lane waits for rank 1.
#[test]
fn failed_lanes_abort_the_other_lanes() {
    for failing in [0, 1] {
        let failed = Barrier::new(2);
        on_two_ranks(|mut lanes| {
            let rank = lanes.rank();
            let sum = if rank == 0 {
                lanes.half(1 - failing).fill(5);
                let other = lanes.start(1 - failing, LONG);
                while lanes.recorders[1 - failing].record().waiting.is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let error = lanes.start(failing, SHORT).recv().unwrap().unwrap_err();
                assert!(matches!(error, Error::Deadline { .. }), "{error}");
                failed.wait();
                other.recv().unwrap().map(|()| lanes.half(1 - failing).to_vec())
            } else {
                failed.wait();
                lanes.sum_of(1 - failing, 6)
            };
            // Neither leaves before the other has made its call.
            failed.wait();
            assert_right_or_error(rank, sum);
        });
    }
}
