//! Network interfaces and their addresses, in the order in which `getifaddrs` lists them: IPv4 first, by the kernel's numbers.

use std::net::Ipv4Addr;

use weftlink_probe::Tree;

use super::host_reads as reads;

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
/// Lines of a table of routes or addresses.
const LINES_MAX: usize = 4096;

/// A network interface.
#[derive(Clone, Debug, Default)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u64,
    pub(super) is_running: bool,
    /// It has an address of IPv4; the address, where it is known.
    ipv4: Option<Option<Ipv4Addr>>,
    has_ipv6: bool,
    /// Network and mask of its routes without a gateway.
    pub(super) subnets: Vec<(u32, u32)>,
    /// Zero if unknown.
    pub(super) megabits: u64,
}

impl Interface {
    pub(super) fn has_address(&self) -> bool {
        self.ipv4.is_some() || self.has_ipv6
    }

    pub(super) fn is_usable(&self) -> bool {
        self.is_running && self.has_address()
    }

    /// `lo`, a bridge of containers, a tunnel.
    pub(super) fn is_local(&self) -> bool {
        self.name == "lo" || VIRTUAL.iter().any(|prefix| self.name.starts_with(prefix))
    }

    /// `eth0 (10.0.0.4, 100 Gb/s)`.
    pub(super) fn described(&self) -> String {
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
pub(super) fn interfaces(tree: &dyn Tree) -> Option<Vec<Interface>> {
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
