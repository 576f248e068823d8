//! Finds the program before any rank starts, so that a missing one is reported once.

use std::path::{Path, PathBuf};

use anyhow::anyhow;

use super::wire::Start;

/// Where the program is, as a shell would find it.
pub(super) fn find(start: &Start) -> anyhow::Result<PathBuf> {
    let name = start.program.first().map(String::as_str).unwrap_or_default();
    let folder = Path::new(&start.workdir);
    if !folder.is_dir() {
        return Err(anyhow!("there is no folder {} to run in; set --workdir", folder.display()));
    }
    let runs = |path: &Path| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    if name.contains('/') {
        let path = folder.join(name.trim_start_matches("./"));
        return match (runs(&path), path.is_file()) {
            (true, _) => Ok(path),
            (false, true) => Err(anyhow!("{} is not executable{}", path.display(), interpreter(name))),
            (false, false) => Err(anyhow!("there is no program {}", path.display())),
        };
    }
    let told = start.environment.iter().rev().find(|(key, _)| key == "PATH").map(|(_, value)| value.into());
    let path = told.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    if let Some(file) = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| runs(file)) {
        return Ok(folder.join(file));
    }
    let advice = match folder.join(name).is_file() {
        true if interpreter(name).is_empty() => format!(". There is one in this folder: ./{name}"),
        true => format!(". There is such a file in this folder{}", interpreter(name)),
        false => String::new(),
    };
    Err(anyhow!("there is no program {name:?} in PATH{advice}"))
}

fn interpreter(name: &str) -> String {
    let by = match Path::new(name).extension().and_then(|ending| ending.to_str()) {
        Some("py") => "python3",
        Some("sh") => "sh",
        _ => return String::new(),
    };
    format!("; did you mean `{by} {name}`?")
}
