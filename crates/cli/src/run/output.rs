//! Prints the output of ranks: lines with the number of their rank, never two mixed; or writes files.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anstream::{AutoStream, ColorChoice};
use rustix::fs::OFlags;

use super::pump::Tail;
use super::wire::Stream;

/// Colours of tags, in turn: those that show on light and dark backgrounds.
const COLOURS: [u8; 6] = [36, 33, 35, 32, 34, 31];

/// Where output goes.
pub(super) struct Printer {
    tags: bool,
    colours: [bool; 2],
    /// Print standard output of ranks on standard error, because the report takes standard output.
    all_on_error: bool,
    /// Standard output and error of each rank, in files.
    files: Option<Vec<[File; 2]>>,
    /// The rank whose line is incomplete: it was too long for one piece.
    open: Option<(usize, Stream)>,
    tails: Vec<Tail>,
}

impl Printer {
    pub(super) fn new(
        ranks: usize,
        tags: bool,
        all_on_error: bool,
        folder: Option<&Path>,
    ) -> anyhow::Result<Printer> {
        let colours = [AutoStream::choice(&io::stdout()), AutoStream::choice(&io::stderr())];
        let colours = colours.map(|choice| choice != ColorChoice::Never);
        Ok(Printer {
            tags,
            colours,
            all_on_error,
            files: folder.map(|folder| files(folder, ranks)).transpose()?,
            open: None,
            tails: (0..ranks).map(|_| Tail::default()).collect(),
        })
    }

    /// Prints a piece of output; `cut` if its last line continues in the next.
    pub(super) fn put(&mut self, rank: usize, stream: Stream, bytes: &[u8], cut: bool) -> io::Result<()> {
        if let Some(tail) = self.tails.get_mut(rank) {
            tail.add(stream, bytes);
        }
        if let Some(files) = &mut self.files {
            return match files.get_mut(rank) {
                Some(files) => files[stream as usize].write_all(bytes),
                None => Ok(()),
            };
        }
        // The output of a single rank needs no separation.
        if !self.tags && self.tails.len() == 1 {
            return self.write(stream, bytes);
        }
        let colour = self.colours[if self.all_on_error { 1 } else { stream as usize }];
        let goes_on = self.open == Some((rank, stream));
        let mut text = Vec::with_capacity(bytes.len() + bytes.len() / 8 + 16);
        // The incomplete line of another rank is broken here and continues later.
        if let Some((_, open)) = self.open.take().filter(|_| !goes_on) {
            self.write(open, b"\n")?;
        }
        for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            if self.tags && (index > 0 || !goes_on) {
                text.extend_from_slice(tag(rank, colour).as_bytes());
            }
            text.extend_from_slice(line);
        }
        if cut {
            self.open = Some((rank, stream));
        } else if !text.ends_with(b"\n") {
            text.push(b'\n');
        }
        self.write(stream, &text)
    }

    /// The last lines a rank wrote to standard error.
    pub(super) fn tail(&self, rank: usize) -> Vec<String> {
        self.tails.get(rank).map(Tail::lines).unwrap_or_default()
    }

    /// Forgets the last lines before a restart.
    pub(super) fn forget(&mut self) {
        self.tails.iter_mut().for_each(|tail| *tail = Tail::default());
    }

    fn write(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        match stream {
            Stream::Out if !self.all_on_error => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            // A closed standard error is no reason to stop the job.
            _ => {
                let _ = io::stderr().lock().write_all(bytes);
                Ok(())
            }
        }
    }
}

fn tag(rank: usize, colour: bool) -> String {
    match colour {
        true => format!("\x1b[{}m[{rank}]\x1b[0m ", COLOURS[rank % COLOURS.len()]),
        false => format!("[{rank}] "),
    }
}

/// The file of one stream of a rank.
pub(super) fn file_name(folder: &Path, rank: usize, stream: Stream) -> PathBuf {
    let ending = if stream == Stream::Out { "out" } else { "err" };
    folder.join(format!("rank-{rank}.{ending}"))
}

fn files(folder: &Path, ranks: usize) -> anyhow::Result<Vec<[File; 2]>> {
    use anyhow::Context;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let file = |rank, stream| {
        let name = file_name(folder, rank, stream);
        // Others may write to the folder, so symbolic links are not followed.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        options.open(&name).with_context(|| format!("cannot write {}", name.display()))
    };
    (0..ranks).map(|rank| Ok([file(rank, Stream::Out)?, file(rank, Stream::Err)?])).collect()
}
