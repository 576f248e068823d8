//! Plans in files: reading them, `weft plan verify` and `weft plan import`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use weftlink_fabric::bytes::Bytes;
use weftlink_plan::msccl::MscclError;
use weftlink_plan::plan::Agreement;
use weftlink_plan::{Plan, Refusal, Verified, verify};

use super::text::ways;
use crate::{Failure, counted, screen};

/// A plan of a thousand ranks has about a tenth of this.
const BYTES_MAX: u64 = 64 << 20;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft plan verify mine.json
  weft plan all-reduce -n 4 --algorithm ring --emit json | weft plan verify -

Exit code 0 if the plan is proved, 1 if it is refused, 2 if the file cannot be read or is not a plan.")]
pub(super) struct Args {
    /// A plan in JSON, as `--emit json` prints it, or MSCCL's XML; `-` for standard input
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft plan import ring.xml -o ring.json && weft plan verify ring.json")]
pub(super) struct ImportArgs {
    /// MSCCL's XML; `-` for standard input
    file: PathBuf,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// A file's plan, proved.
pub(crate) fn read(file: &Path) -> Result<Verified, Failure> {
    Ok(read_with_form(file)?.0)
}

/// The same, with the format of the file.
pub(crate) fn read_with_form(file: &Path) -> Result<(Verified, Form), Failure> {
    let (plan, form) = parse(file)?;
    let verified = verify(plan).map_err(|refusal| refusal_of(file, form, &refusal))?;
    Ok((verified, form))
}

/// `weft plan import`.
pub(super) fn import(args: &ImportArgs) -> Result<(), Failure> {
    let (plan, form) = parse(&args.file)?;
    if form == Form::Json {
        return Err(Failure::misuse(anyhow!(
            "{0} is a plan in JSON already; import converts MSCCL's XML. `weft plan verify {0}` proves it",
            args.file.display()
        )));
    }
    let json = plan.to_json();
    match &args.output {
        None => Ok(writeln!(io::stdout(), "{json}")?),
        Some(file) => std::fs::write(file, json + "\n")
            .with_context(|| format!("cannot write {}", file.display()))
            .map_err(Failure::Misuse),
    }
}

/// `weft plan verify`.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let file = args.file.display().to_string();
    let (plan, form) = match parse(&args.file) {
        Err(failure @ (Failure::Misuse(_) | Failure::Finding(_))) if args.json => {
            if let Failure::Misuse(error) | Failure::Finding(error) = &failure
                && !error.chain().any(|cause| cause.is::<io::Error>())
            {
                let text = error.to_string();
                let fault = text.strip_prefix(&format!("{file}: ")).unwrap_or(&text);
                crate::print_json(&json!({
                    "file": file,
                    "verified": false,
                    "name": null,
                    "at": null,
                    "fault": fault,
                }))?;
            }
            return Err(failure);
        }
        parsed => parsed?,
    };
    let verified = verify(plan);
    if args.json {
        crate::print_json(&match &verified {
            Ok(plan) => proved(&file, plan),
            Err(refusal) => refused(&file, refusal),
        })?;
    }
    let plan = verified.map_err(|refusal| refusal_of(&args.file, form, &refusal))?;
    if !args.json {
        let (name, ranks, collective) = (&plan.name, counted(plan.ranks, "rank"), &plan.collective);
        let (lanes, steps, hash) =
            (counted(lanes(&plan), "lane"), counted(steps(&plan), "step"), plan.hash());
        let needs = if plan.needs_windows() { "; needs symmetric buffers" } else { "" };
        let bits = match plan.agreement {
            Agreement::SameBits => "",
            Agreement::UpToRounding => "; ranks reduce in different orders, so the last bits may differ",
        };
        let text = format!(
            "{file}: {name} for {ranks} computes {collective}, {}; {steps} in {lanes}{needs}{bits}; hash {hash:016x}",
            ways(&plan)
        );
        writeln!(screen::stdout(), "{}", screen::record(&text))?;
    }
    Ok(())
}

/// The format of a plan file.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Form {
    Json,
    Msccl,
}

/// A refusal that names the step as the file does.
fn refusal_of(file: &Path, form: Form, refusal: &Refusal) -> Failure {
    let file = file.display();
    Failure::finding(match form {
        Form::Msccl if refusal.spot.is_some() => {
            anyhow!("{file}: {refusal}; rank, lane and step are the file's gpu, tb and s")
        }
        _ => anyhow!("{file}: {refusal}"),
    })
}

fn parse(file: &Path) -> Result<(Plan, Form), Failure> {
    let name = file.display();
    let source: Box<dyn Read> = if file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(file).with_context(|| format!("cannot read {name}")).map_err(Failure::Misuse)?)
    };
    let mut text = String::new();
    let read = source.take(BYTES_MAX + 1).read_to_string(&mut text);
    read.with_context(|| format!("cannot read {name}")).map_err(Failure::Misuse)?;
    if text.len() as u64 > BYTES_MAX {
        let limit = Bytes(BYTES_MAX);
        return Err(Failure::misuse(anyhow!("{name} is larger than {limit}, the limit for a plan")));
    }
    // The error text includes its cause; a chain would repeat it.
    let text = text.trim_start_matches('\u{feff}');
    if text.trim().is_empty() {
        return Err(Failure::misuse(anyhow!("{name} is empty; `weft plan --emit json` writes a plan")));
    }
    if text.trim_start().starts_with('<') {
        let plan = Plan::from_msccl(text).map_err(|error| {
            // A program that no runtime can run is refused, as one that is not proved.
            let failure =
                if matches!(error, MscclError::Text { .. }) { Failure::Misuse } else { Failure::Finding };
            failure(anyhow!("{name}: {error}"))
        })?;
        return Ok((plan, Form::Msccl));
    }
    if !text.trim_start().starts_with('{') {
        return Err(Failure::misuse(anyhow!(
            "{name}: not a plan: it begins neither with `{{` (JSON) nor with `<` (MSCCL's XML)"
        )));
    }
    let plan = Plan::from_json(text).map_err(|error| Failure::misuse(anyhow!("{name}: {error}")))?;
    Ok((plan, Form::Json))
}

fn proved(file: &str, plan: &Verified) -> Value {
    json!({
        "file": file,
        "verified": true,
        "name": plan.name,
        "collective": plan.collective,
        "ranks": plan.ranks,
        "aliasing": plan.aliasing,
        "agreement": plan.agreement,
        "needs_symmetric_buffers": plan.needs_windows(),
        "lanes": lanes(plan),
        "steps": steps(plan),
        "hash": format!("{:016x}", plan.hash()),
    })
}

fn refused(file: &str, refusal: &Refusal) -> Value {
    let spot = refusal.spot.as_ref().map(|spot| {
        json!({ "rank": spot.rank, "lane": spot.lane, "step": spot.step, "iterations": spot.iterations })
    });
    json!({
        "file": file,
        "verified": false,
        "name": refusal.plan,
        "at": spot,
        "fault": refusal.fault.to_string(),
    })
}

/// Lanes of all ranks.
fn lanes(plan: &Plan) -> usize {
    plan.programs.iter().map(|program| program.lanes.len()).sum()
}

/// Steps that all ranks run, for each tile of a buffer.
fn steps(plan: &Plan) -> usize {
    plan.programs.iter().flat_map(|program| &program.lanes).map(|lane| lane.walk().count()).sum()
}
