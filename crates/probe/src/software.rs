//! Where the libraries of CUDA and NCCL lie on this machine, and their versions.
//!
//! The scanner looks into the folders of `LD_LIBRARY_PATH`, the packages of the Python in `PATH`, and the usual folders of the system. It
//! starts no program and loads no library: a version comes from a file's name, from the package that installed it, or, for NCCL, from the
//! text `NCCL version 2.x.y` inside the file. Folders, names and bytes that it reads are limited.
//!
//! Deliberately absent: libraries that a program names by an absolute path or finds by its own run path elsewhere.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Folders that are looked into.
const FOLDERS_MAX: usize = 512;
/// Names in one of them.
const NAMES_MAX: usize = 16_384;
/// Libraries that are reported.
const LIBRARIES_MAX: usize = 128;
/// Bytes of all files that are searched for a version; a libnccl has up to 450 MB.
const SEARCH_BYTES_MAX: u64 = 1 << 30;
/// Bytes searched at once.
const PIECE: usize = 1 << 20;
/// In front of the version in every libnccl.
const MARK: &[u8] = b"NCCL version ";
/// Bytes of a version.
const VERSION_MAX: usize = 32;

/// The libraries that are looked for: the start of their files' names, and of the packages that contain them.
const LIBRARIES: [(&str, &str); 4] = [
    ("libnccl", "nvidia_nccl_"),
    ("libcudart", "nvidia_cuda_runtime"),
    ("libnvrtc", "nvidia_cuda_nvrtc"),
    ("libcuda", "nvidia_cuda_compat"),
];

/// A library that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// `libnccl`, `libcudart`, `libnvrtc`; `libcuda` only from a package for forward compatibility.
    pub name: &'static str,
    /// The file, links resolved.
    pub path: String,
    /// `2.28.9`, or as much of it as is known: `12`.
    pub version: Option<String>,
    /// Why a program may find it: `LD_LIBRARY_PATH`, `python`, `system`.
    pub found_in: &'static str,
}

/// The variables of the environment that decide where programs look.
#[derive(Debug, Clone, Default)]
pub struct SearchPaths {
    /// `PATH`.
    pub path: OsString,
    /// `LD_LIBRARY_PATH`.
    pub library_path: OsString,
    /// `CUDA_HOME`.
    pub cuda_home: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
}

impl SearchPaths {
    /// Those of this process.
    pub fn of_this_process() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            path: variable("PATH").unwrap_or_default(),
            library_path: variable("LD_LIBRARY_PATH").unwrap_or_default(),
            cuda_home: variable("CUDA_HOME").map(PathBuf::from),
            home: variable("HOME").map(PathBuf::from),
        }
    }
}

/// The libraries below `root` (`/` for this machine), as virtual files: `software/N/{name,path,version,found_in}`, and `software/done`,
/// which says how far the scanner came.
pub fn software(root: &Path, paths: &SearchPaths) -> Vec<(String, String)> {
    let found = libraries(root, paths);
    let mut files = vec![("software/done".to_owned(), format!("{} libraries", found.len()))];
    for (number, library) in found.into_iter().enumerate() {
        let mut add = |file: &str, value: String| files.push((format!("software/{number}/{file}"), value));
        add("name", library.name.to_owned());
        add("path", library.path);
        add("found_in", library.found_in.to_owned());
        library.version.into_iter().for_each(|version| add("version", version));
    }
    files
}

/// The libraries below `root`, each file once, in the order in which programs look.
pub fn libraries(root: &Path, paths: &SearchPaths) -> Vec<Library> {
    let mut scan =
        Scan { found: Vec::new(), files: BTreeSet::new(), folders: 0, bytes_left: SEARCH_BYTES_MAX };
    for folder in std::env::split_paths(&paths.library_path).filter(|folder| folder.is_absolute()) {
        scan.folder(&below(root, &folder), "LD_LIBRARY_PATH", &[]);
    }
    for site in sites(root, paths) {
        let packages = names(&site);
        for part in ["torch/lib", "weftlink", "weftlink/lib", "cupy/.data/lib"] {
            scan.folder(&site.join(part), "python", &packages);
        }
        for part in names(&site.join("nvidia")) {
            scan.folder(&site.join("nvidia").join(part).join("lib"), "python", &packages);
        }
    }
    for folder in system_folders(root, paths) {
        scan.folder(&folder, "system", &[]);
    }
    scan.found
}

struct Scan {
    found: Vec<Library>,
    files: BTreeSet<PathBuf>,
    folders: usize,
    bytes_left: u64,
}

impl Scan {
    /// `packages` are the names next to the package that the folder belongs to.
    fn folder(&mut self, folder: &Path, found_in: &'static str, packages: &[String]) {
        self.folders += 1;
        if self.folders > FOLDERS_MAX {
            return;
        }
        for name in names(folder) {
            let Some((library, package)) = LIBRARIES.iter().find(|(library, _)| is_library(&name, library))
            else {
                continue;
            };
            // The driver's own libcuda is not part of the software that a user chooses.
            if *library == "libcuda" && folder.file_name().is_none_or(|last| last != "compat") {
                continue;
            }
            let Ok(file) = folder.join(&name).canonicalize() else { continue };
            if !file.is_file() || self.found.len() >= LIBRARIES_MAX || !self.files.insert(file.clone()) {
                continue;
            }
            let from_name = version_in_name(&file);
            let is_whole = |version: &String| version.contains('.');
            let version = from_name
                .clone()
                .filter(is_whole)
                .or_else(|| version_of_package(packages, package, from_name.as_deref()))
                .or_else(|| (*library == "libnccl").then(|| self.version_inside(&file)).flatten())
                .or(from_name);
            let path = file.to_string_lossy().into_owned();
            self.found.push(Library { name: library, path, version, found_in });
        }
    }

    /// `2.21.5+cuda12.4` of a text in the file.
    fn version_inside(&mut self, file: &Path) -> Option<String> {
        let mut source = File::open(file).ok()?;
        let mut piece: Vec<u8> = Vec::with_capacity(PIECE + MARK.len() + VERSION_MAX);
        loop {
            let kept = piece.len();
            let limit = (PIECE as u64).min(self.bytes_left);
            let read = source.by_ref().take(limit).read_to_end(&mut piece).ok()?;
            self.bytes_left -= read as u64;
            let is_end = read == 0;
            if let Some(version) = version_in(&piece, is_end) {
                return Some(version);
            }
            if is_end {
                return None;
            }
            debug_assert!(kept <= MARK.len() + VERSION_MAX);
            // A version may begin in this piece and end in the next.
            let rest = piece.len().saturating_sub(MARK.len() + VERSION_MAX);
            piece.drain(..rest);
        }
    }
}

/// The first version behind a mark. One that reaches the end of the bytes may go on in the next piece.
fn version_in(bytes: &[u8], is_end: bool) -> Option<String> {
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == MARK[0]) {
        let start = from + at;
        from = start + 1;
        let Some(rest) = bytes[start..].strip_prefix(MARK) else { continue };
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-');
        let length = rest.iter().take(VERSION_MAX).take_while(|byte| is_part(byte)).count();
        let is_cut = length == rest.len() && length < VERSION_MAX && !is_end;
        if rest.first().is_some_and(u8::is_ascii_digit) && !is_cut {
            return Some(String::from_utf8_lossy(&rest[..length]).into_owned());
        }
    }
    None
}

/// `libnccl.so.2` and, from wheels of PyTorch, `libcudart-9335f6a2.so.12`.
fn is_library(name: &str, library: &str) -> bool {
    let Some(rest) = name.strip_prefix(library) else { return false };
    let hashed = rest.strip_prefix('-').and_then(|rest| rest.split_once('.')).is_some_and(|(hash, rest)| {
        hash.len() == 8 && hash.chars().all(|c| c.is_ascii_hexdigit()) && rest.starts_with("so")
    });
    rest == ".so" || rest.starts_with(".so.") || hashed
}

/// What follows `.so.` in a file's name: `2.28.9`, `12`.
fn version_in_name(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    let (_, version) = name.split_once(".so.")?;
    let is_number = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    version.split('.').all(is_number).then(|| version.to_owned())
}

/// The version in `nvidia_nccl_cu12-2.21.5.dist-info`. Of packages for several versions of CUDA, the one with the file's number.
fn version_of_package(packages: &[String], package: &str, number: Option<&str>) -> Option<String> {
    let candidate = |name: &String| {
        let (name, version) = name.strip_suffix(".dist-info")?.split_once('-')?;
        let suffix = name.strip_prefix(package)?.trim_start_matches('_');
        Some((suffix.to_owned(), version.to_owned()))
    };
    let mut candidates: Vec<(String, String)> = packages.iter().filter_map(candidate).collect();
    if candidates.len() > 1 {
        candidates.retain(|(suffix, _)| number.is_some_and(|number| *suffix == format!("cu{number}")));
    }
    match candidates.as_slice() {
        [(_, version)] => Some(version.clone()),
        _ => None,
    }
}

/// The folders of packages of the first Python in `PATH`.
fn sites(root: &Path, paths: &SearchPaths) -> Vec<PathBuf> {
    let folders: Vec<PathBuf> =
        std::env::split_paths(&paths.path).filter(|folder| folder.is_absolute()).collect();
    let python = ["python3", "python"]
        .into_iter()
        .find_map(|name| folders.iter().find(|folder| below(root, &folder.join(name)).is_file()).cloned());
    let mut prefixes: Vec<PathBuf> =
        python.iter().filter_map(|bin| bin.parent()).map(Path::to_owned).collect();
    if let Some(prefix) = prefixes.first().cloned() {
        // A virtual environment may include the packages of the Python it was made from.
        let config = fs::read(below(root, &prefix).join("pyvenv.cfg")).unwrap_or_default();
        let config = String::from_utf8_lossy(&config[..config.len().min(4096)]).into_owned();
        let value = |key: &str| {
            let line =
                config.lines().find(|line| line.split('=').next().is_some_and(|name| name.trim() == key))?;
            Some(line.split_once('=')?.1.trim().to_owned())
        };
        if value("include-system-site-packages").as_deref() == Some("true") {
            prefixes.extend(value("home").and_then(|home| Path::new(&home).parent().map(Path::to_owned)));
        }
        if prefix == Path::new("/usr") {
            prefixes.push("/usr/local".into());
        }
        if config.is_empty() {
            prefixes.extend(paths.home.iter().map(|home| home.join(".local")));
        }
    }
    let mut sites = Vec::new();
    for prefix in prefixes {
        for lib in ["lib", "lib64"] {
            let lib = below(root, &prefix).join(lib);
            for version in names(&lib).into_iter().filter(|name| name.starts_with("python3")) {
                sites.extend(
                    ["site-packages", "dist-packages"].map(|packages| lib.join(&version).join(packages)),
                );
            }
        }
    }
    sites.retain(|site| site.is_dir());
    sites
}

fn system_folders(root: &Path, paths: &SearchPaths) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = paths
        .cuda_home
        .iter()
        .flat_map(|home| ["lib64", "lib"].map(|lib| below(root, &home.join(lib))))
        .collect();
    let usual = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
        "/opt/conda/lib",
    ];
    folders.extend(usual.map(|folder| below(root, Path::new(folder))));
    let toolkits = below(root, Path::new("/usr/local"));
    for toolkit in names(&toolkits).into_iter().filter(|name| name.starts_with("cuda")) {
        folders.extend(["lib64", "compat"].map(|lib| toolkits.join(&toolkit).join(lib)));
    }
    folders
}

/// An absolute path below another root.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// The names in a folder, sorted; empty if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.take(NAMES_MAX).filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed at the end.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &[u8])]) -> Self {
            let root = std::env::temp_dir().join(format!("weft-software-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            for (path, content) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
            // Results are canonical.
            Self(root.canonicalize().unwrap())
        }

        fn scan(&self) -> Vec<(String, Option<String>, &'static str)> {
            let paths = SearchPaths {
                path: "/none:/venv/bin:/usr/bin".into(),
                library_path: "/opt/nccl/lib:relative".into(),
                cuda_home: None,
                home: Some("/home/x".into()),
            };
            let short = |library: Library| {
                let path = library.path.strip_prefix(self.0.to_str().unwrap()).unwrap().to_owned();
                (path, library.version, library.found_in)
            };
            libraries(&self.0, &paths).into_iter().map(short).collect()
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn libraries_are_found_with_their_versions() {
        let mut large = vec![b'N'; PIECE - 5];
        large.extend_from_slice(b"NCCL version 2.19.3+cuda12.2\0NCCL");
        let site = "venv/lib/python3.11/site-packages";
        let root = Root::new(
            "found",
            &[
                ("opt/nccl/lib/libnccl.so.2", &large),
                ("opt/nccl/lib/libnccl-net.so", b""),
                ("venv/bin/python3", b""),
                ("venv/pyvenv.cfg", b"home = /usr/bin\ninclude-system-site-packages = false\n"),
                (&format!("{site}/nvidia/nccl/lib/libnccl.so.2"), b"\x7fELF"),
                (&format!("{site}/nvidia_nccl_cu12-2.21.5.dist-info/METADATA"), b""),
                (&format!("{site}/nvidia_nccl_cu11-2.20.5.dist-info/METADATA"), b""),
                (&format!("{site}/nvidia/cuda_runtime/lib/libcudart.so.12"), b""),
                (&format!("{site}/nvidia_cuda_runtime_cu12-12.4.127.dist-info/METADATA"), b""),
                (&format!("{site}/torch/lib/libcudart-9335f6a2.so.12"), b""),
                ("usr/lib/x86_64-linux-gnu/libnccl.so.2.28.9", b""),
                ("usr/lib/x86_64-linux-gnu/libcuda.so.1", b""),
                ("usr/local/cuda-13.0/lib64/libnvrtc.so.13.0.48", b""),
                ("usr/local/cuda-13.0/lib64/libnvrtc-builtins.so.13.0.48", b""),
                ("usr/local/cuda-13.0/compat/libcuda.so.580.65.06", b""),
            ],
        );
        #[cfg(unix)]
        std::os::unix::fs::symlink("libnccl.so.2.28.9", root.0.join("usr/lib/x86_64-linux-gnu/libnccl.so"))
            .unwrap();
        let version = |text: &str| Some(text.to_owned());
        assert_eq!(
            root.scan(),
            [
                ("/opt/nccl/lib/libnccl.so.2".to_owned(), version("2.19.3+cuda12.2"), "LD_LIBRARY_PATH"),
                (format!("/{site}/torch/lib/libcudart-9335f6a2.so.12"), version("12.4.127"), "python"),
                (format!("/{site}/nvidia/cuda_runtime/lib/libcudart.so.12"), version("12.4.127"), "python"),
                // Two packages, neither for a CUDA of that number.
                (format!("/{site}/nvidia/nccl/lib/libnccl.so.2"), version("2"), "python"),
                ("/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.9".to_owned(), version("2.28.9"), "system"),
                ("/usr/local/cuda-13.0/lib64/libnvrtc.so.13.0.48".to_owned(), version("13.0.48"), "system"),
                (
                    "/usr/local/cuda-13.0/compat/libcuda.so.580.65.06".to_owned(),
                    version("580.65.06"),
                    "system"
                ),
            ]
        );
    }

    #[test]
    fn a_machine_without_libraries_has_none() {
        let root = Root::new("none", &[("etc/x", b"")]);
        assert!(root.scan().is_empty());
        assert_eq!(
            software(&root.0, &SearchPaths::default()),
            [("software/done".to_owned(), "0 libraries".to_owned())]
        );
    }

    #[test]
    fn a_version_may_lie_across_pieces() {
        for padding in PIECE - 60..PIECE + 4 {
            let mut bytes = vec![0_u8; padding];
            bytes.extend_from_slice(b"NCCL version %s\0NCCL version 2.28.9+cuda12.9\0rest");
            let root = Root::new("pieces", &[("lib.so", &bytes)]);
            let mut scan =
                Scan { found: Vec::new(), files: BTreeSet::new(), folders: 0, bytes_left: u64::MAX };
            assert_eq!(
                scan.version_inside(&root.0.join("lib.so")).as_deref(),
                Some("2.28.9+cuda12.9"),
                "{padding}"
            );
        }
    }

    #[test]
    fn names_of_libraries() {
        for (name, fits) in [
            ("libnccl.so.2", true),
            ("libnccl.so", true),
            ("libnccl_static.a", false),
            ("libnccl-net.so", false),
            ("libncclx.so", false),
        ] {
            assert_eq!(is_library(name, "libnccl"), fits, "{name}");
        }
        assert!(is_library("libcudart-9335f6a2.so.12", "libcudart"));
    }
}
