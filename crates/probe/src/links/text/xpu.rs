//! `xpu-smi topology -m` and `xpu-smi discovery`, of versions 1 and 2.
//!
//! ```text
//!          GPU 0/0|GPU 0/1|GPU 1/0|GPU 1/1|CPU Affinity
//! GPU 0/0 |S      |MDF    |XL*    |XL16   |0-23,48-71
//! ```
//!
//! The tiles of a GPU are joined inside of its package (`MDF`). `XL16` is a direct connection of sixteen lanes of Xe Link, `XL*` one
//! through another tile. Version 2 separates the columns by spaces, and has no Xe Links.

use super::lines::{Line, Lines, bus, check_size};
use super::{GPUS_MAX, LinesError};
use crate::links::{GpuFields, Kind, Links, Remote, State};

/// Lanes of an Xe Link of the Max GPUs; the matrix counts lanes.
const LANES: u32 = 4;

/// True for a line that only this tool prints.
pub(super) fn looks_like(line: &str) -> bool {
    is_heading(line) || line.starts_with("| Device ID | Device Information")
}

fn is_heading(line: &str) -> bool {
    line.starts_with("GPU ") && line.contains('/') && line.contains("CPU Affinity")
}

/// Reads the output of `xpu-smi`.
pub fn read(text: &str) -> Result<Links, LinesError> {
    let mut links = Links::default();
    let mut tiles: Option<Vec<Tile>> = None;
    let mut seen = 0;
    for line in Lines::of(text)? {
        let content = line.text.trim();
        if is_heading(content) {
            tiles = Some(heading(&line, content)?);
        } else if let (true, Some(tiles)) = (content.starts_with("GPU "), &tiles) {
            row(&line, content, tiles, &mut links)?;
            seen += 1;
            check_size(&links)?;
        } else if let Some(cells) = content.strip_prefix('|') {
            discovered(&line, cells, &mut links)?;
            check_size(&links)?;
        }
    }
    if seen == 0 && links.gpus.is_empty() {
        return Err(LinesError::Empty { tool: "xpu-smi", what: "GPUs" });
    }
    Ok(links)
}

/// A tile of a GPU, as in `GPU 0/1`.
type Tile = (u32, u32);

fn tile(text: &str) -> Option<Tile> {
    let (gpu, tile) = text.trim().split_once('/')?;
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| (*number as usize) < GPUS_MAX);
    Some((number(gpu)?, number(tile)?))
}

fn heading(line: &Line, content: &str) -> Result<Vec<Tile>, LinesError> {
    let names = content.split("CPU Affinity").next().unwrap_or_default();
    let tiles = names.split("GPU ").skip(1).map(|name| tile(name.trim_matches(['|', ' '])));
    let tiles: Option<Vec<Tile>> = tiles.collect();
    tiles.filter(|tiles| tiles.len() <= GPUS_MAX).ok_or_else(|| line.expected("tiles such as `GPU 0/0`"))
}

fn row(line: &Line, content: &str, tiles: &[Tile], links: &mut Links) -> Result<(), LinesError> {
    let spaced = content.replace('|', " ");
    let mut words = spaced.split_whitespace().skip(1);
    let own = words.next().and_then(tile).ok_or_else(|| line.expected("a tile such as `GPU 0/0`"))?;
    let cells: Vec<&str> = words.by_ref().take(tiles.len()).collect();
    if cells.len() < tiles.len() {
        return Err(line.expected(format!("{} cells, one for each tile of the heading", tiles.len())));
    }
    let affinity = words.next();
    let device = format!("gpu{}", own.0);
    let gpu = gpu(links, &device);
    if let (true, Some(affinity)) = (gpu.field("cpu_affinity").is_none(), affinity) {
        gpu.fields.push(("cpu_affinity".to_owned(), affinity.to_owned()));
    }
    for (cell, far) in cells.into_iter().zip(tiles) {
        let Some(lanes) = cell.strip_prefix("XL") else {
            // S, MDF, PIX, PXB, PHB, NODE, SYS: a path, not a link.
            continue;
        };
        if lanes == "*" {
            continue;
        }
        let lanes: u32 = lanes.parse().map_err(|_| line.expected("`XL` and a number of lanes, or `XL*`"))?;
        let name = format!("gpu{} tile {}", own.0, own.1);
        let number = u32::try_from(links.links.iter().filter(|link| link.id.device == name).count()).ok();
        let link = links.entry(Kind::XeLink, &name, number);
        link.state = State::Up;
        link.width = u8::try_from(lanes).ok();
        // The catalog's rate is that of a link of four lanes.
        let rate = crate::links::driver::nominal(&weftlink_fabric::catalog::links::XE_LINK);
        link.nominal = rate.map(|rate| rate / u64::from(LANES) * u64::from(lanes));
        link.remote = Some(Remote {
            device: Some(format!("gpu{} tile {}", far.0, far.1)),
            kind: Some("gpu".to_owned()),
            ..Remote::default()
        });
    }
    Ok(())
}

fn gpu<'l>(links: &'l mut Links, device: &str) -> &'l mut GpuFields {
    let at = links.gpus.iter().position(|gpu| gpu.gpu == device).unwrap_or_else(|| {
        links.gpus.push(GpuFields { gpu: device.to_owned(), ..GpuFields::default() });
        links.gpus.len() - 1
    });
    &mut links.gpus[at]
}

/// ` 0         | Device Name: Intel(R) Data Center GPU Max 1550 |`; the first cell is empty on the following lines of a device.
fn discovered(line: &Line, cells: &str, links: &mut Links) -> Result<(), LinesError> {
    let Some((number, rest)) = cells.split_once('|') else {
        return Ok(());
    };
    let number = number.trim();
    if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) {
        if number.len() > 4 {
            return Err(line.expected("the number of a GPU"));
        }
        gpu(links, &format!("gpu{number}"));
    }
    let rest = rest.trim().trim_end_matches('|').trim();
    let (Some(gpu), Some((name, value))) = (links.gpus.last_mut(), rest.split_once(": ")) else {
        return Ok(());
    };
    let field = match name {
        "Device Name" => "product_name",
        "PCI BDF Address" => {
            gpu.bus = Some(bus(value).ok_or_else(|| line.expected("a PCI address"))?);
            return Ok(());
        }
        "PCIe Generation" => "pcie_generation_max",
        "PCIe Max Link Width" => "pcie_width_max",
        "DRM Device" => "drm_device",
        "Function Type" => "function_type",
        "Driver Version" => "driver_version",
        "Memory Physical Size" => "memory_size",
        _ => return Ok(()),
    };
    gpu.fields.retain(|(other, _)| other != field);
    gpu.fields.push((field.to_owned(), value.trim().to_owned()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str) -> Links {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/links");
        read(&std::fs::read_to_string(folder.join(name)).unwrap()).unwrap()
    }

    #[test]
    fn direct_connections_are_links() {
        let links = sample("xpu-smi-topology-max1550.txt");
        assert_eq!(links.links.len(), 4);
        let link = &links.links[0];
        assert_eq!((link.id.device.as_str(), link.width), ("gpu0 tile 0", Some(16)));
        assert_eq!(link.remote.as_ref().unwrap().device.as_deref(), Some("gpu1 tile 1"));
        assert_eq!(link.nominal, Some(106_000_000_000));
        assert_eq!(links.gpus[1].field("cpu_affinity"), Some("26-51,78-103"));
    }

    #[test]
    fn version_2_separates_by_spaces() {
        let links = sample("xpu-smi-topology-b60.txt");
        assert_eq!((links.links.len(), links.gpus.len()), (0, 2));
    }

    #[test]
    fn discovery_names_devices() {
        let links = sample("xpu-smi-discovery.txt");
        assert_eq!(links.gpus.len(), 2);
        assert_eq!(links.gpus[1].bus.as_deref(), Some("0000:6c:00.0"));
        assert_eq!(links.gpus[0].field("product_name"), Some("Intel(R) Data Center GPU Max 1550"));
    }

    #[test]
    fn errors_name_line_and_expectation() {
        let heading = "GPU 0/0|GPU 1/0|CPU Affinity\n";
        for (text, line, expected) in [
            ("GPU 0/x|CPU Affinity\n".to_owned(), 1, "tiles such as"),
            (format!("{heading}GPU 0/0 |S\n"), 2, "2 cells"),
            (format!("{heading}GPU 0/0 |S |XLx |0-3\n"), 2, "a number of lanes"),
            ("| 0 | PCI BDF Address: here |\n".to_owned(), 1, "a PCI address"),
        ] {
            match read(&text).unwrap_err() {
                LinesError::Line { line: at, expected: wanted, .. } => {
                    assert_eq!(at, line, "{text}");
                    assert!(wanted.contains(expected), "{text}: {wanted}");
                }
                other => panic!("{text}: {other}"),
            }
        }
    }
}
