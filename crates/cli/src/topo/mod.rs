//! `weft topo`: describe a machine or cluster and draw its wiring.

mod cliff;
mod json;
mod list;
mod matrix;
mod path;
mod picture;
mod target;
mod tree;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path as FilePath, PathBuf};

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use weftlink_fabric::bytes::Bytes;
use weftlink_fabric::format::{document, dot, svg, xml};
use weftlink_fabric::summary::Summary;
use weftlink_fabric::{Fabric, HostId, Paths};
use weftlink_probe::{Folder, Nvml, record};

use crate::Failure;
use crate::screen::{self, say};
pub(crate) use target::resolve;

/// Draw the wiring of a machine or cluster
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft topo                                    this machine
  weft topo hgx-h100                           a system of the catalog
  weft topo \"2x hgx-h100 + 8x ndr\"             a cluster of two hosts
  weft topo topo.xml --matrix                  a topology file of NCCL or RCCL
  nvidia-smi topo -m | weft topo - --gpu h100  the output of nvidia-smi
  weft topo \"cluster.ibnet + hgx-h100\"        a network file and its hosts
  weft topo gb200-nvl72 --path gpu0 gpu71 --bytes 1GB
  weft topo dgx-1-v100 --svg dgx1.svg

Path types, best first, in NCCL's order: LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS NET DIS. \
NV18 is NVL over 18 links.")]
pub(crate) struct Args {
    /// A system (`hgx-h100`), a cluster (`2x hgx-h100 + 8x ndr`), a file, a file of a network and its hosts (`cluster.ibnet +
    /// hgx-h100`), or `-` for standard input [default: this machine]
    target: Option<String>,
    /// Print the catalog: systems, links, GPUs or switches
    #[arg(long, value_name = "WHAT", num_args = 0..=1, default_missing_value = "systems", conflicts_with = "target")]
    list: Option<List>,
    /// Print the path between every two GPUs and NICs
    #[arg(long)]
    matrix: bool,
    /// Print the devices of each host as a tree
    #[arg(long)]
    tree: bool,
    /// Print the bandwidth of a GPU at each distance, from its memory to the network
    #[arg(long)]
    cliff: bool,
    /// Print the path from one device to another, link by link
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"], conflicts_with_all = ["matrix", "tree", "cliff"])]
    path: Option<Vec<String>>,
    /// With --path: the least time for SIZE bytes (also --size)
    #[arg(long, value_name = "SIZE", requires = "path")]
    bytes: Option<Bytes>,
    /// The GPU model, which the output of `nvidia-smi topo -m` and `rocm-smi` does not contain
    #[arg(long, value_name = "MODEL", requires = "target")]
    gpu: Option<String>,
    /// Write a drawing; `-` is standard output, here and below
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write Graphviz
    #[arg(long, value_name = "FILE")]
    dot: Option<PathBuf>,
    /// Write NCCL's topology XML, of the first host and the hosts in its NVLink domain
    #[arg(long, value_name = "FILE")]
    xml: Option<PathBuf>,
    /// Write TOML, which you can edit and read back
    #[arg(long, value_name = "FILE")]
    toml: Option<PathBuf>,
    /// Record what the probe sees of this machine; `weft topo FILE` shows it on another machine
    #[arg(long, value_name = "FILE", conflicts_with_all = ["target", "matrix", "tree", "cliff", "path", "svg", "dot", "xml", "toml", "json"])]
    record: Option<PathBuf>,
    /// Print JSON: the fabric and its summary; with --matrix also every path
    #[arg(long, conflicts_with = "tree")]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum List {
    Systems,
    Links,
    Gpus,
    Switches,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(what) = args.list {
        return Ok(list::print(what, args.json)?);
    }
    if let Some(file) = &args.record {
        let recording = record(&Folder::new("/"), &Nvml).map_err(Failure::finding)?;
        return write(file, &recording.to_string());
    }
    let fabric = target::resolve(args.target.as_deref(), args.gpu.as_deref())?;
    check_standard_output(args)?;
    let paths = Paths::of(&fabric);
    let route = args.path.as_ref().map(|ends| path::find(&paths, &ends[0], &ends[1])).transpose()?;
    let wrote_files = write_files(args, &fabric)?;
    let mut out = screen::stdout();
    let asked = args.matrix || args.tree || args.cliff || args.path.is_some();
    if let Some(route) = route {
        match args.json {
            true => crate::print_json(&path::json(&paths, &route, args.bytes))?,
            false => path::print(&mut out, &paths, &route, args.bytes)?,
        }
        return Ok(());
    }
    if args.json {
        let mut value = json::fabric(&paths, &Summary::of(&paths)).map_err(Failure::finding)?;
        if args.matrix {
            value["matrix"] = matrix::json(&paths)?;
        }
        return Ok(crate::print_json(&value)?);
    }
    if !asked && wrote_files {
        return Ok(());
    }
    if !asked {
        picture::print(&mut out, &fabric)?;
    }
    if args.tree {
        tree::print(&mut out, &fabric)?;
    }
    if args.matrix {
        matrix::print(&mut out, &paths)?;
    }
    if args.cliff {
        cliff::print(&mut out, &paths)?;
    }
    if !asked {
        let summary = Summary::of(&paths);
        matrix::print_short(&mut out, &paths, &summary)?;
        say!(out, "{}", summary.sentence())?;
        for note in fabric.notes() {
            say!(out, "Note: {}.", with_option(note.trim_end_matches('.')))?;
        }
        if fabric.lacks_peer_access() {
            say!(
                out,
                "Note: GPUs that only PCIe connects have no access to each other's memory (the driver of GeForce cards refuses it); their data goes through host memory."
            )?;
        }
    }
    Ok(())
}

/// A note that asks for the GPU model, with the option that takes it.
fn with_option(note: &str) -> String {
    note.replace("name the GPU model", "name the GPU model with --gpu")
}

/// Writes the files that were asked for; true if there were any.
fn write_files(args: &Args, fabric: &Fabric) -> Result<bool, Failure> {
    let files = [&args.svg, &args.dot, &args.xml, &args.toml];
    if let Some(file) = &args.svg {
        write(file, &svg::svg(fabric))?;
    }
    if let Some(file) = &args.dot {
        write(file, &dot::dot(fabric))?;
    }
    if let Some(file) = &args.xml {
        write(file, &topology_xml(fabric)?)?;
    }
    if let Some(file) = &args.toml {
        write(file, &document::write_toml(fabric).map_err(Failure::finding)?)?;
    }
    Ok(files.iter().any(|file| file.is_some()))
}

/// Only one thing can go to standard output.
fn check_standard_output(args: &Args) -> Result<(), Failure> {
    let files = [&args.svg, &args.dot, &args.xml, &args.toml].into_iter().flatten();
    let to_output = files.filter(|file| file.as_path() == FilePath::new("-")).count();
    let views = args.json || args.matrix || args.tree || args.cliff || args.path.is_some();
    match to_output + usize::from(views) {
        2.. if to_output > 0 => Err(Failure::misuse(anyhow!(
            "only one thing can go to standard output; give the other files names"
        ))),
        _ => Ok(()),
    }
}

/// NCCL's files hold one host, or those that share an NVLink domain: the first such island is written.
fn topology_xml(fabric: &Fabric) -> Result<String, Failure> {
    if fabric.hosts().is_empty() {
        return Err(Failure::finding(anyhow!("{} has no host to write", fabric.name())));
    }
    let hosts = xml::nvlink_domain(fabric, HostId(0));
    if hosts.len() < fabric.hosts().len() {
        let (written, all) = (hosts.len(), fabric.hosts().len());
        let first = &fabric.hosts()[0].name;
        let text = format!("topology XML describes no network: wrote {written} of {all} hosts, from {first}");
        screen::complain("weft", &text);
    }
    Ok(xml::write(fabric, &hosts))
}

fn write(file: &FilePath, text: &str) -> Result<(), Failure> {
    if file == FilePath::new("-") {
        return Ok(io::stdout().write_all(text.as_bytes())?);
    }
    let cannot = || format!("cannot write {}", file.display());
    let mut created = File::create(file).with_context(cannot).map_err(Failure::Misuse)?;
    created.write_all(text.as_bytes()).with_context(cannot).map_err(Failure::Finding)
}
