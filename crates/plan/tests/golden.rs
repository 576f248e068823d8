//! Golden plans: the algorithms must write the files under `testdata/plans`. `make bless` updates them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use weftlink_plan::{Algorithm, Plan};

#[test]
fn algorithms_write_the_golden_plans() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/plans");
    for (algorithm, ranks, lanes) in [
        (Algorithm::Ring, 4, 2),
        (Algorithm::Ring, 2, 1),
        (Algorithm::Exchange, 3, 1),
        (Algorithm::ExchangeLl, 2, 1),
        (Algorithm::OneShot, 2, 1),
        (Algorithm::TwoShot, 2, 1),
        (Algorithm::Pull, 2, 1),
        (Algorithm::Staged, 2, 2),
    ] {
        let plan = algorithm.plan(ranks, lanes);
        let file = folder.join(format!("{algorithm}-{ranks}x{lanes}.json"));
        let text = plan.to_json() + "\n";
        if std::env::var_os("WEFT_BLESS").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&file, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&file).unwrap();
        assert_eq!(
            golden,
            text,
            "{} is not what the algorithm writes; `make bless` writes it",
            file.display()
        );
        assert_eq!(Plan::from_json(&golden).unwrap(), plan);
    }
}
