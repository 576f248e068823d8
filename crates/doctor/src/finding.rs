//! Findings, and the report that collects them.

use serde::Serialize;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing; not a fault, and the exit code stays 0.
    Note,
    /// Works, but slower or less reliably than it should.
    Warning,
    /// Broken, or about to fail.
    Critical,
}

/// What shows a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Where it was read: a file (`/sys/...`), a command or a line of a log.
    pub source: String,
    /// What stood there.
    pub text: String,
}

/// What a finding costs, from the simulator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// One sentence: `all-reduce of 1 GiB on this node: 9.2 instead of 18.4 GB/s (bus bandwidth, predicted)`.
    pub sentence: String,
    /// Bandwidth as it is, in GB/s.
    pub now_gb_per_s: f64,
    /// Bandwidth without the fault, in GB/s.
    pub usual_gb_per_s: f64,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The check that found it: `nvlink-inactive`.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// One sentence: what is wrong, and where.
    pub what: String,
    /// The lines that show it.
    pub evidence: Vec<Evidence>,
    /// What it costs in bandwidth; None if it costs none, or what it costs is unknown.
    pub cost: Option<Cost>,
    /// What to do, in order: exact commands or steps.
    pub fixes: Vec<String>,
}

impl Finding {
    /// A finding without evidence, cost and fixes yet.
    pub fn new(id: &'static str, severity: Severity, what: impl Into<String>) -> Self {
        Self { id, severity, what: what.into(), evidence: Vec::new(), cost: None, fixes: Vec::new() }
    }

    /// Adds a line that shows it.
    #[must_use]
    pub fn shown_by(mut self, source: impl Into<String>, text: impl Into<String>) -> Self {
        self.evidence.push(Evidence { source: source.into(), text: text.into() });
        self
    }

    /// Sets what it costs.
    #[must_use]
    pub fn costing(mut self, cost: Option<Cost>) -> Self {
        self.cost = cost;
        self
    }

    /// Adds a step that fixes it.
    #[must_use]
    pub fn fixed_by(mut self, step: impl Into<String>) -> Self {
        self.fixes.push(step.into());
        self
    }
}

/// What could not be inspected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Uninspected {
    /// The check.
    pub id: &'static str,
    /// What is unknown.
    pub what: String,
    /// What would be needed: `root`, `a driver`, `dmesg without restriction`.
    pub needs: String,
}

/// What a check says about one thing it looked at.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is as it should be: one sentence with the value that shows it.
    Fine(String),
    /// Something is wrong.
    Found(Finding),
    /// It could not be inspected.
    Unknown {
        /// What is unknown.
        what: String,
        /// What would be needed.
        needs: String,
    },
}

/// The findings on one subject.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// What was examined: a host, a log.
    pub subject: String,
    /// The worst first.
    pub findings: Vec<Finding>,
    /// What is as it should be: the check and a sentence.
    pub fine: Vec<(&'static str, String)>,
    /// What could not be inspected.
    pub uninspected: Vec<Uninspected>,
}

impl Report {
    /// An empty report.
    pub fn new(subject: impl Into<String>) -> Self {
        Self { subject: subject.into(), ..Self::default() }
    }

    /// Adds what a check says. A check that does not apply says nothing.
    pub fn add(&mut self, id: &'static str, outcomes: Vec<Outcome>) {
        for outcome in outcomes {
            match outcome {
                Outcome::Fine(what) => self.fine.push((id, what)),
                Outcome::Found(finding) => self.findings.push(finding),
                Outcome::Unknown { what, needs } => self.uninspected.push(Uninspected { id, what, needs }),
            }
        }
        self.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    }

    /// Adds what another report on the same subject says.
    pub fn extend(&mut self, other: Report) {
        self.findings.extend(other.findings);
        self.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        self.fine.extend(other.fine);
        self.uninspected.extend(other.uninspected);
    }

    /// 1 if something is wrong, otherwise 3 if something could not be inspected, otherwise 0.
    pub fn exit_code(&self) -> u8 {
        let is_wrong = self.findings.iter().any(|finding| finding.severity > Severity::Note);
        match (is_wrong, self.uninspected.is_empty()) {
            (true, _) => 1,
            (false, false) => 3,
            (false, true) => 0,
        }
    }
}
