//! Writes a drawing as SVG text.
//!
//! Styles are presentation attributes, not a style sheet, because many slide programs ignore style sheets.

use std::fmt::Write;

use super::canvas::{Align, Block, Label, Look, Panel, Picture, Rect, Step, Tag, Wire};
use super::palette::{INK, LOOKS, PANEL, PAPER, SOFT_INK, style};

const FONTS: &str = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";

/// The width of a text in the widest of the fonts.
pub(super) fn text_width(text: &str, font: f64) -> f64 {
    text.chars().count() as f64 * font * 0.61
}

/// The page: the drawing on a white card.
pub(super) fn page(picture: &Picture, title: &str) -> String {
    let mut out = String::new();
    let (w, h) = (coordinate(picture.w), coordinate(picture.h));
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" \
         font-family=\"{FONTS}\">\n<title>{}</title>\n",
        escape(title)
    );
    let card = Rect::new(1.0, 1.0, (picture.w - 2.0, picture.h - 2.0));
    let _ = writeln!(
        out,
        "<rect {} rx=\"18\" fill=\"{PAPER}\" stroke=\"#dfe4ea\" stroke-width=\"1.5\"/>",
        place(card)
    );
    picture.panels.iter().for_each(|item| panel(&mut out, item));
    out.push_str("<g fill=\"none\">\n");
    picture.wires.iter().for_each(|item| wire(&mut out, item));
    out.push_str("</g>\n");
    for look in LOOKS {
        blocks(&mut out, look, &picture.blocks);
    }
    picture.tags.iter().for_each(|item| tag(&mut out, item));
    picture.labels.iter().for_each(|item| label(&mut out, item));
    out.push_str("</svg>\n");
    out
}

fn blocks(out: &mut String, look: Look, all: &[Block]) {
    let (class, fill, stroke, ink, soft_ink) = style(look);
    let mut any = false;
    for block in all.iter().filter(|block| block.look == look) {
        if !any {
            let _ = writeln!(
                out,
                "<g class=\"{class}\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"1.2\">"
            );
            any = true;
        }
        let radius = (block.rect.h * 0.18).min(8.0);
        let _ = writeln!(out, "<rect {} rx=\"{}\"/>", place(block.rect), coordinate(radius));
    }
    if !any {
        return;
    }
    out.push_str("</g>\n");
    for block in all.iter().filter(|block| block.look == look && block.font > 0.0) {
        let room = block.rect.w - 6.0;
        let title_font = fitted(&block.title, room, block.font);
        let middle = block.rect.cy();
        if block.detail.is_empty() {
            let at = (block.rect.cx(), middle + 0.36 * title_font);
            words(out, at, &block.title, title_font, ink, true, Align::Middle);
        } else {
            let detail_font = fitted(&block.detail, room, block.font * 0.82);
            let at = (block.rect.cx(), middle - 0.12 * block.font);
            words(out, at, &block.title, title_font, ink, true, Align::Middle);
            let at = (block.rect.cx(), middle + 0.98 * block.font);
            words(out, at, &block.detail, detail_font, soft_ink, false, Align::Middle);
        }
    }
}

/// The size at which a text fits.
fn fitted(text: &str, room: f64, font: f64) -> f64 {
    let needed = text_width(text, font);
    if needed > room { font * room / needed } else { font }
}

fn panel(out: &mut String, panel: &Panel) {
    let (fill, stroke, ink) = match panel.tone {
        Some(tone) => (tone.tint(), tone.stroke(), tone.ink()),
        None => (PANEL, "#d3d9e0", INK),
    };
    let radius = coordinate((panel.rect.h * 0.12).min(12.0));
    let _ = writeln!(
        out,
        "<rect {} rx=\"{radius}\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-opacity=\"0.7\"/>",
        place(panel.rect)
    );
    if panel.title.is_empty() && panel.detail.is_empty() {
        return;
    }
    let room = panel.rect.w - 24.0;
    let both = format!("{}  {}", panel.title, panel.detail);
    let font = fitted(&both, room, panel.font);
    let baseline =
        if panel.foot { panel.rect.bottom() - panel.font * 0.6 } else { panel.rect.y + panel.font * 1.35 };
    let (x, y) = (coordinate(panel.rect.x + 12.0), coordinate(baseline));
    let _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{y}\" font-size=\"{}\" fill=\"{ink}\"><tspan font-weight=\"600\">{}</tspan>\
         <tspan dx=\"{}\" fill=\"{SOFT_INK}\">{}</tspan></text>",
        coordinate(font),
        escape(&panel.title),
        coordinate(font * 0.6),
        escape(&panel.detail)
    );
}

fn wire(out: &mut String, wire: &Wire) {
    let mut path = format!("M{} {}", coordinate(wire.from.0), coordinate(wire.from.1));
    for step in &wire.steps {
        let _ = match step {
            Step::Line(to) => write!(path, "L{} {}", coordinate(to.0), coordinate(to.1)),
            Step::Curve(a, b, to) => write!(
                path,
                "C{} {} {} {} {} {}",
                coordinate(a.0),
                coordinate(a.1),
                coordinate(b.0),
                coordinate(b.1),
                coordinate(to.0),
                coordinate(to.1)
            ),
        };
    }
    // Parallel strokes are one wide stroke with narrower ones in the background colour on top, which works for any curve.
    let strands = f64::from(wire.strands);
    let gap = wire.width * 0.9;
    let mut broad = strands * wire.width + (strands - 1.0) * gap;
    for pass in 0..wire.strands {
        let (colour, inset) = match pass % 2 {
            0 => (wire.tone.stroke(), wire.width),
            _ => (PANEL, gap),
        };
        let _ =
            writeln!(out, "<path d=\"{path}\" stroke=\"{colour}\" stroke-width=\"{}\"/>", coordinate(broad));
        broad -= 2.0 * inset;
    }
}

fn tag(out: &mut String, tag: &Tag) {
    let (w, h) = (text_width(&tag.text, tag.font) + tag.font * 0.8, tag.font * 1.45);
    let rect = Rect::new(tag.at.0 - w / 2.0, tag.at.1 - h / 2.0, (w, h));
    let _ = writeln!(
        out,
        "<rect {} rx=\"{}\" fill=\"{PAPER}\" stroke=\"{}\"/>",
        place(rect),
        coordinate(h / 2.0),
        tag.tone.stroke()
    );
    let at = (tag.at.0, tag.at.1 + 0.36 * tag.font);
    words(out, at, &tag.text, tag.font, tag.tone.ink(), true, Align::Middle);
}

fn label(out: &mut String, label: &Label) {
    let ink = if label.soft { SOFT_INK } else { INK };
    words(out, label.at, &label.text, label.font, ink, label.bold, label.align);
}

fn words(out: &mut String, (x, y): (f64, f64), text: &str, font: f64, ink: &str, bold: bool, align: Align) {
    let anchor = match align {
        Align::Start => "",
        Align::Middle => " text-anchor=\"middle\"",
    };
    let weight = if bold { " font-weight=\"600\"" } else { "" };
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" font-size=\"{}\" fill=\"{ink}\"{anchor}{weight}>{}</text>",
        coordinate(x),
        coordinate(y),
        coordinate(font),
        escape(text)
    );
}

fn place(rect: Rect) -> String {
    format!(
        "x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"",
        coordinate(rect.x),
        coordinate(rect.y),
        coordinate(rect.w),
        coordinate(rect.h)
    )
}

/// One decimal, omitted if zero.
fn coordinate(value: f64) -> String {
    let text = format!("{value:.1}");
    text.trim_end_matches(".0").to_owned()
}

/// Escapes a text for XML and drops control characters, which XML cannot represent.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => {}
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}
