//! `weft plan COLLECTIVE FABRIC`: every candidate and why it lost, or the algorithm for each size, or the plan itself.

use anyhow::anyhow;
use weftlink_plan::Kind;
use weftlink_plan::choose::{self, ChooseError};

use super::emit::{self, Emit};
use super::{Build, tables};
use crate::Failure;

pub(super) fn run(
    kind: Kind,
    (target, gpu): (&str, Option<&str>),
    build: &Build,
    as_json: bool,
) -> Result<(), Failure> {
    let fabric = crate::topo::resolve(Some(target), gpu)?;
    let options = build.options();
    let bytes = build.size.map(|size| size.0);
    if let Some(sizes) = build.sizes {
        let found = choose::choose_sizes(kind, &fabric, (sizes.0, sizes.1), &options)?;
        return Ok(tables::print_sizes(&found, sizes, as_json, &build.calibration)?);
    }
    if build.algorithm.is_none() && build.emit.is_none() && build.show.is_none() {
        let chosen = choose::choose(kind, &fabric, bytes, &options)?;
        return Ok(tables::print_choice(&chosen, as_json, &build.calibration)?);
    }
    let built = choose::build(kind, &fabric, bytes, build.algorithm, &options)?;
    emit::check_show(build.show, built.subject.ranks, build.emit.unwrap_or(Emit::Text))?;
    let recipe = built.recipe().map_err(Failure::misuse)?;
    match (build.show, build.emit) {
        (Some(rank), _) => emit::show(&recipe, &built.layout, rank),
        (None, Some(form)) => emit::print(recipe.plan(), &built.layout, form, None),
        (None, None) => Ok(tables::print_summary(&built, &recipe, as_json, &build.calibration)?),
    }
}

impl From<ChooseError> for Failure {
    fn from(error: ChooseError) -> Self {
        match error {
            ChooseError::Option { option, collective } => {
                Failure::misuse(anyhow!("--{option} does not apply to {collective}"))
            }
            ChooseError::LeftOut { .. } => Failure::misuse(anyhow!("--without: {error}")),
            error => Failure::misuse(error),
        }
    }
}
