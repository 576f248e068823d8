//! Where NVRTC may lie.
//!
//! Each stage names candidates and what it looked at. Later stages run only if no earlier one had a suitable library; the last one
//! starts a Python interpreter, because nothing else knows the folders of one behind a wrapper (pyenv, Debian).

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The names of the library, the newest first. There is one for all of 12.x and one for all of 13.x.
const SONAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"];
const PYTHON_SECONDS_MAX: u64 = 10;
/// Prints the folders of packages.
const PYTHON: &str = "import site, sysconfig
for path in [sysconfig.get_path('purelib'), sysconfig.get_path('platlib'), *site.getsitepackages(), site.getusersitepackages()]: print(path)";

/// A library to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Candidate {
    /// One that the process has loaded.
    Loaded(&'static str),
    /// A file.
    File(PathBuf),
    /// A name that the loader looks up.
    Default(&'static str),
}

/// What a stage has looked at, and what it suggests.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) searched: Vec<String>,
    pub(super) candidates: Vec<Candidate>,
}

/// What the search depends on.
pub(super) struct Surroundings<'a> {
    /// Reads a variable of the environment.
    pub(super) variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// Files that the process has mapped.
    pub(super) mapped: Vec<PathBuf>,
    /// The root of the file system.
    pub(super) root: PathBuf,
}

pub(super) const STAGES: [fn(&Surroundings<'_>) -> Place; 6] =
    [loaded, python_environments, toolkits, usual_folders, loader, interpreter];

impl Surroundings<'_> {
    pub(super) fn of_this_process() -> Surroundings<'static> {
        let maps = fs::read("/proc/self/maps").unwrap_or_default();
        let paths = maps.split(|byte| *byte == b'\n').filter_map(|line| {
            let start = line.iter().position(|byte| *byte == b'/')?;
            Some(PathBuf::from(OsString::from_vec(line[start..].to_vec())))
        });
        Surroundings { variable: &weftlink_knobs::variable, mapped: paths.collect(), root: "/".into() }
    }

    /// A folder that a variable names.
    fn folder(&self, variable: &str) -> Option<PathBuf> {
        (self.variable)(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
    }
}

fn loaded(_: &Surroundings<'_>) -> Place {
    Place {
        searched: vec!["this process".to_owned()],
        candidates: SONAMES.iter().map(|soname| Candidate::Loaded(soname)).collect(),
    }
}

/// The environment of the running interpreter, which has mapped extension modules, then the activated ones, then those of interpreters
/// on the path.
fn python_environments(around: &Surroundings<'_>) -> Place {
    let mut packages: Vec<PathBuf> = Vec::new();
    for file in &around.mapped {
        packages.extend(file.ancestors().find(|path| is_packages(path)).map(Path::to_owned));
    }
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        packages.extend(around.folder(variable).iter().flat_map(|prefix| packages_of(prefix)));
    }
    let path = (around.variable)("PATH").unwrap_or_default();
    for folder in std::env::split_paths(&path).filter(|folder| folder.is_absolute()) {
        let Some(python) =
            ["python3", "python"].map(|name| folder.join(name)).into_iter().find(|it| it.exists())
        else {
            continue;
        };
        // A virtual environment's interpreter is a link to the one that it was made from.
        for python in [Some(python.clone()), fs::canonicalize(&python).ok()].into_iter().flatten() {
            packages.extend(python.ancestors().nth(2).iter().flat_map(|prefix| packages_of(prefix)));
        }
    }
    packages.extend(around.folder("HOME").iter().flat_map(|home| packages_of(&home.join(".local"))));
    let mut place = in_packages(packages);
    // conda's own packages of CUDA.
    place.add(around.folder("CONDA_PREFIX").map(|prefix| prefix.join("lib")));
    place
}

fn toolkits(around: &Surroundings<'_>) -> Place {
    let mut place = Place::default();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(prefix) = around.folder(variable) {
            place.add(["lib64", "lib"].map(|folder| prefix.join(folder)));
        }
    }
    place
}

fn usual_folders(around: &Surroundings<'_>) -> Place {
    let mut place = Place::default();
    let mut toolkits = matching(&around.root.join("usr/local"), |name| name.starts_with("cuda"));
    // The newest first, and `cuda`, which is the system's choice, before all.
    toolkits.sort_by_key(|path| (path.file_name().is_some_and(|name| name == "cuda"), path.clone()));
    toolkits.reverse();
    place.add(toolkits.into_iter().map(|toolkit| toolkit.join("lib64")));
    if place.searched.is_empty() {
        place.searched.push("/usr/local/cuda*".to_owned());
    }
    place
}

fn loader(_: &Surroundings<'_>) -> Place {
    Place {
        searched: vec!["LD_LIBRARY_PATH and the loader's default folders".to_owned()],
        candidates: SONAMES.iter().map(|soname| Candidate::Default(soname)).collect(),
    }
}

/// Asks `python3` for its folders.
fn interpreter(_: &Surroundings<'_>) -> Place {
    let mut place = in_packages(python_says().unwrap_or_default());
    place.searched.insert(0, "the packages of `python3`".to_owned());
    place
}

fn python_says() -> Option<Vec<PathBuf>> {
    let mut child = Command::new("python3")
        .args(["-c", PYTHON])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let start = Instant::now();
    // A few lines fit the pipe, so waiting before reading cannot block the interpreter.
    while child.try_wait().ok()?.is_none() {
        if start.elapsed() > Duration::from_secs(PYTHON_SECONDS_MAX) {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().ok()?;
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"/"));
    Some(lines.map(|line| PathBuf::from(OsString::from_vec(line.to_vec()))).collect())
}

impl Place {
    /// Looks into folders of libraries.
    fn add(&mut self, folders: impl IntoIterator<Item = PathBuf>) {
        for folder in folders {
            let shown = folder.display().to_string();
            if self.searched.contains(&shown) {
                continue;
            }
            self.searched.push(shown);
            self.candidates.extend(libraries_in(&folder));
        }
    }
}

/// NVIDIA's packages below folders of Python packages: `nvidia/cuda_nvrtc/lib` up to CUDA 12, `nvidia/cu13/lib` from 13 on.
fn in_packages(packages: Vec<PathBuf>) -> Place {
    let mut place = Place::default();
    for folder in packages {
        let nvidia = folder.join("nvidia");
        let mut parts = matching(&nvidia, |_| true);
        // cu13 before cuda_nvrtc.
        parts.sort();
        let shown = nvidia.join("*/lib").display().to_string();
        if !place.searched.contains(&shown) {
            place.searched.push(shown);
            place.candidates.extend(parts.iter().flat_map(|part| libraries_in(&part.join("lib"))));
        }
    }
    place
}

fn libraries_in(folder: &Path) -> impl Iterator<Item = Candidate> + use<> {
    let files = SONAMES.map(|soname| folder.join(soname));
    files.into_iter().filter(|file| file.is_file()).map(Candidate::File)
}

/// The folders of packages below the prefix of an interpreter.
fn packages_of(prefix: &Path) -> Vec<PathBuf> {
    let mut versions = matching(&prefix.join("lib"), |name| name.starts_with("python3"));
    versions.sort();
    let below = |version: PathBuf| ["site-packages", "dist-packages"].map(|name| version.join(name));
    versions.into_iter().flat_map(below).filter(|folder| folder.is_dir()).collect()
}

fn is_packages(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "site-packages" || name == "dist-packages")
}

/// What a folder contains by name.
fn matching(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(&is_wanted))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new folder with empty files.
    fn tree(name: &str, files: &[&str]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("weft-nvrtc-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        for file in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        folder
    }

    fn files(place: &Place, root: &Path) -> Vec<String> {
        let shown = |candidate: &Candidate| match candidate {
            Candidate::File(path) => path.strip_prefix(root).unwrap().display().to_string(),
            other => format!("{other:?}"),
        };
        place.candidates.iter().map(shown).collect()
    }

    #[test]
    fn both_layouts_of_packages_are_known() {
        let root = tree(
            "packages",
            &[
                "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.9",
                "venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
                "venv/lib/python3.11/site-packages/nvidia/cublas/lib/libcublas.so.12",
                "other/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                "conda/lib/libnvrtc.so.11.2",
                "bin/python3",
            ],
        );
        let other = root.join("other/lib/python3.12/site-packages/weftlink/weftlink.abi3.so");
        let variable = |name: &str| match name {
            "VIRTUAL_ENV" => Some(root.join("venv").into_os_string()),
            "CONDA_PREFIX" => Some(root.join("conda").into_os_string()),
            "PATH" => Some(root.join("bin").into_os_string()),
            _ => None,
        };
        let around = Surroundings { variable: &variable, mapped: vec![other], root: root.clone() };
        let place = python_environments(&around);
        assert_eq!(
            files(&place, &root),
            [
                "other/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                "venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
                "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                "conda/lib/libnvrtc.so.11.2",
            ]
        );
        let searched = place.searched.join(" ");
        assert!(searched.contains("venv/lib/python3.11/site-packages/nvidia/*/lib"), "{searched}");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn an_interpreter_on_the_path_names_its_environment() {
        let root = tree("path", &["base/bin/python3.11", "base/lib/python3.11/site-packages/x", "env/bin/x"]);
        fs::create_dir_all(root.join("env/lib/python3.11/site-packages/nvidia/cu13/lib")).unwrap();
        fs::write(root.join("env/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13"), "").unwrap();
        std::os::unix::fs::symlink(root.join("base/bin/python3.11"), root.join("env/bin/python3")).unwrap();
        let variable = |name: &str| (name == "PATH").then(|| root.join("env/bin").into_os_string());
        let around = Surroundings { variable: &variable, mapped: Vec::new(), root: root.clone() };
        let place = python_environments(&around);
        assert_eq!(files(&place, &root), ["env/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13"]);
        assert!(place.searched.iter().any(|place| place.contains("base/lib/python3.11/site-packages")));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn toolkits_are_found_by_variable_and_by_folder() {
        let root = tree(
            "toolkits",
            &[
                "home/lib64/libnvrtc.so.12",
                "usr/local/cuda/lib64/libnvrtc.so.13",
                "usr/local/cuda-12.4/lib64/libnvrtc.so.12",
                "usr/local/cuda-13.0/lib64/libnvrtc.so.13",
            ],
        );
        let variable = |name: &str| (name == "CUDA_HOME").then(|| root.join("home").into_os_string());
        let around = Surroundings { variable: &variable, mapped: Vec::new(), root: root.clone() };
        assert_eq!(files(&toolkits(&around), &root), ["home/lib64/libnvrtc.so.12"]);
        assert_eq!(
            files(&usual_folders(&around), &root),
            [
                "usr/local/cuda/lib64/libnvrtc.so.13",
                "usr/local/cuda-13.0/lib64/libnvrtc.so.13",
                "usr/local/cuda-12.4/lib64/libnvrtc.so.12",
            ]
        );
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn an_empty_machine_has_no_candidates() {
        let root = tree("empty", &["x"]);
        let around = Surroundings { variable: &|_| None, mapped: Vec::new(), root: root.clone() };
        for stage in [python_environments, toolkits, usual_folders] {
            assert!(stage(&around).candidates.is_empty());
        }
        assert_eq!(usual_folders(&around).searched, ["/usr/local/cuda*"]);
        fs::remove_dir_all(root).unwrap();
    }
}
