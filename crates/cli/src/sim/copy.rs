//! `weft sim copy SRC DST`: one copy between two devices.

use std::io::Write;

use anyhow::anyhow;
use serde_json::json;
use weftlink_fabric::bytes::Bytes;
use weftlink_fabric::{Paths, PeerAccess};

use crate::Failure;
use crate::calibration::CalibrationArgs;
use crate::screen::{self, say};

/// Predict a copy between two devices: GPUs, host memory (numa0), drives (nvme0)
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  weft sim copy gpu0 gpu1 --fabric hgx-h100 --size 80GB
  weft sim copy numa0 gpu0 --fabric hgx-h100 --size 80GB    pinned host memory
  weft sim copy gpu0 gpu8 --fabric \"2x hgx-h100 + 8x ndr\"   to another host
  weft sim copy gpu0 gpu1 --fabric 8x-rtx4090 --peer-access on

`weft topo FABRIC --tree` prints the names of the devices.")]
pub(super) struct Args {
    /// The device to copy from
    #[arg(value_name = "SRC")]
    source: String,
    /// The device to copy to
    #[arg(value_name = "DST")]
    target: String,
    /// The size of the copy
    #[arg(long, value_name = "SIZE", default_value = "1GB")]
    size: Bytes,
    /// A system, a cluster or a file, as for `weft topo` [default: this machine]
    #[arg(long)]
    fabric: Option<String>,
    /// Whether GPUs access each other's memory over PCIe [default: as their driver has it; off for GeForce]
    #[arg(long, value_name = "on|off", value_parser = switch)]
    peer_access: Option<bool>,
    /// The GPU model, which the output of `nvidia-smi topo -m` and `rocm-smi` does not contain
    #[arg(long, value_name = "MODEL", requires = "fabric")]
    gpu: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    calibration: CalibrationArgs,
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".to_owned()),
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut fabric = crate::topo::resolve(args.fabric.as_deref(), args.gpu.as_deref())?;
    if args.peer_access.is_some() {
        fabric = fabric.with_peer_access(PeerAccess::from_setting(args.peer_access));
    }
    let find = |name: &String| {
        fabric.find(name).ok_or_else(|| {
            Failure::misuse(anyhow!(
                "{} has no device `{name}`.{} `weft topo FABRIC --tree` prints the names; --fabric selects the fabric.",
                fabric.name(),
                fabric.suggest_device(name)
            ))
        })
    };
    if args.size.0 == 0 {
        return Err(Failure::misuse(anyhow!("--size 0: a copy has at least 1 byte")));
    }
    let ends = (find(&args.source)?, find(&args.target)?);
    let paths = Paths::of(&fabric);
    let constants = args.calibration.constants();
    let copied = weftlink_sim::copy::copy(&constants, &paths, ends, args.size.0).map_err(Failure::misuse)?;
    let (from, to) = copied.narrowest;
    let seconds = copied.time.0 as f64 / 1e12;
    if args.json {
        let mut value = json!({
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
        });
        args.calibration.add_to(&mut value);
        return Ok(crate::print_json(&value)?);
    }
    let mut out = screen::stdout();
    say!(
        out,
        "{} from {} to {} on {}: {}",
        args.size,
        fabric.device_name(ends.0),
        fabric.device_name(ends.1),
        fabric.name(),
        copied.path.meaning()
    )?;
    if copied.is_staged {
        say!(
            out,
            "through host memory: these GPUs have no peer access over PCIe (--peer-access on predicts the copy with peer access)"
        )?;
    }
    say!(
        out,
        "{} at up to {:.1} GB/s; limited by {} from {} to {}, nominally {:.1} GB/s",
        copied.time,
        copied.gbytes_per_second,
        copied.kind,
        fabric.device_name(from),
        fabric.device_name(to),
        copied.nominal_gbytes_per_second
    )?;
    Ok(args.calibration.print(&mut out)?)
}
