//! Errors of topology XML, with line and reason.

use std::fmt::Write as _;

use weftlink_fabric::format::{self, ReadError, xml};

/// A file with some lines in its `<cpu>`, the first of them on line 3.
fn file(lines: &str) -> String {
    format!("<system version=\"1\">\n<cpu numaid=\"0\">\n{lines}\n</cpu>\n</system>\n")
}

/// Five lines, with `links` on the third.
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
fn files_of_other_formats() {
    refused("", "line 1: the file has no <system> element");
    refused("<!-- nothing -->\n\n", "line 1: the file has no <system> element");
    refused(
        "\n<graphs version=\"1\"/>",
        "line 2: the root element is <graphs>, expected <system>: this is a graph file (NCCL_GRAPH_FILE), not a \
         topology file (NCCL_TOPO_FILE)",
    );
    refused(
        "<pci busid=\"0000:01:00.0\"/>",
        "line 1: the root element is <pci>, expected <system>: this is a part of a topology file",
    );
    refused("<system/>", "line 1: <system> has no version; add version=\"1\" (NCCL) or version=\"2\" (RCCL)");
    refused("<system version=\"3\"/>", "line 1: <system> has version 3, expected 1 (NCCL) or 2 (RCCL)");
    refused(
        "<system version=\"2\">\n<group name=\"x\"><cpu/></group></system>",
        "line 1: <system> has no <cpu>, so it describes no machine; <group> on line 2 is not part of NCCL's format",
    );
}

#[test]
fn truncated_and_malformed_files() {
    refused(
        "<system version=\"1\">\n<cpu numaid=\"0\">\n<pci busid=\"0000:01:00.0\">\n\n",
        "line 3: the file is truncated: <pci> on line 3 has no end tag",
    );
    for torn in ["<cpu numaid=\"0", "<!-- cpu", "<cpu", "<", "</sys"] {
        refused(
            &format!("<system version=\"1\">\n{torn}"),
            "line 2: the file is truncated: the tag or comment here does not end",
        );
    }
    refused(
        "<system version=\"1\">\n<cpu>\n</system>",
        "line 3: found </system>, expected </cpu> for line 2",
    );
    refused("<system version=\"1\"/>\n</cpu>", "line 2: </cpu> without a <cpu> before it; remove it");
    refused(&file("hello"), "line 3: unexpected text `hello` between elements; remove it");
    refused(&file("a &amp; b"), "line 3: unexpected text `a` between elements; remove it");
}

#[test]
fn malformed_attributes() {
    refused(&file("<pci/>"), "line 3: <pci> has no `busid`");
    refused(&file("<pci busid=\"east\"/>"), "line 3: `east` is not a PCI bus id; write it as 0000:17:00.0");
    refused(
        &file("<pci busid=\"0000:01:00.0\" a\"b=\"c\"/>"),
        "line 3: the file is truncated: the tag or comment here does not end",
    );
    refused(
        &file("<pci busid=\"0000:01:00.0\" caf\u{e9}=\"c\"/>"),
        "line 3: `caf\u{e9}` is not a valid attribute name",
    );
    refused(
        &file(&format!("<pci busid=\"0000:01:00.0\" note=\"{}\"/>", "x".repeat(300))),
        "line 3: attribute `note` is longer than 255 characters, which is NCCL's limit",
    );
}

#[test]
fn links_that_lead_nowhere() {
    refused(
        &file(&nvlink("count=\"1\" tclass=\"0x030200\"")),
        "line 5: the <nvlink> target 0000:99:00.0 is not in this file; add that GPU, or remove the <nvlink> if the GPU \
         is left out on purpose",
    );
    refused(
        &file(&nvlink("count=\"1\"")),
        "line 5: <nvlink> has no `tclass`, the PCI class of its target (0x030200 for a GPU, 0x068000 for a switch)",
    );
    refused(&file(&nvlink("tclass=\"0x068000\"")), "line 5: <nvlink> has no `count`");
    refused(
        &file(&nvlink("count=\"4000000000\" tclass=\"0x068000\"")),
        "line 5: 4000000000 links between two devices; the limit is 1000",
    );
    let not_a_gpu = nvlink("count=\"1\" tclass=\"0x030200\"");
    refused(
        &file(&format!("<pci busid=\"0000:99:00.0\"/>\n{not_a_gpu}")),
        "line 6: the <nvlink> target 0000:99:00.0 is not a GPU, but its tclass is that of one",
    );
}

#[test]
fn duplicate_bus_ids() {
    refused(
        &file(&format!("{}\n{}", gpu("0000:01:00.0", ""), gpu("01:00.0", ""))),
        "line 8: duplicate bus id 0000:01:00.0; a GPU cannot share its bus id",
    );
    refused(
        &file(
            "<pci busid=\"0000:01:00.0\">\n<pci busid=\"0000:02:00.0\">\n<pci busid=\"0000:01:00.0\"/></pci></pci>",
        ),
        "line 5: <pci> 0000:01:00.0 is inside another <pci> with the same bus id; correct one of them",
    );
}

#[test]
fn limits() {
    refused(
        &format!("<system version=\"1\"><cpu>\n{}", "<pci busid=\"1\">".repeat(4 << 20)),
        "line 2: elements are nested more than 256 levels deep, which is the limit",
    );
    refused(
        &format!("<system version=\"1\">{}", "<x>".repeat(16 << 20)),
        "line 1: elements are nested more than 256 levels deep, which is the limit",
    );
    let mut many = String::from("<system version=\"1\">\n<cpu>");
    for bus in 0..40_000 {
        let _ = write!(many, "<pci busid=\"{bus:x}\"/>");
    }
    refused(&many, "line 2: the file has more than 32768 elements, which is the limit");
    refused(
        &format!("<system version=\"1\">\n{}</system>", "<cpu/>".repeat(200)),
        "line 2: one host has more than 128 <cpu>, which is the limit",
    );
    let mut attributes = String::from("<system version=\"1\">\n<cpu");
    for number in 0..100 {
        let _ = write!(attributes, " a{number}=\"\"");
    }
    refused(
        &format!("{attributes}/></system>"),
        "line 2: too many attributes: the limit is 64 per element and 524288 per file",
    );
    let large = vec![b'<'; 100_000_000];
    assert_eq!(format::read(&large, "large", None), Err(ReadError::TooLarge { bytes: 100_000_000 }));
}
