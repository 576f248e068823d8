//! The output of other vendors' tools, for machines on which Weft cannot run.
//!
//! Each reader takes text and returns [`Links`], or a [`LinesError`] with the line and what was expected there. The tools add lines and
//! fields with every version, so that a reader ignores lines that are not of the kind it reads, and refuses those that are but cannot be
//! read. Colours, prompts and the lines between several commands in one input are ignored.

pub mod amd;
mod fields;
mod lines;
mod matrix;
pub mod nvlink;
pub mod query;
pub mod rocm;
pub mod xpu;

use serde::Serialize;

use super::Links;

/// Bytes of an input. The output of `nvidia-smi -q` has 10 kB for each GPU.
pub const BYTES_MAX: usize = 16 << 20;
/// GPUs in an input.
pub(super) const GPUS_MAX: usize = 1024;
/// Links in an input.
pub(super) const LINKS_MAX: usize = 65_536;

/// A tool whose output was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Tool {
    /// `nvidia-smi nvlink` with `-s`, `-gt`, `-e`, `-c`, `-p` or `-R`, or several of them one after the other.
    #[serde(rename = "nvidia-smi nvlink")]
    NvidiaSmiNvlink,
    /// `nvidia-smi -q`.
    #[serde(rename = "nvidia-smi -q")]
    NvidiaSmiQuery,
    /// `rocm-smi --showtopo`, `--showxgmierr`.
    #[serde(rename = "rocm-smi")]
    RocmSmi,
    /// `amd-smi topology`, `amd-smi xgmi`.
    #[serde(rename = "amd-smi")]
    AmdSmi,
    /// `xpu-smi topology -m`, `xpu-smi discovery`.
    #[serde(rename = "xpu-smi")]
    XpuSmi,
}

impl Tool {
    /// The command, as typed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NvidiaSmiNvlink => "nvidia-smi nvlink",
            Self::NvidiaSmiQuery => "nvidia-smi -q",
            Self::RocmSmi => "rocm-smi",
            Self::AmdSmi => "amd-smi",
            Self::XpuSmi => "xpu-smi",
        }
    }
}

/// Why an input could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinesError {
    /// A line is not as the tool writes it.
    #[error("line {line}: `{found}`; expected {expected}")]
    Line {
        /// The line, counted from 1.
        line: usize,
        /// What stands there, shortened.
        found: String,
        /// What a reader expects there.
        expected: String,
    },
    /// The input is the output of no tool that is read.
    #[error(
        "unknown output: expected that of `nvidia-smi nvlink` (-s, -gt d, -e, -c, -p, -R), `nvidia-smi -q`, `rocm-smi --showtopo`, \
         `rocm-smi --showxgmierr`, `amd-smi topology`, `amd-smi xgmi`, `xpu-smi topology -m` or `xpu-smi discovery`"
    )]
    Unknown,
    /// The input has nothing of what the tool prints.
    #[error("no {what} in the output of `{tool}`")]
    Empty {
        /// The tool.
        tool: &'static str,
        /// What is missing.
        what: &'static str,
    },
    /// The input exceeds a limit.
    #[error("the input has more than {limit} {what}, which is the limit. Is this the right file?")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// Detects the tool that printed a text and reads its links.
pub fn read(text: &str) -> Result<(Tool, Links), LinesError> {
    let tool = detect(text)?;
    let links = match tool {
        Tool::NvidiaSmiNvlink => nvlink::read(text),
        Tool::NvidiaSmiQuery => query::read(text),
        Tool::RocmSmi => rocm::read(text),
        Tool::AmdSmi => amd::read(text),
        Tool::XpuSmi => xpu::read(text),
    }?;
    Ok((tool, links))
}

/// Detects the tool by the first line that only one of them prints.
fn detect(text: &str) -> Result<Tool, LinesError> {
    for line in lines::Lines::of(text)? {
        let line = line.text.trim();
        let tool = match line {
            _ if line.contains("NVSMI LOG") => Tool::NvidiaSmiQuery,
            _ if line.contains("ROCm System Management Interface") || rocm::is_title(line) => Tool::RocmSmi,
            _ if amd::is_title(line) => Tool::AmdSmi,
            _ if xpu::looks_like(line) => Tool::XpuSmi,
            _ if nvlink::looks_like(line) => Tool::NvidiaSmiNvlink,
            _ => continue,
        };
        return Ok(tool);
    }
    Err(LinesError::Unknown)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    /// The files of testdata, each named after the tool whose output it is.
    fn samples() -> Vec<(String, String)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/links");
        let mut samples: Vec<(String, String)> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
            .map(|path| {
                let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read_to_string(path).unwrap())
            })
            .collect();
        samples.sort();
        samples
    }

    #[test]
    fn every_sample_is_read_as_the_output_of_its_tool() {
        let samples = samples();
        assert!(samples.len() >= 12, "{}", samples.len());
        for (name, text) in samples {
            let (tool, links) = read(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let expected = tool.name().replace(' ', "-");
            assert!(name.starts_with(&expected), "{name} was read as the output of {}", tool.name());
            assert!(!links.links.is_empty() || !links.gpus.is_empty(), "{name} has neither links nor GPUs");
        }
    }

    #[test]
    fn other_texts_and_large_ones_are_refused() {
        for text in ["", "\n\n", "hello", "GPU0 X PIX", "eth0: flags=4163"] {
            assert_eq!(read(text).unwrap_err(), LinesError::Unknown, "{text}");
        }
        let large = " ".repeat(BYTES_MAX + 1);
        assert!(matches!(read(&large), Err(LinesError::TooLarge { .. })));
    }

    /// Each reader on a text.
    fn all(text: &str) {
        for reader in [nvlink::read, query::read, rocm::read, amd::read, xpu::read] {
            if let Err(error) = reader(text) {
                assert!(!error.to_string().chars().any(char::is_control), "{error}");
            }
        }
        let _ = read(text);
    }

    proptest! {
        #[test]
        fn no_reader_panics_on_any_text(text in "(?s).{0,400}") {
            all(&text);
        }

        /// Samples in which lines are removed, doubled, cut, or have other words.
        #[test]
        fn no_reader_panics_on_broken_output(
            sample in any::<prop::sample::Index>(),
            edits in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..6, any::<prop::sample::Index>()), 1..12),
        ) {
            let samples = samples();
            let mut lines: Vec<String> = sample.get(&samples).1.lines().map(str::to_owned).collect();
            const JUNK: [&str; 8] =
                ["-1", "", "18446744073709551616", "N/A", "GPU0", "Link 99999999999:", "\u{1b}[31m", "|"];
            for (at, edit, other) in edits {
                if lines.is_empty() {
                    break;
                }
                let at = at.index(lines.len());
                match edit {
                    0 => drop(lines.remove(at)),
                    1 => lines.insert(at, lines[at].clone()),
                    2 => {
                        let cut = other.index(lines[at].chars().count() + 1);
                        lines[at] = lines[at].chars().take(cut).collect();
                    }
                    3 => lines[at].push_str(JUNK[other.index(JUNK.len())]),
                    4 => lines[at] = format!("{}{}", JUNK[other.index(JUNK.len())], lines[at]),
                    _ => {
                        let words: Vec<&str> = lines[at].split(' ').collect();
                        let changed = other.index(words.len());
                        let junk = JUNK[other.index(JUNK.len())];
                        lines[at] = words.iter().enumerate().map(|(i, word)| if i == changed { junk } else { word })
                            .collect::<Vec<_>>().join(" ");
                    }
                }
            }
            all(&lines.join("\n"));
        }
    }
}
