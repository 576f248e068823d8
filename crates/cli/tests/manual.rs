//! Completions, manual pages, `weft help` and `weft --version`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{scratch, shell};

#[test]
fn shells_complete_commands_and_names() {
    let folder = scratch("completions");
    for shell_name in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = shell(&folder, &format!("weft completions {shell_name}"));
        assert_eq!(done.code, Some(0), "{shell_name}: {}", done.errors);
        assert!(done.output.contains("all-reduce") && done.output.contains("bench"), "{shell_name}");
    }
    // What is printed is a script: bash reads it and knows the commands.
    let script = "weft completions bash > weft.bash && source ./weft.bash && COMP_WORDS=(weft to) COMP_CWORD=1 && \\
                  _weft weft to weft && echo \"${COMPREPLY[@]}\"";
    let done = shell(&folder, &format!("bash -c '{script}'"));
    assert_eq!((done.code, done.output.as_str()), (Some(0), "topo\n"), "{}", done.errors);
}

#[test]
fn every_command_has_a_page() {
    let folder = scratch("pages");
    let done = shell(&folder, "weft man pages");
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""));
    for page in [
        "weft.1",
        "weft-topo.1",
        "weft-plan.1",
        "weft-sim.1",
        "weft-sim-copy.1",
        "weft-bench.1",
        "weft-run.1",
    ] {
        let text = std::fs::read_to_string(folder.join("pages").join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
    let hidden = std::fs::read_dir(folder.join("pages")).unwrap().filter_map(Result::ok);
    assert!(hidden.into_iter().all(|file| !file.file_name().to_string_lossy().contains("rank")));
    let run = std::fs::read_to_string(folder.join("pages/weft-run.1")).unwrap();
    assert!(
        run.contains(".TH WEFT-RUN 1") && run.contains(concat!("weft ", env!("CARGO_PKG_VERSION"))),
        "{run}"
    );
    assert!(run.contains(".SH EXAMPLES\n.in 2n\n.nf\nweft run") && !run.contains("EXTRA"), "{run}");
    let plan = std::fs::read_to_string(folder.join("pages/weft-plan.1")).unwrap();
    assert!(plan.contains("weft plan [OPTIONS] [COLLECTIVE] [FABRIC]"), "{plan}");
    assert_eq!(shell(&folder, "weft man /proc/none").code, Some(2));
}

#[test]
fn weft_help_equals_the_help_option() {
    let folder = scratch("help");
    for command in ["topo", "plan", "sim", "bench", "run", "why", "knobs"] {
        let by_command = shell(&folder, &format!("weft help {command}"));
        let by_option = shell(&folder, &format!("weft {command} --help"));
        assert_eq!((by_command.code, by_command.output), (Some(0), by_option.output), "{command}");
    }
}

#[test]
fn the_version_names_the_commit() {
    let folder = scratch("version");
    let short = shell(&folder, "weft -V").output;
    assert!(short.starts_with(concat!("weft ", env!("CARGO_PKG_VERSION"), " (")), "{short}");
    let long = shell(&folder, "weft --version").output;
    assert!(
        long.starts_with(short.trim_end())
            && long.contains("target: ")
            && long.contains("features: shared memory, TCP, CUDA"),
        "{long}"
    );
}
