//! Time and bus bandwidth over size as SVG, with logarithmic axes and a light and a dark colour scheme.

use std::fmt::Write;

/// Pixels: the size of a panel, its left and top margins, and the gap between panels.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 56.0;
const APART: f64 = 84.0;
/// The legend below the panels: its distance, and the height of a line.
const BELOW: f64 = 62.0;
const LINE: f64 = 18.0;

const STYLE: &str = "\
text{font:11px sans-serif;fill:#5b6673}.t{font-size:14px;font-weight:600;fill:#1d2733}.l{text-anchor:end}.c{text-anchor:middle}\
.b{fill:#fff}.g{stroke:#e3e7eb;fill:none}.p{fill:none;stroke-width:1.8}\
@media(prefers-color-scheme:dark){text{fill:#a3adb8}.t{fill:#e8ecf0}.b{fill:#12171d}.g{stroke:#2b343e}}";
/// Distinguishable with colour blindness.
const COLOURS: [&str; 8] =
    ["#2274a5", "#d1495b", "#3d8b37", "#b07d12", "#7b5aa6", "#1b998b", "#8d6e63", "#607d8b"];
const DASHES: [&str; 2] = ["", " stroke-dasharray=\"5 3\""];

/// A line: its name, and points of size, time in microseconds and bandwidth in GB/s.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64, f64)>,
}

/// The picture of `lines`, with a title.
pub(crate) fn svg(title: &str, lines: &[Line]) -> String {
    let (width, height) =
        (LEFT + 2.0 * WIDTH + APART + 24.0, TOP + HEIGHT + BELOW + LINE * lines.len() as f64);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n\
         <style>{STYLE}</style>\n<rect class=\"b\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>\n\
         <text class=\"t\" x=\"18\" y=\"24\">{}</text>\n",
        escaped(title)
    );
    panel(&mut text, lines, LEFT, "time of a call (us)", |point| point.1);
    panel(&mut text, lines, LEFT + WIDTH + APART, "bus bandwidth (GB/s)", |point| point.2);
    for (at, line) in lines.iter().enumerate() {
        let y = TOP + HEIGHT + BELOW - 12.0 + LINE * at as f64;
        let (colour, dash) = pen(at);
        let _ = writeln!(
            text,
            "<path class=\"p\" stroke=\"{colour}\"{dash} d=\"M{LEFT} {y}h30\"/><text x=\"{}\" y=\"{}\">{}</text>",
            LEFT + 38.0,
            y + 4.0,
            escaped(&line.name)
        );
    }
    text.push_str("</svg>\n");
    text
}

/// Text escaped for XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn pen(at: usize) -> (&'static str, &'static str) {
    (COLOURS[at % COLOURS.len()], DASHES[at / COLOURS.len() % DASHES.len()])
}

/// The range of whole powers that contains all values.
fn powers(values: impl Iterator<Item = f64>, base: f64) -> (i32, i32) {
    let logs: Vec<f64> = values.filter(|value| *value > 0.0).map(|value| value.log(base)).collect();
    let least = logs.iter().copied().fold(f64::INFINITY, f64::min);
    let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if least > most {
        return (0, 1);
    }
    // Tolerates rounding errors of exact powers.
    let (from, to) = ((least + 1e-9).floor() as i32, (most - 1e-9).ceil() as i32);
    (from, to.max(from + 1))
}

fn panel(text: &mut String, lines: &[Line], left: f64, title: &str, value: fn(&(f64, f64, f64)) -> f64) {
    let points = || lines.iter().flat_map(|line| &line.points);
    let sizes = powers(points().map(|point| point.0), 8.0);
    let values = powers(points().map(value), 10.0);
    let place = |at: f64, (from, to): (i32, i32)| (at - f64::from(from)) / f64::from(to - from);
    let x = |size: f64| left + WIDTH * place(size.log(8.0), sizes);
    let y = |value: f64| TOP + HEIGHT * (1.0 - place(value.max(f64::MIN_POSITIVE).log10(), values));
    let _ = writeln!(text, "<text x=\"{left}\" y=\"{}\">{title}</text>", TOP - 10.0);
    for power in sizes.0..=sizes.1 {
        let (at, bottom) = (x(8_f64.powi(power)), TOP + HEIGHT);
        let _ = writeln!(
            text,
            "<path class=\"g\" d=\"M{at:.1} {TOP}V{bottom}\"/><text class=\"c\" x=\"{at:.1}\" y=\"{}\">{}</text>",
            bottom + 16.0,
            size(8_f64.powi(power))
        );
    }
    for power in values.0..=values.1 {
        let at = y(10_f64.powi(power));
        let label = if power < 0 {
            format!("{:.*}", -power as usize, 10_f64.powi(power))
        } else {
            format!("{}", 10_f64.powi(power))
        };
        let _ = writeln!(
            text,
            "<path class=\"g\" d=\"M{left} {at:.1}h{WIDTH}\"/><text class=\"l\" x=\"{}\" y=\"{:.1}\">{label}</text>",
            left - 6.0,
            at + 4.0
        );
    }
    for (at, line) in lines.iter().enumerate() {
        let (colour, dash) = pen(at);
        let shown = line.points.iter().filter(|point| value(point) > 0.0);
        let path = shown.enumerate().fold(String::new(), |path, (number, point)| {
            let step = if number == 0 { 'M' } else { 'L' };
            format!("{path}{step}{:.1} {:.1}", x(point.0), y(value(point)))
        });
        let _ = writeln!(text, "<path class=\"p\" stroke=\"{colour}\"{dash} d=\"{path}\"/>");
    }
}

/// Bytes, short.
fn size(bytes: f64) -> String {
    let units = [("G", 30), ("M", 20), ("K", 10)];
    let fitting = units.into_iter().find(|(_, power)| bytes >= f64::from(1 << power));
    fitting.map_or_else(
        || format!("{bytes}"),
        |(unit, power)| format!("{}{unit}", bytes / f64::from(1 << power)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_hold_all_values() {
        assert_eq!(powers([8.0, 64.0, 512.0].into_iter(), 8.0), (1, 3));
        assert_eq!(powers([0.3, 41.0].into_iter(), 10.0), (-1, 2));
        assert_eq!(powers([10.0].into_iter(), 10.0), (1, 2));
        assert_eq!(powers([].into_iter(), 10.0), (0, 1));
        assert_eq!((size(8.0), size(262_144.0)), ("8".to_owned(), "256K".to_owned()));
    }
}
