//! `weft plan COLLECTIVE FABRIC`: every candidate and why it lost, or the algorithm for each size, or the plan itself.

use anyhow::anyhow;
use weftlink_fabric::bytes::Bytes;
use weftlink_plan::choose::{Candidate, Choice, Chooser, Verdict};
use weftlink_plan::cost::Ground;
use weftlink_plan::{Algorithm, Collective, Recipe};

use super::Build;
use super::ask::Kind;
use super::emit::{self, Emit};
use crate::Failure;

/// The bytes of a call, if nobody says.
const SIZE: Bytes = Bytes(64 << 20);

pub(super) fn run(kind: Kind, target: &str, build: &Build, as_json: bool) -> Result<(), Failure> {
    let fabric = crate::topo::resolve(Some(target), None)?;
    if fabric.gpus().is_empty() {
        return Err(Failure::finding(anyhow!("{} has no GPU, and so no ranks", fabric.name())));
    }
    let ground = Ground::of(&fabric);
    let ranks = ground.layout().ranks();
    let collective = kind.collective(ranks, build)?;
    let chooser = Chooser::new(&collective, kind.is_uneven(), &ground).without(&build.without);
    let asked = Asked { ground: &ground, chooser: &chooser, uneven: kind.is_uneven() };
    // A barrier moves nothing, so it has no size.
    let bytes = if collective == Collective::Barrier { 0 } else { build.size.unwrap_or(SIZE).0 };
    let choice = chooser.choose(bytes);
    if choice.chosen().is_none() {
        let all = Chooser::new(&collective, kind.is_uneven(), &ground).choose(bytes);
        return Err(Failure::finding(anyhow!(asked.nobody(&choice, all.chosen().is_some()))));
    }
    if let Some(sizes) = build.sizes {
        return Ok(asked.print_sizes(sizes, as_json)?);
    }
    let form = build.emit.unwrap_or(Emit::Text);
    emit::check_show(build.show, ranks, form)?;
    if build.algorithm.is_none() && build.emit.is_none() && build.show.is_none() {
        return Ok(asked.print_choice(&choice, as_json)?);
    }
    let candidate = asked.candidate(&choice, build.algorithm)?;
    let recipe = asked.recipe(candidate)?;
    match (build.show, build.emit) {
        (Some(rank), _) => emit::show(&recipe, ground.layout(), rank),
        (None, Some(form)) => emit::print(recipe.plan(), ground.layout(), form, None),
        (None, None) => Ok(asked.print_summary(candidate, &recipe, bytes, as_json)?),
    }
}

pub(super) struct Asked<'a> {
    pub(super) ground: &'a Ground<'a>,
    pub(super) chooser: &'a Chooser<'a, 'a>,
    pub(super) uneven: bool,
}

impl Asked<'_> {
    /// The candidate that was asked for, or the chosen one.
    fn candidate<'c>(
        &self,
        choice: &'c Choice,
        algorithm: Option<Algorithm>,
    ) -> Result<&'c Candidate, Failure> {
        let is_wanted = |candidate: &&Candidate| algorithm.is_none_or(|wanted| candidate.algorithm == wanted);
        // The fastest protocol comes first.
        match choice.candidates.iter().find(is_wanted) {
            Some(Candidate { algorithm, verdict: Verdict::RuledOut(why), .. }) => {
                Err(Failure::misuse(anyhow!("{algorithm} is not for this: {why}")))
            }
            Some(candidate) => Ok(candidate),
            None => Err(Failure::misuse(anyhow!(
                "no algorithm does this; `weft plan --list` prints what each does"
            ))),
        }
    }

    /// Why there is no choice. With `left_out` there would be one, but for what is left out.
    fn nobody(&self, choice: &Choice, left_out: bool) -> String {
        let (collective, fabric) = (self.chooser.collective(), self.ground.fabric().name());
        if left_out {
            return format!(
                "all that can do {collective} on {fabric} is left out; name fewer algorithms after --without"
            );
        }
        let why = choice.candidates.iter().find_map(|candidate| match &candidate.verdict {
            Verdict::RuledOut(why) if candidate.algorithm.does(collective) => Some(why.as_str()),
            _ => None,
        });
        let why = why.unwrap_or("none is for it; `weft plan --list` prints what each does");
        format!("no algorithm can do {collective} on {fabric}: {why}")
    }

    /// A candidate's plan, with its protocol.
    fn recipe(&self, candidate: &Candidate) -> Result<Recipe<'_>, Failure> {
        let recipe = self.chooser.recipe(candidate.algorithm).map_err(Failure::misuse)?;
        Ok(match candidate.protocol {
            Some(protocol) => recipe.with_protocol(protocol),
            None => recipe,
        })
    }
}
