//! Published measurements: the rows of a file like `testdata/measurements/published.csv`, and the setups they were taken on.
//!
//! Columns may come in any order; unknown columns are ignored. Predictions use only the [`Setup`], the [`Operation`] and the bytes; the
//! names of tables, systems and sources are for people and for grouping errors.

mod csv;

pub use csv::BYTES_MAX;
use thiserror::Error;

use crate::gpu::Gpu;
use crate::setup::{Intra, Library, Network, Operation, RACK_GPUS, Setup, Version};
use crate::what_if::WhatIf;

/// A call without its machine: the operation, bytes and microseconds.
pub type Call = (Operation, u64, f64);

/// Assumed size of a copy whose row gives only a bandwidth: nvbandwidth's default.
pub const COPY_BYTES: u64 = 512 << 20;

/// A measurement.
#[derive(Clone, Debug)]
pub struct Row {
    /// Line in the file.
    pub line: usize,
    /// The table it belongs to.
    pub id: String,
    /// The machine, in its publisher's words.
    pub system: String,
    /// Where it was published.
    pub source: String,
    /// The measured operation.
    pub operation: Operation,
    /// Size in bytes, as nccl-tests counts it.
    pub bytes: u64,
    /// `size_bytes` as in the file: empty for copies with only a bandwidth.
    pub size: String,
    /// Measured time.
    pub measured_us: f64,
    /// The machine and library.
    pub setup: Setup,
}

/// How a row is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Counted in the errors.
    Score,
    /// An unusual configuration: reported, not counted.
    Robustness,
    /// Not enough is known about the machine.
    Skip,
}

/// Why a file of measurements could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file is too long.
    #[error("the file has {bytes} bytes; the limit is {bytes_max}: split it")]
    TooLong {
        /// Size of the file.
        bytes: usize,
        /// Size limit.
        bytes_max: usize,
    },
    /// The file ends in the middle of a field.
    #[error("line {line}: unclosed quote; close it, or double it if it is part of the text")]
    OpenQuote {
        /// Line on which the record starts.
        line: usize,
    },
    /// The file has no lines.
    #[error("the file is empty; its first line must name the columns")]
    Empty,
    /// A column is missing.
    #[error("line 1: column {column:?} is missing; the first line must name it")]
    NoColumn {
        /// Its name.
        column: &'static str,
    },
    /// A record is shorter or longer than the first.
    #[error("line {line}: {found} fields; the first line names {expected} columns")]
    Fields {
        /// Line of the record.
        line: usize,
        /// Number of fields.
        found: usize,
        /// Number of columns.
        expected: usize,
    },
    /// A field has an invalid value.
    #[error("line {line}: {column} is {value:?}; {wanted}")]
    Field {
        /// Line of the record.
        line: usize,
        /// Column.
        column: &'static str,
        /// The field's text.
        value: String,
        /// The valid values.
        wanted: String,
    },
}

/// Reads all rows of a file except those marked `skip`.
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
            _ => return Err(record.wrong("use", "expected score, robustness or skip")),
        };
        // Skipped rows may have errors in other fields, too.
        if purpose == Use::Skip {
            continue;
        }
        match record.row() {
            Ok(row) => rows.push((row, purpose)),
            // Unusual configurations may lack fields that predictions need.
            Err(_) if purpose == Use::Robustness => {}
            Err(error) => return Err(error),
        }
    }
    Ok(rows)
}

/// The calls of a file that does not describe the machine: collective, bytes and microseconds. `None` for one that does.
pub fn read_calls(text: &str) -> Result<Option<Vec<Call>>, ReadError> {
    let mut records = csv::records(text)?.into_iter();
    let (_, names) = records.next().ok_or(ReadError::Empty)?;
    let columns = Columns { names: &names };
    if columns.index("gpu_id").is_some() {
        return Ok(None);
    }
    if let Some(column) =
        ["collective", "size_bytes", "time_us"].into_iter().find(|name| columns.index(name).is_none())
    {
        return Err(ReadError::NoColumn { column });
    }
    let calls = records.map(|(line, fields)| {
        if fields.len() != names.len() {
            return Err(ReadError::Fields { line, found: fields.len(), expected: names.len() });
        }
        let record = Record { columns: &columns, line, fields: &fields };
        let operation = record.operation()?;
        Ok((operation, record.bytes()?, record.number("time_us")?))
    });
    calls.collect::<Result<_, _>>().map(Some)
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
    /// A field; empty if there is no such column.
    fn text(&self, column: &str) -> &str {
        self.columns.index(column).map_or("", |index| self.fields[index].trim())
    }

    fn wrong(&self, column: &'static str, wanted: &str) -> ReadError {
        ReadError::Field { line: self.line, column, value: self.text(column).into(), wanted: wanted.into() }
    }

    /// A name from a list.
    fn named<T>(
        &self,
        column: &'static str,
        read: impl Fn(&str) -> Option<T>,
        names: &str,
    ) -> Result<T, ReadError> {
        read(self.text(column)).ok_or_else(|| self.wrong(column, &format!("expected one of {names}")))
    }

    /// A whole number in a range.
    fn count(&self, column: &'static str, most: u32) -> Result<u32, ReadError> {
        let found = self.text(column).parse().ok().filter(|count| (1..=most).contains(count));
        found.ok_or_else(|| self.wrong(column, &format!("expected an integer from 1 to {most}")))
    }

    fn number(&self, column: &'static str) -> Result<f64, ReadError> {
        let found = self.text(column).parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
        found.ok_or_else(|| self.wrong(column, "expected a number above 0"))
    }

    fn operation(&self) -> Result<Operation, ReadError> {
        let measured = Operation::ALL.iter().filter(|operation| operation.is_measured());
        let names: Vec<&str> = measured.map(|operation| operation.name()).collect();
        let known = |name: &str| Operation::from_name(name).filter(|operation| operation.is_measured());
        self.named("collective", known, &names.join(", "))
    }

    fn bytes(&self) -> Result<u64, ReadError> {
        let found = self.text("size_bytes").parse().ok().filter(|bytes| (1..=1 << 50).contains(bytes));
        found.ok_or_else(|| self.wrong("size_bytes", "expected an integer from 1 to 2^50"))
    }

    fn row(&self) -> Result<Row, ReadError> {
        let operation = self.operation()?;
        let size = self.text("size_bytes");
        let bytes = if size.is_empty() && operation.is_copy() { COPY_BYTES } else { self.bytes()? };
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
        // GPUs without links of their own communicate over PCIe, whatever the row says.
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
            links_share: 1.0,
            pcie_generation: self.count("pcie_gen", 7)?,
            slot_share: 1.0,
            gpus_per_node,
            nodes,
            missing_gpus: 0,
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
            source: self.text("source").into(),
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
    fn columns_may_come_in_any_order_and_unknown_ones_are_ignored() {
        let text =
            format!("{HEAD}\nscore,all_reduce,t,1024,12.5,h100,nvswitch,5,8,2,ib,8,400,nccl,2.22.3,Ring,?\n");
        let rows = read(&text).unwrap();
        let (row, purpose) = &rows[0];
        assert_eq!((*purpose, row.bytes, row.measured_us), (Use::Score, 1024, 12.5));
        assert_eq!(row.setup.algorithm, Some(crate::setup::LibraryAlgorithm::Ring));
        assert_eq!(row.setup.version, Some(Version { major: 2, minor: 22 }));
    }

    #[test]
    fn an_invalid_field_is_reported_with_its_line() {
        let text = format!("{HEAD}\nscore,all_reduce,t,1024,12.5,h900,nvswitch,5,8,2,ib,8,400,nccl,,,\n");
        let message = read(&text).unwrap_err().to_string();
        assert!(message.starts_with("line 2: gpu_id is \"h900\"; expected one of p100, "), "{message}");
    }

    #[test]
    fn all_published_rows_are_read() {
        let rows = read(include_str!("../../../../testdata/measurements/published.csv")).unwrap();
        assert_eq!(rows.iter().filter(|(_, purpose)| *purpose == Use::Score).count(), 3015);
    }
}
