//! Tables of `rocm-smi` and `amd-smi` with a row and a column for each GPU, and the links that follow from them.

use std::collections::BTreeMap;

use super::lines::{Line, Lines, bus, check_size};
use super::{GPUS_MAX, LinesError};
use crate::links::{Kind, Links, Remote, State};

/// What the cells of a table are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Title {
    Weight,
    Hops,
    LinkType,
    /// MB/s each way: least and most, `50000-200000`.
    Bandwidth,
    Access,
    /// `U`, `D`, `X`, one for each link.
    Status,
    /// A table that is not read.
    Other,
}

/// The tables of an input.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// The names of the GPUs, in the order of the first table.
    names: Vec<String>,
    /// `GPU0` is at this address.
    buses: BTreeMap<String, String>,
    cells: BTreeMap<(Title, usize, usize), String>,
    has_link_types: bool,
}

impl Tables {
    /// Reads all tables. `title` recognizes the line above each of them.
    pub(super) fn read(text: &str, title: impl Fn(&str) -> Option<Title>) -> Result<Self, LinesError> {
        let mut tables = Self::default();
        let mut now: Option<(Title, Option<Vec<usize>>)> = None;
        for line in Lines::of(text)? {
            let content = line.text.trim();
            if let Some(title) = title(content) {
                now = (title != Title::Other).then_some((title, None));
                continue;
            }
            let Some((title, columns)) = &mut now else { continue };
            if content.is_empty() {
                continue;
            }
            match columns {
                None => {
                    if content.starts_with("WARNING") {
                        continue;
                    }
                    *columns = Some(tables.columns(&line)?);
                }
                Some(columns) => {
                    let title = *title;
                    if !tables.row(&line, title, columns)? {
                        now = None;
                    }
                }
            }
        }
        Ok(tables)
    }

    /// The GPUs of a heading: `GPU0 GPU1` or PCI addresses, perhaps after `bdf`.
    fn columns(&mut self, line: &Line) -> Result<Vec<usize>, LinesError> {
        let names: Vec<&str> = line.text.split_whitespace().skip_while(|word| *word == "bdf").collect();
        if names.is_empty() || names.len() > GPUS_MAX || !names.iter().all(|name| is_gpu(name)) {
            return Err(line.expected("the names of the GPUs, `GPU0 GPU1 ...` or their PCI addresses"));
        }
        Ok(names.into_iter().map(|name| self.index(name)).collect())
    }

    /// Reads a row; false if the line is none.
    fn row(&mut self, line: &Line, title: Title, columns: &[usize]) -> Result<bool, LinesError> {
        let mut words = line.text.split_whitespace();
        let Some(name) = words.next().filter(|name| is_gpu(name)) else {
            return Ok(false);
        };
        let mut cells: Vec<&str> = words.collect();
        // `GPU0 0000:0c:00.0 U ...`
        if let (false, Some(address)) = (name.contains(':'), cells.first().and_then(|word| bus(word))) {
            self.buses.insert(name.to_owned(), address);
            cells.remove(0);
        }
        if cells.len() < columns.len() {
            return Err(line.expected(format!("{} cells, one for each GPU of the heading", columns.len())));
        }
        let row = self.index(name);
        for (column, cell) in columns.iter().zip(cells) {
            self.cells.insert((title, row, *column), cell.to_owned());
        }
        self.has_link_types |= title == Title::LinkType;
        Ok(true)
    }

    fn index(&mut self, name: &str) -> usize {
        match self.names.iter().position(|other| other == name) {
            Some(index) => index,
            None => {
                self.names.push(name.to_owned());
                self.names.len() - 1
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    fn cell(&self, title: Title, row: usize, column: usize) -> Option<&str> {
        let known = |cell: &&str| !matches!(*cell, "N/A" | "XXXX" | "SELF");
        self.cells.get(&(title, row, column)).map(String::as_str).filter(known)
    }

    /// `gpu3` and its address.
    fn gpu(&self, index: usize) -> (String, Option<String>) {
        let name = &self.names[index];
        match name.strip_prefix("GPU") {
            Some(number) => (format!("gpu{number}"), self.buses.get(name).cloned()),
            None => (format!("gpu{index}"), bus(name)),
        }
    }

    /// Adds a link for each GPU and peer that xGMI connects directly.
    pub(super) fn add_links(&self, links: &mut Links) -> Result<(), LinesError> {
        let mut over_pcie = 0_usize;
        for row in 0..self.names.len() {
            let (device, bus) = self.gpu(row);
            let mut number = 0;
            for column in (0..self.names.len()).filter(|column| *column != row) {
                let is_xgmi = match self.cell(Title::LinkType, row, column) {
                    Some(kind) => kind.eq_ignore_ascii_case("xgmi"),
                    None => !self.has_link_types && self.cell(Title::Status, row, column).is_some(),
                };
                let bandwidth = self.cell(Title::Bandwidth, row, column).and_then(least_and_most);
                // A pair without bandwidth is connected through other GPUs.
                if !is_xgmi || bandwidth == Some((0, 0)) {
                    over_pcie += usize::from(!is_xgmi && self.has_link_types);
                    continue;
                }
                let (peer, peer_bus) = self.gpu(column);
                let link = links.entry(Kind::Xgmi, &device, Some(number));
                number += 1;
                link.bus.clone_from(&bus);
                link.remote = Some(Remote {
                    device: Some(peer),
                    bus: peer_bus,
                    link: None,
                    kind: Some("gpu".to_owned()),
                });
                link.state = self.cell(Title::Status, row, column).map_or(State::Unknown, state);
                if let Some((least, most)) = bandwidth {
                    link.nominal = Some(most.saturating_mul(1_000_000));
                    link.width = most.checked_div(least).and_then(|count| u8::try_from(count).ok());
                }
                for (title, name) in
                    [(Title::Weight, "weight"), (Title::Hops, "hops"), (Title::Access, "access")]
                {
                    if let Some(value) = self.cell(title, row, column) {
                        link.values.push((name.to_owned(), value.to_owned()));
                    }
                }
                check_size(links)?;
            }
        }
        if over_pcie > 0 {
            links.notes.push(format!("{} pairs of GPUs are connected by PCIe only", over_pcie / 2));
        }
        Ok(())
    }
}

/// `GPU0`, or a PCI address.
fn is_gpu(name: &str) -> bool {
    let digits = name.strip_prefix("GPU").unwrap_or_default();
    (!digits.is_empty() && digits.len() < 6 && digits.bytes().all(|b| b.is_ascii_digit()))
        || bus(name).is_some()
}

/// `50000-200000`
fn least_and_most(text: &str) -> Option<(u64, u64)> {
    let (least, most) = text.split_once('-')?;
    Some((least.parse().ok()?, most.parse().ok()?))
}

/// `U`, `U/U/D`: down if any of the links is.
pub(super) fn state(text: &str) -> State {
    match text {
        _ if text.split('/').any(|state| matches!(state, "D" | "X")) => State::Down,
        _ if text.split('/').all(|state| state == "U") => State::Up,
        _ => State::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_several_links_are_the_worst() {
        assert_eq!(
            ["U", "U/U", "U/D", "X", "N/A", ""].map(state),
            [State::Up, State::Up, State::Down, State::Down, State::Unknown, State::Unknown]
        );
    }
}
