//! Parses the tables. Colours are not printed to files, and indentation does not matter.

use crate::format::{ReadError, excerpt};

/// GPUs of one table.
const GPUS_MAX: usize = 256;
/// Links between two GPUs. The dies of an MI250 have four.
const LINKS_MAX: u64 = 16;

/// The tables of one machine.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// The GPUs, in order, with their NUMA nodes.
    pub(super) gpus: Vec<Gpu>,
    /// The kind of connection from row to column; None on the diagonal and where the driver does not say.
    pub(super) types: Vec<Vec<Option<Type>>>,
    pub(super) weights: Vec<Vec<Option<u32>>>,
    /// Links from row to column, from `--shownodesbw`.
    pub(super) links: Vec<Vec<Option<u32>>>,
    /// The line of the table of types.
    pub(super) line: usize,
}

/// A GPU.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) name: String,
    pub(super) numa: Option<u32>,
}

/// How two GPUs are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Xgmi,
    Pcie,
}

/// Which property a table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Title {
    Weight,
    Type,
    Bandwidth,
    Other,
}

/// `===== Weight between two GPUs =====`
fn title(line: &str) -> Option<Title> {
    let line = line.trim().strip_prefix("==")?.trim_matches(['=', ' ']);
    Some(match line {
        "Weight between two GPUs" => Title::Weight,
        "Link Type between two GPUs" => Title::Type,
        "Bandwidth" => Title::Bandwidth,
        _ => Title::Other,
    })
}

/// True if the text has the heading of such a table.
pub(crate) fn looks_like(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(65_536)]);
    text.lines().any(|line| matches!(title(line), Some(Title::Weight | Title::Type)))
}

/// Reads the tables.
pub(super) fn parse(text: &str) -> Result<Tables, ReadError> {
    let mut tables = Tables::default();
    // The title, the number of columns once they are read, and the rows so far.
    let mut now: Option<(Title, Option<usize>, usize)> = None;
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        if let Some(title) = title(line) {
            tables.finish(now, number)?;
            now = (title != Title::Other).then_some((title, None, 0));
            if title == Title::Type {
                tables.line = number;
            }
        } else if let Some((title, columns, rows)) = &mut now {
            match columns {
                None if line.is_empty() || line.starts_with("WARNING") => {}
                None => *columns = Some(tables.heading(line, number)?),
                Some(columns) if line.split_whitespace().next().is_some_and(is_gpu) => {
                    tables.row(line, number, *title, *columns, *rows)?;
                    *rows += 1;
                }
                Some(_) => {
                    tables.finish(now, number)?;
                    now = None;
                }
            }
        } else {
            tables.numa(line, number)?;
        }
    }
    tables.finish(now, text.lines().count())?;
    if tables.types.is_empty() {
        return Err(ReadError::at(
            text.lines().count().max(1),
            "the table `Link Type between two GPUs` is missing; paste the whole output of `rocm-smi --showtopo`",
        ));
    }
    Ok(tables)
}

fn is_gpu(name: &str) -> bool {
    let digits = name.strip_prefix("GPU").unwrap_or_default();
    (1..6).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
}

impl Tables {
    /// Reads the names of the columns, which are the same in all tables.
    fn heading(&mut self, line: &str, number: usize) -> Result<usize, ReadError> {
        let names: Vec<&str> = line.split_whitespace().collect();
        if let Some(other) = names.iter().find(|name| !is_gpu(name)) {
            return Err(ReadError::at(
                number,
                format!("found `{}`, expected the names of GPUs: GPU0 GPU1 ...", excerpt(other)),
            ));
        }
        if names.len() > GPUS_MAX {
            return Err(ReadError::at(
                number,
                format!("the table has {} GPUs; the limit is {GPUS_MAX}", names.len()),
            ));
        }
        if self.gpus.is_empty() {
            self.gpus = names.iter().map(|name| Gpu { name: (*name).to_owned(), numa: None }).collect();
        } else if !self.gpus.iter().map(|gpu| gpu.name.as_str()).eq(names.iter().copied()) {
            return Err(ReadError::at(
                number,
                "the columns differ from those of the table before; paste the output of a single run",
            ));
        }
        Ok(names.len())
    }

    fn row(
        &mut self,
        line: &str,
        number: usize,
        title: Title,
        columns: usize,
        row: usize,
    ) -> Result<(), ReadError> {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let Some(expected) = self.gpus.get(row).map(|gpu| gpu.name.as_str()) else {
            return Err(ReadError::at(
                number,
                format!("second row for {}; paste a single table", excerpt(name)),
            ));
        };
        if name != expected {
            return Err(ReadError::at(
                number,
                format!("found the row of {}, expected {expected}", excerpt(name)),
            ));
        }
        let cells: Vec<&str> = words.take(columns).collect();
        if cells.len() < columns {
            return Err(ReadError::at(number, format!("{name} has {} of {columns} cells", cells.len())));
        }
        let bad = |cell: &str, expected: &str| {
            ReadError::at(number, format!("{name} has a cell `{}`; expected {expected}", excerpt(cell)))
        };
        let is_unknown = |cell: &str| matches!(cell, "N/A" | "XXXX");
        match title {
            Title::Type => {
                let kind = |(column, cell): (usize, &&str)| match *cell {
                    _ if column == row => Ok(None),
                    "XGMI" => Ok(Some(Type::Xgmi)),
                    "PCIE" => Ok(Some(Type::Pcie)),
                    cell if is_unknown(cell) => Ok(None),
                    cell => Err(bad(cell, "XGMI or PCIE")),
                };
                self.types.push(cells.iter().enumerate().map(kind).collect::<Result<_, _>>()?);
            }
            Title::Weight => {
                let weight = |cell: &&str| match cell.parse() {
                    Ok(weight) => Ok(Some(weight)),
                    Err(_) if is_unknown(cell) => Ok(None),
                    Err(_) => Err(bad(cell, "a number")),
                };
                self.weights.push(cells.iter().map(weight).collect::<Result<_, _>>()?);
            }
            Title::Bandwidth => {
                let count = |cell: &&str| match count(cell) {
                    Some(count) => Ok(Some(count)),
                    None if is_unknown(cell) => Ok(None),
                    None => Err(bad(cell, "least and most MB/s such as 50000-200000")),
                };
                self.links.push(cells.iter().map(count).collect::<Result<_, _>>()?);
            }
            Title::Other => {}
        }
        Ok(())
    }

    /// Checks that a table has all its rows.
    fn finish(&self, now: Option<(Title, Option<usize>, usize)>, number: usize) -> Result<(), ReadError> {
        match now {
            Some((_, columns, rows)) if columns != Some(rows) => Err(ReadError::at(
                number,
                format!("the table ends after {rows} rows; paste all {} rows", columns.unwrap_or_default()),
            )),
            _ => Ok(()),
        }
    }

    /// `GPU[0]          : (Topology) Numa Node: 0`
    fn numa(&mut self, line: &str, number: usize) -> Result<(), ReadError> {
        let Some((gpu, value)) = line
            .strip_prefix("GPU[")
            .and_then(|rest| rest.split_once(']'))
            .and_then(|(gpu, rest)| Some((gpu, rest.split_once("Numa Node:")?.1.trim())))
        else {
            return Ok(());
        };
        // -1 where the machine has a single node.
        let node = if value == "-1" { Ok(0) } else { value.parse::<u32>() };
        let node = node.map_err(|_| {
            ReadError::at(number, format!("the NUMA node is `{}`; expected a number", excerpt(value)))
        })?;
        let name = format!("GPU{gpu}");
        if let Some(gpu) = self.gpus.iter_mut().find(|other| other.name == name) {
            gpu.numa = Some(node);
        }
        Ok(())
    }
}

/// The most bandwidth over the least, which is that of one link; 0 for `0-0`, which means that the GPUs are not connected directly.
fn count(cell: &str) -> Option<u32> {
    let (least, most) = cell.split_once('-')?;
    let (least, most): (u64, u64) = (least.parse().ok()?, most.parse().ok()?);
    if most == 0 {
        return Some(0);
    }
    Some(most.checked_div(least).unwrap_or(1).clamp(1, LINKS_MAX) as u32)
}
