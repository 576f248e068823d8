//! Names of hosts, adapters and switches from node descriptions.

use crate::format::network::names::{clean, clean_host};

/// `node001 mlx5_0` is adapter `mlx5_0` of host `node001`; `node001` alone is an adapter without a name. Other
/// descriptions, such as `MT23108 InfiniHost Mellanox Technologies`, name no host.
pub(super) fn host_and_adapter(description: &str) -> Option<(String, Option<String>)> {
    let words: Vec<&str> = description.split_whitespace().collect();
    let is_device = |word: &str| {
        let starts = ["HCA-", "mlx", "ib", "hfi", "qib", "bnxt", "roce"];
        starts.iter().any(|start| word.starts_with(start)) && word.ends_with(|c: char| c.is_ascii_digit())
    };
    match words.as_slice() {
        [host] => Some((clean_host(host), None)),
        [host, adapter] => Some((clean_host(host), Some(clean(adapter)))),
        [host, adapter, ..] if is_device(adapter) => Some((clean_host(host), Some(clean(adapter)))),
        _ => None,
    }
}

/// True for the adapter inside a switch that reduces data (SHARP); it is no host.
pub(super) fn is_aggregation_node(description: &str) -> bool {
    description.contains("Aggregation Node")
}

/// The name of a switch: that of the system in `MF0;leaf01:MQM9700/U1`, with the board of a chassis behind it, or else
/// the description.
pub(super) fn switch(description: &str) -> String {
    let managed = description.split_once(';').filter(|(module, _)| module.starts_with("MF"));
    let named = managed.and_then(|(_, rest)| rest.split_once(':'));
    let name = match named {
        Some((name, rest)) => match rest.split_once('/') {
            Some((_, board)) if board != "U1" => format!("{name}-{board}"),
            _ => name.to_owned(),
        },
        None => description.to_owned(),
    };
    clean(&name).replace('/', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_name_host_and_adapter() {
        let of = |text| {
            host_and_adapter(text).map(|(host, adapter)| format!("{host}|{}", adapter.unwrap_or_default()))
        };
        for (text, expected) in [
            ("node001 mlx5_0", Some("node001|mlx5_0")),
            ("node001 HCA-2", Some("node001|HCA-2")),
            ("atlas35", Some("atlas35|")),
            (" node001  mlx5_0 port 1", Some("node001|mlx5_0")),
            ("a/b mlx5_0", Some("a_b|mlx5_0")),
            ("MT23108 InfiniHost Mellanox Technologies", None),
            ("", None),
        ] {
            assert_eq!(of(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn switches_are_called_as_their_system() {
        for (text, expected) in [
            ("MF0;leaf01:MQM9700/U1", "leaf01"),
            ("MF0;core1:CS7520/L03/U2", "core1-L03-U2"),
            ("Quantum Mellanox Technologies", "Quantum Mellanox Technologies"),
            ("SW6 nodes [60-71]", "SW6 nodes [60-71]"),
            ("leaf\u{1b}1", "leaf?1"),
        ] {
            assert_eq!(switch(text), expected);
        }
    }
}
