//! Reads switches and blocks, and checks that they form a tree.

use rustc_hash::FxHashMap;

use super::lines::{Line, Logical, parse};
use crate::format::network::hostlist::expand;
use crate::format::network::names::{clean, clean_host};
use crate::format::network::{CABLES_MAX, HOSTS_MAX, HostNetwork, NetworkHost, SWITCHES_MAX, Wiring};
use crate::format::{ReadError, excerpt, text};
use crate::nearest::did_you_mean;

/// Leaf switches of one host: one for each rail or plane.
const LEAVES_MAX: usize = 64;

/// Reads `topology.conf`.
pub fn read(bytes: &[u8]) -> Result<HostNetwork, ReadError> {
    let text = text(bytes)?;
    let mut lines = Logical::of(text);
    let mut reader = Reader::default();
    while let Some((number, line)) = lines.next_line()? {
        let read = parse(number, &line).and_then(|line| reader.line(&line));
        read.map_err(|reason| ReadError::at(number, reason))?;
    }
    reader.finish(text.lines().count())
}

#[derive(Default)]
struct Reader {
    hosts: Vec<String>,
    host_numbers: FxHashMap<String, u32>,
    leaves: Vec<Vec<u32>>,
    switches: Vec<String>,
    switch_numbers: FxHashMap<String, u32>,
    /// The switches below each switch, by name, and the line that says so.
    children: Vec<(Vec<String>, usize)>,
    /// Switches below others and hosts below switches, in all.
    connections: usize,
    blocks: usize,
    has_speeds: bool,
    has_sizes: bool,
}

impl Reader {
    fn line(&mut self, line: &Line<'_>) -> Result<(), String> {
        self.has_speeds |= line.value("LinkSpeed").is_some();
        if line.value("BlockSizes").is_some() {
            self.has_sizes = true;
            return Ok(());
        }
        let (name, is_block) = match (line.value("SwitchName"), line.value("BlockName")) {
            (Some(name), None) => (name, false),
            (None, Some(name)) => (name, true),
            (Some(_), Some(_)) => return Err("a line defines a switch or a block, not both".to_owned()),
            (None, None) => return Err("expected SwitchName=NAME or BlockName=NAME on this line".to_owned()),
        };
        let defined = self.switches.len();
        if (is_block && self.blocks < defined) || (!is_block && self.blocks > 0) {
            return Err("the file has switches and blocks; write those of one plugin".to_owned());
        }
        self.blocks += usize::from(is_block);
        let (nodes, switches) = (line.value("Nodes"), line.value("Switches"));
        let (nodes, below) = match (nodes, switches) {
            (Some(nodes), None) => (expand(nodes).map_err(|wrong| format!("Nodes: {wrong}"))?, Vec::new()),
            (None, Some(below)) if !is_block => {
                (Vec::new(), expand(below).map_err(|wrong| format!("Switches: {wrong}"))?)
            }
            (None, Some(_)) => return Err("a block has Nodes=, no Switches=".to_owned()),
            (Some(_), Some(_)) => {
                return Err(
                    "a switch has Nodes= or Switches=, not both; define a switch below it for the nodes"
                        .to_owned(),
                );
            }
            (None, None) => return Err(format!("`{}` has neither Nodes= nor Switches=", excerpt(name))),
        };
        let switch = self.define(name)?;
        self.connections += nodes.len() + below.len();
        if self.connections > CABLES_MAX {
            return Err(format!("the file has more than {CABLES_MAX} connections, which is the limit"));
        }
        self.children.push((below.iter().map(|name| clean(name)).collect(), line.number));
        nodes.iter().try_for_each(|node| self.host_below(node, switch))
    }

    fn define(&mut self, name: &str) -> Result<u32, String> {
        if name.contains(['[', ',']) {
            return Err(format!("`{}` is a list; define one switch or block per line", excerpt(name)));
        }
        let name = clean(name);
        if name.is_empty() {
            return Err("the name is empty".to_owned());
        }
        let number = self.switches.len() as u32;
        if number as usize == SWITCHES_MAX {
            return Err(format!("the file has more than {SWITCHES_MAX} switches, which is the limit"));
        }
        if self.switch_numbers.insert(name.clone(), number).is_some() {
            return Err(format!("`{name}` is defined twice; merge the lines"));
        }
        self.switches.push(name);
        Ok(number)
    }

    fn host_below(&mut self, node: &str, switch: u32) -> Result<(), String> {
        let name = clean_host(node);
        let next = self.hosts.len() as u32;
        let number = *self.host_numbers.entry(name.clone()).or_insert(next);
        if number == next {
            if self.hosts.len() == HOSTS_MAX {
                return Err(format!("the file has more than {HOSTS_MAX} nodes, which is the limit"));
            }
            self.hosts.push(name.clone());
            self.leaves.push(Vec::new());
        }
        let leaves = &mut self.leaves[number as usize];
        if leaves.contains(&switch) {
            return Err(format!("node {name} is listed twice here; remove one"));
        }
        if self.blocks > 0 && !leaves.is_empty() {
            return Err(format!("node {name} is in another block already; a node is in one block"));
        }
        if leaves.len() == LEAVES_MAX {
            return Err(format!("node {name} is below more than {LEAVES_MAX} switches, which is the limit"));
        }
        leaves.push(switch);
        Ok(())
    }

    fn finish(mut self, last_line: usize) -> Result<HostNetwork, ReadError> {
        if self.hosts.is_empty() {
            return Err(ReadError::at(last_line.max(1), "no switch or block has Nodes="));
        }
        let mut notes = Vec::new();
        let mut parents = vec![Vec::new(); self.switches.len()];
        for (parent, (children, line)) in (0..).zip(&self.children) {
            for child in children {
                let number = *self.switch_numbers.get(child).ok_or_else(|| {
                    let hint = did_you_mean(child, self.switches.iter().take(4096).map(String::as_str));
                    ReadError::at(
                        *line,
                        format!("no switch is called `{child}`.{hint} Define it with SwitchName="),
                    )
                })?;
                parents[number as usize].push(parent);
            }
        }
        self.check_loops(&parents)?;
        if self.blocks > 0 {
            notes.push(
                "The file describes blocks: each is shown as one leaf switch, and a spine joins them"
                    .to_owned(),
            );
            if self.blocks > 1 {
                let spine = self.switches.len() as u32;
                parents.iter_mut().for_each(|above| above.push(spine));
                parents.push(Vec::new());
                let spare = (0..).map(|n| if n == 0 { "spine".to_owned() } else { format!("spine-{n}") });
                let name = spare.into_iter().find(|name| !self.switch_numbers.contains_key(name));
                self.switches.push(name.unwrap_or_default());
            }
        } else {
            let roots = parents.iter().filter(|above| above.is_empty()).count();
            if roots > 1 {
                notes.push(format!("{roots} switches are at the top; what only they join is not connected"));
            }
        }
        if self.has_speeds {
            notes.push("LinkSpeed is ignored, as in Slurm: its units are arbitrary".to_owned());
        }
        if self.has_sizes {
            notes.push("BlockSizes is ignored: it says how Slurm places jobs".to_owned());
        }
        let hosts = self.hosts.into_iter().map(|name| NetworkHost { name, adapters: Vec::new() });
        Ok(HostNetwork {
            hosts: hosts.collect(),
            switches: self.switches,
            wiring: Wiring::Tree { leaves: self.leaves, parents },
            notes,
        })
    }

    /// Refuses a switch that is below itself: removes switches without children until none is left.
    fn check_loops(&self, parents: &[Vec<u32>]) -> Result<(), ReadError> {
        let mut children: Vec<usize> = self.children.iter().map(|(names, _)| names.len()).collect();
        let mut free: Vec<usize> = (0..children.len()).filter(|switch| children[*switch] == 0).collect();
        while let Some(switch) = free.pop() {
            for parent in &parents[switch] {
                children[*parent as usize] -= 1;
                if children[*parent as usize] == 0 {
                    free.push(*parent as usize);
                }
            }
        }
        match children.iter().position(|left| *left > 0) {
            Some(switch) => Err(ReadError::at(
                self.children[switch].1,
                format!(
                    "`{}` is below itself, or a switch below it is; remove the loop",
                    self.switches[switch]
                ),
            )),
            None => Ok(()),
        }
    }
}
