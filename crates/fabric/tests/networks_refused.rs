//! Mistakes in files of networks, and inputs that are no such files.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use weftlink_fabric::format::network::HostNetwork;
use weftlink_fabric::format::{ReadError, hwloc, ibnetdiscover, slurm};

/// Two nodes below one switch.
const DISCOVERED: &str = "\
switchguid=0xf0(f0)
Switch 40 \"S-00000000000000f0\" # \"MF0;leaf01:MQM8700/U1\" enhanced port 0 lid 1 lmc 0
[1] \"H-00000000000000a1\"[1](a1) # \"node1 mlx5_0\" lid 2 4xHDR
[2] \"H-00000000000000a2\"[1](a2) # \"node2 mlx5_0\" lid 3 4xHDR

caguid=0xa1
Ca 1 \"H-00000000000000a1\" # \"node1 mlx5_0\"
[1](a1) \"S-00000000000000f0\"[1] # lid 2 lmc 0 \"MF0;leaf01:MQM8700/U1\" lid 1 4xHDR

caguid=0xa2
Ca 1 \"H-00000000000000a2\" # \"node2 mlx5_0\"
[1](a2) \"S-00000000000000f0\"[2] # lid 3 lmc 0 \"MF0;leaf01:MQM8700/U1\" lid 1 4xHDR
";

fn error(read: Result<HostNetwork, ReadError>) -> String {
    read.unwrap_err().to_string()
}

#[test]
fn ibnetdiscover_errors_name_the_line() {
    let with = |from: &str, to: &str| {
        assert!(DISCOVERED.contains(from), "{from}");
        ibnetdiscover::read(DISCOVERED.replacen(from, to, 1).as_bytes())
    };
    for (from, to, expected) in [
        ("switchguid", "hello", "line 1: `hello=0xf0(f0)` is not a line of ibnetdiscover"),
        ("Switch 40", "#", "line 3: a port without a node"),
        ("4xHDR", "", "line 3: the cable has no width and rate"),
        ("[2] \"H", "[1] \"H", "line 4: port 1 of node 00000000000000f0 has another cable on line 3"),
        ("\"S-00000000000000f0\"[2]", "\"S-00000000000000f0\"[1]", "line 12: port 1 of node"),
        ("Ca 1 \"H-00000000000000a2\"", "Ca 1 \"H-00000000000000a1\"", "line 11: a second section"),
    ] {
        let text = error(with(from, to));
        assert!(text.starts_with(expected), "{from} -> {to}: {text}");
    }
    assert!(error(ibnetdiscover::read(b"# nothing\n")).contains("no switch and no adapter"));
}

#[test]
fn odd_networks_are_read_with_a_note() {
    let notes =
        |text: &str| ibnetdiscover::read(text.as_bytes()).unwrap().bare("x").unwrap().notes().join("\n");
    let cut: String = DISCOVERED.lines().take(8).collect::<Vec<_>>().join("\n");
    assert!(notes(&cut).contains("1 nodes are named as peers only"), "{}", notes(&cut));
    let localhost = DISCOVERED.replace("node1", "localhost").replace("node2", "localhost");
    assert!(
        notes(&localhost).contains("each is shown as a host: H-00000000000000a2"),
        "{}",
        notes(&localhost)
    );
    let sharp = DISCOVERED.replace("node2 mlx5_0", "Mellanox Technologies Aggregation Node");
    assert_eq!(ibnetdiscover::read(sharp.as_bytes()).unwrap().bare("x").unwrap().hosts().len(), 1);
    let looped = DISCOVERED.replace("\"H-00000000000000a1\"[1](a1) #", "\"S-00000000000000f0\"[3] #");
    let looped: String = looped.lines().take(4).collect::<Vec<_>>().join("\n");
    assert!(notes(&looped).contains("from a node to itself"), "{}", notes(&looped));
}

#[test]
fn names_from_files_are_safe_to_print() {
    let evil = DISCOVERED.replace("node1", "n\u{1b}]0;x\u{7}").replace("leaf01", "l\u{9b}31m");
    let fabric = ibnetdiscover::read(evil.as_bytes()).unwrap().bare("x").unwrap();
    let names = fabric.device_ids().map(|id| fabric.device_name(id));
    assert!(names.chain(fabric.notes().to_vec()).all(|name| !name.chars().any(char::is_control)));
    let error = error(ibnetdiscover::read(b"\x1b[31m boo"));
    assert!(!error.chars().any(char::is_control), "{error:?}");
}

#[test]
fn slurm_errors_name_the_line() {
    for (text, expected) in [
        ("# no switch\n", "line 1: no switch or block has Nodes="),
        ("SwitchName=a Nodes=n1\n\nNodes=n2", "line 3: expected SwitchName="),
        ("SwitchName=a Nodes=n1 Switches=b", "line 1: a switch has Nodes= or Switches=, not both"),
        ("SwitchName=a", "line 1: `a` has neither"),
        ("SwitchName=a[1-2] Nodes=n1", "line 1: `a[1-2]` is a list"),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", "line 2: `a` is defined twice"),
        ("SwitchName=a Nodes=n1,n1", "line 1: node n1 is listed twice"),
        ("SwitchName=a Nodes=n[0-999999999]", "line 1: Nodes: the list has 1000000000 names"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Switches=c", "line 2: no switch is called `c`"),
        (
            "SwitchName=a Nodes=n1\nSwitchName=b Switches=a,c\nSwitchName=c Switches=b",
            "line 2: `b` is below itself",
        ),
        ("BlockName=a Nodes=n1\nBlockName=b Nodes=n1", "line 2: node n1 is in another block"),
        ("BlockName=a Nodes=n1\nSwitchName=b Nodes=n2", "line 2: the file has switches and blocks"),
        ("BlockName=a Switches=b", "line 1: a block has Nodes="),
        ("BlockName=a SwitchName=b Nodes=n", "line 1: a line defines a switch or a block"),
    ] {
        let text_of = error(slurm::read(text.as_bytes()));
        assert!(text_of.starts_with(expected), "{text}: {text_of}");
    }
    let many: String = (0..1000).map(|n| format!("SwitchName=s{n} Nodes=n[1-100000]\n")).collect();
    assert!(error(slurm::read(many.as_bytes())).contains("the limit"), "hosts are counted over all lines");
}

/// Pieces of all three formats, in random order.
fn soup() -> impl Strategy<Value = String> {
    let pieces = [
        "Switch 40 ",
        "Ca 1 ",
        "\"S-f0\"",
        "\"H-a1\"",
        "[1]",
        "[2]",
        " # ",
        "\"node1 mlx5_0\"",
        " lid 1 4xHDR",
        "\n",
        "SwitchName=",
        "Switches=",
        "Nodes=",
        "BlockName=",
        "a",
        "b[1-3]",
        "n[0-999999999]",
        ",",
        " ",
        "\\\n",
        "<topology version=\"2.0\">",
        "</topology>",
        "<object type=\"Machine\">",
        "</object>",
        "<object type=\"Bridge\" ",
        "<object type=\"PCIDev\" ",
        "pci_busid=\"0000:01:00.0\" ",
        "pci_type=\"0302 [10de:2330]\" ",
        "pci_link_speed=\"31.5\"",
        ">",
        "/>",
        "<info name=\"HostName\" value=\"&quot;\"/>",
        "\u{1b}",
        "é",
    ];
    proptest::collection::vec((0..pieces.len()).prop_map(move |piece| pieces[piece]), 0..60)
        .prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn readers_never_panic(text in soup()) {
        for network in [ibnetdiscover::read(text.as_bytes()), slurm::read(text.as_bytes())].into_iter().flatten() {
            prop_assert!(network.bare("x").is_ok());
        }
        let _ = hwloc::read(text.as_bytes(), "x");
    }

    #[test]
    fn a_damaged_file_is_read_or_refused(at in 0..DISCOVERED.len(), byte in any::<u8>()) {
        let mut bytes = DISCOVERED.as_bytes().to_vec();
        bytes[at] = byte;
        if let Ok(network) = ibnetdiscover::read(&bytes) {
            prop_assert!(network.bare("x").is_ok());
        }
    }
}
