//! The layouts of the structures, compared with those of a C compiler (`tests/layout.c`).

use std::mem::offset_of;
use std::path::Path;

use weftlink_testkit::processes::command;

use super::net::{OfQueuePair, OfSocket, QueuePair, Socket};
use super::*;

/// The structures of a version that all versions have.
macro_rules! version {
    ($lines:ident, $version:ident) => {{
        use super::$version::{Coll, Descriptor, Of, P2p, Profiler};
        let name = stringify!($version);
        let at = offset_of!(Descriptor, of);
        $lines.push(format!("{name} {}", size_of::<Descriptor>()));
        $lines.push(format!("{name}.parent {}", offset_of!(Descriptor, parent)));
        $lines.push(format!("{name}.rank {}", offset_of!(Descriptor, rank)));
        $lines.push(format!("{name}.of {at}"));
        version!(@members $lines, name, at, Of, coll, Coll, [sequence function count root data_type channels warps algorithm protocol]);
        version!(@members $lines, name, at, Of, p2p, P2p, [function data_type count peer]);
        $lines.push(format!("{name}.profiler {}", size_of::<Profiler>()));
        $lines.push(format!("{name}.profiler.init {}", offset_of!(Profiler, init)));
        $lines.push(format!("{name}.profiler.start_event {}", offset_of!(Profiler, start_event)));
        $lines.push(format!("{name}.profiler.record_event_state {}", offset_of!(Profiler, record_event_state)));
        $lines.push(format!("{name}.profiler.finalize {}", offset_of!(Profiler, finalize)));
    }};
    (@members $lines:ident, $name:ident, $at:ident, $union:ident, $member:ident, $type:ident, [$($field:ident)*]) => {
        $($lines.push(format!(
            "{}.of.{}.{} {}", $name, stringify!($member), stringify!($field),
            $at + offset_of!($union, $member) + offset_of!($type, $field)
        ));)*
    };
}

/// Members of the union that only some versions have.
macro_rules! members {
    ($lines:ident, $version:ident, $member:ident $type:ident [$($field:ident)*]) => {{
        use super::$version::{Descriptor, $type};
        $($lines.push(format!(
            "{}.of.{}.{} {}", stringify!($version), stringify!($member), stringify!($field),
            offset_of!(Descriptor, of) + offset_of!($type, $field)
        ));)*
    }};
}

fn rust() -> Vec<String> {
    let mut lines = Vec::new();
    version!(lines, v1);
    version!(lines, v2);
    version!(lines, v3);
    version!(lines, v4);
    version!(lines, v5);
    version!(lines, v6);
    version!(lines, v7);
    members!(lines, v1, coll Coll [communicator]);
    members!(lines, v3, p2p P2p [communicator]);
    members!(lines, v4, p2p P2p [channels]);
    members!(lines, v7, p2p P2p [tag]);
    members!(lines, v7, coll Coll [kernel tag]);
    members!(lines, v7, coll_api CollApi [is_captured tag]);
    members!(lines, v7, p2p_api P2pApi [stream tag]);
    members!(lines, v6, ce_coll CeColl [strategy batch_size stream]);
    members!(lines, v7, ce_coll CeColl [tag]);
    members!(lines, v6, ce_sync CeSync [ranks]);
    members!(lines, v6, ce_batch CeBatch [bytes]);
    members!(lines, v7, kernel_phase KernelPhase [name gpu_ns]);
    members!(lines, v5, group_api GroupApi [depth]);
    members!(lines, v5, kernel_ch KernelCh [gpu_ns]);
    members!(lines, v5, net_plugin NetPlugin [data]);
    let mut line = |name: &str, bytes: usize| lines.push(format!("{name} {bytes}"));
    line("proxy_op", size_of::<ProxyOp>());
    line("proxy_op.channel", offset_of!(ProxyOp, channel));
    line("proxy_op.peer", offset_of!(ProxyOp, peer));
    line("proxy_op.is_send", offset_of!(ProxyOp, is_send));
    line("state_v1", size_of::<v1::StateArguments>());
    line("state_v4", size_of::<StateArguments>());
    line("ib", size_of::<QueuePair>());
    let at = offset_of!(QueuePair, of);
    line("ib.of.device", at + offset_of!(OfQueuePair, device));
    line("ib.of.request", at + offset_of!(OfQueuePair, request));
    line("ib.of.queue_pair", at + offset_of!(OfQueuePair, queue_pair));
    line("ib.of.bytes", at + offset_of!(OfQueuePair, bytes));
    line("socket", size_of::<Socket>());
    let at = offset_of!(Socket, of);
    line("socket.of.descriptor", at + offset_of!(OfSocket, descriptor));
    line("socket.of.bytes", at + offset_of!(OfSocket, bytes));
    lines
}

#[test]
fn structures_are_those_of_c() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let made = std::env::temp_dir().join(format!("weft-nccl-profiler-layout-{}", std::process::id()));
    let mut compile = command("cc");
    compile.args(["-std=gnu11", "-Wall", "-Werror", "-o"]).arg(&made).arg(folder.join("layout.c"));
    let compiled = compile.output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = command(&made).output().unwrap();
    let _ = std::fs::remove_file(&made);
    let c = String::from_utf8(printed.stdout).unwrap();
    assert_eq!(rust(), c.lines().collect::<Vec<_>>());
}
