//! Published measurements: the rows of a file like `testdata/measurements/published.csv`, and the setups they were taken on.
//!
//! Columns may come in any order; those that are not known are ignored. What a prediction may look at is in [`Setup`],
//! [`Operation`] and the bytes: the name of a table, of a system and its source are for people, and for grouping errors.

mod csv;

use thiserror::Error;

use crate::gpu::Gpu;
use crate::setup::{Intra, Library, Network, Operation, RACK_GPUS, Setup, Version};
use crate::what_if::WhatIf;

/// Bytes that a copy is taken to have moved, where its row gives a bandwidth only: nvbandwidth's default.
pub const COPY_BYTES: u64 = 512 << 20;

/// A measurement.
#[derive(Clone, Debug)]
pub struct Row {
    /// Where it stands in the file.
    pub line: usize,
    /// The table it belongs to.
    pub id: String,
    /// The machine, in its publisher's words.
    pub system: String,
    /// What was measured.
    pub operation: Operation,
    /// The bytes, as nccl-tests counts them.
    pub bytes: u64,
    /// `size_bytes` as the file has it: empty for copies, whose bandwidth is given.
    pub size: String,
    /// What it took.
    pub measured_us: f64,
    /// On what.
    pub setup: Setup,
}

/// What a row is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It counts.
    Score,
    /// An odd configuration: shown, not counted.
    Robustness,
    /// Not enough is known about it.
    Skip,
}

/// Why a file of measurements could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Longer than any such file.
    #[error("the file has {bytes} bytes, and at most {bytes_max} are read; split it")]
    TooLong {
        /// What it has.
        bytes: usize,
        /// What is read.
        bytes_max: usize,
    },
    /// The file ends in the middle of a field.
    #[error("line {line}: a quote is opened and never closed; close it, or double it if it is meant")]
    OpenQuote {
        /// Where its record starts.
        line: usize,
    },
    /// There is no line at all.
    #[error("the file is empty; its first line names the columns")]
    Empty,
    /// A column is missing.
    #[error("line 1: there is no column {column:?}; the file needs it to say what was measured on what")]
    NoColumn {
        /// Its name.
        column: &'static str,
    },
    /// A record is shorter or longer than the first.
    #[error("line {line}: {found} fields, where the first line names {expected} columns")]
    Fields {
        /// Where.
        line: usize,
        /// What it has.
        found: usize,
        /// What it should have.
        expected: usize,
    },
    /// A field says nothing that is known.
    #[error("line {line}: {column} is {value:?}; {wanted}")]
    Field {
        /// Where.
        line: usize,
        /// Which.
        column: &'static str,
        /// What it says.
        value: String,
        /// What it could say.
        wanted: String,
    },
}

/// All rows of a file that are not to be skipped, with what they are good for.
pub fn read(text: &str) -> Result<Vec<(Row, Use)>, ReadError> {
    let mut records = csv::records(text)?.into_iter();
    let (_, names) = records.next().ok_or(ReadError::Empty)?;
    let columns = Columns { names: &names };
    columns.check()?;
    let mut rows = Vec::new();
    for (line, fields) in records {
        if fields.len() != names.len() {
            return Err(ReadError::Fields { line, found: fields.len(), expected: names.len() });
        }
        let record = Record { columns: &columns, line, fields: &fields };
        let purpose = match record.text("use") {
            "score" | "" => Use::Score,
            "robustness" => Use::Robustness,
            "skip" => Use::Skip,
            _ => return Err(record.wrong("use", "it is score, robustness or skip")),
        };
        // What does not say enough is often wrong elsewhere too: it is not looked at.
        if purpose == Use::Skip {
            continue;
        }
        match record.row() {
            Ok(row) => rows.push((row, purpose)),
            // Odd configurations may leave out what a prediction needs.
            Err(_) if purpose == Use::Robustness => {}
            Err(error) => return Err(error),
        }
    }
    Ok(rows)
}

const NEEDED: [&str; 14] = [
    "id",
    "collective",
    "size_bytes",
    "time_us",
    "gpu_id",
    "intra",
    "pcie_gen",
    "gpus_per_node",
    "nodes",
    "net",
    "nics_per_node",
    "nic_gbps",
    "library",
    "library_version",
];

struct Columns<'a> {
    names: &'a [String],
}

impl Columns<'_> {
    fn check(&self) -> Result<(), ReadError> {
        match NEEDED.into_iter().find(|column| self.index(column).is_none()) {
            Some(column) => Err(ReadError::NoColumn { column }),
            None => Ok(()),
        }
    }

    fn index(&self, column: &str) -> Option<usize> {
        self.names.iter().position(|name| name.trim() == column)
    }
}

struct Record<'a> {
    columns: &'a Columns<'a>,
    line: usize,
    fields: &'a [String],
}

impl Record<'_> {
    /// A field; nothing where there is no such column.
    fn text(&self, column: &str) -> &str {
        self.columns.index(column).map_or("", |index| self.fields[index].trim())
    }

    fn wrong(&self, column: &'static str, wanted: &str) -> ReadError {
        ReadError::Field { line: self.line, column, value: self.text(column).into(), wanted: wanted.into() }
    }

    /// One of a list of names.
    fn named<T>(
        &self,
        column: &'static str,
        read: impl Fn(&str) -> Option<T>,
        names: &str,
    ) -> Result<T, ReadError> {
        read(self.text(column)).ok_or_else(|| self.wrong(column, &format!("known are {names}")))
    }

    /// A whole number in a range.
    fn count(&self, column: &'static str, most: u32) -> Result<u32, ReadError> {
        let found = self.text(column).parse().ok().filter(|count| (1..=most).contains(count));
        found.ok_or_else(|| self.wrong(column, &format!("it is a whole number from 1 to {most}")))
    }

    fn number(&self, column: &'static str) -> Result<f64, ReadError> {
        let found = self.text(column).parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
        found.ok_or_else(|| self.wrong(column, "it is a number above 0"))
    }

    fn row(&self) -> Result<Row, ReadError> {
        let operation = self.named("collective", Operation::from_name, &Operation::names())?;
        let size = self.text("size_bytes");
        let bytes = if size.is_empty() && operation.is_copy() {
            COPY_BYTES
        } else {
            let found = size.parse().ok().filter(|bytes| (1..=1 << 50).contains(bytes));
            found.ok_or_else(|| self.wrong("size_bytes", "it is a whole number from 1 to 2^50"))?
        };
        let measured_us = if self.text("time_us").is_empty() && operation.is_copy() {
            bytes as f64 / self.number("busbw_GBps")? / 1e3
        } else {
            self.number("time_us")?
        };
        let network = self.named("net", Network::from_name, &Network::names())?;
        let nodes = self.count("nodes", 1 << 20)?;
        let wired = network != Network::None;
        let library = self.named("library", Library::from_name, &Library::names())?;
        let gpu = self.named("gpu_id", Gpu::from_name, &Gpu::names())?;
        let intra = self.named("intra", Intra::from_name, &Intra::names())?;
        let gpus_per_node = self.count("gpus_per_node", 1 << 10)?;
        // Whatever a row says, GPUs of a node that have no links of their own reach each other through their slots.
        let linked = match intra {
            Intra::PciePeers | Intra::PcieHost => false,
            Intra::None => gpus_per_node > 1,
            _ => true,
        };
        let unlinked = gpu.links() == 0 || intra == Intra::None;
        let setup = Setup {
            gpu,
            intra: if linked && unlinked { Intra::PciePeers } else { intra },
            rack_gpus: RACK_GPUS,
            pcie_generation: self.count("pcie_gen", 7)?,
            gpus_per_node,
            nodes,
            network,
            nics_per_node: if wired { self.count("nics_per_node", 1 << 10)? } else { 0 },
            nic_gbits_per_second: if wired { self.number("nic_gbps")? } else { 0.0 },
            library,
            version: Version::parse(self.text("library_version"))
                .map_err(|wanted| self.wrong("library_version", wanted))?,
            algorithm: crate::setup::algorithm_from_name(self.text("algo"))
                .map_err(|wanted| self.wrong("algo", &wanted))?,
            protocol: crate::setup::protocol_from_name(self.text("proto"))
                .map_err(|wanted| self.wrong("proto", &wanted))?,
            launch: None,
            what_if: WhatIf::default(),
        };
        setup.check().map_err(|wanted| self.wrong("net", wanted))?;
        Ok(Row {
            line: self.line,
            id: self.text("id").into(),
            system: self.text("system").into(),
            operation,
            bytes,
            size: size.into(),
            measured_us,
            setup,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "use,collective,id,size_bytes,time_us,gpu_id,intra,pcie_gen,gpus_per_node,nodes,net,nics_per_node,nic_gbps,library,library_version,algo,other";

    #[test]
    fn columns_come_in_any_order_and_others_are_ignored() {
        let text =
            format!("{HEAD}\nscore,all_reduce,t,1024,12.5,h100,nvswitch,5,8,2,ib,8,400,nccl,2.22.3,Ring,?\n");
        let rows = read(&text).unwrap();
        let (row, purpose) = &rows[0];
        assert_eq!((*purpose, row.bytes, row.measured_us), (Use::Score, 1024, 12.5));
        assert_eq!(row.setup.algorithm, Some(crate::setup::LibraryAlgorithm::Ring));
        assert_eq!(row.setup.version, Some(Version { major: 2, minor: 22 }));
    }

    #[test]
    fn a_wrong_field_is_named_with_its_line() {
        let text = format!("{HEAD}\nscore,all_reduce,t,1024,12.5,h900,nvswitch,5,8,2,ib,8,400,nccl,,,\n");
        let message = read(&text).unwrap_err().to_string();
        assert!(message.starts_with("line 2: gpu_id is \"h900\"; known are p100, "), "{message}");
    }

    #[test]
    fn the_published_rows_are_all_read() {
        let rows = read(include_str!("../../../../testdata/measurements/published.csv")).unwrap();
        assert_eq!(rows.iter().filter(|(_, purpose)| *purpose == Use::Score).count(), 3015);
    }
}
