//! `weft topo` from the outside: what it must show, whatever it is asked of, and what it refuses.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::File;
use std::io::Write;
use std::path::Path;

use common::{Outcome, scratch, shell};

fn weft(folder: &Path, arguments: &str) -> Outcome {
    shell(folder, &format!("weft topo {arguments}"))
}

/// The output of a call that must go well.
fn shown(name: &str, arguments: &str) -> String {
    let done = weft(&scratch(name), arguments);
    assert_eq!(done.code, Some(0), "weft topo {arguments}\n{}", done.errors);
    done.output
}

#[test]
fn two_hgx_use_nvlink_inside_and_the_network_between() {
    let matrix = shown("pair", "\"2x hgx-h100 + 8x ndr\" --matrix");
    let row: Vec<&str> = matrix.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..2], ["0", "host0/gpu0"]);
    assert_eq!(row[2], "X");
    assert!(row[3..10].iter().all(|cell| *cell == "NV18"), "{row:?}");
    assert!(row[10..18].iter().all(|cell| *cell == "NET"), "{row:?}");
}

#[test]
fn rack_is_one_domain_of_130_tb_per_s() {
    let view = shown("rack", "gb200-nvl72");
    assert!(
        view.contains(
            "72 GPUs in one NVLink domain, 900 GB/s each way per GPU (130 TB/s both ways over all 72)"
        ),
        "{view}"
    );
    assert!(view.contains("(18 hosts like this)"), "{view}");
}

#[test]
fn cube_mesh_has_single_and_double_links() {
    let view = shown("cube", "dgx-1-v100");
    assert!(view.contains("gpu0  X     NV1   NV1   NV2   NV2   NVB   NVB   NVB"), "{view}");
}

#[test]
fn consumer_cards_explain_missing_nvlink() {
    let view = shown("cards", "2x-rtx4090");
    assert!(view.contains("no NVLink between them (Ada cards have no NVLink connector"), "{view}");
}

#[test]
fn every_system_shows_every_view() {
    let systems = shown("names", "--list");
    let names: Vec<&str> = systems
        .lines()
        .skip(1)
        .take_while(|line| !line.is_empty())
        .map(|line| line.split_once(' ').unwrap().0)
        .collect();
    assert!(names.len() > 30);
    for name in names {
        let view = shown(
            "views",
            &format!("{name} --tree --cliff --svg a.svg --dot a.dot --xml a.xml --toml a.toml"),
        );
        assert!(view.contains("numa0"), "{name}");
        assert!(shown("views", name).ends_with(".\n"), "{name}");
    }
}

#[test]
fn written_files_read_back() {
    let folder = scratch("written");
    let run = |arguments: &str| {
        let done = weft(&folder, arguments);
        assert_eq!(done.code, Some(0), "{arguments}: {}", done.errors);
        done.output
    };
    run("hgx-a100 --xml a.xml --toml a.toml --svg a.svg --dot a.dot");
    std::fs::write(folder.join("a.json"), run("hgx-a100 --json")).unwrap();
    let matrix = run("hgx-a100 --matrix");
    for file in ["a.xml", "a.toml", "a.json"] {
        assert_eq!(run(&format!("{file} --matrix")), matrix, "{file}");
    }
    let recorded = run("--record here.txt");
    assert!(recorded.is_empty());
    assert_eq!(run("here.txt --matrix"), run("--matrix"));
}

#[test]
fn wrong_arguments_and_files_exit_with_2() {
    let folder = scratch("misuse");
    std::fs::write(folder.join("bad.xml"), "<system version=\"1\">\n<cpu numaid=\"0\">\n").unwrap();
    for (arguments, code, told) in [
        ("bad.xml", 2, "line 2: the file is truncated: <cpu> on line 2"),
        ("nothere.xml", 2, "cannot read nothere.xml"),
        (".", 2, "cannot read"),
        ("hgx-h10", 2, "Did you mean `hgx-h100`"),
        ("\"2x hgx-h100 + 8x ndx\"", 2, "no network is called `ndx`"),
        ("hgx-h100 --gpu h100", 2, "--gpu: a GPU model applies only to the output of `nvidia-smi topo -m`"),
        ("hgx-h100 --path gpu0 gpu9", 2, "no device `gpu9`"),
        ("hgx-h100 --bytes 1GB", 2, "--path"),
        ("hgx-h100 --svg /nowhere/a.svg", 2, "cannot write /nowhere/a.svg"),
        ("--list planets", 2, "invalid value 'planets'"),
    ] {
        let done = weft(&folder, arguments);
        assert_eq!(done.code, Some(code), "{arguments}: {}", done.errors);
        assert!(done.errors.contains(told), "{arguments}: {}", done.errors);
        assert!(done.output.is_empty(), "{arguments}: {}", done.output);
    }
}

/// Files of up to 100 MB that are made to be costly. The shell limits the address space, so that a reader that
/// takes more than 256 MB is killed.
#[test]
fn hostile_files_are_refused_within_256_megabytes() {
    refuse_within_256_megabytes(
        "hostile",
        &[
            ("nested.xml", "<system version=\"1\">\n", "<cpu numaid=\"0\">\n", 100),
            ("nested-60.xml", "<system version=\"1\">\n", "<pci busid=\"0\">\n", 60),
            ("flat.xml", "<system version=\"1\">\n", "<cpu numaid=\"0\"/>\n", 60),
            ("comment.xml", "<!--", "- -", 60),
            ("nested.json", "{\"weft\": 1, \"host\": ", "[", 60),
            ("flat.json", "{\"weft\": 1, \"host\": [", "{},", 60),
            ("nested.toml", "weft = 1\nhost = ", "[", 60),
            ("flat.toml", "weft = 1\n", "[[host]]\n", 60),
            ("matrix.txt", "\tGPU0\tGPU1\n", "GPU0\tX\tNV4\n", 60),
            ("recording.txt", "# weft recording 1\n", "a = b\n", 60),
            ("zeros", "", "\0\0\0\0\0\0\0\0", 100),
        ],
    );
}

/// The same for files of networks and of lstopo.
#[test]
fn hostile_networks_are_refused_within_256_megabytes() {
    refuse_within_256_megabytes(
        "hostile-networks",
        &[
            ("list.conf", "SwitchName=a Nodes=a", ",a", 60),
            ("ranges.conf", "SwitchName=a Nodes=a[1", ",1", 60),
            ("continued.conf", "SwitchName=a Nodes=a", "\\\na", 60),
            ("short.conf", "SwitchName=a Nodes=a\n", "a\n", 60),
            ("empty.ibnet", "# Topology file: generated on a day\n", "\n", 6),
            ("flat-hwloc.xml", "<topology><object type=\"Machine\">", "<object type=\"Group\"/>", 60),
            ("nested-hwloc.xml", "<topology>", "<object type=\"Machine\">", 60),
        ],
    );
}

/// Refuses files of a head and many repetitions, up to a number of megabytes.
fn refuse_within_256_megabytes(name: &str, files: &[(&str, &str, &str, usize)]) {
    let folder = scratch(name);
    for (file, head, repeated, megabytes) in files {
        let mut out = File::create(folder.join(file)).unwrap();
        out.write_all(head.as_bytes()).unwrap();
        let megabyte = repeated.repeat(1_000_000 / repeated.len());
        for _ in 0..*megabytes {
            out.write_all(megabyte.as_bytes()).unwrap();
        }
        let done = shell(&folder, &format!("ulimit -v 262144; exec weft topo {file}"));
        assert_eq!(done.code, Some(2), "{file}: {}", done.errors);
        assert!(done.errors.starts_with(&format!("weft: {file}: ")), "{file}: {}", done.errors);
        assert!(done.errors.len() < 400, "{file}: {}", done.errors);
        std::fs::remove_file(folder.join(file)).unwrap();
    }
}

#[test]
fn closed_pipe_is_no_error() {
    let done = shell(
        &scratch("pipe"),
        "weft topo \"4x hgx-h100 + 8x ndr\" --matrix | head -1; weft topo --list | head -1",
    );
    assert_eq!(done.code, Some(0));
    assert!(done.errors.is_empty(), "{}", done.errors);
}

/// A sample file of a network or host.
fn sample(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name).display().to_string()
}

#[test]
fn hosts_of_a_network_file_get_a_type() {
    let network = sample("ibnetdiscover/missing-cable.ibnet");
    let alone = shown("network", &network);
    assert!(
        alone.contains("1 leaf switch (leaf02) with 4 x InfiniBand HDR down, 3 up to the spine"),
        "{alone}"
    );
    assert!(alone.replace('\n', " ").contains("name the type of the hosts, as in"), "{alone}");
    let route = shown("network", &format!("\"{network} + 2x-rtx4090\" --path node001/gpu0 node003/gpu1"));
    assert!(route.contains("node001/nic0") && route.contains("  leaf01\n"), "{route}");
    let host = sample("hwloc/four-h100.xml");
    let view = shown("network", &format!("\"{network} + {host}\""));
    assert!(view.contains("(4 hosts like this)") && view.contains("does not show NVLinks"), "{view}");
    let piped =
        shell(&scratch("network"), &format!("weft topo '/dev/stdin+2x-rtx4090' --cliff <'{network}'"));
    assert!(piped.output.contains("1.33 times as much"), "{}", piped.errors);
}

#[test]
fn network_files_are_refused_with_advice() {
    let tree = sample("slurm/tree.conf");
    for (arguments, advice) in [
        (format!("\"{tree} + hgx-h100\""), "+ hgx-h100 + 8x ndr"),
        (format!("\"{tree} + hgx-h10 + 8x ndr\""), "Did you mean `hgx-h100`"),
        (format!("\"{tree} + 8x ndr\""), "the file lists the hosts"),
        (format!("\"{tree} + gb200-nvl72 + 4x ndr\""), "name a system of one host"),
        (format!("\"{tree} + missing.xml\""), "cannot read missing.xml"),
        ("\"missing.conf + hgx-h100\"".to_owned(), "cannot read missing.conf"),
        (format!("\"{} + hgx-h100\"", sample("hwloc/four-h100.xml")), "not a network of hosts"),
        (format!("{tree} --gpu h100"), "--gpu"),
        (format!("\"{tree} + hgx-h100 + 8x ndr\" --gpu h100"), "--gpu"),
    ] {
        let done = weft(&scratch("refused-networks"), &arguments);
        assert_eq!(done.code, Some(2), "{arguments}");
        assert!(done.errors.contains(advice), "{arguments}\n{}", done.errors);
    }
}
