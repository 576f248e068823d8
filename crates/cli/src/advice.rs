//! Advice for mistakes in arguments that clap reports as unexpected: unquoted clusters, sizes of two words, and options of other
//! tools.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use weftlink_fabric::catalog::systems;
use weftlink_plan::Kind;

const RENDEZVOUS: &str = "weft run sets up the rendezvous itself; name the hosts: --hosts a,b";
const SIZES: &str = "give a range of sizes: --sizes 8..1MiB";
const PROTOCOL: &str =
    "Weft chooses the protocol with the algorithm; `weft sim` can fix NCCL's: --protocol LL";

/// Options of torchrun, mpirun, NCCL and nccl-tests by command, each with what to do instead.
const OTHER_TOOLS: &[(&str, &[&str], &str)] = &[
    (
        "run",
        &["--nnodes", "--num-nodes"],
        "weft run starts the ranks of all hosts; name the hosts: --hosts a,b",
    ),
    ("run", &["--node-rank", "--master-addr", "--master-port"], RENDEZVOUS),
    ("run", &["--rdzv-endpoint", "--rdzv-backend", "--rdzv-id"], RENDEZVOUS),
    (
        "run",
        &["--standalone"],
        "weft run starts ranks of this host unless --hosts names others; leave it out",
    ),
    ("run", &["--allow-run-as-root"], "weft run works as any user; leave it out"),
    ("run", &["--oversubscribe"], "ranks may outnumber cores; --bind sets their cores"),
    (
        "run",
        &["--map-by", "--rank-by"],
        "--bind sets the cores of ranks, --nproc-per-node the ranks of a host",
    ),
    ("run", &["--output", "--log-dir"], "write --output-dir DIR"),
    ("run", &["--bind-to"], "write --bind core, --bind numa or --bind none"),
    ("run", &["-ppn", "--npernode", "-N", "--ntasks-per-node"], "write --nproc-per-node RANKS"),
    ("sim", &["-b", "-e", "-i", "--minbytes", "--maxbytes", "--min-bytes", "--max-bytes"], SIZES),
    ("plan", &["-b", "-e", "-i", "--minbytes", "--maxbytes", "--min-bytes", "--max-bytes"], SIZES),
    ("plan", &["--protocol", "--proto"], PROTOCOL),
    ("bench", &["--protocol", "--proto"], PROTOCOL),
];

/// Commands that are parts of others.
const OTHER_COMMANDS: &[(&[&str], &str)] = &[
    (&["version"], "weft --version"),
    (&["verify", "prove"], "weft plan verify FILE"),
    (&["import"], "weft plan import FILE"),
    (&["list", "systems", "presets"], "weft topo --list"),
];

/// Advice for words that belong together. It comes before parsing, because clap takes the words one by one.
pub(crate) fn before_parsing(words: &[OsString]) -> Option<String> {
    let words: Vec<&str> = words.iter().map(|word| word.to_str()).collect::<Option<_>>()?;
    let command = *words.get(1)?;
    match command {
        "topo" | "plan" | "sim" => {
            let of_sim = || two_fabrics(&words).or_else(|| misplaced(&words));
            unquoted(&words).or_else(|| size_in_two(&words)).or_else(of_sim)
        }
        "bench" => size_in_two(&words),
        _ => None,
    }
}

fn unquoted(words: &[&str]) -> Option<String> {
    let is_count = |word: &str| {
        word.strip_suffix('x')
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let begins = |at: &usize| {
        let next = words.get(at + 1).copied().unwrap_or_default();
        is_count(words[*at]) && systems::by_name(next).is_some() || next == "+"
    };
    let first = (2..words.len()).find(begins)?;
    // With an unknown system between them, the count stands two words before the plus.
    let first = if first > 2 && is_count(words[first - 1]) { first - 1 } else { first };
    let rest = &words[first..];
    let length = rest.iter().position(|word| word.starts_with('-')).unwrap_or(rest.len());
    let cluster = format!("\"{}\"", rest[..length].join(" "));
    let all: Vec<&str> =
        words[1..first].iter().chain([&cluster.as_str()]).chain(&rest[length..]).copied().collect();
    Some(format!("quote the cluster: weft {}", all.join(" ")))
}

fn size_in_two(words: &[&str]) -> Option<String> {
    let units = ["b", "kb", "mb", "gb", "tb", "kib", "mib", "gib", "tib", "k", "m", "g"];
    let pair = words.windows(2).find(|pair| {
        pair[0].parse::<f64>().is_ok() && units.contains(&pair[1].to_ascii_lowercase().as_str())
    })?;
    Some(format!("write the size as one word: {}{}", pair[0], pair[1]))
}

fn two_fabrics(words: &[&str]) -> Option<String> {
    let [_, "sim", collective, rest @ ..] = words else { return None };
    let kind = Kind::from_name(collective)?;
    let fabrics = rest.iter().take_while(|word| weftlink_fabric::resolve(word).is_ok());
    let fabrics: Vec<String> = fabrics.map(|fabric| quoted(fabric)).collect();
    (fabrics.len() > 1).then(|| {
        let fabrics = fabrics.join(" ");
        format!(
            "weft sim predicts one fabric; to compare several: weft sim compare {fabrics} --collective {kind}"
        )
    })
}

/// A collective or a fabric that is an option of a subcommand.
fn misplaced(words: &[&str]) -> Option<String> {
    let is_fabric = |word: &str| weftlink_fabric::resolve(word).is_ok();
    match words {
        [_, "sim", "compare", collective, rest @ ..] if !is_fabric(collective) => {
            let kind = Kind::from_name(collective)?;
            let fabrics: Vec<String> = rest.iter().map(|fabric| quoted(fabric)).collect();
            let fabrics = fabrics.join(" ");
            Some(format!("the collective is an option: weft sim compare {fabrics} --collective {kind}"))
        }
        [_, "sim", "copy", fabric, from, to, ..] if is_fabric(fabric) && !to.starts_with('-') => {
            let fabric = quoted(fabric);
            Some(format!("the fabric is an option: weft sim copy {from} {to} --fabric {fabric}"))
        }
        _ => None,
    }
}

/// A word as a shell reads it.
pub(crate) fn quoted(word: &str) -> String {
    if word.contains(' ') { format!("\"{word}\"") } else { word.to_owned() }
}

/// A message that replaces clap's.
pub(crate) fn instead_of(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let command = words.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let given = context(ContextKind::InvalidArg)?;
            if ["-v", "--verbose"].contains(&given) {
                return Some(format!("weft has no {given}; set WEFT_DEBUG=INFO to log more"));
            }
            if command == "bench" && weftlink_fabric::resolve(given).is_ok() {
                let fabric = quoted(given);
                return Some(format!(
                    "weft bench measures this host; `weft sim all-reduce {fabric}` predicts others"
                ));
            }
            let dashed = given.replace('_', "-");
            let is_it = |(of, options, _): &&(&str, &[&str], &str)| {
                *of == command && options.contains(&dashed.as_str())
            };
            let (_, _, advice) = OTHER_TOOLS.iter().find(is_it)?;
            Some(format!("`weft {command}` has no {given}: {advice}"))
        }
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand)?;
            let (_, instead) = OTHER_COMMANDS.iter().find(|(names, _)| names.contains(&word))?;
            Some(format!("there is no command `{word}`; use `{instead}`"))
        }
        ErrorKind::ValueValidation => {
            let (option, value) = (context(ContextKind::InvalidArg)?, context(ContextKind::InvalidValue)?);
            let is_range = option.starts_with("--size ") && value.contains("..");
            is_range.then(|| format!("--size takes one size; for a range: --sizes {value}"))
        }
        ErrorKind::MissingRequiredArgument if command == "plan" => {
            let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
                return None;
            };
            let is_fabric = missing.iter().any(|name| name == "<FABRIC>");
            is_fabric.then(|| {
                "name a fabric: `weft plan all-reduce hgx-h100`. Without one, weft plan takes -n RANKS and \
                 --algorithm NAME; sizes and --without need a fabric"
                    .to_owned()
            })
        }
        // clap takes every word after the fabric for a subcommand.
        ErrorKind::ArgumentConflict => {
            let word = context(ContextKind::InvalidSubcommand)?;
            Some(format!("unexpected `{word}`: weft {command} takes a collective and a fabric, then options"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        before_parsing(&words)
    }

    #[test]
    fn words_that_belong_together_are_joined() {
        let of = |line: &str| advice(line).unwrap();
        assert_eq!(
            of("weft topo 2x hgx-h100 + 8x ndr"),
            "quote the cluster: weft topo \"2x hgx-h100 + 8x ndr\""
        );
        assert_eq!(
            of("weft sim all-reduce 2x hgx-h10 + 8x ndr --size 1G"),
            "quote the cluster: weft sim all-reduce \"2x hgx-h10 + 8x ndr\" --size 1G"
        );
        assert_eq!(of("weft topo hgx-h100 + 8x ndr"), "quote the cluster: weft topo \"hgx-h100 + 8x ndr\"");
        assert_eq!(of("weft plan all-reduce hgx-h100 --size 64 MiB"), "write the size as one word: 64MiB");
        assert!(of("weft sim all-reduce hgx-h100 dgx-h100").contains("weft sim compare hgx-h100 dgx-h100"));
        for fine in
            ["weft topo hgx-h100", "weft sim compare hgx-h100 dgx-h100", "weft run -n 2 -- x 2x + 8 M"]
        {
            assert_eq!(advice(fine), None, "{fine}");
        }
    }
}
