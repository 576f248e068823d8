//! Parses the matrix. The text may have been copied from terminals, web pages and chat windows: colours, lost tabs,
//! indentation and a `#` before each line are accepted, as long as every row is complete.

use std::borrow::Cow;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::format::{ReadError, excerpt};

/// Devices of one table. Hosts with many virtual NICs have some dozens.
const DEVICES_MAX: usize = 1_024;
/// Bytes of one line. A table of [`DEVICES_MAX`] columns has lines of some kilobytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Fields read after a row's cells. There are three columns, and drivers put two tabs before the last.
const AFFINITY_FIELDS_MAX: usize = 8;
/// NVLinks between two GPUs.
const NVLINKS_MAX: u32 = 1_000;

/// The path between two devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    Itself,
    NvLinks(u32),
    Pcie(Distance),
}

/// How far up PCIe a path goes, nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Distance {
    /// At most one bridge.
    Pix,
    /// Several bridges.
    Pxb,
    /// Through the host bridge.
    Phb,
    /// Between host bridges of a NUMA node.
    Node,
    /// Between NUMA nodes.
    Sys,
}

impl Distance {
    /// The word in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        }
    }
}

/// A row of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) cells: Vec<Cell>,
    /// The list of CPUs near it.
    pub(super) cpus: Option<String>,
    /// The first NUMA node near it.
    pub(super) numa: Option<u32>,
    /// Its name in the NIC legend.
    pub(super) legend: Option<String>,
}

impl Row {
    /// True for a GPU; all other rows are NICs.
    pub(super) fn is_gpu(&self) -> bool {
        is_gpu(&self.name)
    }
}

/// The matrix, checked to be square and symmetric.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
}

/// True if the text contains the header or a row of such a table.
pub(crate) fn looks_like(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(65_536)]);
    text.lines().any(|line| {
        let line = plain(line);
        Header::of(&line, 1).is_ok_and(|header| header.is_some()) || is_row(&line)
    })
}

/// Reads the table.
pub(super) fn parse(text: &str) -> Result<Table, ReadError> {
    if let Some((_, number)) = text.lines().zip(1..).find(|(line, _)| line.len() > LINE_BYTES_MAX) {
        return Err(ReadError::at(
            number,
            format!("the line is longer than {LINE_BYTES_MAX} bytes, which is the limit"),
        ));
    }
    let mut lines = text.lines().zip(1..);
    let mut header = None;
    for (line, number) in lines.by_ref() {
        let line = plain(line);
        header = Header::of(&line, number)?;
        if header.is_some() {
            break;
        }
        if is_row(&line) {
            return Err(ReadError::at(
                number,
                "the line with the column names is missing above this row; paste the whole table",
            ));
        }
    }
    let Some(header) = header else {
        return Err(ReadError::at(
            1,
            "no line with the column names GPU0, GPU1 and so on; paste the whole output of `nvidia-smi topo -m`",
        ));
    };
    let mut rows: Vec<Row> = Vec::new();
    let mut legend: FxHashMap<String, String> = FxHashMap::default();
    let known: FxHashSet<&str> = header.columns.iter().map(String::as_str).collect();
    let mut last = header.line;
    for (line, number) in lines {
        let line = plain(line);
        let Some(first) = line.split_whitespace().next() else {
            continue;
        };
        last = number;
        if let Some((nic, name)) = line.split_once(':')
            && nic.trim().starts_with("NIC")
        {
            // Only names of columns are kept, which bounds the size of the legend.
            if known.contains(nic.trim()) && is_plain(name.trim()) {
                legend.insert(nic.trim().to_owned(), name.trim().to_owned());
            }
        } else if header.columns.get(rows.len()).is_some_and(|column| column == first) {
            rows.push(header.row(&line, number)?);
        } else if known.contains(first) {
            let reason = match header.columns.get(rows.len()) {
                Some(expected) => format!(
                    "found the row of {}, expected {expected}: rows must be in the order of the columns",
                    excerpt(first)
                ),
                None if has_cell_second(&line) => {
                    format!("second row for {}; paste a single table", excerpt(first))
                }
                // Prose after the table may mention a device.
                None => continue,
            };
            return Err(ReadError::at(number, reason));
        }
    }
    if let Some(missing) = header.columns.get(rows.len()) {
        return Err(ReadError::at(
            last,
            format!(
                "the table ends before the row of {}; paste all {} rows",
                excerpt(missing),
                header.columns.len()
            ),
        ));
    }
    for row in &mut rows {
        row.legend = legend.remove(&row.name);
    }
    let table = Table { rows };
    table.check()?;
    Ok(table)
}

impl Table {
    fn check(&self) -> Result<(), ReadError> {
        for (i, row) in self.rows.iter().enumerate() {
            for (j, other) in self.rows[..=i].iter().enumerate() {
                let (here, there) = (row.cells[j], other.cells[i]);
                let wrong = match here {
                    Cell::Itself if i != j => {
                        Some(format!("{} to {} is X, which is for a device to itself", row.name, other.name))
                    }
                    _ if i == j && here != Cell::Itself => {
                        Some(format!("{} to itself is {}; it must be X", row.name, here.text()))
                    }
                    Cell::NvLinks(_) if !row.is_gpu() || !other.is_gpu() => {
                        Some(format!("{} to {} has NVLinks, but only GPUs can", row.name, other.name))
                    }
                    _ if here != there => Some(format!(
                        "{} to {} is {}, but {} to {} on line {} is {}; both must be equal",
                        row.name,
                        other.name,
                        here.text(),
                        other.name,
                        row.name,
                        other.line,
                        there.text()
                    )),
                    _ => None,
                };
                if let Some(reason) = wrong {
                    return Err(ReadError::at(row.line, reason));
                }
            }
        }
        Ok(())
    }
}

/// The line with the column names.
struct Header {
    columns: Vec<String>,
    line: usize,
    /// Columns after the matrix.
    cpus: bool,
    numa: bool,
    gpu_numa: bool,
}

impl Header {
    fn of(line: &str, number: usize) -> Result<Option<Self>, ReadError> {
        let matrix_end = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
            .iter()
            .filter_map(|title| line.find(title))
            .min()
            .unwrap_or(line.len());
        let columns: Vec<String> = line[..matrix_end].split_whitespace().map(str::to_owned).collect();
        let nic = |name: &str| name.contains(|c: char| c.is_ascii_digit()) && is_plain(name);
        let is_header = columns.first().is_some_and(|name| is_gpu(name))
            && columns.iter().all(|word| nic(word) && cell(word).is_none());
        if !is_header {
            return Ok(None);
        }
        if columns.len() > DEVICES_MAX {
            return Err(ReadError::at(
                number,
                format!("the table has more than {DEVICES_MAX} columns, which is the limit"),
            ));
        }
        let mut sorted: Vec<&String> = columns.iter().collect();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ReadError::at(number, format!("two columns are called {}", excerpt(twice[0]))));
        }
        Ok(Some(Self {
            line: number,
            cpus: line.contains("CPU Affinity"),
            numa: line.contains("NUMA Affinity"),
            gpu_numa: line.contains("GPU NUMA ID"),
            columns,
        }))
    }

    fn row(&self, line: &str, number: usize) -> Result<Row, ReadError> {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default().to_owned();
        let mut cells = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            let word = words.next().ok_or_else(|| {
                ReadError::at(
                    number,
                    format!(
                        "the row of {} has {} cells, but there are {} columns",
                        name,
                        cells.len(),
                        self.columns.len()
                    ),
                )
            })?;
            let cell = cell(word).ok_or_else(|| ReadError::at(number, bad_cell(&name, column, word)))?;
            cells.push(cell);
        }
        let (cpus, numa) = self.affinity(line, &words.take(AFFINITY_FIELDS_MAX).collect::<Vec<_>>());
        Ok(Row {
            name,
            line: number,
            cells,
            cpus: cpus.map(str::to_owned),
            numa: numa.and_then(first_number),
            legend: None,
        })
    }

    /// The CPU and NUMA columns. Either may be empty: tabs show which, or else the number of words does.
    fn affinity<'l>(&self, line: &'l str, words: &[&'l str]) -> (Option<&'l str>, Option<&'l str>) {
        let known = |text: &&str| !text.is_empty() && *text != "N/A";
        let after_cells = line.split('\t').skip(1 + self.columns.len());
        let tail: Vec<&str> = after_cells.map(str::trim).take(AFFINITY_FIELDS_MAX).collect();
        let by_tabs = tail.iter().filter(|field| !field.is_empty()).eq(words.iter());
        let (cpus, numa) = if by_tabs {
            (tail.first().copied(), tail.get(1).copied())
        } else {
            let missing = 1 + usize::from(self.numa) + usize::from(self.gpu_numa) > words.len();
            if missing && self.numa {
                (None, words.first().copied())
            } else {
                (words.first().copied(), words.get(1).copied())
            }
        };
        (cpus.filter(|_| self.cpus).filter(known), numa.filter(|_| self.numa).filter(known))
    }
}

impl Cell {
    fn text(self) -> String {
        match self {
            Self::Itself => "X".to_owned(),
            Self::NvLinks(count) => format!("NV{count}"),
            Self::Pcie(distance) => distance.name().to_owned(),
        }
    }
}

fn cell(word: &str) -> Option<Cell> {
    Some(match word {
        "X" => Cell::Itself,
        "PIX" => Cell::Pcie(Distance::Pix),
        "PXB" => Cell::Pcie(Distance::Pxb),
        "PHB" => Cell::Pcie(Distance::Phb),
        "NODE" => Cell::Pcie(Distance::Node),
        // Drivers before 2017 said SOC.
        "SYS" | "SOC" => Cell::Pcie(Distance::Sys),
        _ => {
            let count: u32 = word.strip_prefix("NV")?.parse().ok()?;
            Cell::NvLinks(Some(count).filter(|n| (1..=NVLINKS_MAX).contains(n))?)
        }
    })
}

fn bad_cell(row: &str, column: &str, word: &str) -> String {
    let row = excerpt(row);
    let column = excerpt(column);
    if is_peer_word(word) {
        format!("`{word}` is output of `nvidia-smi topo -p2p`; run `nvidia-smi topo -m` instead")
    } else {
        format!("{row} to {column} is `{}`; expected X, NV#, PIX, PXB, PHB, NODE or SYS", excerpt(word))
    }
}

/// The words of `nvidia-smi topo -p2p`.
fn is_peer_word(word: &str) -> bool {
    ["OK", "CNS", "GNS", "TNS", "NS", "DR", "U"].contains(&word)
}

/// True for the characters and length of device names.
fn is_plain(name: &str) -> bool {
    name.len() < 100 && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':'))
}

fn is_gpu(name: &str) -> bool {
    let digits = name.strip_prefix("GPU").unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

fn is_row(line: &str) -> bool {
    line.split_whitespace().next().is_some_and(is_gpu) && has_cell_second(line)
}

fn has_cell_second(line: &str) -> bool {
    line.split_whitespace().nth(1).is_some_and(|word| cell(word).is_some() || is_peer_word(word))
}

/// The first number of a list: 0 for `0,3-9`.
fn first_number(list: &str) -> Option<u32> {
    let end = list.find(|c: char| !c.is_ascii_digit()).unwrap_or(list.len());
    list[..end].parse().ok()
}

/// A line without escape sequences, and without indentation and `#` in front.
fn plain(line: &str) -> Cow<'_, str> {
    fn content(line: &str) -> &str {
        line.trim_start().trim_start_matches('#').trim_start_matches(' ').trim_end()
    }
    let Some(first) = line.find("\u{1b}[") else {
        return Cow::Borrowed(content(line));
    };
    let mut plain = line[..first].to_owned();
    for coloured in line[first..].split("\u{1b}[").skip(1) {
        let end = coloured.find(|c: char| c.is_ascii_alphabetic()).map_or(coloured.len(), |at| at + 1);
        plain.push_str(&coloured[end..]);
    }
    Cow::Owned(content(&plain).to_owned())
}
