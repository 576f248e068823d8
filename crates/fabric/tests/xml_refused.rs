//! Topology XML that is refused: each mistake with the line it is on and a reason.

use std::fmt::Write as _;

use weftlink_fabric::format::{self, ReadError, xml};

/// A file around some lines; the first of them is line 3.
fn file(lines: &str) -> String {
    format!("<system version=\"1\">\n<cpu numaid=\"0\">\n{lines}\n</cpu>\n</system>\n")
}

/// Five lines: the third is what the GPU holds.
fn gpu(bus: &str, links: &str) -> String {
    format!(
        "<pci busid=\"{bus}\" class=\"0x030200\">\n<gpu dev=\"0\" sm=\"90\" rank=\"0\">\n{links}\n</gpu>\n</pci>"
    )
}

fn nvlink(rest: &str) -> String {
    gpu("0000:01:00.0", &format!("<nvlink target=\"0000:99:00.0\" {rest}/>"))
}

#[track_caller]
fn refused(input: &str, expected: &str) {
    let error = xml::read(input.as_bytes(), "bad").expect_err(expected);
    assert_eq!(error.to_string(), expected);
}

#[test]
fn what_is_no_topology_file() {
    refused("", "line 1: the file ends without a <system> element");
    refused("<!-- nothing -->\n\n", "line 1: the file ends without a <system> element");
    refused(
        "\n<graphs version=\"1\"/>",
        "line 2: the root element is <graphs>, and a topology file has <system>: this is a graph file \
         (NCCL_GRAPH_FILE), not a topology file (NCCL_TOPO_FILE)",
    );
    refused(
        "<pci busid=\"0000:01:00.0\"/>",
        "line 1: the root element is <pci>, and a topology file has <system>: this is a piece of a topology file",
    );
    refused("<system/>", "line 1: <system> has no version; NCCL writes version=\"1\" and RCCL version=\"2\"");
    refused("<system version=\"3\"/>", "line 1: <system> has version 3; NCCL writes 1 and RCCL 2");
    refused(
        "<system version=\"2\">\n<group name=\"x\"><cpu/></group></system>",
        "line 1: <system> holds no <cpu>, so it describes no machine; <group> on line 2 is not of NCCL's format",
    );
}

#[test]
fn what_is_truncated_or_torn() {
    refused(
        "<system version=\"1\">\n<cpu numaid=\"0\">\n<pci busid=\"0000:01:00.0\">\n\n",
        "line 3: the file ends inside <pci> of line 3; it is truncated",
    );
    for torn in ["<cpu numaid=\"0", "<!-- cpu", "<cpu", "<", "</sys"] {
        refused(
            &format!("<system version=\"1\">\n{torn}"),
            "line 2: the file ends inside what begins here; it is truncated",
        );
    }
    refused(
        "<system version=\"1\">\n<cpu>\n</system>",
        "line 3: </system> stands where <cpu> of line 2 should end",
    );
    refused("<system version=\"1\"/>\n</cpu>", "line 2: </cpu> ends nothing");
    refused(&file("hello"), "line 3: `hello` stands between elements");
    refused(&file("a &amp; b"), "line 3: `a` stands between elements");
}

#[test]
fn attributes_that_make_no_sense() {
    refused(&file("<pci/>"), "line 3: pci has no busid");
    refused(&file("<pci busid=\"east\"/>"), "line 3: `east` is not a PCI bus id such as 0000:17:00.0");
    refused(
        &file("<pci busid=\"0000:01:00.0\" a\"b=\"c\"/>"),
        "line 3: the file ends inside what begins here; it is truncated",
    );
    refused(
        &file("<pci busid=\"0000:01:00.0\" caf\u{e9}=\"c\"/>"),
        "line 3: `caf\u{e9}` is no name for an attribute",
    );
    refused(
        &file(&format!("<pci busid=\"0000:01:00.0\" note=\"{}\"/>", "x".repeat(300))),
        "line 3: attribute `note` is longer than 255 characters; NCCL refuses that",
    );
}

#[test]
fn links_that_lead_nowhere() {
    refused(
        &file(&nvlink("count=\"1\" tclass=\"0x030200\"")),
        "line 5: nvlink target 0000:99:00.0 is no device of this file; add that GPU, or remove the nvlink if it is \
         left out on purpose",
    );
    refused(
        &file(&nvlink("count=\"1\"")),
        "line 5: nvlink has no tclass, the PCI class of its target (0x030200 for a GPU, 0x068000 for a switch)",
    );
    refused(&file(&nvlink("tclass=\"0x068000\"")), "line 5: nvlink has no count");
    refused(
        &file(&nvlink("count=\"4000000000\" tclass=\"0x068000\"")),
        "line 5: 4000000000 links between two devices; no GPU has more than 1000",
    );
    let not_a_gpu = nvlink("count=\"1\" tclass=\"0x030200\"");
    refused(
        &file(&format!("<pci busid=\"0000:99:00.0\"/>\n{not_a_gpu}")),
        "line 6: nvlink target 0000:99:00.0 is no GPU, but its tclass says so",
    );
}

#[test]
fn bus_ids_that_cannot_be() {
    refused(
        &file(&format!("{}\n{}", gpu("0000:01:00.0", ""), gpu("01:00.0", ""))),
        "line 8: pci 0000:01:00.0 is there already; a GPU cannot share its bus id",
    );
    refused(
        &file(
            "<pci busid=\"0000:01:00.0\">\n<pci busid=\"0000:02:00.0\">\n<pci busid=\"0000:01:00.0\"/></pci></pci>",
        ),
        "line 5: pci 0000:01:00.0 lies inside itself; a bus cannot hold its own bridge",
    );
}

#[test]
fn absurd_amounts() {
    refused(
        &format!("<system version=\"1\"><cpu>\n{}", "<pci busid=\"1\">".repeat(4 << 20)),
        "line 2: elements are nested more than 256 deep; no machine is",
    );
    refused(
        &format!("<system version=\"1\">{}", "<x>".repeat(16 << 20)),
        "line 1: elements are nested more than 256 deep; no machine is",
    );
    let mut many = String::from("<system version=\"1\">\n<cpu>");
    for bus in 0..40_000 {
        let _ = write!(many, "<pci busid=\"{bus:x}\"/>");
    }
    refused(&many, "line 2: more than 32768 elements; no machine has so many devices");
    refused(
        &format!("<system version=\"1\">\n{}</system>", "<cpu/>".repeat(200)),
        "line 2: more than 128 <cpu> of one host; no machine has so many NUMA nodes",
    );
    let mut attributes = String::from("<system version=\"1\">\n<cpu");
    for number in 0..100 {
        let _ = write!(attributes, " a{number}=\"\"");
    }
    refused(
        &format!("{attributes}/></system>"),
        "line 2: too many attributes; an element may have 64, a file 524288",
    );
    let large = vec![b'<'; 100_000_000];
    assert_eq!(format::read(&large, "large", None), Err(ReadError::TooLarge { bytes: 100_000_000 }));
}
