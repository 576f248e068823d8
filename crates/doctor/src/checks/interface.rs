//! Which network interface NCCL chooses for its handshake (and for data, if there is no RDMA), and why.
//!
//! The order is that of NCCL 2.30's source (`ncclFindInterfaces`): `NCCL_SOCKET_IFNAME`, names that begin with `ib`, the subnet of
//! `NCCL_COMM_ID`, anything but docker, lo and virbr, then docker, lo, virbr. Before 2.28, virbr counted as anything. It considers
//! interfaces that are up with a carrier and an address, IPv4 first, in the kernel's order.

use std::net::Ipv4Addr;

use weftlink_probe::Tree;

use super::host_reads as reads;
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) static CHECKS: &[Check] = &[Check {
    id: "nccl-interface",
    finds: "a network interface that NCCL would choose and other hosts cannot reach, or a slow one",
    reads: "/sys/class/net, /proc/net/{route,fib_trie,if_inet6}, NCCL_SOCKET_IFNAME, NCCL_COMM_ID",
    run: interface,
}];

/// Interfaces whose other end is on the same host, or a tunnel, by the beginnings of their names.
const VIRTUAL: [&str; 16] = [
    "docker",
    "virbr",
    "br-",
    "veth",
    "cni",
    "flannel",
    "cali",
    "podman",
    "lxc",
    "lxdbr",
    "tun",
    "tap",
    "wg",
    "tailscale",
    "dummy",
    "kube",
];
/// A chosen interface this many times slower than another is a mistake.
const SLOWER: u64 = 4;
/// Lines of a table of routes or addresses.
const LINES_MAX: usize = 4096;

/// A network interface.
#[derive(Clone, Debug, Default)]
struct Interface {
    name: String,
    index: u64,
    is_running: bool,
    /// It has an address of IPv4; the address, where it is known.
    ipv4: Option<Option<Ipv4Addr>>,
    has_ipv6: bool,
    /// Network and mask of its routes without a gateway.
    subnets: Vec<(u32, u32)>,
    /// Zero if unknown.
    megabits: u64,
}

impl Interface {
    fn has_address(&self) -> bool {
        self.ipv4.is_some() || self.has_ipv6
    }

    fn is_usable(&self) -> bool {
        self.is_running && self.has_address()
    }

    /// `lo`, a bridge of containers, a tunnel.
    fn is_local(&self) -> bool {
        self.name == "lo" || VIRTUAL.iter().any(|prefix| self.name.starts_with(prefix))
    }

    /// `eth0 (10.0.0.4, 100 Gb/s)`.
    fn described(&self) -> String {
        let address = match self.ipv4 {
            Some(Some(address)) => address.to_string(),
            Some(None) => "IPv4".to_owned(),
            None => "IPv6".to_owned(),
        };
        match self.megabits {
            0 => format!("{} ({address})", self.name),
            megabits => format!("{} ({address}, {} Gb/s)", self.name, megabits as f64 / 1000.0),
        }
    }
}

/// All interfaces in the order in which NCCL sees them; None if their addresses cannot be read.
fn interfaces(tree: &dyn Tree) -> Option<Vec<Interface>> {
    let (routes, ipv6) = (tree.read("proc/net/route"), tree.read("proc/net/if_inet6"));
    if routes.is_none() && ipv6.is_none() {
        return None;
    }
    let locals = local_addresses(&tree.read("proc/net/fib_trie").unwrap_or_default());
    let mut all: Vec<Interface> = reads::interfaces(tree)
        .into_iter()
        .map(|name| {
            let file = |file: &str| format!("{}/{name}/{file}", reads::NET);
            let state = tree.read(&file("operstate")).unwrap_or_default();
            let flags = reads::number(tree, &file("flags")).unwrap_or(0);
            let routed = routes_of(routes.as_deref().unwrap_or_default(), &name);
            let subnets: Vec<(u32, u32)> = routed
                .iter()
                .filter(|(_, gateway, mask)| *gateway == 0 && *mask != 0)
                .map(|(network, _, mask)| (*network, *mask))
                .collect();
            let own = locals
                .iter()
                .copied()
                .find(|local| subnets.iter().any(|(network, mask)| u32::from(*local) & mask == *network));
            let ipv4 = match name.as_str() {
                "lo" => Some(Some(Ipv4Addr::LOCALHOST)),
                _ if routed.is_empty() => None,
                _ => Some(own),
            };
            let last = |line: &str| line.split_whitespace().last() == Some(&name);
            Interface {
                index: reads::number(tree, &file("ifindex")).unwrap_or(u64::MAX),
                is_running: flags & 1 == 1 && matches!(state.as_str(), "up" | "unknown"),
                ipv4,
                has_ipv6: name != "lo"
                    && ipv6.as_deref().unwrap_or_default().lines().take(LINES_MAX).any(last),
                subnets,
                megabits: reads::number(tree, &file("speed"))
                    .filter(|megabits| *megabits < 10_000_000)
                    .unwrap_or(0),
                name,
            }
        })
        .collect();
    all.sort_by_key(|interface| (interface.ipv4.is_none(), interface.index));
    Some(all)
}

/// Network, gateway and mask of an interface's routes in `/proc/net/route`, whose numbers are in the byte order of the machine.
fn routes_of(table: &str, name: &str) -> Vec<(u32, u32, u32)> {
    let route = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok().map(u32::swap_bytes);
        (words.first() == Some(&name)).then(|| Some((number(1)?, number(2)?, number(7)?)))?
    };
    table.lines().take(LINES_MAX).filter_map(route).collect()
}

/// The addresses of this host in `/proc/net/fib_trie`: a line with the address is followed by `/32 host LOCAL`.
fn local_addresses(trie: &str) -> Vec<Ipv4Addr> {
    let mut locals = Vec::new();
    let mut last = None;
    for line in trie.lines().take(LINES_MAX) {
        match line.trim().strip_prefix("|-- ") {
            Some(address) => last = address.trim().parse::<Ipv4Addr>().ok(),
            None if line.contains("/32 host LOCAL") => locals.extend(last.take()),
            None => {}
        }
    }
    locals
}

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
