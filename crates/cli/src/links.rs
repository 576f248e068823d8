//! `weft links`: the links of a machine with their state, rates, traffic and error counters.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::anyhow;
use serde_json::json;
use weftlink_probe::Recording;
use weftlink_probe::links::{self, Basis, Change, Flow, Link, LinkRates, Links, State};

use crate::screen::{self, say};
use crate::table::Table;
use crate::{Failure, counted};

/// Print the links of a machine with their state, rates, traffic, errors and far ends
///
/// NVLink, xGMI, Xe Link, PCIe, InfiniBand and Ethernet, as `nvidia-smi nvlink` prints NVLinks. Reads only, and needs no root.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft links                            the links of this machine
  weft links --errors                   every error counter that is not 0
  weft links --watch                    live rates, every second; end it with Ctrl-C
  ssh node17 nvidia-smi nvlink -e | weft links -   the output of another tool
  weft links machine.txt                a machine that `weft doctor --record` saved

Exit code 0 if all links could be read, 1 if this machine cannot be, 2 for wrong arguments or a file that cannot be read.")]
pub(crate) struct Args {
    /// A recorded machine, or the output of nvidia-smi, rocm-smi, amd-smi or xpu-smi; `-` is standard input [default: this machine]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print live rates against nominal ones each SECONDS
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", conflicts_with = "file", value_parser = interval)]
    watch: Option<Duration>,
    /// With --watch: stop after COUNT readings
    #[arg(long, value_name = "COUNT", requires = "watch")]
    count: Option<u32>,
    /// Print error counters that are not 0
    #[arg(long, short = 'e')]
    errors: bool,
    /// Print what links can do
    #[arg(long, short = 'c', conflicts_with = "watch")]
    capabilities: bool,
    /// Print what `nvidia-smi -q` says of the GPUs and matters to communication
    #[arg(long, conflicts_with = "watch")]
    gpus: bool,
    /// Print JSON; with --watch a line for each reading
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "write seconds from 0.1 to 3600".to_owned())
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(interval) = args.watch {
        return watch(interval, args);
    }
    let mut found = match &args.file {
        Some(file) => of_file(file)?,
        None => links::this_machine().map_err(Failure::finding)?,
    };
    if args.gpus && args.file.is_none() {
        found.add_gpu_fields();
    }
    if args.json {
        return Ok(crate::print_json(&json!(found))?);
    }
    let mut out = screen::stdout();
    match args {
        Args { errors: true, .. } => print_errors(&mut out, &found)?,
        Args { capabilities: true, .. } => print_capabilities(&mut out, &found)?,
        Args { gpus: true, .. } => print_gpus(&mut out, &found)?,
        _ => print(&mut out, &found)?,
    }
    for note in &found.notes {
        say!(out, "Note: {}.", note.trim_end_matches('.'))?;
    }
    Ok(())
}

/// The links of a recording, or of another tool's output.
fn of_file(file: &Path) -> Result<Links, Failure> {
    let name = file.display();
    let bytes = match file == Path::new("-") {
        true => {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut io::stdin().lock(), &mut bytes).map(|_| bytes)
        }
        false => std::fs::read(file),
    };
    let bytes = bytes.map_err(|error| Failure::misuse(anyhow!("cannot read {name}: {error}")))?;
    let text = String::from_utf8_lossy(&bytes);
    if text.starts_with(Recording::MAGIC) {
        let machine: Recording = text.parse().map_err(|error| Failure::misuse(anyhow!("{name}: {error}")))?;
        return links::of_tree(&machine).map_err(Failure::finding);
    }
    let read = links::read(&text).map_err(|error| Failure::misuse(anyhow!("{name}: {error}")))?;
    Ok(read.1)
}

fn print(out: &mut impl Write, found: &Links) -> io::Result<()> {
    if found.links.is_empty() {
        return say!(out, "No links were found.");
    }
    let headings = ["link", "kind", "state", "GB/s", "should be", "sent", "received", "errors", "far end"];
    let mut table = Table::new(headings).optional(&["kind", "received", "sent"]);
    for link in &found.links {
        let bytes = |counter: Option<links::Counter>| {
            counter.map_or("-".to_owned(), |counter| amount(counter.bytes()))
        };
        table.row([
            link.id.to_string(),
            kind(link),
            state(link.state).to_owned(),
            rate(link.trained),
            rate(link.nominal),
            bytes(link.sent),
            bytes(link.received),
            errors(link),
            far_end(link),
        ]);
    }
    write!(out, "{table}")?;
    let down = found.links.iter().filter(|link| link.state == State::Down).count();
    let faulty = found.links.iter().filter(|link| link.has_errors()).count();
    say!(
        out,
        "{}, {down} down, {faulty} with errors (--errors prints them)",
        counted(found.links.len(), "link")
    )
}

/// `NVLink 4`, `PCIe 5.0 x16`.
fn kind(link: &Link) -> String {
    let generation = link.generation.map_or_else(String::new, |generation| format!(" {generation}"));
    let width = link.width.map_or_else(String::new, |width| format!(" x{width}"));
    format!("{}{generation}{width}", link.id.kind.name())
}

fn state(state: State) -> &'static str {
    match state {
        State::Up => "up",
        State::Initializing => "init",
        State::Down => "DOWN",
        State::Unknown => "-",
    }
}

fn rate(bytes_per_second: Option<u64>) -> String {
    bytes_per_second.map_or("-".to_owned(), |rate| format!("{:.1}", rate as f64 / 1e9))
}

fn errors(link: &Link) -> String {
    let all: u64 = link.errors.iter().filter(|error| !error.is_normal()).map(|error| error.count).sum();
    if link.errors.is_empty() { "-".to_owned() } else { all.to_string() }
}

fn far_end(link: &Link) -> String {
    let Some(remote) = &link.remote else { return String::new() };
    let name = remote.device.as_ref().or(remote.bus.as_ref()).or(remote.kind.as_ref());
    let number = remote.link.map_or_else(String::new, |number| format!(" link {number}"));
    name.map_or_else(String::new, |name| format!("{name}{number}"))
}

/// `1.2 GB`.
fn amount(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 999.5 && unit + 1 < units.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if value < 9.95 => format!("{value:.1} {}", units[unit]),
        _ => format!("{value:.0} {}", units[unit]),
    }
}

fn print_errors(out: &mut impl Write, found: &Links) -> io::Result<()> {
    let mut table = Table::new(["link", "counter", "count", "judgement"]);
    let mut rows = 0;
    for link in &found.links {
        for error in link.errors.iter().filter(|error| error.count > 0) {
            let judgement = if error.is_normal() { "also rises on healthy links" } else { "" };
            table.row([
                link.id.to_string(),
                error.name.clone(),
                error.count.to_string(),
                judgement.to_owned(),
            ]);
            rows += 1;
        }
    }
    match rows {
        0 => say!(out, "All error counters are 0 on {}.", counted(found.links.len(), "link")),
        _ => write!(out, "{table}"),
    }
}

fn print_capabilities(out: &mut impl Write, found: &Links) -> io::Result<()> {
    let mut table = Table::new(["link", "can", "cannot"]);
    for link in found.links.iter().filter(|link| !link.capabilities.is_empty()) {
        let names = |wanted: bool| {
            let those = link.capabilities.iter().filter(|(_, can)| *can == wanted);
            those.map(|(name, _)| name.replace('_', " ")).collect::<Vec<_>>().join(", ")
        };
        table.row([link.id.to_string(), names(true), names(false)]);
    }
    match found.links.iter().all(|link| link.capabilities.is_empty()) {
        true => say!(out, "No link reports what it can do."),
        false => write!(out, "{table}"),
    }
}

fn print_gpus(out: &mut impl Write, found: &Links) -> io::Result<()> {
    if found.gpus.is_empty() {
        return say!(out, "No GPU reports fields.");
    }
    let mut table = Table::new(["gpu", "field", "value"]);
    for gpu in &found.gpus {
        for (name, value) in &gpu.fields {
            table.row([gpu.gpu.clone(), name.clone(), value.clone()]);
        }
    }
    write!(out, "{table}")
}

fn watch(interval: Duration, args: &Args) -> Result<(), Failure> {
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_over)).map_err(Failure::finding)?;
    }
    let (mut readings, mut failed) = (0, None);
    let each = |found: &Links, rates: &[LinkRates]| {
        readings += 1;
        if is_over.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        if let Err(error) = print_reading(found, rates, args) {
            failed = Some(error);
            return ControlFlow::Break(());
        }
        match args.count {
            Some(count) if readings >= count => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    };
    links::watch(interval, each).map_err(Failure::finding)?;
    failed.map_or(Ok(()), |error| Err(Failure::Output(error)))
}

fn print_reading(found: &Links, rates: &[LinkRates], args: &Args) -> io::Result<()> {
    if args.json {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &json!({ "rates": rates, "notes": found.notes }))?;
        writeln!(out)?;
        return out.flush();
    }
    let mut out = screen::stdout();
    let mut table = Table::new(["link", "sent GB/s", "received GB/s", "of GB/s", "busy", "new errors"]);
    for link in rates {
        let flow = |flow: &Option<Flow>| {
            flow.map_or("-".to_owned(), |flow| {
                let more = if flow.basis == Basis::AtLeast { ">" } else { "" };
                format!("{more}{:.2}", flow.bytes_per_second / 1e9)
            })
        };
        let share = [link.sent, link.received].into_iter().flatten().filter_map(|flow| flow.share);
        let errors: Vec<String> =
            link.new_errors.iter().map(|(name, count)| format!("{name} +{count}")).collect();
        let change = changed(link.change).map(str::to_owned);
        table.row([
            link.id.to_string(),
            flow(&link.sent),
            flow(&link.received),
            rate(link.nominal),
            share.reduce(f64::max).map_or("-".to_owned(), |share| format!("{:.0}%", share * 1e2)),
            change.into_iter().chain(errors).collect::<Vec<_>>().join(", "),
        ]);
    }
    writeln!(out, "{table}")?;
    out.flush()
}

fn changed(change: Change) -> Option<&'static str> {
    match change {
        Change::None => None,
        Change::Appeared => Some("appeared"),
        Change::Vanished => Some("vanished"),
        Change::CameUp => Some("came up"),
        Change::WentDown => Some("went down"),
        Change::Reset => Some("counters reset"),
        Change::Retrained => Some("retrained"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_two_digits() {
        let written = [0, 999, 1000, 9_949, 9_950, 999_499, 999_500, 12_345_678_901].map(amount);
        assert_eq!(written, ["0 B", "999 B", "1.0 kB", "9.9 kB", "10 kB", "999 kB", "1.0 MB", "12 GB"]);
    }

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        assert!(["0", "-1", "nan", "1e9", "x"].iter().all(|text| interval(text).is_err()));
    }
}
