//! `rocm-smi --showtopo`, its parts, `--shownodesbw` and `--showxgmierr`, of ROCm 4 to 7.
//!
//! ```text
//! =========================== Weight between two GPUs ============================
//!        GPU0         GPU1
//! GPU0   0            15
//! GPU1   15           0
//! ================================== Numa Nodes ==================================
//! GPU[0]          : (Topology) Numa Node: 0
//! ```

use super::lines::{Lines, check_size};
use super::matrix::{Tables, Title};
use super::{GPUS_MAX, LinesError};
use crate::links::{GpuFields, Kind, Links};

/// True for a line above a table of this tool.
pub(super) fn is_title(line: &str) -> bool {
    title(line).is_some_and(|title| title != Title::Other)
}

/// `===== Weight between two GPUs =====`; a line of `=` alone ends a table.
fn title(line: &str) -> Option<Title> {
    let line = line.strip_prefix("==")?.trim_matches(['=', ' ']);
    Some(match line {
        "Weight between two GPUs" => Title::Weight,
        "Hops between two GPUs" => Title::Hops,
        "Link Type between two GPUs" => Title::LinkType,
        "Link accessibility between two GPUs" => Title::Access,
        "Bandwidth" => Title::Bandwidth,
        _ => Title::Other,
    })
}

/// Reads the output of `rocm-smi`.
pub fn read(text: &str) -> Result<Links, LinesError> {
    let tables = Tables::read(text, title)?;
    let mut links = Links::default();
    tables.add_links(&mut links)?;
    for line in Lines::of(text)? {
        // `GPU[0]          : (Topology) Numa Node: 0`
        let Some((number, rest)) =
            line.text.trim().strip_prefix("GPU[").and_then(|rest| rest.split_once(']'))
        else {
            continue;
        };
        let number: usize = match number.parse() {
            Ok(number) if number < GPUS_MAX => number,
            _ => return Err(line.expected("the number of a GPU, as in `GPU[0]`")),
        };
        let device = format!("gpu{number}");
        let rest = rest.trim().trim_start_matches(':').trim();
        let Some((name, value)) = rest.split_once(':') else { continue };
        let value = value.trim();
        match name.trim() {
            "(Topology) Numa Node" => field(&mut links, &device, "numa_node", value),
            "(Topology) Numa Affinity" => field(&mut links, &device, "numa_affinity", value),
            "XGMI Error count" => {
                // `0 (No errors detected since last read)`
                let count = value.split_whitespace().next().and_then(|count| count.parse().ok());
                let count = count.ok_or_else(|| line.expected("a number of errors"))?;
                links.entry(Kind::Xgmi, &device, None).set_error("xgmi_errors", count);
            }
            _ => {}
        }
        check_size(&links)?;
    }
    if tables.is_empty() && links.links.is_empty() && links.gpus.is_empty() {
        return Err(LinesError::Empty { tool: "rocm-smi", what: "tables of links or error counts" });
    }
    Ok(links)
}

fn field(links: &mut Links, device: &str, name: &str, value: &str) {
    let at = links.gpus.iter().position(|gpu| gpu.gpu == device).unwrap_or_else(|| {
        links.gpus.push(GpuFields { gpu: device.to_owned(), ..GpuFields::default() });
        links.gpus.len() - 1
    });
    let fields = &mut links.gpus[at].fields;
    fields.retain(|(other, _)| other != name);
    fields.push((name.to_owned(), value.to_owned()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str) -> Links {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/links");
        read(&std::fs::read_to_string(folder.join(name)).unwrap()).unwrap()
    }

    #[test]
    fn links_of_xgmi_are_listed_and_pairs_over_pcie_counted() {
        let links = sample("rocm-smi-topo-mi210.txt");
        // Two bridges of two cards each.
        assert_eq!(links.links.len(), 4);
        let link = &links.links[0];
        assert_eq!(link.id.to_string(), "gpu0 link 0");
        assert_eq!(link.remote.as_ref().unwrap().device.as_deref(), Some("gpu1"));
        assert!(link.values.contains(&("weight".to_owned(), "15".to_owned())));
        assert_eq!(links.gpus[3].field("numa_node"), Some("1"));
        assert!(links.notes[0].starts_with("4 pairs"), "{:?}", links.notes);
    }

    #[test]
    fn bandwidths_give_the_number_of_links() {
        let links = sample("rocm-smi-bandwidth-mi250.txt");
        let first = &links.links[0];
        assert_eq!((first.nominal, first.width), (Some(200_000_000_000), Some(4)));
        // gpu0 to gpu3: 0-0, through another GPU.
        assert!(links.links.iter().all(|link| {
            let far = link.remote.as_ref().unwrap().device.as_deref();
            (link.id.device.as_str(), far) != ("gpu0", Some("gpu3"))
        }));
    }

    #[test]
    fn error_counts_are_read() {
        let links = sample("rocm-smi-xgmierr.txt");
        assert_eq!(links.links.len(), 2);
        assert_eq!(links.links[1].error("xgmi_errors"), Some(2));
        assert!(links.links[1].has_errors());
    }

    #[test]
    fn errors_name_line_and_expectation() {
        let title = "== Weight between two GPUs ==\n";
        for (text, line, expected) in [
            (format!("{title}GPU0 GPU1\nGPU0 0\n"), 3, "2 cells"),
            (format!("{title}GPU0 what\n"), 2, "the names of the GPUs"),
            ("GPU[x] : XGMI Error count: 0".to_owned(), 1, "the number of a GPU"),
            ("GPU[0] : XGMI Error count: none".to_owned(), 1, "a number of errors"),
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
