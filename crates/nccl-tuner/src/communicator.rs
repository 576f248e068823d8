//! A communicator: what its calls choose, and what is logged of that.

use std::sync::atomic::{AtomicU16, Ordering};

use weftlink_nccl_plugin::log::Logger;
use weftlink_nccl_plugin::names::{ALGORITHMS, FUNCTIONS, PROTOCOLS, TUNED, name};

use crate::classes::{CLASSES, Candidate, Ranked, class};
use crate::costs::{Costs, Way};
use crate::model::Model;
use crate::settings::{Sources, sources};
use crate::table::{Choices, Row};

/// A communicator of NCCL.
pub(crate) struct Communicator {
    pub(crate) logger: Logger,
    /// The rows of the table that match the communicator.
    choices: Option<Choices>,
    model: Option<Model>,
    /// For each function, the ways by class of sizes.
    ranked: [Ranked; TUNED],
    /// For each function and class, the way that was logged last.
    logged: Box<[AtomicU16]>,
}

/// What a call shall use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) way: Way,
    /// The number of channels; NCCL's own if there is none.
    pub(crate) channels: Option<u32>,
    pub(crate) time_us: Option<f32>,
}

/// What NCCL before 2.22 says instead of a table of costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Support {
    pub(crate) collnet: bool,
    pub(crate) nvls: bool,
}

impl Communicator {
    /// A communicator with that many ranks and nodes. Without anything to choose by, it leaves all calls to NCCL.
    pub(crate) fn new(ranks: usize, nodes: usize, logger: Logger) -> Self {
        let sources = sources().inspect_err(|error| {
            logger.warn(&format!("weft tuner: {error}; NCCL chooses by itself"));
        });
        let this = Self::by(sources.ok(), ranks, nodes, logger);
        if sources.is_ok() && this.choices.is_none() && this.model.is_none() {
            logger.info("weft tuner: nothing to choose by; NCCL chooses by itself");
        }
        this
    }

    fn by(sources: Option<&Sources>, ranks: usize, nodes: usize, logger: Logger) -> Self {
        let shape = format!("{ranks} ranks on {nodes} nodes");
        let table = sources.and_then(|sources| sources.table.as_ref());
        let choices =
            table.map(|(_, rows)| Choices::new(rows, nodes, ranks)).filter(|choices| !choices.is_empty());
        if let Some((path, rows)) = table {
            let matching = if choices.is_some() { "some match" } else { "none matches" };
            logger.info(&format!("weft tuner: {path}: {} rows, of which {matching} {shape}", rows.len()));
        }
        let model = sources.and_then(|sources| {
            let (calibrated, from) = &sources.calibrated;
            let machine = sources.machine.as_ref().map_err(Clone::clone);
            match machine.and_then(|setup| Model::new(setup, calibrated.clone(), ranks, nodes)) {
                Ok(model) => {
                    let name = model.name();
                    logger.info(&format!(
                        "weft tuner: {shape}, as {name} with {from}; all ranks must log the same"
                    ));
                    Some(model)
                }
                Err(why) => {
                    logger.info(&format!("weft tuner: no prediction for {shape}: {why}"));
                    None
                }
            }
        });
        Self {
            logger,
            choices,
            model,
            ranked: std::array::from_fn(|_| Ranked::new()),
            logged: (0..TUNED * CLASSES).map(|_| AtomicU16::new(0)).collect(),
        }
    }

    /// Puts the choice for a call into NCCL's costs. Returns the number of channels, if it is part of the choice.
    pub(crate) fn tune(&self, function: usize, bytes: u64, costs: &mut Costs<'_>) -> Option<u32> {
        let (default, default_us) = costs.cheapest()?;
        let choice = self.choose(function, bytes, Some(default), |way| costs.of(way).is_some())?;
        costs.prefer(choice.way, choice.time_us);
        self.log(function, bytes, choice, Some((default, default_us)));
        choice.channels
    }

    /// The choice for a call of NCCL before 2.22, which passes no costs.
    pub(crate) fn tune_without_costs(&self, function: usize, bytes: u64, support: Support) -> Option<Choice> {
        let choice = self.choose(function, bytes, None, |way| self.is_usable(function, way, support))?;
        self.log(function, bytes, choice, None);
        Some(choice)
    }

    /// What a call shall use, of the ways that are allowed; nothing if that is for NCCL to choose.
    #[inline]
    fn choose(
        &self,
        function: usize,
        bytes: u64,
        default: Option<Way>,
        is_allowed: impl Fn(Way) -> bool,
    ) -> Option<Choice> {
        if let Some(row) = self.row(function, bytes).filter(|row| is_allowed(row.way)) {
            return Some(Choice { way: row.way, channels: row.channels, time_us: None });
        }
        let ways = self.ways(function, bytes)?;
        // A way that the model does not know cannot be compared with the others.
        if default.is_some_and(|default| ways.iter().all(|one| one.way != default)) {
            return None;
        }
        let best = ways.iter().find(|one| is_allowed(one.way))?;
        Some(Choice { way: best.way, channels: None, time_us: Some(best.time_us) })
    }

    fn row(&self, function: usize, bytes: u64) -> Option<&Row> {
        self.choices.as_ref()?.of(function, bytes)
    }

    fn ways(&self, function: usize, bytes: u64) -> Option<&[Candidate]> {
        let model = self.model.as_ref()?;
        let ranked = self.ranked.get(function)?;
        Some(ranked.of(bytes, |smallest| model.rank(function, smallest)))
    }

    /// Whether an older NCCL can surely use a way, which it does not say.
    fn is_usable(&self, function: usize, way: Way, support: Support) -> bool {
        let is_all_reduce = FUNCTIONS[function.min(FUNCTIONS.len() - 1)] == "AllReduce";
        let is_simple = PROTOCOLS.get(way.protocol) == Some(&"Simple");
        let by_model = |way: Way| {
            let is_ll128 = PROTOCOLS.get(way.protocol) == Some(&"LL128");
            !is_ll128 || self.model.as_ref().is_some_and(Model::supports_ll128)
        };
        match ALGORITHMS.get(way.algorithm) {
            Some(&"Ring") => by_model(way),
            Some(&"Tree") => is_all_reduce && by_model(way),
            Some(&"CollNetDirect" | &"CollNetChain") => is_all_reduce && is_simple && support.collnet,
            Some(&"NVLS" | &"NVLSTree") => is_all_reduce && is_simple && support.nvls,
            _ => false,
        }
    }

    /// Logs a choice once per class of sizes, and again when it changes.
    #[inline]
    fn log(&self, function: usize, bytes: u64, choice: Choice, default: Option<(Way, f32)>) {
        let Some(logged) = self.logged.get(function * CLASSES + class(bytes)) else { return };
        let tag = 1 + (choice.way.algorithm as u16) * 64 + choice.way.protocol as u16;
        if logged.load(Ordering::Relaxed) != tag && logged.swap(tag, Ordering::Relaxed) != tag {
            self.log_now(function, bytes, choice, default);
        }
    }

    #[cold]
    fn log_now(&self, function: usize, bytes: u64, choice: Choice, default: Option<(Way, f32)>) {
        let mut text = format!(
            "weft tuner: {} of {bytes} bytes: {}",
            name(&FUNCTIONS, function, "unknown function"),
            in_words(choice.way)
        );
        match (choice.time_us, self.row(function, bytes)) {
            (Some(time), _) => text += &format!(", {time:.1} us predicted"),
            (None, Some(row)) => text += &format!(", line {} of the table", row.line),
            (None, None) => {}
        }
        let ways = self.ways(function, bytes).unwrap_or_default();
        if let Some(next) = ways.iter().find(|one| one.way != choice.way) {
            text += &format!("; second best {}, {:.1} us", in_words(next.way), next.time_us);
        }
        if let Some((way, cost_us)) = default {
            text += &format!("; NCCL by itself {}, {cost_us:.1} us by its costs", in_words(way));
        }
        self.logger.info(&text);
    }
}

fn in_words(way: Way) -> String {
    let Way { algorithm, protocol } = way;
    format!(
        "{} {}",
        ALGORITHMS.get(algorithm).map_or_else(|| format!("algorithm {algorithm}"), |name| (*name).to_owned()),
        PROTOCOLS.get(protocol).map_or_else(|| format!("protocol {protocol}"), |name| (*name).to_owned()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use weftlink_nccl_plugin::log::Subsystem;
    use weftlink_sim::Setup;
    use weftlink_sim::corrections::Calibrated;

    use crate::table::read;

    const ALL_REDUCE: usize = 4;

    fn communicator(table: Option<&str>, fabric: Option<&str>) -> Communicator {
        let setup = |spec| Setup::of(&weftlink_fabric::resolve(spec).unwrap()).unwrap();
        let sources = Sources {
            table: table.map(|text| ("table.csv".to_owned(), read(text).unwrap())),
            calibrated: (Calibrated::default(), "shipped constants".to_owned()),
            machine: fabric.map(setup).ok_or_else(|| "no machine".to_owned()),
        };
        Communicator::by(Some(&sources), 8, 1, Logger::none(Subsystem::Tuning))
    }

    /// NCCL's costs where everything is allowed.
    fn costs() -> [f32; 21] {
        std::array::from_fn(|at| 100.0 + at as f32)
    }

    fn tuned(by: &Communicator, bytes: u64, entries: &mut [f32]) -> (Way, Option<u32>) {
        let mut costs = Costs::new(entries, 3);
        let channels = by.tune(ALL_REDUCE, bytes, &mut costs);
        (costs.cheapest().unwrap().0, channels)
    }

    const TABLE: &str = "collective,bytes_min,bytes_max,nodes,ranks,algorithm,protocol,channels\n\
        all_reduce,0,1K,1,8,CollNetChain,Simple,7\n";

    #[test]
    fn the_table_comes_first_then_the_model_then_nccl() {
        let both = communicator(Some(TABLE), Some("hgx-h100"));
        let of_table = (Way { algorithm: 3, protocol: 2 }, Some(7));
        assert_eq!(tuned(&both, 100, &mut costs()), of_table);
        let (way, channels) = tuned(&both, 1 << 30, &mut costs());
        assert_eq!((way, channels), (Way { algorithm: 4, protocol: 2 }, None), "NVLS by the model");
        let neither = communicator(None, None);
        assert_eq!(tuned(&neither, 100, &mut costs()), (Way { algorithm: 0, protocol: 0 }, None));
        let table = communicator(Some(TABLE), None);
        assert_eq!(tuned(&table, 100, &mut costs()), of_table);
        assert_eq!(tuned(&table, 1 << 30, &mut costs()).0, Way { algorithm: 0, protocol: 0 });
    }

    #[test]
    fn what_nccl_forbids_is_never_chosen() {
        let both = communicator(Some(TABLE), Some("hgx-h100"));
        let mut without_collnet = costs();
        without_collnet[3 * 3 + 2] = -1.0;
        assert!(tuned(&both, 100, &mut without_collnet).0.algorithm < 2, "by the model");
        assert_eq!(without_collnet[3 * 3 + 2], -1.0);
        for bytes in [8, 1 << 16, 1 << 22, 1 << 30] {
            let mut only_tree_ll = [-1.0; 21];
            only_tree_ll[0] = 5.0;
            assert_eq!(tuned(&both, bytes, &mut only_tree_ll).0, Way { algorithm: 0, protocol: 0 });
            let mut nothing = [-1.0; 21];
            assert_eq!(both.tune(ALL_REDUCE, bytes, &mut Costs::new(&mut nothing, 3)), None);
            assert_eq!(nothing, [-1.0; 21]);
        }
    }

    #[test]
    fn an_algorithm_of_a_newer_nccl_is_left_alone() {
        let model = communicator(None, Some("hgx-h100"));
        // Nine algorithms and four protocols, of which the last of both is the cheapest.
        let mut entries: Vec<f32> = (0..36).map(|at| 100.0 - at as f32).collect();
        let before = entries.clone();
        assert_eq!(model.tune(ALL_REDUCE, 1 << 20, &mut Costs::new(&mut entries, 4)), None);
        assert_eq!(entries, before);
        // If it is not, the others are compared.
        entries[35] = 1000.0;
        entries[4] = 0.5;
        let mut costs = Costs::new(&mut entries, 4);
        model.tune(ALL_REDUCE, 1 << 30, &mut costs);
        assert_eq!(costs.cheapest().unwrap().0, Way { algorithm: 4, protocol: 2 });
    }

    #[test]
    fn an_older_nccl_gets_only_what_it_surely_has() {
        let both = communicator(Some(TABLE), Some("hgx-h100"));
        let of = |bytes, collnet, nvls| {
            both.tune_without_costs(ALL_REDUCE, bytes, Support { collnet, nvls }).unwrap().way
        };
        assert_eq!(of(100, true, true), Way { algorithm: 3, protocol: 2 });
        assert!(of(100, false, true).algorithm < 2);
        assert_eq!(of(1 << 30, false, true), Way { algorithm: 4, protocol: 2 });
        assert!(of(1 << 30, false, false).algorithm < 2);
        let support = Support { collnet: true, nvls: true };
        let gathered = both.tune_without_costs(2, 1 << 20, support).unwrap();
        assert_eq!(gathered.way.algorithm, 1, "rings");
        assert_eq!(both.tune_without_costs(99, 1 << 20, support), None);
    }

    #[test]
    fn all_ranks_choose_alike_in_any_order_of_calls() {
        let [one, other] = [communicator(None, Some("hgx-h100")), communicator(None, Some("hgx-h100"))];
        let sizes: Vec<u64> =
            (0..34).flat_map(|power| [1 << power, (1 << power) + (1 << power) / 3]).collect();
        let first: Vec<_> = sizes.iter().map(|bytes| tuned(&one, *bytes, &mut costs())).collect();
        let mut last: Vec<_> = sizes.iter().rev().map(|bytes| tuned(&other, *bytes, &mut costs())).collect();
        last.reverse();
        assert_eq!(first, last);
    }
}
