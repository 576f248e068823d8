//! The numbers of NCCL's functions, algorithms, protocols and data types, and the names that it passes in their place.
//!
//! Sources: `src/include/nccl_common.h`, `src/include/plugin/nccl_tuner.h` and `src/collectives.cc` of 2.30.7, which agree with 2.23 for the
//! numbers that 2.23 has. Newer versions have added at the end.

/// Functions, by number. The first five are collectives that a tuner is asked about.
pub const FUNCTIONS: [&str; 15] = [
    "Broadcast",
    "Reduce",
    "AllGather",
    "ReduceScatter",
    "AllReduce",
    "SendRecv",
    "Send",
    "Recv",
    "AlltoAll",
    "Scatter",
    "Gather",
    "AllGatherV",
    "PutSignal",
    "Signal",
    "WaitSignal",
];

/// The number of functions that a tuner is asked about.
pub const TUNED: usize = 5;

/// Algorithms, by number.
pub const ALGORITHMS: [&str; 7] =
    ["Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"];

/// Protocols, by number.
pub const PROTOCOLS: [&str; 3] = ["LL", "LL128", "Simple"];

/// Data types, by number.
pub const DATA_TYPES: [&str; 12] = [
    "Int8",
    "Uint8",
    "Int32",
    "Uint32",
    "Int64",
    "Uint64",
    "Float16",
    "Float32",
    "Float64",
    "Bfloat16",
    "Float8e4m3",
    "Float8e5m2",
];

/// The number of a name: case and punctuation do not matter (`NVLS_TREE`, `NVLSTree`), nor does the prefix of data types (`ncclFloat32`).
pub fn number(names: &[&str], name: &str) -> Option<usize> {
    let name = name.trim();
    let name = name.strip_prefix("nccl").unwrap_or(name);
    names.iter().position(|known| is_alike(known, name))
}

/// Whether two names have the same letters and digits.
fn is_alike(one: &str, other: &str) -> bool {
    fn folded(name: &str) -> impl Iterator<Item = u8> {
        name.bytes().filter(u8::is_ascii_alphanumeric).map(|byte| byte.to_ascii_lowercase())
    }
    folded(one).eq(folded(other))
}

/// The name of a number; `nothing` for one that is not known.
pub fn name<'n>(names: &[&'n str], number: usize, nothing: &'n str) -> &'n str {
    names.get(number).copied().unwrap_or(nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nccl_and_of_people_are_numbers() {
        for (names, name, expected) in [
            (&FUNCTIONS[..], "AllReduce", Some(4)),
            (&FUNCTIONS[..], "all-reduce", Some(4)),
            (&FUNCTIONS[..], "reduce_scatter", Some(3)),
            (&ALGORITHMS[..], "NVLS_TREE", Some(5)),
            (&ALGORITHMS[..], "COLLNET_DIRECT", Some(2)),
            (&PROTOCOLS[..], " ll128 ", Some(1)),
            (&DATA_TYPES[..], "ncclFloat32", Some(7)),
            (&DATA_TYPES[..], "ncclFloat8e5m2", Some(11)),
            (&ALGORITHMS[..], "", None),
            (&ALGORITHMS[..], "Ringo", None),
        ] {
            assert_eq!(number(names, name), expected, "{name}");
        }
        assert_eq!(name(&ALGORITHMS, 4, "?"), "NVLS");
        assert_eq!(name(&ALGORITHMS, 7, "?"), "?");
    }
}
