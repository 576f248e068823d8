//! A table of measurements beside predictions, as the command prints it.

use std::fmt;

use super::{Row, Table};
use crate::size::size;

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self.ranks.map_or_else(String::new, |ranks| format!(", {ranks} ranks"));
        let machine = self.fabric.as_ref().zip(self.library.as_ref());
        let against =
            machine.map_or_else(String::new, |(fabric, library)| format!(" against {fabric} with {library}"));
        writeln!(f, "{} of {} (line {}){ranks}{against}", self.collective, self.log, self.line)?;
        let heads = ["size", "time us", "busbw GB/s", "predicted", "busbw", "90% us", ""];
        write_row(f, &heads.map(str::to_owned))?;
        for row in &self.rows {
            write_row(f, &cells(row))?;
        }
        for band in &self.bands {
            let (name, rows, ratio) = (band.name, band.rows, band.ratio);
            writeln!(
                f,
                "{name}: {ratio:.2} times the predicted time in the median; {} of {rows} within 50 %, {} within 90 %",
                band.in_half, band.in_most
            )?;
        }
        Ok(())
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, cells: &[String; 7]) -> fmt::Result {
    let [size, time, rate, predicted, its_rate, range, verdict] = cells;
    let line =
        format!("{size:>9}  {time:>9}  {rate:>10}  {predicted:>9}  {its_rate:>7}  {range:>16}  {verdict}");
    writeln!(f, "{}", line.trim_end())
}

fn cells(row: &Row) -> [String; 7] {
    let rate = row.measured_gb_per_s.map_or_else(String::new, |rate| format!("{rate:.2}"));
    let measured = [size(row.bytes), format!("{:.1}", row.measured_us), rate];
    let Some(it) = &row.predicted else {
        let [bytes, time, rate] = measured;
        return [bytes, time, rate, String::new(), String::new(), String::new(), String::new()];
    };
    let range = it.most_us.map_or_else(String::new, |(low, high)| format!("{low:.1}..{high:.1}"));
    let verdict = match it.most_us {
        Some((_, high)) if row.measured_us > high => "slower",
        Some((low, _)) if row.measured_us < low => "faster",
        _ => "",
    };
    let [bytes, time, rate] = measured;
    [
        bytes,
        time,
        rate,
        format!("{:.1}", it.time_us),
        format!("{:.2}", it.gb_per_s),
        range,
        verdict.to_owned(),
    ]
}
