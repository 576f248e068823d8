//! A fabric as an SVG drawing, sized for a slide.
//!
//! The layout follows from device kinds and links alone. GPUs are in a row (or in two squares, if they form a mesh without
//! a switch), their links above, the PCIe tree down to the CPUs below, the network below the hosts. Lines are coloured by
//! technology, their width grows with the logarithm of the bandwidth, and tags give the number of parallel links.
//!
//! Deliberately absent: root ports and bridges with a single device below them (they are part of the line), PCIe links of
//! NVSwitches (management), drives of several hosts, and all but three of equal hosts or racks.

mod bands;
mod canvas;
mod dots;
mod group;
mod host;
mod legend;
mod mesh;
mod network;
mod paint;
mod palette;
mod rack;
mod scene;
#[cfg(test)]
mod tests;
mod tree;
mod wiring;
mod words;

use canvas::{Align, Label, Picture};
use group::Groups;
use host::Metrics;
use rack::Detail;
use scene::Scene;

use crate::fabric::Fabric;

/// Levels of detail, highest first; the first that is not wider than [`WIDTH_MAX`] is used.
const DETAILS: [Detail; 4] = [
    Detail::Blocks(&Metrics {
        gpu: (104.0, 54.0),
        small: (64.0, 42.0),
        switch: (92.0, 42.0),
        cpu: (150.0, 52.0),
        chip: (112.0, 46.0),
        gap: 16.0,
        row_gap: 54.0,
        font: 14.0,
        beside: true,
        nics_shown: 4,
    }),
    Detail::Blocks(&Metrics {
        gpu: (62.0, 40.0),
        small: (48.0, 30.0),
        switch: (66.0, 30.0),
        cpu: (90.0, 36.0),
        chip: (84.0, 36.0),
        gap: 8.0,
        row_gap: 38.0,
        font: 11.5,
        beside: false,
        nics_shown: 2,
    }),
    Detail::Blocks(&Metrics {
        gpu: (38.0, 26.0),
        small: (32.0, 24.0),
        switch: (44.0, 24.0),
        cpu: (56.0, 26.0),
        chip: (66.0, 30.0),
        gap: 4.0,
        row_gap: 28.0,
        font: 9.9,
        beside: false,
        nics_shown: 2,
    }),
    Detail::Dots,
];
const WIDTH_MAX: f64 = 1900.0;
const WIDTH_MIN: f64 = 820.0;
const MARGIN: f64 = 36.0;

/// Draws a fabric.
pub fn svg(fabric: &Fabric) -> String {
    let scene = Scene::new(fabric);
    let groups = Groups::new(&scene);
    let mut picture = Picture::default();
    for detail in DETAILS {
        picture = network::arrange(&scene, &groups, detail);
        if picture.w <= WIDTH_MAX {
            break;
        }
    }
    paint::page(&with_texts(&scene, picture), fabric.name())
}

/// Adds title, inventory, legend and margins.
fn with_texts(scene: &Scene, body: Picture) -> Picture {
    let inner = body.w.max(WIDTH_MIN);
    let mut page = Picture { w: inner + 2.0 * MARGIN, ..Picture::default() };
    let line = |y: f64, text: String, font: f64, bold: bool| Label {
        at: (MARGIN, y),
        text,
        font,
        bold,
        soft: !bold,
        align: Align::Start,
    };
    let mut y = MARGIN + 24.0;
    page.labels.push(line(y, scene.fabric.name().to_owned(), 28.0, true));
    y += 6.0;
    for text in legend::wrapped(&words::inventory(scene), inner, 14.0) {
        y += 20.0;
        page.labels.push(line(y, text, 14.0, false));
    }
    y += 26.0;
    let (w, h) = (body.w, body.h);
    page.extend(body.shifted(MARGIN + (inner - w) / 2.0, y));
    y += h + 22.0;
    let legend = legend::legend(scene, &page, inner);
    let height = legend.h;
    page.extend(legend.shifted(MARGIN, y));
    page.h = y + height + MARGIN * 0.8;
    page
}
