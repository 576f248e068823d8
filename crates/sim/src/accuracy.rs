//! The accuracy of predictions: errors by table and size band, then over tables, so that a table with many rows counts once.

pub mod evidence;
pub mod intervals;
mod rows;
pub mod sites;

use std::collections::BTreeMap;

pub use rows::{by_setup, execute_rows, predict_rows};

use crate::published::Row;
pub use crate::quantile::quantile;
use crate::setup::{Intra, Network, Setup};

/// Size bands: name and largest size of each.
pub const BANDS: [(&str, u64); 4] =
    [("to 64 KiB", 64 << 10), ("to 1 MiB", 1 << 20), ("to 64 MiB", 64 << 20), ("above", u64::MAX)];

/// The index in [`BANDS`] of a size.
pub fn band(bytes: u64) -> usize {
    BANDS.iter().position(|&(_, most)| bytes <= most).unwrap_or(BANDS.len() - 1)
}

/// Classes of machines with separate error statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// One domain of NVLink or xGMI.
    NvlinkNode,
    /// One node of PCIe.
    PcieNode,
    /// InfiniBand, RoCE, EFA.
    Rdma,
    /// Slingshot.
    Slingshot,
    /// Sockets, TCPX, TCPXO.
    Tcp,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::NvlinkNode, Self::PcieNode, Self::Rdma, Self::Slingshot, Self::Tcp];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Class::NvlinkNode => "NVLink or xGMI node",
            Class::PcieNode => "PCIe node",
            Class::Rdma => "RDMA networks",
            Class::Slingshot => "Slingshot",
            Class::Tcp => "TCP",
        }
    }

    /// The class of a setup.
    pub fn of(setup: &Setup) -> Self {
        match (setup.network, setup.intra) {
            (Network::InfiniBand | Network::Roce | Network::Efa, _) => Class::Rdma,
            (Network::Slingshot, _) => Class::Slingshot,
            (Network::Tcp | Network::Tcpx | Network::Tcpxo, _) => Class::Tcp,
            (Network::None, Intra::PciePeers | Intra::PcieHost | Intra::None) => Class::PcieNode,
            (Network::None, _) => Class::NvlinkNode,
        }
    }
}

/// The relative error of a prediction: `|predicted / measured - 1|`.
pub fn error(predicted_us: f64, measured_us: f64) -> f64 {
    (predicted_us / measured_us - 1.0).abs()
}

/// A table's error in a band.
#[derive(Clone, Debug)]
pub struct TableError {
    /// The table's id.
    pub id: String,
    /// The machine, in its publisher's words.
    pub system: String,
    /// The machine's class.
    pub class: Class,
    /// Index in [`BANDS`].
    pub band: usize,
    /// Median of its rows' errors.
    pub error: f64,
    /// Median of `ln(predicted / measured)`: positive where the prediction is too long.
    pub log_ratio: f64,
}

/// The errors of tables, worst first. `predicted_us[i]` belongs to `rows[i]`.
pub fn by_table(rows: &[Row], predicted_us: &[f64]) -> Vec<TableError> {
    let mut tables: BTreeMap<(&str, usize), Vec<usize>> = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        tables.entry((&row.id, band(row.bytes))).or_default().push(index);
    }
    let mut errors: Vec<TableError> = tables
        .into_iter()
        .map(|((id, band), indices)| {
            let first = &rows[indices[0]];
            let each = |of: &dyn Fn(f64, f64) -> f64| {
                indices
                    .iter()
                    .map(|&index| of(predicted_us[index], rows[index].measured_us))
                    .collect::<Vec<_>>()
            };
            TableError {
                id: id.to_owned(),
                system: first.system.clone(),
                class: Class::of(&first.setup),
                band,
                error: quantile(each(&error), 0.5),
                log_ratio: quantile(each(&|predicted, measured| libm::log(predicted / measured)), 0.5),
            }
        })
        .collect();
    errors.sort_by(|one, other| other.error.total_cmp(&one.error));
    errors
}

/// Median and 90th percentile of the errors of tables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Number of tables.
    pub tables: usize,
    /// Median.
    pub median: f64,
    /// 90th percentile.
    pub ninetieth: f64,
}

/// Summarises the tables of a band, and of a class if one is given.
pub fn summary(errors: &[TableError], band: usize, class: Option<Class>) -> Summary {
    let of: Vec<f64> = errors
        .iter()
        .filter(|table| table.band == band && class.is_none_or(|class| class == table.class))
        .map(|table| table.error)
        .collect();
    Summary { tables: of.len(), median: quantile(of.clone(), 0.5), ninetieth: quantile(of, 0.9) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_end_with_their_bounds() {
        assert_eq!(
            [8, 64 << 10, (64 << 10) + 1, 1 << 20, 64 << 20, (64 << 20) + 1].map(band),
            [0, 0, 1, 1, 2, 3]
        );
    }
}
