//! A plan as Graphviz DOT: the traffic between ranks, with a cluster for each island.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::plan::Switch;
use crate::traffic::Traffic;
use crate::well_formed::WellFormed;

/// The traffic of a plan as a graph, given the island of each rank. Edges are labelled with their share of the call's size S; a
/// switch that adds or multicasts is a node.
///
/// # Panics
/// If a rank has no island.
pub fn dot(plan: WellFormed<'_>, islands: &[u32]) -> String {
    assert_eq!(islands.len(), plan.ranks as usize, "every rank has an island");
    let traffic = Traffic::of(plan);
    let mut clusters = BTreeMap::<u32, Vec<u32>>::new();
    for (rank, &island) in (0..).zip(islands) {
        clusters.entry(island).or_default().push(rank);
    }
    let title = format!("{}: {}, {} ranks", plan.name, plan.collective, plan.ranks)
        .replace('"', "'")
        .replace('\\', "/");
    let mut text = format!(
        "digraph plan {{\n  label=\"{title}\";\n  labelloc=t;\n  fontname=\"sans-serif\";\n  \
         node [shape=circle, fontname=\"sans-serif\", fontsize=11];\n  \
         edge [fontname=\"sans-serif\", fontsize=9];\n"
    );
    for (island, ranks) in &clusters {
        let names: Vec<String> = ranks.iter().map(u32::to_string).collect();
        let _ = writeln!(text, "  subgraph cluster_{island} {{");
        let _ = writeln!(text, "    label=\"island {island}\"; style=rounded; color=\"#98a2ad\";");
        let _ = writeln!(text, "    {};\n  }}", names.join("; "));
    }
    for ((from, to), share) in traffic.pairs() {
        let inside = islands[from as usize] == islands[to as usize];
        let _ = writeln!(text, "  {from} -> {to} [label=\"{share} S\", color=\"{}\"];", colour(inside));
    }
    for ((switch, rank), [sent, received]) in traffic.switched() {
        let (name, label) = match switch {
            Switch::Nvswitch => (format!("switch_{}", islands[rank as usize]), "NVSwitch"),
            Switch::Network => ("network".to_owned(), "network"),
        };
        let colour = colour(switch == Switch::Nvswitch);
        let _ = writeln!(text, "  {name} [shape=box, label=\"{label}\"];");
        let _ = writeln!(text, "  {rank} -> {name} [label=\"{sent} S\", color=\"{colour}\"];");
        let _ = writeln!(text, "  {name} -> {rank} [label=\"{received} S\", color=\"{colour}\"];");
    }
    text.push_str("}\n");
    text
}

fn colour(inside: bool) -> &'static str {
    if inside { "#3d7a00" } else { "#c2560a" }
}
