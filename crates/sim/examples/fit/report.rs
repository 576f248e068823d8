//! Prints and writes results.

use weftlink_sim::Constants;
use weftlink_sim::accuracy::evidence;
use weftlink_sim::accuracy::sites::Sites;
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

/// Writes the predictions of all rows: by the shipped constants, and by constants fitted without the row's site.
pub(crate) fn write(rows: &[Row], fitted: &[f64], left_out: &[f64]) -> std::io::Result<()> {
    let sites = Sites::of(rows);
    let mut lines = format!(
        "# constants {:#018x}\nid,site,collective,size_bytes,measured_us,fitted_us,left_out_us\n",
        fingerprint()
    );
    for (index, (row, (fitted, left_out))) in rows.iter().zip(fitted.iter().zip(left_out)).enumerate() {
        let site = &sites.names()[sites.of_row(index)];
        lines += &format!(
            "{},\"{site}\",{},{},{},{fitted:.3},{left_out:.3}\n",
            row.id,
            row.operation.name(),
            row.size,
            row.measured_us
        );
    }
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    std::fs::write(format!("{root}testdata/measurements/left_out.csv"), lines)
}

/// Prints how many rows of each class are in their intervals.
pub(crate) fn coverage(rows: &[Row], times: &[f64]) {
    for class in std::iter::once(None).chain(Class::ALL.map(Some)) {
        let (mut all, mut held) = (0_u32, [0_u32; 2]);
        for (row, time) in rows.iter().zip(times) {
            let outside = evidence::outside(&row.setup, row.operation);
            let Some(of) = evidence::intervals(&row.setup, row.bytes, *time, &outside) else { continue };
            if class.is_some_and(|class| class != Class::of(&row.setup)) {
                continue;
            }
            all += 1;
            for (held, (low, high)) in held.iter_mut().zip([of.half_us, of.most_us]) {
                *held += u32::from((low..=high).contains(&row.measured_us));
            }
        }
        if all > 0 {
            let part = held.map(|held| 100.0 * f64::from(held) / f64::from(all));
            println!(
                "{}: {all} rows, {:.0}% in the 50% interval, {:.0}% in the 90% interval",
                class.map_or("all", Class::name),
                part[0],
                part[1]
            );
        }
    }
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
                libm::log(value / start) / spread
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
