//! A thread that waits for several ranks, some of which are gone.

use std::time::Duration;

use bytemuck::{Pod, Zeroable};

use super::{Build, Launch, Library};
use crate::records::{GONE, LEFT, Report};
use crate::window::{DeviceWindow, HOST, Layout};

/// Waits for a rank until its word was seen, then for another. Stores whether the first look at the word of that one ended the wait.
const ENTRY: &str = r#"
namespace weft {
struct TestCall {
    Window window;
    u32 first, second;
    u64 has_failed;
};
inline void look(TestCall& call) {
    const Position at = position_in(call.window, 1);
    Wait wait = begin_wait();
    while (wait.gone != call.first + 1) wait = wait_long_cold(at, wait, SIGNALLED, call.first);
    u64 polled = wait.polled;
    while (!wait.failed && wait.polled == polled) wait = wait_long_cold(at, wait, SIGNALLED, call.second);
    call.has_failed = wait.failed;
    while (!wait.failed) wait = wait_long_cold(at, wait, SIGNALLED, call.second);
}
} // namespace weft
extern "C" void weft_host_attach(weft::Host* host) { weft::host = host; }
extern "C" void weft_host_enter(const void* call, void*) { weft::look(*(weft::TestCall*)call); }
extern "C" unsigned weft_host_shared_bytes() { return sizeof(weft::Window); }
"#;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct TestCall {
    window: DeviceWindow,
    first: u32,
    second: u32,
    has_failed: u64,
}

/// What the second rank sent may have arrived since the last poll, so a wait for it takes one more look, too.
#[test]
fn every_rank_that_is_gone_gets_a_second_look() {
    let library = Library::of_source(format!("#define WEFT_HOST\n{}{ENTRY}", HOST.concat()), Build::Plain);
    let layout = Layout::new(64, 3).unwrap();
    let [shared, private] = layout.sizes();
    let mut memory: Vec<Vec<u128>> = vec![vec![0; (shared + private).div_ceil(16)]; 3];
    let table: Vec<u64> = memory.iter().map(|memory| memory.as_ptr().addr() as u64).collect();
    let addresses: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut memory[0])[shared..];
    addresses[..24].copy_from_slice(bytemuck::cast_slice(&table));
    let (presence, mut reports) = ([0, LEFT, LEFT], [Report::default(); 8]);
    let [presence_at, reports_at] =
        [presence.as_ptr().addr(), reports.as_mut_ptr().addr()].map(|at| at as u64);
    let window = layout.for_kernels(0, 5, table[0] + shared as u64);
    let window = window.with(presence_at, reports_at, Duration::from_secs(1_000_000));
    let mut call = TestCall { window, first: 2, second: 1, has_failed: 7 };
    let launch = Launch {
        attach: library.attach,
        enter: library.enter,
        call: (&raw mut call).cast_const().cast(),
        blocks: 1,
        threads: 1,
        shared_bytes: library.shared_bytes,
        stream: 0,
    };
    // SAFETY: the call has all that the kernel reads, and this function owns every address in it.
    unsafe { library.run(&[launch], 0) };
    // SAFETY: they live, and no kernel runs.
    let (has_failed, report) =
        unsafe { ((&raw const call.has_failed).read_volatile(), (&raw const reports[0]).read_volatile()) };
    assert_eq!(has_failed, 0, "the first look at the word of rank 1 ended the wait");
    assert_eq!((report.kind, report.rank, report.other), (GONE, 1, LEFT));
}
