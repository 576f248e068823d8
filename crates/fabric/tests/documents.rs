//! Documents: reading, round trips, and the errors with their lines.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use weftlink_fabric::catalog::systems;
use weftlink_fabric::figure::Basis;
use weftlink_fabric::format::document::{WriteError, read_json, read_toml, write_json, write_toml};
use weftlink_fabric::{DeviceKind, Fabric, FabricBuilder, Link, LinkKind, LinkSpec, resolve};

const SLOW_RAIL: &[u8] = include_bytes!("../../../testdata/fabrics/slow-rail.toml");
const MIXED_LAB: &[u8] = include_bytes!("../../../testdata/fabrics/mixed-lab.toml");
const RING: &[u8] = include_bytes!("../../../testdata/fabrics/ring-of-four.json");

fn links<'a>(fabric: &'a Fabric, a: &str, b: &str) -> Vec<(&'a Link, &'a LinkSpec)> {
    let [a, b] = [a, b].map(|name| fabric.find(name).unwrap_or_else(|| panic!("no {name}")));
    (fabric.links_from(a).iter())
        .filter(|link| link.target == b)
        .map(|link| (link, fabric.spec(link)))
        .collect()
}

fn assert_reads_back(fabric: &Fabric) {
    let toml = write_toml(fabric).unwrap();
    let json = write_json(fabric).unwrap();
    for again in [read_toml(toml.as_bytes()).unwrap(), read_json(json.as_bytes()).unwrap()] {
        assert!(again == *fabric, "{}", fabric.name());
        assert_eq!(again.specs(), fabric.specs());
        assert_eq!(again.name(), fabric.name());
        assert_eq!(again.notes(), fabric.notes());
    }
}

#[test]
fn every_system_reads_back() {
    systems::all().for_each(|system| assert_reads_back(&system.fabric()));
}

#[test]
fn clusters_read_back() {
    for spec in ["2x hgx-h100 + 8x ndr", "3x gb200-nvl72 + 4x ndr, leaf-spine", "2x 2x-rtx4090"] {
        assert_reads_back(&resolve(spec).unwrap());
    }
}

#[test]
fn a_large_cluster_reads_back_from_json() {
    let fabric = resolve("32x gb200-nvl72 + 4x ndr").unwrap();
    assert!(read_json(write_json(&fabric).unwrap().as_bytes()).unwrap() == fabric);
    let error = read_toml(write_toml(&fabric).unwrap().as_bytes()).unwrap_err();
    assert!(error.to_string().contains("JSON"), "{error}");
}

#[test]
fn overrides_change_the_named_links() {
    let fabric = read_toml(SLOW_RAIL).unwrap();
    assert_reads_back(&fabric);
    for (a, b) in [("host1/nic3", "leaf3"), ("leaf3", "host1/nic3")] {
        let slow = links(&fabric, a, b);
        assert_eq!(slow.len(), 1);
        let effective = slow[0].1.effective.as_ref().unwrap();
        assert_eq!((effective.value.gb(), effective.basis), (12.3, Basis::Measured));
        assert_eq!(slow[0].1.nominal.as_ref().unwrap().value.gb(), 50.0);
    }
    assert_eq!(
        links(&fabric, "host0/nic3", "leaf3")[0].1.effective.as_ref().unwrap().basis,
        Basis::Effective
    );
    assert_eq!(links(&fabric, "host0/gpu6", "host0/nvswitch1")[0].0.count, 3);
    assert!(links(&fabric, "host1/nic7", "leaf7").is_empty());
    assert!(links(&fabric, "leaf7", "host1/nic7").is_empty());
    let untouched = resolve("2x hgx-h100 + 8x ndr").unwrap();
    assert_eq!(fabric.links().len(), untouched.links().len() - 2);
}

#[test]
fn a_cluster_can_mix_systems() {
    let fabric = read_toml(MIXED_LAB).unwrap();
    assert_reads_back(&fabric);
    assert_eq!(fabric.gpus().len(), 8 + 2 + 1);
    let systems: Vec<_> = fabric.hosts().iter().map(|host| host.system.as_deref()).collect();
    assert_eq!(systems, [Some("hgx-h100"), Some("2x-rtx4090"), None]);
    let attic = links(&fabric, "attic/nic0", "leaf0")[0].1;
    assert_eq!(attic.kind.id(), "eth10");
    assert_eq!(attic.best().unwrap().value.gb(), 0.87);
    assert!(matches!(fabric.device(fabric.find("desk/nic0").unwrap()).kind, DeviceKind::Nic(_)));
}

#[test]
fn device_names_determine_the_host() {
    let one_host = "weft = 1\n[[host]]\nname = \"a\"\n";
    let more = "[[host]]\nname = \"b\"\n";
    for (document, name, host) in [
        (one_host.to_owned(), "gpu0", Some(0)),
        (one_host.to_owned(), "nvswitch0", Some(0)),
        (one_host.to_owned(), "/nvswitch0", None),
        (one_host.to_owned(), "/gpu0", None),
        (one_host.to_owned(), "leaf0", None),
        (format!("{one_host}{more}"), "b/gpu0", Some(1)),
        (format!("{one_host}{more}"), "nvswitch0", None),
    ] {
        let fabric = read_toml(format!("{document}[[device]]\nname = \"{name}\"").as_bytes()).unwrap();
        assert_eq!(fabric.devices()[0].host.map(|host| host.0), host, "{name}");
        assert_reads_back(&fabric);
    }
}

#[test]
fn links_may_be_one_way() {
    let fabric = read_json(RING).unwrap();
    assert_reads_back(&fabric);
    assert_eq!(fabric.links().len(), 4);
    assert_eq!(links(&fabric, "gpu3", "gpu0")[0].0.count, 2);
    assert!(links(&fabric, "gpu0", "gpu3").is_empty());
}

/// Documents with one mistake, its line, and a part of the message.
#[test]
fn mistakes_have_a_line_and_a_reason() {
    let head =
        "weft = 1\n[[host]]\nname = \"a\"\n[[device]]\nname = \"a/gpu0\"\n[[device]]\nname = \"a/gpu1\"\n";
    let link = |rest: &str| format!("{head}[[link]]\n{rest}");
    for (document, line, expected) in [
        (String::new(), 1, "empty"),
        ("  \n\n".to_owned(), 1, "empty"),
        ("name = \"x\"".to_owned(), 1, "add `weft = 1`"),
        ("weft = 2".to_owned(), 1, "version 2"),
        ("weft = 2\nnovel = true".to_owned(), 2, "version 2"),
        ("weft = 1\nwarp = 2".to_owned(), 2, "unknown field `warp`"),
        ("weft = 1\nname = \"unfinished".to_owned(), 2, "invalid basic string"),
        ("weft = 1\nbase = \"2x hgx-h10\"".to_owned(), 2, "Did you mean `hgx-h100`"),
        ("weft = 1\n\nbase = \"25000x hgx-h100\"".to_owned(), 3, "200000 GPUs"),
        (format!("{head}[[host]]\nname = \"a\""), 8, "duplicate host `a`"),
        (format!("{head}[[host]]\nname = \"b\"\nlike = \"hgx-h10\""), 8, "Did you mean `hgx-h100`"),
        (format!("{head}[[host]]\nname = \"b\"\nlike = \"gb200-nvl72\""), 8, "base = \"gb200-nvl72\""),
        (format!("{head}[[host]]\nname = \"b\"\nlike = \"hgx-h100\"\nsystem = \"x\""), 8, "remove `system`"),
        (format!("{head}[[device]]\nname = \"a/gpu1\""), 8, "duplicate device `gpu1`"),
        (format!("{head}[[device]]\nname = \"b/gpu1\""), 8, "no host is called `b`"),
        (format!("{head}[[device]]\nname = \"a/tpu1\""), 8, "the kinds are numa, port"),
        (format!("{head}[[device]]\nname = \"a/gpu\""), 8, "as in `gpu0`"),
        (
            format!("{head}[[host]]\nname = \"b\"\n[[device]]\nname = \"gpu1\""),
            10,
            "needs the name of its host",
        ),
        (format!("{head}[[host]]\nname = \"\""), 8, "a host needs a name"),
        (format!("{head}[[device]]\nname = \"a/gpu01\""), 8, "as in `gpu0`"),
        (format!("{head}[[device]]\nname = \"a/gpu2\"\nmodel = \"h10\""), 8, "Did you mean `h100`"),
        (
            format!("{head}[[device]]\nname = \"a/gpu2\"\ngeneration = 3"),
            8,
            "`generation` applies to `nvswitch` devices",
        ),
        (format!("{head}[[device]]\nname = \"a/gpu2\"\nbus = \"here\""), 8, "not a PCI bus id"),
        (format!("{head}[[device]]\nname = \"a/gpu2\"\nclass = \"GPU\""), 8, "not a PCI class"),
        (format!("{head}[[device]]\nname = \"a/gpu2\"\nsm = -3"), 10, "invalid value"),
        (
            format!("{head}[[device]]\nname = \"a/nic0\"\nports = [{{ gb_per_s_each_way = -1.0 }}]"),
            8,
            "-1 GB/s is out of range",
        ),
        (
            format!("{head}[[device]]\nname = \"a/nic0\"\nports = [{{ gb_per_s_each_way = nan }}]"),
            8,
            "NaN GB/s is out of range",
        ),
        (
            link("between = [\"a/gpu0\", \"a/gpu7\"]\ntype = \"nvlink4\""),
            8,
            "no device is called `a/gpu7`; its host has 2 of kind `gpu`",
        ),
        (link("between = [\"a/gpu0\", \"gpu0\"]\ntype = \"nvlink4\""), 8, "linked to itself"),
        (link("between = [\"a/gpu0\"]\ntype = \"nvlink4\""), 9, "invalid length 1"),
        (link("between = [\"gpu0\", \"gpu1\"]\ntype = \"nvlnk4\""), 8, "Did you mean `nvlink4`"),
        (link("between = [\"gpu0\", \"gpu1\"]\ntype = \"nvlink4\"\ncount = 0"), 8, "1 to 65536"),
        (link("between = [\"gpu0\", \"gpu1\"]\ntype = \"nvlink4\"\ncount = 4000000000"), 8, "1 to 65536"),
        (
            link("between = [\"gpu0\", \"gpu1\"]\ntype = \"nvlink4\"\ncount = 40000000000"),
            11,
            "invalid value",
        ),
        (link("between = [\"gpu0\", \"gpu1\"]\ntype = \"nvlink4\"\nspeed = 3"), 11, "unknown field `speed`"),
        (link("between = [\"gpu0\", \"gpu1\"]"), 8, "missing field `type`"),
        (format!("{head}[[link_type]]\nid = \"x\""), 8, "`kind` is missing"),
        (
            format!("{head}[[link_type]]\nid = \"ndr\"\n[[link_type]]\nid = \"ndr\""),
            10,
            "duplicate link type `ndr`",
        ),
        (
            format!(
                "{head}[[link_type]]\nid = \"ndr\"\nnominal = {{ gb_per_s_each_way = 1.0, basis = \"nominal\" }}"
            ),
            10,
            "missing field `source`",
        ),
    ] {
        let error = read_toml(document.as_bytes()).expect_err(&document).to_string();
        assert!(error.starts_with(&format!("line {line}: ")), "{document}\n{error}");
        assert!(error.contains(expected), "{document}\n{error}");
    }
}

#[test]
fn contradictory_overrides_are_refused() {
    let head = "weft = 1\nbase = \"hgx-h100\"\n[[override]]\n";
    for (entry, expected) in [
        ("between = [\"gpu0\", \"gpu1\"]\nremove = true", "nothing to override"),
        ("between = [\"gpu0\", \"nvswitch0\"]", "needs `gb_per_s_each_way`, `count` or `remove"),
        ("between = [\"gpu0\", \"nvswitch0\"]\nremove = true\ncount = 3", "cannot be combined"),
        ("between = [\"gpu0\", \"nvswitch0\"]\ncount = 0", "set `remove = true`"),
        ("between = [\"gpu0\", \"nvswitch0\"]\ncount = 1\nsource = \"me\"", "`source` needs"),
        ("between = [\"gpu0\", \"nvswitch0\"]\ngb_per_s_each_way = 12", "needs a `source`"),
        ("between = [\"gpu0\", \"nvswitch0\"]\ngb_per_s_each_way = 0\nsource = \"me\"", "must not be 0"),
        (
            "between = [\"gpu0\", \"nvswitch0\"]\ngb_per_s_each_way = 125\nsource = \"me\"",
            "of each of the 5 parallel",
        ),
        ("between = [\"gpu0\", \"nvswitch0\"]\ntype = \"ndr\"\nremove = true", "nothing to override"),
    ] {
        let error = read_toml(format!("{head}{entry}").as_bytes()).expect_err(entry).to_string();
        assert!(error.starts_with("line 3: "), "{entry}\n{error}");
        assert!(error.contains(expected), "{entry}\n{error}");
    }
    // Two kinds of link between the same devices: `type` has to choose one.
    let both =
        "weft = 1\nbase = \"hgx-h100\"\n[[link]]\nbetween = [\"gpu0\", \"nvswitch0\"]\ntype = \"c2c\"\n";
    let entry = "[[override]]\nbetween = [\"gpu0\", \"nvswitch0\"]\nremove = true\n";
    let error = read_toml(format!("{both}{entry}").as_bytes()).unwrap_err().to_string();
    assert!(error.contains("choose one with `type`"), "{error}");
    let fabric = read_toml(format!("{both}{entry}type = \"nvlink4\"").as_bytes()).unwrap();
    let left = links(&fabric, "gpu0", "nvswitch0");
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].1.kind, LinkKind::C2c);
    // One way only.
    let fabric =
        read_toml(format!("{head}between = [\"gpu0\", \"nvswitch0\"]\noneway = true\ncount = 1").as_bytes());
    let fabric = fabric.unwrap();
    assert_eq!(links(&fabric, "gpu0", "nvswitch0")[0].0.count, 1);
    assert_eq!(links(&fabric, "nvswitch0", "gpu0")[0].0.count, 5);
}

#[test]
fn json_mistakes_have_lines_too() {
    for (document, line, expected) in [
        ("", 1, "empty"),
        ("{", 1, "EOF"),
        ("{\n\"weft\": 1,\n\"warp\": 1}", 3, "unknown field `warp`"),
        ("{\n\"weft\": 3,\n\"warp\": 1}", 3, "version 3"),
        ("{\n\"weft\": 1,\n\"base\": \"nothing\"}", 3, "no system is called"),
        (
            "{\"weft\": 1, \"device\": [\n{\"name\": \"leaf0\"},\n {\n\"name\": \"leaf0\"}]}",
            3,
            "duplicate device `leaf0`",
        ),
        ("{\"weft\": 1}\n{}", 2, "trailing characters"),
    ] {
        let error = read_json(document.as_bytes()).expect_err(document).to_string();
        assert!(error.starts_with(&format!("line {line}: ")), "{document}\n{error}");
        assert!(error.contains(expected), "{document}\n{error}");
        assert!(!error.contains("column"), "{error}");
    }
}

#[test]
fn oversized_documents_are_refused_before_parsing() {
    let nested = format!("weft = 1\nnotes = {}", "[".repeat(1 << 20));
    let floods = [
        nested.into_bytes(),
        b"weft = 1\n".iter().copied().chain(b"[[host]]\n".repeat(200_000)).collect(),
        b"weft = 1\n".repeat(10_000_000),
        vec![b' '; (64 << 20) + 1],
        vec![b'x'; (64 << 20) + 1],
    ];
    for flood in floods {
        assert!(read_toml(&flood).is_err());
        assert!(read_json(&flood).is_err());
    }
    let deep = format!("{{\"weft\": 1, \"notes\": {}", "[".repeat(900_000));
    assert!(read_json(deep.as_bytes()).is_err());
}

#[test]
fn fabrics_that_a_document_cannot_represent_are_refused() {
    let mut builder = FabricBuilder::new("twins");
    builder.host("same", None);
    builder.host("same", None);
    let fabric = builder.finish().unwrap();
    assert_eq!(fabric.hosts().len(), 2);
    assert_eq!(write_toml(&fabric), Err(WriteError::DuplicateName("same".to_owned())));

    let mut builder = FabricBuilder::new("odd");
    let [a, b] = [(); 2].map(|()| builder.add(None, DeviceKind::RootPort));
    let spec = builder.spec(LinkSpec {
        kind: LinkKind::Pcie { generation: 9, width: 3 },
        nominal: None,
        effective: None,
        latency: None,
    });
    builder.connect(a, b, 1, spec);
    let error = write_json(&builder.finish().unwrap()).unwrap_err();
    assert!(error.to_string().contains("PCIe 9.0 x3"), "{error}");
}
