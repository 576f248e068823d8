//! Which network interface NCCL chooses for its handshake (and for data, if there is no RDMA), and why.
//!
//! The order is that of NCCL 2.30's source (`ncclFindInterfaces`): `NCCL_SOCKET_IFNAME`, names that begin with `ib`, the subnet of
//! `NCCL_COMM_ID`, anything but docker, lo and virbr, then docker, lo, virbr. Before 2.28, virbr counted as anything. It considers
//! interfaces that are up with a carrier and an address, IPv4 first, in the kernel's order.

use std::net::Ipv4Addr;

use weftlink_probe::Tree;

use super::addresses::{Interface, interfaces};
use super::host_reads as reads;
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) static CHECKS: &[Check] = &[Check {
    id: "nccl-interface",
    finds: "A network interface that NCCL would choose and other hosts cannot reach, or a slow one",
    reads: "/sys/class/net, /proc/net/{route,fib_trie,if_inet6}, NCCL_SOCKET_IFNAME, NCCL_COMM_ID",
    run: interface,
}];

/// A chosen interface this many times slower than another is a mistake.
const SLOWER: u64 = 4;

/// NCCL's list of names: `^` excludes, `=` compares whole names, otherwise names begin so; a port may follow a colon.
fn matches(list: &str, name: &str) -> bool {
    let (list, is_excluded) = list.strip_prefix('^').map_or((list, false), |list| (list, true));
    let (list, is_exact) = list.strip_prefix('=').map_or((list, false), |list| (list, true));
    let fits = |wanted: &str| {
        let wanted = wanted.split(':').next().unwrap_or_default();
        if is_exact { name == wanted } else { name.starts_with(wanted) }
    };
    list.split(',').filter(|wanted| !wanted.is_empty()).any(fits) != is_excluded
}

/// The interface that NCCL chooses, and the reason.
fn chosen<'i>(all: &'i [Interface], tree: &dyn Tree) -> Option<(&'i Interface, String)> {
    let first =
        |list: &str| all.iter().find(|interface| interface.is_usable() && matches(list, &interface.name));
    if let Some(wanted) = wanted(tree) {
        return Some((first(&wanted)?, format!("NCCL_SOCKET_IFNAME is {}", reads::shown(&wanted))));
    }
    if let Some(interface) = first("ib") {
        return Some((interface, "its name begins with ib".to_owned()));
    }
    if let Some(id) = reads::variable(tree, "NCCL_COMM_ID")
        && let Some(peer) = id.rsplit_once(':').and_then(|(host, _)| host.parse::<Ipv4Addr>().ok())
    {
        let reaches = |interface: &&Interface| {
            interface.is_usable()
                && interface.subnets.iter().any(|(network, mask)| u32::from(peer) & mask == *network)
        };
        if let Some(interface) = all.iter().find(reaches) {
            return Some((interface, "it is in the subnet of NCCL_COMM_ID".to_owned()));
        }
    }
    let rest = [
        ("^docker,lo,virbr", "it is the first that is up with an address and is not docker, lo or virbr"),
        ("docker", "no other is up with an address"),
        ("lo", "no other is up with an address"),
        ("virbr", "no other is up with an address"),
    ];
    rest.into_iter().find_map(|(list, reason)| Some((first(list)?, reason.to_owned())))
}

fn wanted(tree: &dyn Tree) -> Option<String> {
    reads::variable(tree, "NCCL_SOCKET_IFNAME").filter(|wanted| wanted.len() > 1)
}

fn interface(machine: &Machine<'_>) -> Vec<Outcome> {
    let tree = machine.tree;
    let all = match interfaces(tree) {
        Some(all) if !all.is_empty() => all,
        _ => {
            return vec![Outcome::Unknown {
                what: "which network interface NCCL would choose".to_owned(),
                needs: "/sys/class/net and /proc/net/route".to_owned(),
            }];
        }
    };
    // What a person would choose.
    let usable = all.iter().filter(|interface| interface.is_usable() && !interface.is_local());
    let best = usable.max_by_key(|interface| (interface.megabits, std::cmp::Reverse(interface.index)));
    let Some((chosen, reason)) = chosen(&all, tree) else {
        return vec![Outcome::Found(none(tree, &all, best))];
    };
    let described = chosen.described();
    let file = |file: &str| format!("/{}/{}/{file}", reads::NET, chosen.name);
    let new = |severity, what: String| {
        let state = tree.read(&format!("{}/{}/operstate", reads::NET, chosen.name)).unwrap_or_default();
        Finding::new("nccl-interface", severity, what)
            .shown_by(file("operstate"), state)
            .shown_by("chosen because", reason.clone())
    };
    let has_rdma = reads::rdma_ports(tree).iter().any(|port| port.is_active(tree));
    let finding = match best {
        Some(best) if chosen.is_local() => {
            let what = format!("NCCL would choose {described}, which other hosts cannot reach");
            new(Severity::Warning, what).fixed_by(format!("export NCCL_SOCKET_IFNAME={}", best.name))
        }
        None if chosen.is_local() => {
            let severity = if has_other_hosts(tree) { Severity::Critical } else { Severity::Note };
            let what = format!(
                "NCCL would choose {described}: jobs work on this host only, because no other interface is up with an address"
            );
            down(&all).into_iter().fold(new(severity, what), Finding::fixed_by)
        }
        Some(best) if !has_rdma && chosen.megabits > 0 && best.megabits >= SLOWER * chosen.megabits => {
            let what = format!(
                "NCCL would choose {described} for data between hosts, and {} is faster",
                best.described()
            );
            new(Severity::Warning, what)
                .shown_by(file("speed"), chosen.megabits.to_string())
                .fixed_by(format!("export NCCL_SOCKET_IFNAME={}", best.name))
        }
        _ => {
            let use_of = if has_rdma { "its handshake" } else { "its handshake and data between hosts" };
            return vec![Outcome::Fine(format!("NCCL would choose {described} for {use_of}: {reason}"))];
        }
    };
    vec![Outcome::Found(finding)]
}

/// No interface fits: NCCL fails.
fn none(tree: &dyn Tree, all: &[Interface], best: Option<&Interface>) -> Finding {
    let Some(wanted) = wanted(tree) else {
        let what = "NCCL finds no network interface: none is up with an address, not even lo";
        return Finding::new("nccl-interface", Severity::Critical, what)
            .shown_by(
                format!("/{}", reads::NET),
                reads::some_of(&all.iter().map(|interface| interface.name.clone()).collect::<Vec<_>>()),
            )
            .fixed_by("sudo ip link set lo up");
    };
    let list = reads::shown(&wanted);
    let why = match all.iter().find(|interface| matches(&wanted, &interface.name)) {
        Some(interface) if !interface.is_running => format!("{} is down", interface.name),
        Some(interface) => format!("{} has no address", interface.name),
        None => "no interface has such a name".to_owned(),
    };
    let finding = Finding::new(
        "nccl-interface",
        Severity::Critical,
        format!("NCCL_SOCKET_IFNAME={list} leaves NCCL without an interface: {why}"),
    )
    .shown_by("/proc/self/environ", format!("NCCL_SOCKET_IFNAME={list}"));
    match best {
        Some(best) => finding.fixed_by(format!("unset NCCL_SOCKET_IFNAME, or set it to {}", best.name)),
        None => down(all).into_iter().fold(finding.fixed_by("unset NCCL_SOCKET_IFNAME"), Finding::fixed_by),
    }
}

/// How to bring up the interfaces that are down or have no address.
fn down(all: &[Interface]) -> Vec<String> {
    let unusable = all.iter().filter(|interface| !interface.is_local() && !interface.is_usable());
    let fix = |interface: &Interface| match interface.is_running {
        false => format!("bring {0} up: `sudo ip link set {0} up`, and check its cable", interface.name),
        true => format!("give {0} an address: `sudo ip addr add ADDRESS/24 dev {0}`", interface.name),
    };
    let mut fixes: Vec<String> = unusable.take(3).map(fix).collect();
    if fixes.is_empty() {
        fixes.push("in a container, use the network of the host: `docker run --network host`".to_owned());
    }
    fixes
}

/// True if the environment says that the job has several hosts.
fn has_other_hosts(tree: &dyn Tree) -> bool {
    let number = |name: &str| reads::variable(tree, name).and_then(|value| value.parse::<u64>().ok());
    number("SLURM_JOB_NUM_NODES").is_some_and(|nodes| nodes > 1)
        || matches!((number("WORLD_SIZE"), number("LOCAL_WORLD_SIZE")), (Some(world), Some(local)) if world > local)
}

#[cfg(test)]
mod tests {
    use super::super::host_tests::{Recorded, bare, healthy, is_fine, is_unknown};
    use super::*;

    /// A small host: lo, eth0 with 10.0.0.4/24, docker0 with 172.17.0.1/16, mgmt0 with 192.168.1.9/24.
    fn host(changes: &[&str]) -> Recorded {
        let mut text = "# weft recording 1\nproc/cpuinfo = processor : 0\n".to_owned();
        for (index, name, megabits) in
            [(1, "lo", 0), (2, "mgmt0", 1_000), (3, "eth0", 100_000), (4, "docker0", 10_000)]
        {
            text += &format!(
                "sys/class/net/{name}/ifindex = {index}\nsys/class/net/{name}/operstate = up\nsys/class/net/{name}/flags = 0x1003\n"
            );
            text += &format!("sys/class/net/{name}/speed = {megabits}\n");
        }
        text += "proc/net/route = Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\\n\
                 eth0 00000000 0100000A 0003 0 0 0 00000000 0 0 0\\n\
                 eth0 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\\n\
                 mgmt0 0001A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\\n\
                 docker0 000011AC 00000000 0001 0 0 0 0000FFFF 0 0 0\n";
        text += "proc/net/fib_trie = Local:\\n |-- 10.0.0.4\\n  /32 host LOCAL\\n |-- 10.0.0.255\\n  /32 link BROADCAST\\n |-- 192.168.1.9\\n  /32 host LOCAL\n";
        Recorded::new(&text, changes)
    }

    fn fine(machine: &Recorded) -> String {
        match machine.run(&CHECKS[0]).as_slice() {
            [Outcome::Fine(sentence)] => sentence.clone(),
            other => panic!("{other:#?}"),
        }
    }

    #[test]
    fn the_order_is_nccls() {
        assert!(fine(&healthy(&[])).contains("ib0"));
        let named = host(&["proc/self/environ = NCCL_SOCKET_IFNAME=eth"]);
        assert!(fine(&named).starts_with("NCCL would choose eth0 (10.0.0.4, 100 Gb/s) for its handshake and data between hosts: NCCL_SOCKET_IFNAME is eth"));
        let by_id = host(&["proc/self/environ = NCCL_COMM_ID=10.0.0.77:5000"]);
        assert!(
            fine(&by_id).contains("eth0 (10.0.0.4, 100 Gb/s)")
                && fine(&by_id).ends_with("in the subnet of NCCL_COMM_ID")
        );
        let first = host(&["sys/class/net/mgmt0/operstate = down"]);
        assert!(fine(&first).ends_with("is not docker, lo or virbr"));
        let excluded = host(&["proc/self/environ = NCCL_SOCKET_IFNAME=^mgmt,docker,lo"]);
        assert!(fine(&excluded).contains("eth0"));
    }

    #[test]
    fn bad_choices_are_found() {
        let slow = host(&[]).finding(&CHECKS[0]);
        assert!(
            slow.what.contains("choose mgmt0 (192.168.1.9, 1 Gb/s)")
                && slow.fixes[0] == "export NCCL_SOCKET_IFNAME=eth0",
            "{slow:#?}"
        );
        let docker = host(&["proc/self/environ = NCCL_SOCKET_IFNAME=docker0"]).finding(&CHECKS[0]);
        assert!(docker.what.contains("docker0") && docker.what.contains("other hosts cannot reach"));
        let missing = host(&["proc/self/environ = NCCL_SOCKET_IFNAME=eno"]).finding(&CHECKS[0]);
        assert_eq!(missing.severity, Severity::Critical);
        assert!(missing.what.ends_with("no interface has such a name"));
        let down = ["eth0", "mgmt0", "docker0"].map(|name| format!("sys/class/net/{name}/operstate = down"));
        let down: Vec<&str> = down.iter().map(String::as_str).collect();
        let alone = host(&down).finding(&CHECKS[0]);
        assert!(
            alone.severity == Severity::Note && alone.what.contains("choose lo (127.0.0.1)"),
            "{alone:#?}"
        );
        let several = [down.as_slice(), &["proc/self/environ = WORLD_SIZE=16\\nLOCAL_WORLD_SIZE=8"]].concat();
        assert_eq!(host(&several).finding(&CHECKS[0]).severity, Severity::Critical);
        let address = host(&["proc/net/route = Iface", "proc/self/environ = NCCL_SOCKET_IFNAME=eth0"])
            .finding(&CHECKS[0]);
        assert!(address.what.ends_with("eth0 has no address"));
    }

    #[test]
    fn without_addresses_it_is_unknown() {
        assert!(is_unknown(&bare(&[]).run(&CHECKS[0])));
        assert!(is_fine(&healthy(&[]).run(&CHECKS[0])));
    }

    #[test]
    fn lists_of_names_are_nccls() {
        for (list, name, fits) in [
            ("ib", "ibs3", true),
            ("=ib", "ibs3", false),
            ("^docker,lo", "lo", false),
            ("eth0:1,en", "ens3", true),
            ("=eth0", "eth0", true),
        ] {
            assert_eq!(matches(list, name), fits, "{list} {name}");
        }
    }
}
