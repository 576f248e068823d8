//! Removes from texts what identifies a machine or a person: host names, MAC addresses, GUIDs, UUIDs, serial numbers, IP addresses,
//! home folders, and all environment variables but those that choose GPUs and interfaces.

/// Prefixes of the environment variables that an inspection contains.
const VARIABLES: [&str; 14] = [
    "CUDA_", "NCCL_", "RCCL_", "NVIDIA_", "NVSHMEM_", "HIP_", "ROCR_", "ROCM_", "HSA_", "ZE_", "UCX_",
    "GLOO_", "OMP_", "WEFT_",
];
/// More variables, by their whole name.
const MORE_VARIABLES: [&str; 10] = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GPU_DEVICE_ORDINAL",
    "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "SLURM_GPU_BIND",
    "PYTORCH_CUDA_ALLOC_CONF",
];
/// Variables with such a word may hold a secret, an address or a name.
const SECRETS: [&str; 9] =
    ["SECRET", "TOKEN", "KEY", "PASS", "ADDR", "RENDEZVOUS", "COMM_ID", "HOSTID", "HOST_ID"];
/// Lines of the kernel's log that a recording keeps, by a word in them.
const LOG_WORDS: [&str; 23] = [
    "nvrm",
    "nvidia",
    "nvswitch",
    "nvlink",
    "xid",
    "pcie",
    "pci ",
    "pci:",
    "aer:",
    "mlx",
    "bnxt",
    "irdma",
    "efa",
    "iommu",
    "dmar",
    "infiniband",
    "carrier",
    "link is",
    "nic link",
    "bar ",
    "hardware error",
    "memory failure",
    "thermal",
];
/// Shorter host names are also words.
const HOST_BYTES_MIN: usize = 4;

/// The variables of `/proc/self/environ` that may be kept, in its format.
pub(super) fn environment(environ: &str) -> String {
    let kept = environ.split('\0').filter(|variable| {
        let Some((name, _)) = variable.split_once('=') else { return false };
        let wanted =
            VARIABLES.iter().any(|prefix| name.starts_with(prefix)) || MORE_VARIABLES.contains(&name);
        wanted && !SECRETS.iter().any(|word| name.contains(word))
    });
    kept.collect::<Vec<_>>().join("\0")
}

/// The lines of a kernel log that concern devices, without names of processes.
pub(super) fn kernel_log(log: &str, host: &str) -> String {
    let mut kept = Vec::new();
    for line in log.lines() {
        let lower = line.to_ascii_lowercase();
        if LOG_WORDS.iter().any(|word| lower.contains(word)) && !lower.contains("serialnumber") {
            kept.push(text(&without_process(line), host));
        }
    }
    kept.join("\n")
}

/// `pid=4711, name=python3, Ch 1`, `python3[4711]: segfault` and `SIGBUS to python3:4711` without the name.
fn without_process(line: &str) -> String {
    let line = match line.split_once("name=") {
        Some((before, rest)) => {
            let after = rest.find(", Ch").map_or("", |at| &rest[at..]);
            format!("{before}name=...{after}")
        }
        None => line.to_owned(),
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_process = |word: &str| {
        let word = word.trim_end_matches([':', ',']);
        let of_log = word.strip_suffix(']').and_then(|word| word.rsplit_once('['));
        let sent =
            word.rsplit_once(':').filter(|(name, _)| name.starts_with(|c: char| c.is_ascii_alphabetic()));
        of_log.or(sent).is_some_and(|(name, pid)| !name.is_empty() && is_number(pid))
    };
    let words = line.split(' ').map(|word| if is_process(word) { "(process)" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// A text without addresses, ids and names.
pub(super) fn text(original: &str, host: &str) -> String {
    let lines: Vec<String> = original.split('\n').map(|line| without_ids(&without_serial(line))).collect();
    without_home(&without_host(&lines.join("\n"), host))
}

/// `/proc/net/route` without gateways, and without networks but private ones.
pub(super) fn routes(table: &str) -> String {
    let line = |line: &str| {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if let [_, target, gateway, ..] = &mut words[..] {
            if u32::from_str_radix(gateway, 16).is_ok() {
                *gateway = "00000000";
            }
            // The bytes are in the order of the machine, which is little-endian everywhere that matters.
            match u32::from_str_radix(target, 16).map(u32::to_le_bytes) {
                Ok([0 | 10 | 127, ..] | [172, 16..=31, ..] | [192, 168, ..] | [169, 254, ..]) | Err(_) => {}
                Ok(_) => *target = "00000000",
            }
        }
        words.join("\t")
    };
    table.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn without_serial(line: &str) -> String {
    let at = line.to_ascii_lowercase().find("serial").filter(|at| line.is_char_boundary(*at));
    match at.and_then(|at| line[at..].find([':', '=']).map(|value| at + value + 1)) {
        Some(value) => format!("{} (removed)", &line[..value]),
        None => line.to_owned(),
    }
}

fn without_host(text: &str, host: &str) -> String {
    if host.len() < HOST_BYTES_MIN || host == "host0" || host == "localhost" || !text.contains(host) {
        return text.to_owned();
    }
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(host) {
        let (before, after) = (&rest[..at], &rest[at + host.len()..]);
        let in_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let is_whole = !in_word(before.chars().next_back()) && !in_word(after.chars().next());
        result.push_str(before);
        result.push_str(if is_whole { "host0" } else { host });
        rest = after;
    }
    result + rest
}

fn without_home(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("/home/") {
        let (before, after) = rest.split_at(at + "/home/".len());
        result.push_str(before);
        result.push_str("user");
        let end = after.find(|c: char| c == '/' || c.is_whitespace() || c == '\0').unwrap_or(after.len());
        rest = &after[end..];
    }
    result + rest
}

/// Zeroes addresses and ids. Each is a word of hexadecimal digits and separators.
fn without_ids(line: &str) -> String {
    let is_part = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | '-' | '.');
    let mut result = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(is_part) {
        let end = rest[start..].find(|c: char| !is_part(c)).map_or(rest.len(), |length| start + length);
        let word = &rest[start..end];
        let core = word.trim_matches([':', '-', '.']);
        let begins_inside = rest[..start].chars().next_back().is_some_and(char::is_alphanumeric)
            && word.starts_with(|c: char| c.is_ascii_hexdigit());
        let ends_inside = rest[end..].chars().next().is_some_and(char::is_alphanumeric)
            && word.ends_with(|c: char| c.is_ascii_hexdigit());
        result.push_str(&rest[..start]);
        match zeroed(core).filter(|_| !begins_inside && !ends_inside) {
            Some(plain) => result.push_str(&word.replacen(core, &plain, 1)),
            None => result.push_str(word),
        }
        rest = &rest[end..];
    }
    result + rest
}

/// The word with zeros for the digits that identify something; None if they do not.
fn zeroed(word: &str) -> Option<String> {
    let lengths = |separator: char| -> Vec<usize> { word.split(separator).map(str::len).collect() };
    let zeros = || word.replace(|c: char| c.is_ascii_hexdigit(), "0");
    let colons = lengths(':');
    // A MAC address, the hardware address of an InfiniBand interface, a GUID.
    if (matches!(colons.len(), 6 | 8 | 20) && colons.iter().all(|length| *length == 2)) || colons == [4; 4] {
        return Some(zeros());
    }
    // A GID; its prefix tells its type.
    if colons == [4; 8] {
        let groups: Vec<&str> = word.split(':').collect();
        let kept = if groups[5] == "ffff" { 6 } else { usize::from(word.starts_with("fe80")) };
        let is_empty = groups.iter().all(|group| *group == "0000");
        let plain = groups.iter().enumerate().map(|(at, group)| {
            let last = if at == 7 && !is_empty { "0001" } else { "0000" };
            if at < kept { group } else { last }
        });
        return Some(plain.collect::<Vec<_>>().join(":"));
    }
    // The last is that of BOOTIF, after the type of the network.
    if lengths('-') == [8, 4, 4, 4, 12] || lengths('-') == [2; 6] || lengths('-') == [2; 7] {
        return Some(zeros());
    }
    if word.contains("::") && word.parse::<std::net::Ipv6Addr>().is_ok_and(|address| !address.is_loopback()) {
        return Some("::".to_owned());
    }
    // `ip=` of the kernel's command line, or an address with a port.
    if word.contains('.') && word.contains(':') {
        let parts: Vec<String> =
            word.split(':').map(|part| zeroed(part).unwrap_or_else(|| part.to_owned())).collect();
        return Some(parts.join(":")).filter(|plain| plain != word);
    }
    // An IPv6 address as in /proc/net/if_inet6, or a UUID without hyphens.
    if word.len() == 32 && word.chars().all(|c| c.is_ascii_hexdigit()) {
        return Some(format!("{}{}1", &word[..4], "0".repeat(27)));
    }
    let is_ip = lengths('.').len() == 4 && word.split('.').all(|part| part.parse::<u8>().is_ok());
    (is_ip && !word.starts_with("127.")).then(|| "0.0.0.0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_removed_and_the_rest_is_kept() {
        for (with, without) in [
            ("GPU-b85ff46d-d5ea-c752-ddf3-c4453e44d3f7 is", "GPU-00000000-0000-0000-0000-000000000000 is"),
            ("mac 02:42:ac:11:00:02, up", "mac 00:00:00:00:00:00, up"),
            ("guid b8ce:f603:0012:3456", "guid 0000:0000:0000:0000"),
            ("fe80:0000:0000:0000:b8ce:f603:0012:3456", "fe80:0000:0000:0000:0000:0000:0000:0001"),
            ("0000:0000:0000:0000:0000:ffff:0a00:0105", "0000:0000:0000:0000:0000:ffff:0000:0001"),
            ("0000:0000:0000:0000:0000:0000:0000:0000", "0000:0000:0000:0000:0000:0000:0000:0000"),
            ("from 10.2.3.4: x", "from 0.0.0.0: x"),
            ("fe800000000000000242acfffe110002 03 40", "fe800000000000000000000000000001 03 40"),
            ("Serial Number : 1320823", "Serial Number : (removed)"),
            ("node17 kernel on node17-b", "host0 kernel on host0-b"),
            ("/home/ada/venv/libnccl.so.2", "/home/user/venv/libnccl.so.2"),
            ("BOOTIF=01-98-03-9b-aa-bb-cc ro", "BOOTIF=00-00-00-00-00-00-00 ro"),
            ("ip=10.0.0.5::10.0.0.1:255.255.255.0:node17:eno1", "ip=0.0.0.0::0.0.0.0:0.0.0.0:host0:eno1"),
            ("to 10.2.3.4:29500", "to 0.0.0.0:29500"),
            ("at fe80::9a03:9bff:feaa:bbcc", "at ::"),
        ] {
            assert_eq!(text(with, "node17"), without);
        }
        for kept in [
            "0000:17:00.0 10de:2330",
            "NVRM: Xid (PCI:0000:3b:00): 79",
            "570.133.20",
            "|-- 127.0.0.1",
            "96.00.74.00.01",
            "[   12.345678] x",
            "0-55,112-167",
            "node170 is another",
            "é:ü",
            "",
        ] {
            assert_eq!(text(kept, "node17"), kept);
        }
    }

    #[test]
    fn routes_keep_private_networks() {
        let table = "Iface\tDestination\tGateway \tFlags\neth0\t00000000\t0100000A\t0003\neth0\t0000000A\t00000000\t0001\nib0\t00081BCB\t017100CB\t1";
        assert_eq!(
            routes(table),
            "Iface\tDestination\tGateway\tFlags\neth0\t00000000\t00000000\t0003\neth0\t0000000A\t00000000\t0001\nib0\t00000000\t00000000\t1"
        );
    }

    #[test]
    fn only_known_variables_are_kept() {
        let environ = "PATH=/bin\0CUDA_VISIBLE_DEVICES=0,1\0AWS_SECRET=x\0NCCL_DEBUG=INFO\0NCCL_COMM_ID=10.0.0.1:9\0WEFT_KEY=k\0\0x";
        assert_eq!(environment(environ), "CUDA_VISIBLE_DEVICES=0,1\0NCCL_DEBUG=INFO");
    }

    #[test]
    fn the_log_keeps_lines_about_devices() {
        let log = "[1.0] usb 1-1: SerialNumber: 77\n[2.0] audit: user=ada\n[3.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=4, name=secret, Ch 1";
        assert_eq!(kernel_log(log, "h"), "[3.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=4, name=..., Ch 1");
    }

    /// Texts that readers of hardware may meet: nothing panics, and a text that was cleaned stays as it is.
    #[test]
    fn any_text_is_cleaned_once() {
        let parts = [
            "0", "af", "12", ":", "-", ".", "/home/", "serial", "=", " ", "\n", "é", "node17", "fe80",
            "ffff", "name=", ",", "\0",
        ];
        let mut state = 7_u64;
        for _ in 0..2_000 {
            let mut random = String::new();
            for _ in 0..40 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                random.push_str(parts[(state >> 33) as usize % parts.len()]);
            }
            let once = text(&random, "node17");
            assert_eq!(text(&once, "node17"), once, "{random:?}");
            kernel_log(&random, "node17");
            environment(&random);
        }
    }
}
