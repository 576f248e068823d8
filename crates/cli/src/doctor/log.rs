//! `weft doctor --log`: a log of NCCL or RCCL in words, and what is wrong.

use std::io::Write;
use std::path::PathBuf;

use serde_json::json;
use weftlink_doctor::log::{explain, read, summary};
use weftlink_fabric::Fabric;

use super::{Args, exit, print_with_report, text};
use crate::Failure;
use crate::screen::{self, say};

/// Several files are one log: NCCL writes one for each process.
pub(super) fn run(files: &[PathBuf], expected: Option<&Fabric>, args: &Args) -> Result<(), Failure> {
    let texts = files.iter().map(|file| super::read(file)).collect::<Result<Vec<_>, _>>()?;
    let log = read(&texts.join("\n"));
    let (summary, report) = (summary(&log, expected), explain(&log, expected));
    if args.json {
        print_with_report(json!(summary), &report)?;
    } else {
        let mut out = screen::stdout();
        say!(out, "{summary}")?;
        text::print(&mut out, &report, args.all)?;
    }
    exit(&report)
}
