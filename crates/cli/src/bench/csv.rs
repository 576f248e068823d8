//! Rows as CSV: one line for each way of passing buffers. Only the name of a plan may contain commas or quotes; it is quoted then.

use std::io::{self, Write};

use super::job::Job;
use super::results::Row;
use super::table::{cache_name, memory_kind, op_name, root};

const HEAD: &str = "collective,ranks,memory,cache,type,redop,root,bytes,count,way,iterations,time_us,algbw_gb_per_s,\
                    busbw_gb_per_s,wrong,predicted_us,min_us,p50_us,p95_us,p99_us,max_us,plan";

pub(super) fn write(out: &mut impl Write, job: &Job, rows: &[Row]) -> io::Result<()> {
    writeln!(out, "{HEAD}")?;
    for row in rows {
        let case = &job.cases[row.case];
        for (way, measured) in [("out-of-place", &row.out_of_place), ("in-place", &row.in_place)] {
            let Some(measured) = measured else { continue };
            let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4}"));
            let stats = measured.stats;
            let spread = [
                stats.map(|stats| stats.min_us),
                stats.map(|stats| stats.p50_us),
                stats.map(|stats| stats.p95_us),
                stats.map(|stats| stats.p99_us),
                stats.map(|stats| stats.max_us),
            ];
            let fields = [
                case.collective.name().to_owned(),
                job.ranks.to_string(),
                memory_kind(job, case).to_owned(),
                cache_name(case).to_owned(),
                case.data_type.name().to_owned(),
                op_name(case).to_owned(),
                root(case).to_string(),
                row.bytes.to_string(),
                row.count.to_string(),
                way.to_owned(),
                measured.iterations.to_string(),
                number(Some(measured.time_us)),
                number(Some(measured.algbw_gb_per_s)),
                number(Some(measured.busbw_gb_per_s)),
                measured.wrong.map_or(String::new(), |wrong| wrong.to_string()),
                number(row.predicted_us),
            ];
            let fields = fields.into_iter().chain(spread.map(number)).chain([quoted(&row.plan)]);
            writeln!(out, "{}", fields.collect::<Vec<_>>().join(","))?;
        }
    }
    out.flush()
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_where_they_need_it() {
        assert_eq!(quoted("ring"), "ring");
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
    }
}
