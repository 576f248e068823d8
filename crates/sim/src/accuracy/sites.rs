//! Sites: the tables that are not independent of each other.
//!
//! Tables of one publisher share hardware, software or habits of measuring. So do tables of one kind of machine, also from different
//! publishers. Such tables form a site. An error on one of them is only honest if the whole site was left out of the fit.
//!
//! A third of the sites is frozen: the model is neither fitted to them nor compared with them while it changes.

use std::collections::BTreeMap;

use crate::published::Row;

/// Prefixes of system names, and the machine they denote.
const SAME: [(&str, &str); 17] = [
    ("AWS p5.48xlarge", "AWS p5"),
    ("AWS Batch", "AWS p5"),
    ("AWS p5en", "AWS p5en"),
    ("AWS p3dn", "AWS p3dn"),
    ("Azure ND", "Azure ND A100"),
    ("A100-40GB NVSwitch node (Azure", "Azure ND A100"),
    ("CoreWeave GB200", "CoreWeave GB200"),
    ("OCI BM.GPU.MI300X", "OCI MI300X"),
    ("AMD Accelerator Cloud", "AMD Accelerator Cloud"),
    ("GCP a3-highgpu", "GCP a3-highgpu"),
    ("GCP A4 B200", "GCP A4"),
    ("Together AI B200", "Together AI B200"),
    ("8x H200 node", "8x H200 node"),
    ("8x B200 node", "8x B200 node"),
    ("8x MI300X node", "8x MI300X node"),
    ("8x RTX 4090", "8x RTX 4090"),
    ("2x RTX 2080 Ti", "2x RTX 2080 Ti"),
];

/// One of this many sites is frozen.
const FROZEN_EVERY: u64 = 3;

/// The machine that a system's name denotes.
pub fn machine(system: &str) -> &str {
    SAME.iter().find(|(start, _)| system.starts_with(start)).map_or(system, |(_, name)| name)
}

/// The publisher of a source: host, owner and repository of an address, or the whole text.
fn publisher(source: &str) -> &str {
    let Some((_, path)) = source.split_once("://") else { return source };
    let end = path.match_indices('/').nth(2).map_or(path.len(), |(at, _)| at);
    &path[..end]
}

/// The sites of rows: for each row, the number of its site.
#[derive(Clone, Debug)]
pub struct Sites {
    of_row: Vec<usize>,
    names: Vec<String>,
}

impl Sites {
    /// Groups rows into sites. A site is named after the first of its machines, by the alphabet.
    pub fn of(rows: &[Row]) -> Self {
        let mut joined: Vec<usize> = Vec::new();
        let mut keys: BTreeMap<(bool, &str), usize> = BTreeMap::new();
        let mut key = |joined: &mut Vec<usize>, of| {
            let next = joined.len();
            let at = *keys.entry(of).or_insert(next);
            if at == next {
                joined.push(next);
            }
            at
        };
        let mut machines: Vec<usize> = Vec::new();
        for row in rows {
            let one = key(&mut joined, (true, machine(&row.system)));
            let other = key(&mut joined, (false, publisher(&row.source)));
            let (one_root, other_root) = (root(&joined, one), root(&joined, other));
            joined[one_root.max(other_root)] = one_root.min(other_root);
            machines.push(one);
        }
        let mut numbers: BTreeMap<usize, usize> = BTreeMap::new();
        let mut names: Vec<String> = Vec::new();
        let of_row = rows.iter().zip(machines).map(|(row, at)| {
            let next = numbers.len();
            let number = *numbers.entry(root(&joined, at)).or_insert(next);
            let name = machine(&row.system);
            match names.get_mut(number) {
                None => names.push(name.to_owned()),
                Some(before) if name < before.as_str() => name.clone_into(before),
                Some(_) => {}
            }
            number
        });
        let of_row = of_row.collect();
        Self { of_row, names }
    }

    /// The number of a row's site.
    pub fn of_row(&self, index: usize) -> usize {
        self.of_row[index]
    }

    /// The names of all sites.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether a site is frozen. A hash of its name decides.
    pub fn is_frozen(&self, site: usize) -> bool {
        crate::constants::hash(self.names[site].bytes()).is_multiple_of(FROZEN_EVERY)
    }
}

fn root(joined: &[usize], mut at: usize) -> usize {
    while joined[at] != at {
        at = joined[at];
    }
    at
}
