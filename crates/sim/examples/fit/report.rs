//! What is printed.

use weftlink_sim::Constants;
use weftlink_sim::accuracy::{BANDS, Class, TableError, error, summary};
use weftlink_sim::constants::{COUNT, Origin, TABLE};
use weftlink_sim::library::predict;
use weftlink_sim::published::Row;

/// Errors by band and class, then the worst tables of each band.
pub(crate) fn errors(tables: &[TableError], worst: usize) {
    println!("median (90th percentile) of tables' errors in percent; {COUNT} constants");
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

/// Constants with how far they went.
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

/// Rows with what was predicted and chosen.
pub(crate) fn rows<'a>(constants: &Constants, rows: impl Iterator<Item = &'a Row>) {
    for row in rows {
        let Some(found) = predict(constants, &row.setup, row.operation, row.bytes) else { continue };
        let time = found.estimate.total_us();
        println!(
            "{:40} {:12} {:10.1} {:10.1} {:+6.1} % {:>8}/{:6} launch {:.1} hops {:.1} wire {:.1} fill {:.1} host {:.1}",
            row.id,
            row.bytes,
            row.measured_us,
            time,
            error(time, row.measured_us) * if time < row.measured_us { -1e2 } else { 1e2 },
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
