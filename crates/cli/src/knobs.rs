//! `weft knobs`: every setting, its value, and where that comes from.

use std::io::{self, Write};

use serde_json::{Value, json};
use weftlink_knobs::{KNOBS, Knob, Knobs, Origin, Setting, nearest, unknown};

use crate::Failure;
use crate::screen::{self, Screen, say};
use crate::table::Table;

/// Print every setting: its value, its default and where the value comes from
///
/// Settings are environment variables of the ranks. With names, print what these take and what they do.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft knobs                                  every setting
  weft knobs WEFT_DEADLINE WEFT_INTERFACE     what they take, in full
  WEFT_DEADLINE=5s weft knobs --json          as a program reads it")]
pub(crate) struct Args {
    /// Settings to explain
    #[arg(value_name = "NAME", value_parser = knob)]
    names: Vec<&'static Knob>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn knob(name: &str) -> Result<&'static Knob, String> {
    let upper = name.to_ascii_uppercase().replace('-', "_");
    let full = if upper.starts_with("WEFT_") { upper.clone() } else { format!("WEFT_{upper}") };
    let of_nccl = upper.strip_prefix("NCCL_").map(|rest| format!("WEFT_{rest}"));
    let near = || match &of_nccl {
        Some(ours) => {
            KNOBS.iter().find(|knob| knob.name == ours).map(|knob| knob.name).or_else(|| nearest(ours))
        }
        None => nearest(&full),
    };
    KNOBS.iter().find(|knob| knob.name == full).ok_or_else(|| match near() {
        Some(near) => format!("there is no setting {name}. Did you mean `{near}`?"),
        None => format!("there is no setting {name}; `weft knobs` prints all"),
    })
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let knobs = Knobs::from_environment().map_err(Failure::misuse)?;
    let strangers = unknown(std::env::vars_os().map(|(name, _)| name));
    let is_wanted =
        |knob: &Knob| args.names.is_empty() || args.names.iter().any(|wanted| wanted.name == knob.name);
    let settings: Vec<(&Knob, Setting)> =
        KNOBS.iter().zip(knobs.settings()).filter(|(knob, _)| is_wanted(knob)).collect();
    if args.json {
        let unknown: Vec<Value> =
            strangers.iter().map(|(name, near)| json!({ "name": name, "nearest": near })).collect();
        let settings: Vec<Value> = settings.iter().map(|(knob, setting)| json(knob, setting)).collect();
        return Ok(crate::print_json(&json!({ "settings": settings, "unknown": unknown }))?);
    }
    let mut out = screen::stdout();
    match args.names.is_empty() {
        true => print_all(&mut out, settings)?,
        false => settings.iter().try_for_each(|(knob, setting)| explain(&mut out, knob, setting))?,
    }
    for (name, near) in strangers {
        let near = near.map_or_else(String::new, |near| format!(" Did you mean {near}?"));
        say!(out, "There is no setting {name}.{near}")?;
    }
    Ok(())
}

fn print_all(out: &mut Screen, settings: Vec<(&Knob, Setting)>) -> io::Result<()> {
    let mut table =
        Table::new(["setting", "value", "from", "default", "meaning"]).optional(&["default", "from"]);
    for (knob, Setting { name, value, origin }) in settings {
        let (default, meaning) = (knob.default.to_owned(), knob.meaning.to_owned());
        table.row([name.to_owned(), value, origin_name(origin).to_owned(), default, meaning]);
    }
    writeln!(out, "{table}")?;
    say!(out, "`weft knobs NAME` prints what a setting takes.")
}

fn explain(out: &mut Screen, knob: &Knob, setting: &Setting) -> io::Result<()> {
    say!(out, "{}={} ({})", knob.name, setting.value, origin_name(setting.origin))?;
    say!(out, "  {}", knob.meaning)?;
    say!(out, "  takes: {}", knob.takes)?;
    say!(out, "  default: {}", knob.default)?;
    if knob.all_alike {
        say!(out, "  all ranks of a job must have the same value")?;
    }
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
