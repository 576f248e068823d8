//! Reports for people.

use std::io::{self, Write};

use weftlink_doctor::{Finding, Report, Severity};

use crate::counted;
use crate::screen::{GOOD, HEADING, say, styled};

/// Prints a report: findings, the worst first, then what could not be inspected; with `all` also what is as it should be.
pub(super) fn print(out: &mut impl Write, report: &Report, all: bool) -> io::Result<()> {
    writeln!(out, "{}", styled(HEADING, &summary(report)))?;
    for finding in &report.findings {
        writeln!(out)?;
        print_finding(out, finding)?;
    }
    if !report.uninspected.is_empty() {
        say!(out, "\nNot inspected:")?;
        for part in &report.uninspected {
            say!(out, "  {}: {}; needs {}", part.id, part.what, part.needs)?;
        }
    }
    if all && !report.fine.is_empty() {
        writeln!(out, "\n{}", styled(GOOD, "As it should be:"))?;
        for (id, what) in &report.fine {
            say!(out, "  {id}: {what}")?;
        }
    }
    Ok(())
}

/// `host0: 2 findings, 31 checks passed, 4 could not be made`.
pub(super) fn summary(report: &Report) -> String {
    let wrong = report.findings.iter().filter(|finding| finding.severity > Severity::Note).count();
    let notes = report.findings.len() - wrong;
    let mut parts = vec![if wrong == 0 { "no finding".to_owned() } else { counted(wrong, "finding") }];
    if notes > 0 {
        parts.push(counted(notes, "note"));
    }
    parts.push(format!("{} in order", report.fine.len()));
    if !report.uninspected.is_empty() {
        parts.push(format!("{} not inspected", report.uninspected.len()));
    }
    format!("{}: {}", report.subject, parts.join(", "))
}

fn print_finding(out: &mut impl Write, finding: &Finding) -> io::Result<()> {
    let severity = match finding.severity {
        Severity::Critical => "critical",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    say!(out, "{severity}: {} [{}]", finding.what, finding.id)?;
    for evidence in &finding.evidence {
        say!(out, "  {}: {}", evidence.source, evidence.text)?;
    }
    if let Some(cost) = &finding.cost {
        say!(out, "  costs: {}", cost.sentence)?;
    }
    match finding.fixes.as_slice() {
        [] => {}
        [step] => say!(out, "  fix: {step}")?,
        steps => {
            for (number, step) in (1..).zip(steps) {
                say!(out, "  fix {number}: {step}")?;
            }
        }
    }
    Ok(())
}
