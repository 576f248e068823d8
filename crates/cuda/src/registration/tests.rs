//! Registration without a GPU: the owner's and the reader's driver are fakes, the links between ranks are real.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weftlink_bootstrap::{Bootstrap, Rendezvous, RendezvousAddress, Token};
use weftlink_testkit::processes::this_program;

use super::evicted::Evicted;
use super::exports::{Exporter, Exports, NotContiguous, Refusal};
use super::imports::{Holder, Importer, Imports, Owner, Shared};
use super::message::{Handle, Part, Range};
use super::register;
use super::service::{Handler, MapError, Service};

const AMPLE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const OWNER: Owner = Owner { process: 7, reader: [1; 16] };
const HOLDER: Holder = Holder { communicator: 0, owner: 3 };
const RANGE: Range = Range { start: 0x1000_0000, bytes: 64 * MIB };

/// What a reader's driver has mapped.
#[derive(Clone, Debug, Default)]
struct Reader(Arc<Mutex<Mapped>>);

#[derive(Debug, Default)]
struct Mapped {
    opened: BTreeSet<Vec<u8>>,
    /// Offsets by mirror.
    parts: BTreeSet<(u64, u64)>,
    mirrors: BTreeSet<u64>,
    /// How often something was opened or mapped.
    calls: u64,
    /// The driver refuses to open while these are open.
    conflicts: bool,
    fails: bool,
}

struct Opened(Reader, Vec<u8>);
struct Reserved(Reader, u64);

impl Drop for Opened {
    fn drop(&mut self) {
        assert!(self.0.0.lock().unwrap().opened.remove(&self.1));
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut mapped = self.0.0.lock().unwrap();
        mapped.mirrors.remove(&self.1);
        mapped.parts.retain(|(mirror, _)| *mirror != self.1);
    }
}

impl Importer for Reader {
    type Opened = Opened;
    type Reserved = Reserved;

    fn open(&self, handle: &[u8], _: u64) -> Result<(Opened, u64), String> {
        let mut mapped = self.0.lock().unwrap();
        if mapped.fails || mapped.conflicts && !mapped.opened.is_empty() {
            return Err("already mapped".to_owned());
        }
        mapped.calls += 1;
        assert!(mapped.opened.insert(handle.to_vec()), "opened twice");
        Ok((Opened(self.clone(), handle.to_vec()), 0x7000_0000 + mapped.calls * 0x100_0000))
    }

    fn reserve(&self, _: u64) -> Result<(Reserved, u64), String> {
        let mut mapped = self.0.lock().unwrap();
        mapped.calls += 1;
        let address = mapped.calls << 40;
        mapped.mirrors.insert(address);
        Ok((Reserved(self.clone(), address), address))
    }

    fn map(&self, reserved: &mut Reserved, offset: u64, _: u64, _: Shared<'_>) -> Result<(), String> {
        let mut mapped = self.0.lock().unwrap();
        if mapped.fails {
            return Err("out of memory".to_owned());
        }
        mapped.calls += 1;
        assert!(mapped.parts.insert((reserved.1, offset)), "mapped twice");
        Ok(())
    }

    fn unmap(reserved: &mut Reserved, offset: u64) {
        assert!(reserved.0.0.lock().unwrap().parts.remove(&(reserved.1, offset)));
    }
}

impl Reader {
    fn opened(&self) -> usize {
        self.0.lock().unwrap().opened.len()
    }

    fn calls(&self) -> u64 {
        self.0.lock().unwrap().calls
    }

    fn parts(&self) -> Vec<u64> {
        self.0.lock().unwrap().parts.iter().map(|(_, offset)| *offset).collect()
    }
}

/// An allocation; its id is its handle.
fn whole(id: u64, start: u64, bytes: u64) -> Part {
    Part { id, start, bytes, handle: Handle::Ipc(id.to_le_bytes().to_vec()) }
}

/// A part of [`RANGE`].
fn within(id: u64, offset: u64, bytes: u64) -> Part {
    Part { id, start: RANGE.start + offset, bytes, handle: Handle::Descriptor { range: RANGE } }
}

fn descriptor() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

#[test]
fn memory_that_was_allocated_again_is_mapped_again() {
    let (reader, mut imports) = (Reader::default(), Imports::new());
    let first = imports.map(&reader, OWNER, HOLDER, &whole(1, 4096, 4096), None).unwrap();
    assert_eq!(imports.map(&reader, OWNER, HOLDER, &whole(1, 4096, 4096), None), Ok(first));
    let second = imports.map(&reader, OWNER, HOLDER, &whole(2, 4096, 4096), None).unwrap();
    assert_ne!(first, second);
    // The old one is closed by a thread that may wait, or that has no call under way.
    drop(imports.take_retired_if(|| false));
    assert_eq!(reader.opened(), 2);
    drop(imports.take_retired_if(|| true));
    assert_eq!(reader.opened(), 1);
    assert!(imports.take_retired_if(|| unreachable!("there is nothing to close")).is_empty());
    imports.release(OWNER, HOLDER, &[1]);
    assert_eq!(
        imports.map(&reader, OWNER, HOLDER, &whole(2, 4096, 4096), None),
        Ok(second),
        "1 is not there"
    );
    // The driver may refuse to open while the old one is open, which this thread must not close: the owner copies in this call. The new
    // one begins before the old one.
    reader.0.lock().unwrap().conflicts = true;
    assert!(imports.map(&reader, OWNER, HOLDER, &whole(3, 2048, 4096), None).is_err());
    drop(imports.take_retired());
    imports.map(&reader, OWNER, HOLDER, &whole(3, 2048, 4096), None).unwrap();
    assert_eq!(reader.opened(), 1);
    imports.release_all(0);
    drop(imports.take_retired());
    assert_eq!(reader.opened(), 0);
}

#[test]
fn parts_of_reserved_addresses_keep_their_distances() {
    let (reader, mut imports) = (Reader::default(), Imports::new());
    let file = descriptor();
    let mut map = |part: &Part| imports.map(&reader, OWNER, HOLDER, part, Some(file.as_fd()));
    let first = map(&within(1, 2 * MIB, 2 * MIB)).unwrap();
    let third = map(&within(3, 6 * MIB, 2 * MIB)).unwrap();
    let second = map(&within(2, 4 * MIB, 2 * MIB)).unwrap();
    assert_eq!([second - first, third - first], [2 * MIB, 4 * MIB]);
    // The owner maps other memory in the middle.
    let calls = reader.calls();
    assert_eq!(map(&within(4, 4 * MIB, 2 * MIB)), Ok(second));
    assert_eq!(reader.calls(), calls + 1);
    assert_eq!(reader.parts(), [2 * MIB, 4 * MIB, 6 * MIB]);
    // A larger part replaces two, and their neighbours stay.
    assert_eq!(map(&within(5, 4 * MIB, 4 * MIB)), Ok(second));
    assert_eq!(reader.parts(), [2 * MIB, 4 * MIB]);
    assert_eq!(map(&within(1, 2 * MIB, 2 * MIB)), Ok(first));
    assert!(map(&within(6, 63 * MIB, 2 * MIB)).unwrap_err().contains("does not lie in its range"));
    assert!(map(&Part { bytes: 0, ..within(6, 0, 0) }).is_err());
    assert!(
        imports.map(&reader, OWNER, HOLDER, &within(7, 0, MIB), None).unwrap_err().contains("no descriptor")
    );
    imports.release(OWNER, HOLDER, &[1, 5]);
    assert!(reader.0.lock().unwrap().mirrors.is_empty());
}

#[test]
fn communicators_of_a_process_share_what_is_mapped() {
    let (reader, mut imports) = (Reader::default(), Imports::new());
    let file = descriptor();
    let mut addresses = Vec::new();
    let another = Holder { communicator: 1, ..HOLDER };
    let neighbour = Holder { owner: 4, ..HOLDER };
    for holder in [HOLDER, another, neighbour] {
        addresses.push(imports.map(&reader, OWNER, holder, &within(1, 0, MIB), Some(file.as_fd())).unwrap());
        addresses.push(imports.map(&reader, OWNER, holder, &whole(2, 4096, 4096), None).unwrap());
    }
    assert!(addresses[2..].chunks(2).all(|both| *both == addresses[..2]));
    // Ids are numbers of one process, and each GPU maps by itself.
    for other in [Owner { process: 8, ..OWNER }, Owner { reader: [2; 16], ..OWNER }] {
        let elsewhere = imports.map(&reader, other, HOLDER, &within(1, 0, MIB), Some(file.as_fd())).unwrap();
        assert!(!addresses.contains(&elsewhere));
        imports.release(other, HOLDER, &[1]);
    }
    imports.release(OWNER, HOLDER, &[1, 2]);
    imports.release(OWNER, HOLDER, &[1, 2]);
    assert!(imports.take_retired().is_empty());
    assert_eq!((reader.parts().len(), reader.opened()), (1, 1));
    imports.release(OWNER, neighbour, &[1, 2]);
    assert_eq!((reader.parts().len(), reader.opened()), (1, 1));
    imports.release_all(1);
    assert!(reader.parts().is_empty());
    assert_eq!(imports.take_retired().len(), 1);
}

#[test]
fn a_failure_to_map_leaves_nothing_behind() {
    let (reader, mut imports) = (Reader::default(), Imports::new());
    let file = descriptor();
    reader.0.lock().unwrap().fails = true;
    assert!(imports.map(&reader, OWNER, HOLDER, &within(1, 0, MIB), Some(file.as_fd())).is_err());
    assert!(imports.map(&reader, OWNER, HOLDER, &whole(2, 4096, 4096), None).is_err());
    assert!(reader.0.lock().unwrap().mirrors.is_empty());
    reader.0.lock().unwrap().fails = false;
    imports.map(&reader, OWNER, HOLDER, &within(1, 0, MIB), Some(file.as_fd())).unwrap();
    imports.map(&reader, OWNER, HOLDER, &whole(2, 4096, 4096), None).unwrap();
}

/// The memory of an owner, by address.
#[derive(Debug, Default)]
struct Memory {
    parts: BTreeMap<u64, Part>,
    allocated: u64,
}

impl Memory {
    /// Allocates at an address, in place of what is there.
    fn allocate(&mut self, start: u64, bytes: u64) -> u64 {
        self.allocated += 1;
        self.parts.insert(start, whole(self.allocated, start, bytes));
        self.allocated
    }

    fn map(&mut self, offset: u64, bytes: u64) -> u64 {
        self.allocated += 1;
        self.parts.insert(RANGE.start + offset, within(self.allocated, offset, bytes));
        self.allocated
    }
}

impl Exporter for Memory {
    fn id_at(&self, address: u64) -> Result<u64, Refusal> {
        self.part_at(address).map(|part| part.id)
    }

    fn part_at(&self, address: u64) -> Result<Part, Refusal> {
        let part = self.parts.range(..=address).next_back().filter(|(_, part)| part.end() > Some(address));
        let why = || Refusal::Unshareable(format!("nothing is allocated at {address:#x}"));
        part.map(|(_, part)| part.clone()).ok_or_else(why)
    }

    fn descriptor_of(&self, part: &Part) -> Result<Option<OwnedFd>, String> {
        Ok(matches!(part.handle, Handle::Descriptor { .. }).then(descriptor))
    }
}

#[test]
fn buffers_are_walked_part_by_part() {
    let (mut memory, mut exports) = (Memory::default(), Exports::new(100));
    let ids: Vec<u64> = (0..4).map(|part| memory.map(part * 2 * MIB, 2 * MIB)).collect();
    let buffer = (RANGE.start + MIB, 5 * MIB);
    let missing = |exports: &Exports, memory: &Memory| {
        let missing = exports.missing(memory, buffer.0, buffer.1).unwrap();
        missing.into_iter().map(|part| part.id).collect::<Vec<_>>()
    };
    assert_eq!(missing(&exports, &memory), ids[..3]);
    exports.begin_call();
    for part in exports.missing(&memory, buffer.0, buffer.1).unwrap() {
        exports.insert(&part, vec![part.start + 0x100, part.start + 0x200]);
    }
    assert!(missing(&exports, &memory).is_empty());
    assert_eq!(exports.addresses(buffer.0, buffer.1, false), Ok(vec![buffer.0 + 0x100, buffer.0 + 0x200]));
    // Only the middle was freed and mapped again, between the same neighbours.
    let again = memory.map(2 * MIB, 2 * MIB);
    assert_eq!(missing(&exports, &memory), [again]);
    let part = memory.part_at(RANGE.start + 2 * MIB).unwrap();
    exports.insert(&part, vec![part.start + 0x100, 0x900]);
    assert_eq!(exports.addresses(buffer.0, buffer.1, false), Err(NotContiguous { peer: 1 }));
    memory.parts.remove(&(RANGE.start + 4 * MIB));
    let why = exports.missing(&memory, buffer.0, buffer.1).unwrap_err();
    assert_eq!(why, Refusal::Unshareable("nothing is allocated at 0x10400000".to_owned()));
    assert!(exports.missing(&memory, u64::MAX, 2).is_err());
}

#[test]
fn the_parts_that_were_not_used_for_longest_go_first_and_pinned_ones_stay() {
    let (mut memory, mut exports) = (Memory::default(), Exports::new(3));
    let mut call = |number: u64, is_captured: bool| {
        let start = number * MIB;
        if !memory.parts.contains_key(&start) {
            memory.allocate(start, 4096);
        }
        exports.begin_call();
        for part in exports.missing(&memory, start, 64).unwrap() {
            exports.insert(&part, vec![part.start]);
        }
        exports.addresses(start, 64, is_captured).unwrap();
        exports.evict()
    };
    // The ids are 1, 2, ... in the order of first calls.
    assert_eq!(
        [call(1, true), call(2, false), call(3, false), call(2, false)],
        [const { Vec::<u64>::new() }; 4]
    );
    assert_eq!(call(4, false), [3]);
    assert_eq!(call(5, true), [2]);
    assert_eq!(call(6, false), [4]);
    assert_eq!(call(7, true), [6]);
    // All are pinned but that of the call itself.
    assert_eq!(call(8, true), [] as [u64; 0]);
    assert_eq!(call(9, false), [] as [u64; 0]);
    assert_eq!(call(1, false), [9]);
    assert_eq!(call(10, false), [] as [u64; 0]);
    assert_eq!(exports.take_unpinned(), [10]);
    assert_eq!(exports.take_unpinned(), [] as [u64; 0]);
}

#[test]
fn held_buffers_stay_until_they_are_let_go() {
    let (mut memory, mut exports) = (Memory::default(), Exports::new(1));
    let mut call = |exports: &mut Exports, number: u64| {
        memory.allocate(number * MIB, 4096);
        exports.begin_call();
        for part in exports.missing(&memory, number * MIB, 64).unwrap() {
            exports.insert(&part, vec![part.start]);
        }
        exports.evict()
    };
    assert_eq!(call(&mut exports, 1), [] as [u64; 0]);
    // Twice, by two windows in the middle of the part.
    (0..2).for_each(|_| exports.hold(MIB + 64, 64));
    assert_eq!(call(&mut exports, 2), [] as [u64; 0]);
    assert_eq!(call(&mut exports, 3), [2]);
    exports.let_go(MIB + 64, 64);
    assert_eq!(exports.take_unpinned(), [3]);
    exports.let_go(MIB + 64, 64);
    assert_eq!(exports.take_unpinned(), [1]);
}

#[test]
fn peers_unmap_parts_after_the_calls_that_may_use_them() {
    let mut evicted = Evicted::new();
    let ended_by = |time: u32| move |event: &u32| Ok::<_, ()>(*event <= time);
    evicted.launched(|| -> Result<u32, ()> { unreachable!("nothing is evicted") }).unwrap();
    evicted.add(vec![1, 2]);
    assert_eq!(evicted.take_ended(ended_by(9), || false), Ok(vec![]), "the call is not launched");
    evicted.launched(|| Ok::<_, ()>(3)).unwrap();
    evicted.add(vec![4]);
    evicted.launched(|| Ok::<_, ()>(5)).unwrap();
    assert_eq!(evicted.take_ended(ended_by(2), || false), Ok(vec![]));
    assert_eq!(evicted.revive(&[whole(2, 0, 64), whole(3, 64, 64)]), [2]);
    assert_eq!(evicted.take_ended(ended_by(4), || false), Ok(vec![1]), "2 is used again");
    assert_eq!(evicted.take_ended(ended_by(5), || false), Ok(vec![4]));
    // The kernel of call 6 has reported a failure and ended: kernels of peers may still use part 5.
    evicted.add(vec![5]);
    evicted.launched(|| Ok::<_, ()>(6)).unwrap();
    assert_eq!(evicted.take_ended(ended_by(6), || true), Ok(vec![]));
    assert_eq!(evicted.take_ended(ended_by(9), || unreachable!("nothing has ended")), Ok(vec![]));
    assert_eq!(evicted.take_all(), [5]);
    evicted.add(vec![6, 7]);
    evicted.revive(&[whole(7, 0, 64)]);
    assert_eq!(evicted.take_all(), [6]);
    assert!(evicted.take_all().is_empty());
}

/// Maps into a fake, or does something else.
struct Fake<F>(F);

impl<F: FnMut(&Part) -> Result<u64, String>> Handler for Fake<F> {
    fn map(&mut self, _: usize, part: &Part, descriptor: Option<BorrowedFd<'_>>) -> Result<u64, String> {
        assert_eq!(descriptor.is_some(), matches!(part.handle, Handle::Descriptor { .. }));
        (self.0)(part)
    }

    fn release(&mut self, _: usize, _: &[u64]) {}
}

struct Mapper {
    imports: Imports<Reader>,
    reader: Reader,
}

impl Handler for Mapper {
    fn map(&mut self, owner: usize, part: &Part, descriptor: Option<BorrowedFd<'_>>) -> Result<u64, String> {
        self.imports.map(&self.reader, Owner { process: owner as u64, ..OWNER }, HOLDER, part, descriptor)
    }

    fn release(&mut self, owner: usize, ids: &[u64]) {
        self.imports.release(Owner { process: owner as u64, ..OWNER }, HOLDER, ids);
        drop(self.imports.take_retired());
    }
}

/// Refuses the part with the id 2, and reports what owners release.
struct Refusing(mpsc::Sender<Vec<u64>>);

impl Handler for Refusing {
    fn map(&mut self, _: usize, part: &Part, _: Option<BorrowedFd<'_>>) -> Result<u64, String> {
        if part.id == 2 { Err("no room".to_owned()) } else { Ok(part.start) }
    }

    fn release(&mut self, _: usize, ids: &[u64]) {
        self.0.send(ids.to_vec()).unwrap();
    }
}

/// A call under way uses part 1, which was evicted. The next call uses it again, beside a part that the peer refuses.
#[test]
fn a_refused_part_takes_none_along_that_calls_use() {
    together(2, "refused", |mut group| {
        let (released, releases) = mpsc::channel();
        let links = group.link_ranks("buffers", AMPLE).unwrap();
        let service = Service::start(links, move || Refusing(released)).unwrap();
        let (mut memory, mut exports, mut evicted) =
            (Memory::default(), Exports::new(100), Evicted::<()>::new());
        let ids: Vec<u64> = (0..3).map(|part| memory.map(part * MIB, MIB)).collect();
        assert_eq!(ids, [1, 2, 3]);
        let mut call = |buffer, evicted: &mut Evicted<()>| {
            exports.begin_call();
            let called = register(&mut exports, &memory, &service, buffer, AMPLE, evicted);
            (called.is_ok(), exports.take_unpinned())
        };
        assert_eq!(call((RANGE.start, MIB), &mut evicted), (true, vec![1]));
        evicted.add(vec![1]);
        assert_eq!(call((RANGE.start, 3 * MIB), &mut evicted), (false, vec![]));
        assert_eq!(releases.recv_timeout(AMPLE).unwrap(), [2, 3], "part 1 stays mapped");
        assert_eq!(evicted.take_all(), [1], "until the call has ended");
        group.exchange("done", Vec::new(), AMPLE).unwrap();
    });
}

fn meeting(place: String, ranks: usize) -> Rendezvous {
    Rendezvous::new(RendezvousAddress::Abstract(place), Token::new("secret").unwrap(), ranks, AMPLE)
}

/// Ranks whose connections are those of processes.
fn together<R: Send>(ranks: usize, name: &str, run: impl Fn(Bootstrap) -> R + Sync) -> Vec<R> {
    let meeting = meeting(format!("weft-test-{}-{name}", std::process::id()), ranks);
    let (meeting, run) = (&meeting, &run);
    std::thread::scope(|scope| {
        let join = |rank| match rank {
            0 => Bootstrap::listen(meeting),
            rank => Bootstrap::join(meeting, rank),
        };
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || run(join(rank).unwrap()))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn calls_allocate_free_and_allocate_again() {
    let done = |group: &mut Bootstrap| group.exchange("done", Vec::new(), AMPLE).unwrap();
    together(3, "registered", |mut group| {
        let reader = Reader::default();
        let links = group.link_ranks("buffers", AMPLE).unwrap();
        let mapper = Mapper { imports: Imports::new(), reader: reader.clone() };
        let service = Service::start(links, move || mapper).unwrap();
        assert_eq!(service.peers().count(), 2);
        // Both sides ask at once, and this thread answers nothing.
        let mut memory = Memory { allocated: group.rank() as u64 * 1000, ..Memory::default() };
        let (mut exports, mut requests, mut evicted) = (Exports::new(100), 0, Evicted::<()>::new());
        let mut call = |memory: &Memory, buffer: (u64, u64)| {
            exports.begin_call();
            requests += register(&mut exports, memory, &service, buffer, AMPLE, &mut evicted).unwrap();
            (exports.addresses(buffer.0, buffer.1, false).unwrap(), requests)
        };
        let first = memory.allocate(MIB, 4096);
        let (addresses, _) = call(&memory, (MIB + 64, 4032));
        assert_eq!(addresses.len(), 2);
        assert_eq!(call(&memory, (MIB + 128, 64)), (addresses.iter().map(|one| one + 64).collect(), 1));
        memory.allocate(MIB, 4096);
        let (others, requests) = call(&memory, (MIB + 64, 4032));
        assert!(requests == 2 && std::iter::zip(&addresses, &others).all(|(one, other)| one != other));
        // More parts than are asked for at once.
        (0..40).for_each(|part| {
            memory.map(part * MIB, MIB);
        });
        let (addresses, requests) = call(&memory, (RANGE.start, 40 * MIB));
        assert_eq!((addresses.len(), requests), (2, 42));
        memory.map(20 * MIB, MIB);
        assert_eq!(call(&memory, (RANGE.start, 40 * MIB)), (addresses, 43));
        done(&mut group);
        assert_eq!((reader.parts().len(), reader.opened()), (80, 4), "the first ones are closed later");
        done(&mut group);
        service.release(&[first, first + 1]).unwrap();
        done(&mut group);
        // Messages of a link arrive in order.
        memory.allocate(3 * MIB, 4096);
        call(&memory, (3 * MIB, 4096));
        done(&mut group);
        assert_eq!(reader.opened(), 2);
        done(&mut group);
    });
}

#[test]
fn a_peer_that_refuses_or_does_not_answer_is_named() {
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(Some(held));
    let errors = together(2, "refused", |mut group| {
        let links = group.link_ranks("buffers", AMPLE).unwrap();
        let mut held = (group.rank() == 1).then(|| held.lock().unwrap().take().unwrap());
        let service = Service::start(links, move || {
            Fake(move |part: &Part| {
                if part.id == 2 {
                    held.take().unwrap().recv().unwrap();
                }
                Err(format!("no room for {} bytes", part.bytes))
            })
        })
        .unwrap();
        let errors = (group.rank() == 0).then(|| {
            let refused = service.map(&[(whole(1, 0, 64), None)], AMPLE).unwrap_err();
            let late = service.map(&[(whole(2, 0, 64), None)], Duration::from_millis(200)).unwrap_err();
            release.send(()).unwrap();
            // The late answer to the request before is not taken for this one's.
            let again = service.map(&[(whole(3, 0, 128), None)], AMPLE).unwrap_err();
            [refused, late, again]
        });
        group.exchange("done", Vec::new(), AMPLE).unwrap();
        errors
    });
    let [refused, late, again] = errors[0].as_ref().unwrap();
    let why = |bytes| format!("rank 1 cannot map a buffer of this rank: no room for {bytes} bytes");
    assert_eq!([refused, again], [64, 128].map(|bytes| MapError::Refused(why(bytes))).each_ref());
    let why = "timed out after 0.2 s waiting for rank 1 to map a buffer of this rank";
    assert_eq!(*late, MapError::Lost(why.to_owned()));
}

#[test]
fn a_peer_that_dies_while_it_maps_is_named() {
    if let Ok(place) = std::env::var("WEFT_TEST_PLACE") {
        let mut group = Bootstrap::join(&meeting(place, 2), 1).unwrap();
        let links = group.link_ranks("buffers", AMPLE).unwrap();
        let _service = Service::start(links, || Fake(|_: &Part| std::process::abort())).unwrap();
        std::thread::sleep(AMPLE);
        unreachable!("rank 0 asked for nothing");
    }
    let place = format!("weft-test-{}-dies", std::process::id());
    let name = "registration::tests::a_peer_that_dies_while_it_maps_is_named";
    let mut child =
        this_program().args(["--exact", name, "--nocapture"]).env("WEFT_TEST_PLACE", &place).spawn().unwrap();
    let mut group = Bootstrap::listen(&meeting(place, 2)).unwrap();
    let links = group.link_ranks("buffers", AMPLE).unwrap();
    let service = Service::start(links, || Fake(|_: &Part| unreachable!())).unwrap();
    let begin = Instant::now();
    let lost = |id| match service.map(&[(whole(id, 0, 64), None)], AMPLE) {
        Err(MapError::Lost(why)) => why,
        answer => panic!("{answer:?}"),
    };
    let why = lost(1);
    assert!(why.contains("rank 1") && why.contains(&child.id().to_string()), "{why}");
    assert!(begin.elapsed() < AMPLE / 2);
    // Later requests fail at once.
    assert!(lost(2).contains("rank 1"));
    child.wait().unwrap();
}
