//! Samples, and how they are printed: medians and ratios in a table, every sample in a file.

use std::fmt::Write as _;

/// The samples: nanoseconds of one call, by group of ranks, variant and bytes.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    group: String,
    way: String,
    bytes: usize,
    ns: Vec<f64>,
}

/// The variants of messages between two ranks.
pub(crate) const PLAIN: &str = "bare";
pub(crate) const CHECKED: &str = "bare with CRC32C";
pub(crate) const POLLED: &str = "bare, polling";
pub(crate) const WEFT: &str = "weft";
/// The groups they are in.
pub(crate) const THERE_AND_BACK: &str = "there and back";
pub(crate) const STREAM: &str = "stream";

impl Samples {
    /// Adds one.
    pub(crate) fn add(&mut self, group: &str, way: &str, bytes: usize, ns: f64) {
        let is_it = |row: &&mut Row| row.group == group && row.way == way && row.bytes == bytes;
        match self.rows.iter_mut().find(is_it) {
            Some(row) => row.ns.push(ns),
            None => {
                let (group, way) = (group.to_owned(), way.to_owned());
                self.rows.push(Row { group, way, bytes, ns: vec![ns] });
            }
        }
    }

    fn median(&self, group: &str, way: &str, bytes: usize) -> Option<f64> {
        let is_it = |row: &&Row| row.group == group && row.way == way && row.bytes == bytes;
        let mut ns = self.rows.iter().find(is_it)?.ns.clone();
        ns.sort_by(f64::total_cmp);
        ns.get(ns.len() / 2).copied()
    }

    /// The bytes and variants of a group, in the order of measurement.
    fn of(&self, group: &str) -> (Vec<usize>, Vec<&str>) {
        let (mut bytes, mut ways) = (Vec::new(), Vec::new());
        for row in self.rows.iter().filter(|row| row.group == group) {
            if !bytes.contains(&row.bytes) {
                bytes.push(row.bytes);
            }
            if !ways.contains(&row.way.as_str()) {
                ways.push(row.way.as_str());
            }
        }
        (bytes, ways)
    }

    pub(crate) fn print_messages(&self) {
        println!("8 bytes there and back, half of it, us");
        let half = |way| self.median(THERE_AND_BACK, way, 8).map(|ns| ns / 2e3);
        let bare = half(PLAIN);
        for way in self.of(THERE_AND_BACK).1 {
            if let (Some(us), Some(bare)) = (half(way), bare) {
                println!("  {way:<18}{us:>8.2}   {:.2} of bare", us / bare);
            }
        }
        println!(
            "\none way, GB/s   {:>10}{:>18}{:>10}   of bare   of bare with CRC32C",
            PLAIN, CHECKED, WEFT
        );
        for bytes in self.of(STREAM).0 {
            let rate = |way| self.median(STREAM, way, bytes).map_or(f64::NAN, |ns| bytes as f64 / ns);
            let [bare, checked, weft] = [PLAIN, CHECKED, WEFT].map(rate);
            println!(
                "{:>13}   {bare:>10.2}{checked:>18.2}{weft:>10.2}{:>10.2}{:>10.2}",
                size(bytes),
                weft / bare,
                weft / checked
            );
        }
    }

    /// `chosen` has the chosen algorithm for each number of bytes.
    pub(crate) fn print_all_reduces(&self, group: &str, chosen: &[(usize, String)]) {
        let (all, ways) = self.of(group);
        println!("\nall-reduce on {group} ranks (hosts x ranks of each), us; * is chosen, ! is fastest");
        let width = |way: &str| way.len().max(9) + 4;
        let heads: String = ways.iter().map(|way| format!("{way:>0$}", width(way))).collect();
        println!("{:>9}{heads}", "bytes");
        for bytes in all {
            let medians: Vec<_> = ways.iter().map(|way| self.median(group, way, bytes)).collect();
            let least = medians.iter().flatten().copied().fold(f64::INFINITY, f64::min);
            let cell = |(way, median): (&&str, &Option<f64>)| {
                let is_chosen = chosen.iter().any(|(size, name)| *size == bytes && name == way);
                let marks = match (is_chosen, *median == Some(least)) {
                    (true, true) => "*!",
                    (true, false) => "* ",
                    (false, true) => "! ",
                    (false, false) => "  ",
                };
                let text = median.map_or("-".to_owned(), |ns| format!("{:.1}", ns / 1e3));
                format!("{text:>0$}{marks}", width(way) - 2)
            };
            let cells: String = ways.iter().zip(&medians).map(cell).collect();
            println!("{:>9}{cells}", size(bytes));
        }
    }

    pub(crate) fn csv(&self) -> String {
        let mut text = String::from("group,way,bytes,repetition,ns\n");
        for Row { group, way, bytes, ns } in &self.rows {
            for (repetition, ns) in ns.iter().enumerate() {
                // Writing to a string does not fail.
                let _ = writeln!(text, "{group},\"{way}\",{bytes},{repetition},{ns:.0}");
            }
        }
        text
    }
}

fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}
