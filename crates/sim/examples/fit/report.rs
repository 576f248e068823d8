//! Prints and writes results.

use weftlink_sim::Constants;
use weftlink_sim::accuracy::{BANDS, Class, TableError, error, summary};
use weftlink_sim::constants::{COUNT, Origin, TABLE, fingerprint};
use weftlink_sim::library::predict;
use weftlink_sim::published::Row;

/// Prints errors by band and class, then the worst tables of each band.
pub(crate) fn errors(tables: &[TableError], worst: usize) {
    println!("errors in percent, median (90th percentile) over tables; {COUNT} constants");
    print!("{:16}", "");
    for (name, _) in BANDS {
        print!("{name:>20}");
    }
    println!();
    for class in std::iter::once(None).chain(Class::ALL.map(Some)) {
        print!("{:16}", class.map_or("all", Class::name));
        for band in 0..BANDS.len() {
            let found = summary(tables, band, class);
            let text =
                format!("{:.1} ({:.0}) of {}", found.median * 1e2, found.ninetieth * 1e2, found.tables);
            print!("{text:>20}");
        }
        println!();
    }
    for (index, (name, _)) in BANDS.iter().enumerate() {
        println!("worst {name}:");
        for table in tables.iter().filter(|table| table.band == index).take(worst) {
            println!("  {:6.1} {:+6.2} {}", table.error * 1e2, table.log_ratio, table.id);
        }
    }
}

/// Writes the errors of all tables and the shipped expected errors.
pub(crate) fn write(in_sample: &[TableError], left_out: &[TableError]) -> std::io::Result<()> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    let mut lines =
        String::from("id,band,class,fitted_error,fitted_log_ratio,left_out_error,left_out_log_ratio\n");
    let mut sorted: Vec<&TableError> = left_out.iter().collect();
    sorted.sort_by(|one, other| (&one.id, one.band).cmp(&(&other.id, other.band)));
    for left in sorted {
        let fitted = in_sample.iter().find(|table| table.id == left.id && table.band == left.band);
        let (error, log_ratio) = fitted.map_or((f64::NAN, f64::NAN), |table| (table.error, table.log_ratio));
        lines += &format!(
            "{},{},{},{error:.4},{log_ratio:.4},{:.4},{:.4}\n",
            left.id,
            left.band,
            left.class.name(),
            left.error,
            left.log_ratio
        );
    }
    std::fs::write(format!("{root}../../testdata/measurements/errors.csv"), lines)?;
    let mut table = format!(
        "/// Fingerprint of the constants that these errors belong to; see [`crate::constants::fingerprint`].\n\
         pub const FINGERPRINT: u64 = {:#018x};\n\n\
         /// Rows: all machines, then [`Class::ALL`]. Columns: [`BANDS`].\n\
         const LEFT_OUT: [[Summary; 4]; 6] = [\n",
        fingerprint()
    );
    for class in std::iter::once(None).chain(Class::ALL.map(Some)) {
        let cells: Vec<String> = (0..BANDS.len())
            .map(|band| summary(left_out, band, class))
            .map(|found| format!("of({}, {:.3}, {:.3})", found.tables, found.median, found.ninetieth))
            .collect();
        table += &format!("    [{}],\n", cells.join(", "));
    }
    table += "];\n";
    std::fs::write(format!("{root}src/accuracy/table.rs"), table)
}

/// Prints the constants and how far each moved from its start.
pub(crate) fn constants(fitted: &Constants) {
    for (index, constant) in TABLE.iter().enumerate() {
        if let Origin::Fitted { start, spread } = constant.origin {
            let value = fitted.at(index);
            println!(
                "{:28} {:10.4} {:5} {:+5.2} spreads",
                constant.name,
                value,
                constant.unit,
                (value / start).ln() / spread
            );
        }
    }
}

/// Prints rows with the executed time, the library's choice and its estimate.
pub(crate) fn rows(constants: &Constants, rows: &[Row], executed: &[f64]) {
    for (row, time) in rows.iter().zip(executed) {
        let Some(found) = predict(constants, &row.setup, row.operation, row.bytes) else { continue };
        println!(
            "{:40} {:12} {:10.1} {:10.1} {:+6.1} % form {:10.1} {:>8}/{:6} launch {:.1} hops {:.1} wire {:.1} fill {:.1} host {:.1}",
            row.id,
            row.bytes,
            row.measured_us,
            time,
            error(*time, row.measured_us) * if *time < row.measured_us { -1e2 } else { 1e2 },
            found.estimate.total_us(),
            found.algorithm.name(),
            found.protocol.to_string(),
            found.estimate.launch_us,
            found.estimate.hops_us,
            found.estimate.wire_us,
            found.estimate.fill_us,
            found.estimate.host_us,
        );
    }
}
