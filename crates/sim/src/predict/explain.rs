//! The arithmetic of a prediction: the terms of its closed form with the numbers that multiply to them, and what the run changes.

use serde_json::{Value, json};
use weftlink_fabric::{Fabric, LinkKind};

use super::{Case, Row};
use crate::estimate::{FillTerm, Machine, Over, WireTerm};
use crate::setup::{Library, Operation};

/// Why a call takes as long as it does.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The terms of the closed form, which add up to it.
    pub terms: Vec<Term>,
    /// The closed form.
    pub closed_form_us: f64,
    /// The time of the simulated run, or the closed form if nothing was simulated.
    pub time_us: f64,
    /// By how much the correction of a calibration multiplies it; 1 without one.
    pub correction: f64,
    /// Whether the call was simulated.
    pub is_simulated: bool,
}

/// A term of the closed form.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// Its name: `launch`, `hops`, `messages`, `wire`, `fill`, `hidden` or `host`.
    pub name: &'static str,
    /// Its time; negative for what is hidden.
    pub us: f64,
    /// The numbers behind it, in words.
    pub how: String,
    /// The same as names and values.
    pub numbers: Vec<(&'static str, f64)>,
}

impl Term {
    fn new(name: &'static str, us: f64, how: String, numbers: Vec<(&'static str, f64)>) -> Self {
        Self { name, us, how, numbers }
    }
}

impl Case {
    /// Whether its library has a closed form to explain.
    pub fn is_explained(&self) -> bool {
        matches!(self.setup.library, Library::Nccl | Library::Rccl | Library::OneCcl | Library::Weft)
    }

    /// The arithmetic of a call's prediction.
    pub fn explain(&self, row: &Row) -> Explanation {
        let estimate = &row.execution.chosen.estimate;
        let working = &estimate.working;
        let launch = match self.operation.is_messages() {
            true => "to start and to end the kernel, and to enqueue the messages",
            false => "to start and to end the kernel",
        };
        let mut terms = vec![Term::new("launch", estimate.launch_us, launch.to_owned(), Vec::new())];
        for hops in working.hops.iter().filter(|hops| hops.count > 0.0) {
            let (count, each) = (plain(hops.count), hops.each_us);
            let how = format!("{count} x {each:.3} us {}", hops.what);
            terms.push(Term::new("hops", hops.us(), how, vec![("count", hops.count), ("each_us", each)]));
        }
        if working.messages_us > 0.0 {
            let how = "to post messages into the network one after the other".to_owned();
            terms.push(Term::new("messages", working.messages_us, how, Vec::new()));
        }
        terms.push(self.wire(&working.wire));
        terms.extend(fill(&working.fill));
        if working.hidden_us > 0.0 {
            let how = "hops and fill while data waits for the narrowest link".to_owned();
            terms.push(Term::new("hidden", -working.hidden_us, how, Vec::new()));
        }
        let host = estimate.total_us() - estimate.device_us();
        if estimate.host_us > 0.0 {
            let (host_us, norm) = (estimate.host_us, estimate.host_norm);
            let how = format!(
                "added by {host_us:.2} us of launches by the host: (device^p + host^p)^(1/p) with p = {norm:.2}"
            );
            terms.push(Term::new("host", host, how, vec![("host_us", host_us), ("norm", norm)]));
        }
        Explanation {
            terms,
            closed_form_us: estimate.total_us(),
            time_us: row.time_us() / row.execution.correction,
            correction: row.execution.correction,
            is_simulated: row.execution.outcome.is_some(),
        }
    }

    /// The bytes through the narrowest resource, and the part of its line rate that they get.
    fn wire(&self, wire: &WireTerm) -> Term {
        let machine = Machine::new(&self.constants, &self.setup);
        let over_pcie = machine.pcie || machine.bridge.is_some();
        let port = match over_pcie {
            true => (machine.slot_line, kind(&self.fabric, |kind| matches!(kind, LinkKind::Pcie { .. }))),
            false => (machine.port_line, kind(&self.fabric, |kind| kind.is_gpu_fabric())),
        };
        let network = kind(&self.fabric, |kind| matches!(kind, LinkKind::Network { .. }));
        let gpus = match self.operation {
            Operation::SendReceive => machine.lanes.min(machine.island),
            _ => machine.island,
        };
        let (over, line) = match wire.over {
            Over::Nothing => ("no bytes that take time", None),
            Over::Port => ("through the links of one GPU", Some(port)),
            Over::Chain => ("up and down a chain, through the links of one GPU", Some(port)),
            Over::Switches => ("reduced by the NVSwitches, through the links of one GPU", Some(port)),
            Over::Nics => ("through the NICs of one island", Some((machine.nics_line, network))),
            Over::NicsOfGpu => {
                ("through one GPU's share of the NICs", Some((machine.nics_line / gpus.max(1.0), network)))
            }
            Over::Lanes => ("through the library's lanes, which carry less than the links", None),
            Over::Serial => ("in the steps of one lane, one after the other", None),
            Over::Cut => ("through the cut that bounds every algorithm", None),
        };
        let line = line.filter(|(line, _)| *line > 0.0 && line.is_finite());
        let mut numbers = vec![("bytes", wire.bytes), ("gb_per_s", wire.gbytes_per_second)];
        let mut how = match wire.over {
            Over::Nothing => over.to_owned(),
            _ => format!("{} at {:.3} GB/s {over}", amount(wire.bytes), wire.gbytes_per_second),
        };
        if let Some((line, kind)) = line {
            let part = wire.gbytes_per_second / line;
            how += &format!(": {:.1}% of the line rate of {line:.1} GB/s{kind}", part * 1e2);
            numbers.extend([("line_gb_per_s", line), ("part_of_line", part)]);
        }
        Term::new("wire", wire.us(), how, numbers)
    }
}

fn fill(fill: &FillTerm) -> Option<Term> {
    let us = fill.us();
    match *fill {
        FillTerm::Nothing => None,
        FillTerm::Steps { fraction, latency_us, wire_us, growth } => {
            let how = format!(
                "to fill the pipeline: {fraction:.3} x sqrt({latency_us:.2} us of hops x {wire_us:.2} us of bytes x {growth:.4})"
            );
            let numbers = vec![
                ("fraction", fraction),
                ("latency_us", latency_us),
                ("wire_us", wire_us),
                ("growth", growth),
            ];
            Some(Term::new("fill", us, how, numbers))
        }
        FillTerm::Tiles { tiles, .. } => {
            let how = format!("until the first of {tiles} tiles has passed the other ranks");
            Some(Term::new("fill", us, how, vec![("tiles", f64::from(tiles))]))
        }
    }
}

/// The first kind of link of a fabric that fits, in words.
fn kind(fabric: &Fabric, fits: impl Fn(LinkKind) -> bool) -> String {
    let found = fabric.links().iter().map(|link| fabric.spec(link).kind).find(|kind| fits(*kind));
    found.map_or_else(String::new, |kind| format!(" ({kind})"))
}

/// A number without needless zeros.
fn plain(count: f64) -> String {
    let text = format!("{count:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Bytes with enough digits to compute with.
fn amount(bytes: f64) -> String {
    match bytes {
        1e9.. => format!("{:.4} GB", bytes / 1e9),
        1e6.. => format!("{:.4} MB", bytes / 1e6),
        1e3.. => format!("{:.4} KB", bytes / 1e3),
        _ => format!("{bytes:.1} B"),
    }
}

impl Explanation {
    /// How much longer the run takes than the closed form, as a part of it.
    pub fn change(&self) -> f64 {
        self.time_us / self.closed_form_us - 1.0
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let term = |term: &Term| {
            let mut value = json!({ "term": term.name, "us": term.us, "how": term.how });
            for (name, number) in &term.numbers {
                value[*name] = json!(number);
            }
            value
        };
        json!({
            "terms": self.terms.iter().map(term).collect::<Vec<_>>(),
            "closed_form_us": self.closed_form_us,
            "run_us": self.is_simulated.then_some(self.time_us),
            "change": self.is_simulated.then(|| self.change()),
            "correction": (self.correction != 1.0).then_some(self.correction),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::library::parse_library;
    use crate::predict::{Options, predict};
    use weftlink_fabric::resolve;
    use weftlink_plan::Kind;

    /// The terms add up to the closed form, for every library that has one.
    #[test]
    fn terms_add_up() {
        for spec in ["hgx-h100", "4x hgx-h100 + 8x ndr", "dgx-1-v100", "4x-rtx4090", "2x 8x-mi300x + 8x ndr"]
        {
            let fabric = resolve(spec).unwrap();
            for library in [None, Some("weft")] {
                let library = library.map(|name| parse_library(name).unwrap());
                let options = Options { library, ..Options::default() };
                for kind in [
                    Kind::AllReduce,
                    Kind::AllGather,
                    Kind::Broadcast,
                    Kind::AllToAll,
                    Kind::SendReceive,
                    Kind::Gather,
                ] {
                    let predicted = predict(kind, &fabric, &[8, 1 << 16, 1 << 30], &options).unwrap();
                    for row in &predicted.rows {
                        let found = predicted.case.explain(row);
                        let sum: f64 = found.terms.iter().map(|term| term.us).sum();
                        let what = format!("{spec} {kind} {} {found:?}", row.bytes);
                        // Weft's terms are integers.
                        let allowed = 1e-3 + 1e-6 * found.closed_form_us;
                        assert!((sum - found.closed_form_us).abs() < allowed, "{sum}: {what}");
                    }
                }
            }
        }
    }
}
