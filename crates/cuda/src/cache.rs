//! Compiled kernels on disk, so that only the first process compiles.
//!
//! A file is named by a hash of all that determines its content: source, options, architecture, the versions of NVRTC and of Weft. It holds
//! its own name, the length and a checksum; a file that does not match them is removed and made again.
//!
//! The driver runs any cubin without a check, so only this user may write one: the folder has mode 0700, and Weft refuses a folder that
//! another user owns or can write. All files are opened relative to the folder that was checked. A file is written under a temporary name and renamed, so
//! processes that compile the same kernel at once replace each other's equal files.
//!
//! The files take at most [`BYTES_MAX`]. Beyond that, a new file replaces those that were used least recently; reading a file sets its time.
//!
//! Deliberately absent: locks and syncing to disk. The checksum detects a file that a crash has left incomplete.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blake2::{Blake2s256, Digest};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

use crate::error::Error;
use crate::nvrtc::{Cubin, Nvrtc, OPTIONS, Program, Version};

/// The most that the files of a cache take together.
pub const BYTES_MAX: u64 = 256 << 20;

const MAGIC: &[u8; 16] = b"weft cubin 1\n\0\0\0";
const HASH_BYTES: usize = 32;
const HEADER_BYTES: usize = MAGIC.len() + HASH_BYTES + 8 + HASH_BYTES;
const FILE_BYTES_MAX: u64 = 64 << 20;
/// A temporary file this old belongs to a process that has ended.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(3600);
/// Names tried for a temporary file, and entries of the folder that are looked at.
const ATTEMPTS_MAX: u32 = 64;
const ENTRIES_MAX: usize = 100_000;

/// Where a cubin came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was in the cache.
    Cache,
    /// NVRTC made it.
    Compiler,
}

/// The program's cubin, from the user's cache or compiled. A cache that cannot be used is logged and the program compiled.
pub fn cubin(nvrtc: &Nvrtc, program: &Program<'_>) -> Result<(Cubin, Origin), Error> {
    match Cache::of_user() {
        Ok(cache) => cache.cubin(nvrtc, program),
        Err(error) => {
            tracing::warn!(target: "weft::plan", "{error}; kernels are compiled at each start");
            nvrtc.compile(program).map(|cubin| (cubin, Origin::Compiler))
        }
    }
}

/// A folder of compiled kernels.
#[derive(Debug)]
pub struct Cache {
    folder: OwnedFd,
    path: PathBuf,
    bytes_max: u64,
}

/// The name of a cubin: a hash of all that determines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key([u8; HASH_BYTES]);

impl Key {
    /// The key of a program compiled by a version of NVRTC.
    pub fn of(program: &Program<'_>, version: Version) -> Key {
        let architecture = program.architecture.to_string();
        let version = version.to_string();
        let parts = [env!("CARGO_PKG_VERSION"), &version, &architecture, program.name, program.source];
        let options = OPTIONS.iter().chain(program.options);
        let mut hash = Blake2s256::new();
        for part in parts.iter().chain(options) {
            // Lengths keep neighbours apart.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Key(hash.finalize().into())
    }

    fn file(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + SUFFIX
    }
}

const SUFFIX: &str = ".cubin";
const TEMPORARY_SUFFIX: &str = ".tmp";

impl Cache {
    /// The cache of this user: `WEFT_CACHE`/cubin, else `XDG_CACHE_HOME`/weft/cubin, else `~/.cache/weft/cubin`.
    pub fn of_user() -> Result<Cache, Error> {
        let folder = folder_of_user(weftlink_knobs::path("WEFT_CACHE"), weftlink_knobs::variable);
        Cache::at(&folder.ok_or_else(|| Error::Cache {
            folder: "~/.cache".into(),
            why: "neither XDG_CACHE_HOME nor HOME is an absolute path".to_owned(),
        })?)
    }

    /// The cache in a folder, which is made with mode 0700 if it does not exist.
    pub fn at(path: &Path) -> Result<Cache, Error> {
        Cache::with_limit(path, BYTES_MAX)
    }

    fn with_limit(path: &Path, bytes_max: u64) -> Result<Cache, Error> {
        let refused = |why: String| Error::Cache { folder: path.to_owned(), why };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| refused(error.to_string()))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let folder = opened.map_err(|error| refused(error.to_string()))?;
        let status = rustix::fs::fstat(&folder).map_err(|error| refused(error.to_string()))?;
        let user = rustix::process::geteuid().as_raw();
        if status.st_uid != user {
            return Err(refused(format!("it belongs to user {}, not to {user}", status.st_uid)));
        }
        if status.st_mode & 0o022 != 0 {
            return Err(refused(format!("other users can write it (mode {:o})", status.st_mode & 0o7777)));
        }
        Ok(Cache { folder, path: path.to_owned(), bytes_max })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The program's cubin, from the cache or compiled and kept.
    pub fn cubin(&self, nvrtc: &Nvrtc, program: &Program<'_>) -> Result<(Cubin, Origin), Error> {
        let key = Key::of(program, nvrtc.version());
        if let Some(cubin) = self.get(&key) {
            return Ok((cubin, Origin::Cache));
        }
        let cubin = nvrtc.compile(program)?;
        if let Err(error) = self.put(&key, &cubin) {
            tracing::warn!(target: "weft::plan", "{error}");
        }
        Ok((cubin, Origin::Compiler))
    }

    /// A cubin that was kept. A damaged file is removed.
    pub fn get(&self, key: &Key) -> Option<Cubin> {
        let name = key.file();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&self.folder, &name, flags, Mode::empty()).ok()?;
        match read(&file, key) {
            Ok(cubin) => {
                let keep = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
                let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
                // A file system without times evicts in the order of writing.
                let _ =
                    rustix::fs::futimens(&file, &Timestamps { last_access: keep, last_modification: now });
                Some(cubin)
            }
            Err(why) => {
                let folder = self.path.display();
                tracing::warn!(target: "weft::plan", "{folder}/{name} is damaged ({why}); the kernel is compiled again");
                let _ = rustix::fs::unlinkat(&self.folder, &name, AtFlags::empty());
                None
            }
        }
    }

    /// Keeps a cubin, and removes what was used least recently if the files take more than the limit.
    pub fn put(&self, key: &Key, cubin: &Cubin) -> Result<(), Error> {
        let error = |why: String| Error::Cache { folder: self.path.clone(), why };
        let (temporary, mut file) = self.temporary(key).map_err(|errno| error(errno.to_string()))?;
        let written =
            file.write_all(&header(key, cubin.bytes())).and_then(|()| file.write_all(cubin.bytes()));
        let renamed = written.map_err(|why| why.to_string()).and_then(|()| {
            rustix::fs::renameat(&self.folder, &temporary, &self.folder, key.file())
                .map_err(|why| why.to_string())
        });
        if let Err(why) = renamed {
            let _ = rustix::fs::unlinkat(&self.folder, &temporary, AtFlags::empty());
            return Err(error(why));
        }
        self.evict(key);
        Ok(())
    }

    /// A new file that no other process writes.
    fn temporary(&self, key: &Key) -> Result<(String, File), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for attempt in 0..ATTEMPTS_MAX {
            let name = format!("{}.{}.{attempt}{TEMPORARY_SUFFIX}", key.file(), std::process::id());
            match rustix::fs::openat(&self.folder, &name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => return Ok((name, File::from(file))),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EXIST)
    }

    /// Removes old temporary files, and the least recently used others down to three quarters of the limit. Errors are of no
    /// consequence: another process has removed the file, or the next one does.
    fn evict(&self, newest: &Key) {
        let Ok(entries) = rustix::fs::Dir::read_from(&self.folder) else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut files: Vec<(Duration, u64, String)> = Vec::new();
        for entry in entries.take(ENTRIES_MAX).flatten() {
            let Ok(name) = entry.file_name().to_str() else { continue };
            let Ok(status) = rustix::fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let used = Duration::new(status.st_mtime.try_into().unwrap_or(0), status.st_mtime_nsec as u32);
            if name.ends_with(TEMPORARY_SUFFIX) && now.saturating_sub(used) > TEMPORARY_AGE_MAX {
                let _ = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
            } else if name.ends_with(SUFFIX) && name != newest.file() {
                files.push((used, status.st_size.try_into().unwrap_or(0), name.to_owned()));
            }
        }
        let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        if total <= self.bytes_max {
            return;
        }
        files.sort();
        for (_, bytes, name) in files {
            if total <= self.bytes_max / 4 * 3 {
                break;
            }
            let _ = rustix::fs::unlinkat(&self.folder, &name, AtFlags::empty());
            total -= bytes;
        }
    }
}

fn folder_of_user(
    chosen: Option<PathBuf>,
    variable: impl Fn(&str) -> Option<std::ffi::OsString>,
) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let weft = chosen
        .or_else(|| absolute("XDG_CACHE_HOME").map(|folder| folder.join("weft")))
        .or_else(|| absolute("HOME").map(|home| home.join(".cache/weft")));
    weft.map(|folder| folder.join("cubin"))
}

fn header(key: &Key, cubin: &[u8]) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&key.0);
    header.extend_from_slice(&(cubin.len() as u64).to_le_bytes());
    header.extend_from_slice(&Blake2s256::digest(cubin));
    header
}

/// The cubin in a file, or why it cannot be used.
fn read(file: &OwnedFd, key: &Key) -> Result<Cubin, String> {
    let status = rustix::fs::fstat(file).map_err(|error| error.to_string())?;
    if !FileType::from_raw_mode(status.st_mode).is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let length = u64::try_from(status.st_size).unwrap_or(0);
    if length < HEADER_BYTES as u64 || length > FILE_BYTES_MAX {
        return Err(format!("it has {length} bytes"));
    }
    let mut bytes = vec![0; length as usize];
    let own = file.try_clone().map_err(|error| error.to_string())?;
    File::from(own).read_exact(&mut bytes).map_err(|error| error.to_string())?;
    let cubin = bytes.split_off(HEADER_BYTES);
    if bytes != header(key, &cubin) {
        return Err("its length or checksum is wrong".to_owned());
    }
    Ok(Cubin::checked(cubin))
}

#[cfg(test)]
mod tests;
