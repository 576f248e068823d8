//! `weft knobs`: every setting, its value, and where that comes from.

use std::io::{self, Write};

use serde_json::{Value, json};
use weftlink_knobs::{KNOBS, Knob, Knobs, Origin, Setting, unknown};

use crate::Failure;
use crate::table::Table;

/// Every setting, its value, its default and where the value comes from
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let knobs = Knobs::from_environment().map_err(Failure::misuse)?;
    let strangers = unknown(std::env::vars_os().map(|(name, _)| name));
    let settings = || KNOBS.iter().zip(knobs.settings());
    if args.json {
        let unknown: Vec<Value> =
            strangers.iter().map(|(name, near)| json!({ "name": name, "nearest": near })).collect();
        let settings: Vec<Value> = settings().map(|(knob, setting)| json(knob, &setting)).collect();
        return Ok(crate::print_json(&json!({ "settings": settings, "unknown": unknown }))?);
    }
    let mut table = Table::new(["setting", "value", "from", "default", "meaning"]);
    for (knob, setting) in settings() {
        let Setting { name, value, origin } = setting;
        let (default, meaning) = (knob.default.to_owned(), knob.meaning.to_owned());
        table.row([name.to_owned(), value, origin_name(origin).to_owned(), default, meaning]);
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{table}")?;
    for (name, near) in strangers {
        match near {
            Some(near) => writeln!(out, "There is no setting {name}. Is {near} meant?")?,
            None => writeln!(out, "There is no setting {name}.")?,
        }
    }
    writeln!(out, "What each takes: docs/knobs.md.")?;
    Ok(())
}

fn json(knob: &Knob, setting: &Setting) -> Value {
    json!({
        "name": knob.name,
        "value": setting.value,
        "origin": origin_name(setting.origin),
        "default": knob.default,
        "takes": knob.takes,
        "all_ranks_alike": knob.all_alike,
        "meaning": knob.meaning,
    })
}

fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Default => "default",
        Origin::Environment => "environment",
    }
}
