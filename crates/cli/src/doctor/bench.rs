//! `weft doctor --bench`: output of nccl-tests beside the prediction for the machine.

use std::io::Write;
use std::path::PathBuf;

use anyhow::anyhow;
use serde_json::json;
use weftlink_doctor::bench::{Input, explain};
use weftlink_fabric::Fabric;
use weftlink_plan::Kind;
use weftlink_sim::predict::{Options, operation};
use weftlink_sim::setup::Operation;

use super::{Args, exit, print_with_report, text};
use crate::Failure;
use crate::screen::{self, say};

pub(super) fn run(files: &[PathBuf], expected: Option<&Fabric>, args: &Args) -> Result<(), Failure> {
    let named: Vec<_> = files.iter().map(|file| named(&file.display().to_string())).collect();
    let texts = named.iter().map(|(_, file)| super::read(file.as_ref())).collect::<Result<Vec<_>, _>>()?;
    let inputs: Vec<Input<'_>> = named
        .iter()
        .zip(&texts)
        .map(|((collective, file), text)| Input { name: file, text, collective: *collective })
        .collect();
    let explained = explain(&inputs, expected, &Options::default());
    if let (true, [unread, ..]) = (explained.tables.is_empty(), explained.report.uninspected.as_slice()) {
        return Err(Failure::misuse(anyhow!("{}; needs {}", unread.what, unread.needs)));
    }
    if args.json {
        print_with_report(json!(explained.tables), &explained.report)?;
    } else {
        let mut out = screen::stdout();
        for table in &explained.tables {
            say!(out, "{table}")?;
        }
        text::print(&mut out, &explained.report, args.all)?;
    }
    exit(&explained.report)
}

/// `all-gather=job.out`: the collective where a log does not say it, and the file.
fn named(text: &str) -> (Option<Operation>, String) {
    let split = text.split_once('=').and_then(|(name, file)| Some((Kind::from_name(name)?, file)));
    match split {
        Some((kind, file)) => (operation(kind).ok(), file.to_owned()),
        None => (None, text.to_owned()),
    }
}
