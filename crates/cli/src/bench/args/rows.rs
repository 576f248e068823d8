//! The rows of a job: collectives, element types, reductions, plans and kinds of memory, each at all sizes.

use weftlink_cuda::is_for_gpus;
use weftlink_fabric::bytes::Bytes;
use weftlink_plan::{Collective, Order, Verified, verify};

use super::{Args, Cache, misuse};
use crate::bench::job::{Case, Job, Pairs};
use crate::bench::names::{Choice, Op, Type, What};
use crate::bench::pairs;
use crate::{Failure, counted};

/// Smaller calls depend on latency, not on where their data is.
const ROTATING_BYTES_MIN: usize = 64 << 10;
/// Messages between pairs.
const PAIR_BYTES: (u64, u64) = (8, 4 << 20);

impl Args {
    pub(super) fn pairs(&self, job: &mut Job) -> Result<(), Failure> {
        if job.ranks > pairs::RANKS_MAX {
            return misuse(format!("p2p measures up to {} ranks", pairs::RANKS_MAX));
        }
        self.refuse(&["-b", "-e", "--json", "-J"], "p2p, which takes -n, -b, -e and --json")?;
        let bytes =
            |given: Option<Bytes>, otherwise: u64| given.map_or(otherwise, |bytes| bytes.0).max(1) as usize;
        let (small_bytes, large_bytes) =
            (bytes(self.smallest(), PAIR_BYTES.0), bytes(self.largest(), PAIR_BYTES.1));
        if small_bytes > large_bytes {
            return misuse("-b, the size for latency, is larger than -e, the size for bandwidth".to_owned());
        }
        job.pairs = Some(Pairs { small_bytes, large_bytes });
        Ok(())
    }

    pub(super) fn rows(&self, job: &mut Job, plan: Option<Verified>) -> Result<(), Failure> {
        let memories = match self.local_register {
            Some(symmetric) => vec![symmetric],
            // Ranks of one process access each other's device memory.
            None if self.gpu => vec![true],
            None if self.is_tour() => vec![false, true],
            None => vec![false],
        };
        let cache = self.cache.unwrap_or(if self.is_tour() { Cache::Both } else { Cache::Cached });
        let collectives = match &plan {
            Some(plan) => {
                self.fits(plan)?;
                vec![plan.collective.clone()]
            }
            None => self.collectives_of(job.ranks as u32)?,
        };
        let kinds = self.kinds(&collectives[0])?;
        let given = match plan {
            Some(plan) => {
                needs_of(&plan, &memories, self.gpu)?;
                Some(job.add_plan(plan))
            }
            None => None,
        };
        for &symmetric in &memories {
            for (&(data_type, op), collective) in
                kinds.iter().flat_map(|kind| collectives.iter().map(move |collective| (kind, collective)))
            {
                let plan = match (given, self.algorithm) {
                    (None, Some(algorithm)) => {
                        let plan =
                            crate::plan::built_in(algorithm, collective, job.ranks as u32, self.lanes)?;
                        let plan = verify(plan).map_err(Failure::finding)?;
                        needs_of(&plan, &memories, self.gpu)?;
                        Some(job.add_plan(plan))
                    }
                    (given, _) => given,
                };
                let collective = collective.clone();
                let case = Case { collective, data_type, op, symmetric, rotating: false, plan };
                if let Some(plan) = plan.filter(|_| self.deterministic) {
                    in_order(job.orders[plan], &job.plans[plan].name, &case)?;
                }
                self.rows_of(job, case, cache)?;
            }
        }
        Ok(())
    }

    /// Refuses options that contradict the plan.
    fn fits(&self, plan: &Verified) -> Result<(), Failure> {
        let (name, computes) = (&plan.name, &plan.collective);
        let asked = self.collective.and_then(|what| what.collective(plan.ranks, 0));
        match asked.filter(|asked| asked.name() != computes.name()) {
            Some(asked) => misuse(format!("{name} computes {computes}, not {}", asked.name())),
            None if self.root.is_some() => {
                misuse("-r does not apply to a plan, which names its root".to_owned())
            }
            None => Ok(()),
        }
    }

    /// Adds a case at all sizes, with its data in caches, in memory or both.
    fn rows_of(&self, job: &mut Job, case: Case, cache: Cache) -> Result<(), Failure> {
        let cached = job.cases.len();
        let counts = self.counts(&case, job.ranks)?;
        let sizes: Vec<_> = counts.into_iter().map(|count| (count, case.bytes(count, job.ranks))).collect();
        job.cases.push(Case { rotating: cache == Cache::Rotating, ..case.clone() });
        if cache == Cache::Both {
            job.cases.push(Case { rotating: true, ..case });
        }
        for (count, bytes) in sizes {
            job.rows.push((cached, count));
            if cache == Cache::Both && bytes >= ROTATING_BYTES_MIN {
                job.rows.push((cached + 1, count));
            }
        }
        Ok(())
    }

    /// The collective, once for each root.
    fn collectives_of(&self, ranks: u32) -> Result<Vec<Collective>, Failure> {
        let what = self.collective.unwrap_or(What::AllReduce);
        let is_rooted = what.collective(ranks, 0).is_some_and(|collective| collective.root().is_some());
        let roots = match self.root {
            Some(_) if !is_rooted => {
                return misuse("-r applies to reduce, broadcast, gather and scatter only".to_owned());
            }
            Some(root) if root >= i64::from(ranks) => {
                return misuse(format!("-r {root}: there are {}", counted(ranks, "rank")));
            }
            Some(-1) => 0..ranks,
            Some(root) => root as u32..root as u32 + 1,
            None => 0..1,
        };
        Ok(roots.filter_map(|root| what.collective(ranks, root)).collect())
    }

    /// The types, each with its reduction.
    fn kinds(&self, collective: &Collective) -> Result<Vec<(Type, Option<Op>)>, Failure> {
        use weftlink_comm::{DataType, Reduction};
        let float = Type(DataType::F32);
        let types = match self.datatype.unwrap_or(Choice::One(float)) {
            Choice::One(data_type) => vec![data_type],
            Choice::All => DataType::ALL.into_iter().map(Type).collect(),
        };
        if !collective.reduces() {
            return match self.op {
                Some(_) => {
                    misuse(format!("-o does not apply to {}, which has no reduction", collective.name()))
                }
                None => Ok(types.into_iter().map(|data_type| (data_type, None)).collect()),
            };
        }
        let ops = match self.op {
            Some(Choice::One(op)) => vec![op],
            Some(Choice::All) => Reduction::NAMED.into_iter().map(Op).collect(),
            None => vec![Op(Reduction::Sum)],
        };
        let kinds: Vec<_> = types
            .iter()
            .flat_map(|&data_type| ops.iter().map(move |&op| (data_type, op)))
            .filter(|(data_type, op)| op.operation(*data_type, 0).is_some())
            .filter(|(data_type, op)| !self.gpu || is_for_gpus(op.0, data_type.0))
            .map(|(data_type, op)| (data_type, Some(op)))
            .collect();
        if kinds.is_empty() {
            let (op, data_type) = (ops[0].name(), types[0].name());
            if self.gpu && ops[0].operation(types[0], 0).is_some() {
                return misuse(format!("{op} of {data_type} is not supported on GPUs"));
            }
            return misuse(format!("{op} is not defined for {data_type}"));
        }
        Ok(kinds)
    }
}

/// Refuses a plan that needs a switch, or symmetric memory where buffers are ordinary.
fn needs_of(plan: &Verified, memories: &[bool], on_gpu: bool) -> Result<(), Failure> {
    if !plan.groups.is_empty() {
        let name = &plan.name;
        let ranks = if on_gpu { "ranks on one GPU" } else { "CPU ranks" };
        return misuse(format!(
            "{name} needs a switch that reduces or multicasts, and {ranks} have none: choose another algorithm, as `weft plan --without {name}` does"
        ));
    }
    if plan.writes_to_peers() && memories.contains(&false) {
        let name = &plan.name;
        return misuse(format!(
            "{name} writes into the buffers of other ranks, which must be symmetric: add -R 2"
        ));
    }
    Ok(())
}

/// Refuses a plan whose results have other bits than those of other plans.
fn in_order(order: Order, name: &str, case: &Case) -> Result<(), Failure> {
    let Some(op) = case.op else { return Ok(()) };
    if order >= op.0.order(Some(case.data_type.0), true) {
        return Ok(());
    }
    let (op, data_type) = (op.name(), case.data_type.name());
    misuse(format!(
        "--deterministic: {name} does not reduce in the order of ranks, so its {op} of {data_type} has other bits than \
         other plans. Omit the plan, or use one that reduces all ranks in one step, such as staged"
    ))
}

#[cfg(test)]
pub(in crate::bench) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// The job of a command line.
    pub(in crate::bench) fn job(line: &str) -> Job {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        match Line::try_parse_from(words).unwrap().args.job(None) {
            Ok(job) => job,
            Err(Failure::Misuse(error) | Failure::Finding(error)) => panic!("{line}: {error:#}"),
            Err(_) => panic!("{line}"),
        }
    }

    /// The job of a command line with `--gpu`, or the message that refuses it.
    pub(in crate::bench) fn gpu_job(line: &str) -> Result<Job, String> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        match Line::try_parse_from(words).unwrap().args.gpu_job(None) {
            Ok(job) => Ok(job),
            Err(Failure::Misuse(error)) => Err(format!("{error:#}")),
            Err(_) => panic!("{line}"),
        }
    }

    #[test]
    fn sizes_are_those_of_nccl_tests() {
        for (line, blocks, bytes) in [
            ("all-reduce", [2, 16], [8, 64]),
            ("all-gather", [1, 4], [16, 64]),
            ("reduce-scatter", [1, 4], [16, 64]),
            ("alltoall", [1, 4], [16, 64]),
            ("broadcast", [2, 16], [8, 64]),
            ("gather", [1, 4], [16, 64]),
            ("sendrecv", [2, 16], [8, 64]),
        ] {
            let job = job(&format!("{line} -n 4 -b 8 -e 64"));
            let case = &job.cases[0];
            let found: Vec<_> = job.rows.iter().map(|&(_, count)| (count, case.bytes(count, 4))).collect();
            assert_eq!(found, blocks.into_iter().zip(bytes).collect::<Vec<_>>(), "{line}");
        }
        assert_eq!(job("barrier").rows, [(0, 0)]);
    }

    #[test]
    fn roots_and_kinds_multiply() {
        assert_eq!(job("broadcast -n 3 -r -1 -e 8").cases.len(), 3);
        assert_eq!(job("reduce -n 3 -r 2 -e 8").cases[0].collective, Collective::Reduce { root: 2 });
        assert_eq!(job("all-gather -d all -b 64 -e 64").cases.len(), weftlink_comm::DataType::ALL.len());
        assert!(!job("all-reduce -d all -o all -b 64 -e 64").cases.is_empty());
    }

    #[test]
    fn the_tour_measures_all_kinds_of_memory() {
        let job = job("-n 2");
        let kinds: Vec<_> = job.cases.iter().map(|case| (case.symmetric, case.rotating)).collect();
        assert_eq!(kinds, [(false, false), (false, true), (true, false), (true, true)]);
        assert_eq!(job.rows.len(), 18);
    }
}
