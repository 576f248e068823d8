//! `weft sim copy SRC DST`: one copy between two devices.

use anyhow::anyhow;
use serde_json::json;
use weftlink_fabric::Paths;
use weftlink_fabric::bytes::Bytes;
use weftlink_sim::Constants;

use crate::Failure;

/// A copy between two devices: GPUs, host memory (numa0), drives (nvme0)
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft sim copy gpu0 gpu1 --fabric hgx-h100 --size 80GB
  weft sim copy numa0 gpu0 --fabric hgx-h100 --size 80GB              from pinned host memory
  weft sim copy gpu0 gpu8 --fabric \"2x hgx-h100 + 8x ndr\" --size 1GB   to another host
  weft sim copy gpu0 gpu1 --fabric 8x-rtx4090 --peer-access on        what a patched driver would bring

Names are those of `weft topo FABRIC --tree`.")]
pub(super) struct Args {
    /// From which device
    #[arg(value_name = "SRC")]
    source: String,
    /// To which device
    #[arg(value_name = "DST")]
    target: String,
    /// The bytes
    #[arg(long, value_name = "SIZE", default_value = "1GB")]
    size: Bytes,
    /// Where: a system, a cluster or a file, as for `weft topo` [default: this machine]
    #[arg(long)]
    fabric: Option<String>,
    /// Whether GPUs reach each other's memory over PCIe [default: as their drivers have it: GeForce cards do not]
    #[arg(long, value_name = "on|off", value_parser = switch)]
    peer_access: Option<bool>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("it is on or off".to_owned()),
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let fabric = crate::topo::resolve(args.fabric.as_deref(), None)?;
    let find = |name: &String| {
        fabric.find(name).ok_or_else(|| {
            Failure::misuse(anyhow!(
                "no device `{name}` on {}.{} `weft topo FABRIC --tree` prints the names; --fabric chooses the fabric.",
                fabric.name(),
                fabric.suggest_device(name)
            ))
        })
    };
    if args.size.0 == 0 {
        return Err(Failure::misuse(anyhow!("a copy of 0 bytes takes no time; give --size 1 or more")));
    }
    let ends = (find(&args.source)?, find(&args.target)?);
    let paths = Paths::of(&fabric);
    let constants = Constants::shipped();
    let copied = weftlink_sim::copy::copy(&constants, &paths, ends, args.size.0, args.peer_access)
        .map_err(Failure::misuse)?;
    let (from, to) = copied.narrowest;
    let seconds = copied.time.0 as f64 / 1e12;
    if args.json {
        return Ok(crate::print_json(&json!({
            "fabric": fabric.name(),
            "source": fabric.device_name(ends.0),
            "target": fabric.device_name(ends.1),
            "bytes": args.size.0,
            "path": copied.path.name(),
            "staged_through_host": copied.is_staged,
            "bottleneck": {
                "kind": copied.kind.to_string(),
                "from": fabric.device_name(from),
                "to": fabric.device_name(to),
                "nominal_gb_per_s": copied.nominal_gbytes_per_second,
            },
            "gb_per_s": copied.gbytes_per_second,
            "seconds": seconds,
            "basis": "predicted",
        }))?);
    }
    println!(
        "{} from {} to {} on {}: {}",
        args.size,
        fabric.device_name(ends.0),
        fabric.device_name(ends.1),
        fabric.name(),
        copied.path.meaning()
    );
    if copied.is_staged {
        println!("through host memory: these GPUs do not reach each other's over PCIe (--peer-access on)");
    }
    println!(
        "{} at up to {:.1} GB/s; limited by {} from {} to {}, which signals {:.1} GB/s",
        copied.time,
        copied.gbytes_per_second,
        copied.kind,
        fabric.device_name(from),
        fabric.device_name(to),
        copied.nominal_gbytes_per_second
    );
    Ok(())
}
