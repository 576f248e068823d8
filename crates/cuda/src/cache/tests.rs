//! The cache on real files.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::*;
use crate::nvrtc::Architecture;

const VERSION: Version = Version { major: 13, minor: 0 };

/// A new folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("weft-cache-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> =
            fs::read_dir(self.0.join("weft/cubin")).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    fn cache(&self, bytes_max: u64) -> Cache {
        Cache::with_limit(&self.0.join("weft/cubin"), bytes_max).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn key(source: &str) -> Key {
    let program = Program { name: "test", source, options: &[], architecture: Architecture(90) };
    Key::of(&program, VERSION)
}

fn some_cubin(seed: u8, bytes: usize) -> Cubin {
    Cubin::checked((0..bytes).map(|at| seed.wrapping_add(at as u8)).collect())
}

#[test]
fn a_key_depends_on_everything() {
    let program = |name, source, options, architecture| Program {
        name,
        source,
        options,
        architecture: Architecture(architecture),
    };
    let keys = [
        Key::of(&program("a", "x", &["-DA"], 90), VERSION),
        Key::of(&program("b", "x", &["-DA"], 90), VERSION),
        Key::of(&program("a", "y", &["-DA"], 90), VERSION),
        Key::of(&program("a", "x", &["-DB"], 90), VERSION),
        Key::of(&program("a", "x", &["-DA", ""], 90), VERSION),
        Key::of(&program("a", "x-DA", &[], 90), VERSION),
        Key::of(&program("a", "x", &["-DA"], 80), VERSION),
        Key::of(&program("a", "x", &["-DA"], 90), Version { major: 13, minor: 1 }),
    ];
    for (at, key) in keys.iter().enumerate() {
        assert!(!keys[..at].contains(key), "key {at} equals an earlier one");
    }
    assert_eq!(keys[0], Key::of(&program("a", "x", &["-DA"], 90), VERSION));
}

#[test]
fn what_is_put_is_found() {
    let folder = Folder::new("put");
    let cache = folder.cache(BYTES_MAX);
    assert_eq!(cache.get(&key("a")), None);
    cache.put(&key("a"), &some_cubin(1, 5000)).unwrap();
    cache.put(&key("b"), &some_cubin(2, 1)).unwrap();
    let again = folder.cache(BYTES_MAX);
    assert_eq!(again.get(&key("a")), Some(some_cubin(1, 5000)));
    assert_eq!(again.get(&key("b")), Some(some_cubin(2, 1)));
    assert_eq!(again.get(&key("c")), None);
    assert_eq!(folder.files().len(), 2, "no temporary file is left");
    for path in [folder.0.join("weft"), folder.0.join("weft/cubin")] {
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, 0o700);
    }
    assert_eq!(fs::metadata(&folder.files()[0]).unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn a_folder_that_others_can_write_is_refused() {
    let folder = Folder::new("writable");
    drop(folder.cache(BYTES_MAX));
    let path = folder.0.join("weft/cubin");
    for (mode, is_accepted) in [(0o700, true), (0o755, true), (0o720, false), (0o702, false), (0o1777, false)]
    {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let opened = Cache::at(&path);
        assert_eq!(opened.is_ok(), is_accepted, "{mode:o}");
        if let Err(error) = opened {
            let text = error.to_string();
            assert!(text.contains(&format!("other users can write it (mode {mode:o})")), "{text}");
            assert!(text.contains("Set WEFT_CACHE to a folder that only you can write"), "{text}");
        }
    }
}

#[test]
fn a_folder_of_another_user_is_refused() {
    let folder = Folder::new("owner");
    let path = match rustix::process::geteuid().is_root() {
        true => {
            let path = folder.0.join("theirs");
            fs::create_dir(&path).unwrap();
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            path
        }
        false => PathBuf::from("/usr"),
    };
    let error = Cache::at(&path).unwrap_err().to_string();
    assert!(error.contains("it belongs to user "), "{error}");
}

#[test]
fn a_link_in_place_of_the_folder_is_refused() {
    let folder = Folder::new("link");
    fs::create_dir(folder.0.join("real")).unwrap();
    symlink(folder.0.join("real"), folder.0.join("link")).unwrap();
    assert!(Cache::at(&folder.0.join("link")).is_err());
    fs::write(folder.0.join("file"), "").unwrap();
    assert!(Cache::at(&folder.0.join("file")).is_err());
}

#[test]
fn damaged_files_are_removed_and_replaced() {
    let folder = Folder::new("damaged");
    let cache = folder.cache(BYTES_MAX);
    let cubin = some_cubin(7, 3000);
    type Damage = (&'static str, fn(&Path));
    let damages: [Damage; 6] = [
        ("truncated", |file| resize(file, |length| length - 1)),
        ("truncated to its header", |file| resize(file, |_| HEADER_BYTES as u64)),
        ("empty", |file| resize(file, |_| 0)),
        ("longer", |file| resize(file, |length| length + 1)),
        ("one bit of the cubin changed", |file| flip(file, HEADER_BYTES + 1234)),
        ("one bit of the header changed", |file| flip(file, MAGIC.len() + 3)),
    ];
    for (damage, inflict) in damages {
        cache.put(&key("a"), &cubin).unwrap();
        inflict(&folder.files()[0]);
        assert_eq!(cache.get(&key("a")), None, "{damage}");
        assert!(folder.files().is_empty(), "{damage}: the file is removed");
        cache.put(&key("a"), &cubin).unwrap();
        assert_eq!(cache.get(&key("a")), Some(cubin.clone()), "{damage}: replaced");
    }
}

#[test]
fn a_file_under_the_name_of_another_is_not_taken() {
    let folder = Folder::new("renamed");
    let cache = folder.cache(BYTES_MAX);
    cache.put(&key("a"), &some_cubin(1, 100)).unwrap();
    fs::rename(&folder.files()[0], folder.0.join("weft/cubin").join(key("b").file())).unwrap();
    assert_eq!(cache.get(&key("b")), None);
    // Neither is a link, or a folder.
    fs::write(folder.0.join("target"), "").unwrap();
    symlink(folder.0.join("target"), folder.0.join("weft/cubin").join(key("c").file())).unwrap();
    assert_eq!(cache.get(&key("c")), None);
    fs::create_dir(folder.0.join("weft/cubin").join(key("d").file())).unwrap();
    assert_eq!(cache.get(&key("d")), None);
    assert!(cache.put(&key("d"), &some_cubin(1, 100)).is_err(), "a folder is in the way");
    assert!(!folder.files().iter().any(|file| file.extension().is_some_and(|ending| ending == "tmp")));
}

#[test]
fn the_least_recently_used_are_evicted() {
    let folder = Folder::new("evicted");
    let cache = folder.cache(10_000);
    for at in 0..9 {
        cache.put(&key(&at.to_string()), &some_cubin(at, 1000)).unwrap();
        // Distinct times, whatever the clock's resolution is.
        age(&folder.0.join("weft/cubin").join(key(&at.to_string()).file()), 100 - u64::from(at));
    }
    assert!(cache.get(&key("0")).is_some(), "the oldest is used again");
    for at in 9..12 {
        cache.put(&key(&at.to_string()), &some_cubin(at, 1000)).unwrap();
    }
    let is_there = |at: u8| folder.0.join("weft/cubin").join(key(&at.to_string()).file()).exists();
    assert!(is_there(0) && is_there(11) && is_there(10), "used and new files stay");
    assert!(!is_there(1) && !is_there(2), "the oldest others go");
    let total: u64 = folder.files().iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(total <= 10_000 + 1200, "{total} bytes are left");
    // One that is larger than the limit is kept until the next.
    cache.put(&key("large"), &some_cubin(0, 20_000)).unwrap();
    assert!(cache.get(&key("large")).is_some());
}

#[test]
fn what_dead_processes_left_is_removed() {
    let folder = Folder::new("temporary");
    let cache = folder.cache(BYTES_MAX);
    let left = |name: &str, seconds: u64| {
        let path = folder.0.join("weft/cubin").join(name);
        fs::write(&path, "half").unwrap();
        age(&path, seconds);
        path
    };
    let old = left("old.cubin.1.0.tmp", 7200);
    let new = left("new.cubin.1.0.tmp", 10);
    let other = left("README", 7200);
    cache.put(&key("a"), &some_cubin(1, 10)).unwrap();
    assert!(!old.exists() && new.exists() && other.exists());
}

#[test]
fn concurrent_writers_are_harmless() {
    let folder = Folder::new("concurrent");
    let path = folder.0.join("weft/cubin");
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let path = &path;
            scope.spawn(move || {
                let cache = Cache::with_limit(path, 40_000).unwrap();
                for round in 0..60_u8 {
                    let at = (thread + round) % 10;
                    let name = key(&at.to_string());
                    cache.put(&name, &some_cubin(at, 6000)).unwrap();
                    // It may have been evicted; it is never another, and never half.
                    if let Some(found) = cache.get(&name) {
                        assert_eq!(found, some_cubin(at, 6000));
                    }
                }
            });
        }
    });
    assert!(folder.files().iter().all(|file| file.extension().is_some_and(|ending| ending == "cubin")));
    assert!(folder.files().len() <= 10);
}

#[test]
fn the_folder_comes_from_the_environment() {
    let folder = |chosen: Option<&str>, variables: &[(&str, &str)]| {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        };
        folder_of_user(chosen.map(PathBuf::from), variable)
    };
    let both = [("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
    assert_eq!(folder(Some("/c"), &both), Some("/c/cubin".into()));
    assert_eq!(folder(None, &both), Some("/x/weft/cubin".into()));
    assert_eq!(folder(None, &both[1..]), Some("/h/.cache/weft/cubin".into()));
    assert_eq!(
        folder(None, &[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")]),
        Some("/h/.cache/weft/cubin".into())
    );
    assert_eq!(folder(None, &[]), None);
}

fn resize(file: &Path, length: fn(u64) -> u64) {
    let opened = fs::OpenOptions::new().write(true).open(file).unwrap();
    opened.set_len(length(opened.metadata().unwrap().len())).unwrap();
}

fn flip(file: &Path, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 4;
    fs::write(file, bytes).unwrap();
}

fn age(file: &Path, seconds: u64) {
    let time = SystemTime::now() - Duration::from_secs(seconds);
    fs::File::options().write(true).open(file).unwrap().set_modified(time).unwrap();
}
