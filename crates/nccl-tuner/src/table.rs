//! `WEFT_TUNER_TABLE`: measured choices as comma-separated values.
//!
//! ```text
//! collective,bytes_min,bytes_max,nodes,ranks,algorithm,protocol,channels
//! all_reduce,0,64K,1,8,Ring,LL,
//! all_reduce,65537,,1,8,NVLS,Simple,16
//! ```
//!
//! The first line names the columns, in any order; columns with other names are ignored. A size is a number of bytes, or one with a unit
//! (`64K`). An empty field, `*` or `-1` is any number of nodes or ranks, no upper limit, or NCCL's own number of channels. The first row
//! that matches a call counts. Lines that begin with `#` are comments.

use std::fmt;

use weftlink_fabric::bytes::Bytes;
use weftlink_fabric::nearest::did_you_mean;
use weftlink_nccl_plugin::names::{ALGORITHMS, FUNCTIONS, PROTOCOLS, TUNED, number};

use crate::costs::Way;

/// The largest file.
pub(crate) const BYTES_MAX: u64 = 1 << 20;
/// The most rows.
const ROWS_MAX: usize = 4096;
/// The most channels of NCCL.
const CHANNELS_MAX: u32 = 64;

/// Columns that a table must have.
const NEEDED: [&str; 5] = ["collective", "bytes_min", "bytes_max", "algorithm", "protocol"];

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Its line in the file.
    pub(crate) line: usize,
    /// The function's number.
    function: usize,
    bytes_min: u64,
    bytes_max: u64,
    nodes: Option<u32>,
    ranks: Option<u32>,
    /// The choice.
    pub(crate) way: Way,
    /// The number of channels; NCCL's own if there is none.
    pub(crate) channels: Option<u32>,
}

/// Why a table cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableError {
    line: usize,
    what: String,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {} (columns: docs/plugins.md)", self.line, self.what)
    }
}

/// Reads a table.
pub(crate) fn read(text: &str) -> Result<Vec<Row>, TableError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let Some((line, header)) = lines.next() else {
        return Err(TableError {
            line: 1,
            what: "the first line names the columns, and there is none".to_owned(),
        });
    };
    let header: Vec<String> = header.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
    if let Some(missing) = NEEDED.iter().find(|needed| !header.iter().any(|name| name == *needed)) {
        let near = did_you_mean(missing, header.iter().map(String::as_str));
        return Err(TableError { line, what: format!("there is no column `{missing}`.{near}") });
    }
    let mut rows = Vec::new();
    for (line, text) in lines {
        if rows.len() == ROWS_MAX {
            return Err(TableError { line, what: format!("a table has at most {ROWS_MAX} rows") });
        }
        rows.push(row(line, text, &header).map_err(|what| TableError { line, what })?);
    }
    Ok(rows)
}

fn row(line: usize, text: &str, header: &[String]) -> Result<Row, String> {
    let fields: Vec<&str> = text.split(',').map(str::trim).collect();
    if fields.len() != header.len() {
        return Err(format!("{} fields, and {} columns", fields.len(), header.len()));
    }
    let field = |name: &str| {
        let at = header.iter().position(|column| column == name);
        at.and_then(|at| fields.get(at)).copied().filter(|field| !["", "*", "-1"].contains(field))
    };
    let named = |name: &str, names: &[&str]| {
        let given = field(name).unwrap_or_default();
        number(names, given)
            .ok_or_else(|| format!("unknown {name} `{}`; known are {}", shown(given), names.join(", ")))
    };
    let bytes = |name: &str, otherwise: u64| match field(name) {
        None => Ok(otherwise),
        Some(given) => {
            given.parse::<Bytes>().map(|bytes| bytes.0).map_err(|error| format!("{name}: {error}"))
        }
    };
    let count = |name: &str, most: u32| match field(name) {
        None => Ok(None),
        Some(given) => match given.parse::<u32>() {
            Ok(count) if (1..=most).contains(&count) => Ok(Some(count)),
            _ => Err(format!("{name} is `{}`; expected a number from 1 to {most}, or nothing", shown(given))),
        },
    };
    let (bytes_min, bytes_max) = (bytes("bytes_min", 0)?, bytes("bytes_max", u64::MAX)?);
    if bytes_min > bytes_max {
        return Err(format!("bytes_min {bytes_min} is above bytes_max {bytes_max}"));
    }
    Ok(Row {
        line,
        function: named("collective", &FUNCTIONS[..TUNED])?,
        bytes_min,
        bytes_max,
        nodes: count("nodes", u32::MAX)?,
        ranks: count("ranks", u32::MAX)?,
        way: Way { algorithm: named("algorithm", &ALGORITHMS)?, protocol: named("protocol", &PROTOCOLS)? },
        channels: count("channels", CHANNELS_MAX)?,
    })
}

fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}

/// The rows for a communicator, by function and size.
pub(crate) struct Choices {
    /// For each function: where a range of sizes begins, and its row.
    ranges: [Vec<(u64, Option<Row>)>; TUNED],
}

impl Choices {
    /// The rows for that many nodes and ranks.
    pub(crate) fn new(rows: &[Row], nodes: usize, ranks: usize) -> Self {
        let is = |wanted: Option<u32>, number: usize| wanted.is_none_or(|wanted| wanted as usize == number);
        let matching: Vec<&Row> =
            rows.iter().filter(|row| is(row.nodes, nodes) && is(row.ranks, ranks)).collect();
        Self { ranges: std::array::from_fn(|function| ranges(&matching, function)) }
    }

    /// Whether there is no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.iter().flatten().all(|(_, row)| row.is_none())
    }

    /// The row for a call.
    #[inline]
    pub(crate) fn of(&self, function: usize, bytes: u64) -> Option<&Row> {
        let ranges = self.ranges.get(function)?;
        let at = ranges.partition_point(|(first, _)| *first <= bytes);
        ranges.get(at.checked_sub(1)?)?.1.as_ref()
    }
}

/// Ranges without overlaps: each has the first row that matches its sizes.
fn ranges(rows: &[&Row], function: usize) -> Vec<(u64, Option<Row>)> {
    let rows: Vec<&Row> = rows.iter().copied().filter(|row| row.function == function).collect();
    let ends = rows.iter().filter_map(|row| row.bytes_max.checked_add(1));
    let mut firsts: Vec<u64> = rows.iter().map(|row| row.bytes_min).chain(ends).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let row_at = |bytes: u64| rows.iter().find(|row| (row.bytes_min..=row.bytes_max).contains(&bytes));
    firsts.into_iter().map(|first| (first, row_at(first).map(|row| (*row).clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# measured\n\
        collective,bytes_min,bytes_max,nodes,ranks,algorithm,protocol,channels,time_us\n\
        all_reduce,0,64K,1,8,Ring,LL,,11.5\n\
        AllReduce,1K,1M,*,-1,tree,ll128,4,20\n\
        allreduce,,,2,16,NVLS_TREE,simple,,1\n\
        reduce-scatter,0,,,,PAT,Simple,64,1\n";

    #[test]
    fn the_first_row_that_matches_counts() {
        let rows = read(TABLE).unwrap();
        assert_eq!(rows.len(), 4);
        let line = |nodes, ranks, function, bytes| {
            Choices::new(&rows, nodes, ranks).of(function, bytes).map(|row| row.line)
        };
        for (nodes, ranks, function, bytes, expected) in [
            (1, 8, 4, 0, Some(3)),
            (1, 8, 4, 64_000, Some(3)),
            (1, 8, 4, 65_536, Some(3)),
            (1, 8, 4, 65_537, Some(4)),
            (1, 8, 4, 1 << 20, Some(4)),
            (1, 8, 4, (1 << 20) + 1, None),
            (1, 4, 4, 512, None),
            (2, 16, 4, 512, Some(5)),
            (2, 16, 4, u64::MAX, Some(5)),
            (2, 16, 4, 2048, Some(4)),
            (1, 8, 3, 7, Some(6)),
            (1, 8, 0, 7, None),
            (1, 8, 99, 7, None),
        ] {
            assert_eq!(line(nodes, ranks, function, bytes), expected, "{nodes} {ranks} {function} {bytes}");
        }
        let of_tree = Choices::new(&rows, 1, 2);
        let row = of_tree.of(4, 2048).unwrap();
        assert_eq!((row.way, row.channels), (Way { algorithm: 0, protocol: 1 }, Some(4)));
        assert!(!of_tree.is_empty());
        assert!(Choices::new(&rows[..1], 2, 2).is_empty());
    }

    #[test]
    fn errors_name_the_line() {
        let header = "collective,bytes_min,bytes_max,algorithm,protocol,channels,nodes\n";
        for (text, expected) in [
            ("", "line 1: the first line names the columns"),
            ("# only a comment\n", "line 1: the first line"),
            ("collective,bytes_min,bytes_max,algorythm,protocol\n", "line 1: there is no column `algorithm`"),
            ("all_reduce,0,1,Ring,LL\n", "line 1: there is no column"),
            (&format!("{header}all_reduce,0,1,Ring,LL\n"), "line 2: 5 fields, and 7 columns"),
            (&format!("{header}gather,0,1,Ring,LL,,\n"), "line 2: unknown collective `gather`"),
            (&format!("{header}all_reduce,0,1,Rong,LL,,\n"), "line 2: unknown algorithm `Rong`"),
            (&format!("{header}all_reduce,0,1,Ring,,,\n"), "line 2: unknown protocol ``"),
            (&format!("{header}all_reduce,x,1,Ring,LL,,\n"), "line 2: bytes_min: `x` is not a size"),
            (&format!("{header}all_reduce,9,1,Ring,LL,,\n"), "line 2: bytes_min 9 is above"),
            (&format!("{header}\nall_reduce,0,1,Ring,LL,65,\n"), "line 3: channels is `65`"),
            (&format!("{header}all_reduce,0,1,Ring,LL,0,\n"), "line 2: channels is `0`"),
            (&format!("{header}all_reduce,0,1,Ring,LL,,0\n"), "line 2: nodes is `0`"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        let long = format!("{header}{}", "all_reduce,0,1,Ring,LL,,\n".repeat(ROWS_MAX + 1));
        assert!(read(&long).unwrap_err().to_string().contains("at most 4096 rows"));
        assert_eq!(read(header).unwrap(), []);
    }

    #[test]
    fn ranges_find_the_same_row_as_a_search() {
        let mut text = "collective,bytes_min,bytes_max,nodes,ranks,algorithm,protocol,channels\n".to_owned();
        // Ranges that overlap in all ways.
        for (min, max) in [(10, 20), (0, 12), (15, 40), (20, 20), (41, 41), (5, 50)] {
            text += &format!("all_gather,{min},{max},,,Ring,Simple,\n");
        }
        let rows = read(&text).unwrap();
        let choices = Choices::new(&rows, 3, 9);
        for bytes in 0..60 {
            let expected = rows.iter().find(|row| (row.bytes_min..=row.bytes_max).contains(&bytes));
            assert_eq!(choices.of(2, bytes), expected, "{bytes}");
        }
    }
}
