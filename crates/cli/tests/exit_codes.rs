//! Exit codes: 0 fine, 1 a finding or a failed run, 2 misuse. Misuse is found before anything is printed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{scratch, shell};

/// What people mistype, each with what the message must say.
const MISUSE: &[(&str, &str)] = &[
    ("weft tpo", "topo"),
    ("weft topo hgx-h10", "Did you mean `hgx-h100`"),
    ("weft topo nothing.xml", "cannot read nothing.xml"),
    ("weft topo hgx-h100 --path gpu0 gp1", "Did you mean `gpu1`"),
    ("weft topo hgx-h100 --path gpu0 gpu99 --svg a.svg", "gpu99"),
    ("weft topo hgx-h100 --svg - --json", "only one thing"),
    ("weft topo hgx-h100 --gpu h100", "nvidia-smi"),
    ("echo | weft topo - --gpu h1000", "Did you mean"),
    ("weft topo --list gpu", "gpus"),
    ("weft plan al-reduce hgx-h100", "Did you mean `all-reduce`"),
    ("weft plan all-reduce hgx-h100 --algorithm rign", "Did you mean `ring`"),
    ("weft plan all-reduce hgx-h100 --size 64Q", "64Q"),
    ("weft plan all-reduce hgx-h100 --size -8", "-8"),
    ("weft plan all-reduce hgx-h100 --root 1", "--root"),
    ("weft plan all-reduce hgx-h100 --show 8", "ranks are 0 to 7"),
    ("weft plan barrier hgx-h100 --size 8", "--size"),
    ("weft plan", ""),
    ("weft sim al-reduce hgx-h100", "Did you mean `all-reduce`"),
    ("weft sim scan hgx-h100", "does not predict scan"),
    ("weft sim all-reduce hgx-h100 --size 0", "0 bytes"),
    ("weft sim all-reduce hgx-h100 --size -1MiB", "negative"),
    ("weft sim all-reduce hgx-h100 --library ncll", "Did you mean `nccl`"),
    ("weft sim all-reduce hgx-h100 --algorithm rign", "Did you mean `Ring`"),
    ("weft sim all-reduce hgx-h100 --protocol LL12", "LL128"),
    ("weft sim all-reduce hgx-h100 --library rccl", "does not run on"),
    ("weft sim all-reduce hgx-h100 --size 1TB", "do not fit"),
    ("weft sim all-reduce hgx-h100 --slow gpu0,gpu99=0.5", "gpu99"),
    ("weft sim all-reduce -n 4 --library nccl", "nccl"),
    ("weft sim copy gpu0 gpu99 --fabric hgx-h100", "gpu99"),
    ("weft sim compare hgx-h100 hgx-h10", "hgx-h10"),
    ("weft sim accuracy nothing.csv", "nothing.csv"),
    ("weft bench al-reduce", "Did you mean `all-reduce`"),
    ("weft bench all-reduce -d flaot", "Did you mean `float`"),
    ("weft bench all-reduce -o smu", "Did you mean `sum`"),
    ("weft bench all-reduce -n -2", "-2"),
    ("weft bench all-reduce -b -8", "-8"),
    ("weft bench all-gather-v", "does not measure"),
    ("weft bench all-reduce --algorithm rign", "Did you mean `ring`"),
    ("weft run", ""),
    ("weft run -n 0 -- true", "0"),
    ("weft why --jsn", "--json"),
    ("WEFT_STREAMS=many weft knobs", "WEFT_STREAMS"),
    ("weft completions tcsh", "bash"),
];

/// Sound questions whose answer is no.
const FINDINGS: &[&str] = &[
    "weft plan all-reduce 2x-rtx4090 --without ring,one-shot,two-shot,exchange,exchange-ll,tree,halving-doubling,recursive-doubling,\
     staged,hierarchical,nvls,nvls-tree,linear,chain,bruck,collnet-chain,collnet-direct,dissemination,pairwise,pat,pull",
    "echo nonsense | weft topo -",
    "weft sim all-reduce '2x hgx-h100'",
    "weft run -n 1 -- false",
    "weft topo hgx-h100 --svg /dev/full",
];

#[test]
fn misuse_is_2_and_prints_nothing_first() {
    let folder = scratch("misuse");
    for (command, says) in MISUSE {
        let done = shell(&folder, command);
        assert_eq!(done.code, Some(2), "{command}\n{}{}", done.output, done.errors);
        assert_eq!(done.output, "", "{command}");
        assert!(done.errors.contains(says), "{command}\n{}", done.errors);
    }
    assert!(!folder.join("a.svg").exists(), "a file was written before the arguments were checked");
}

#[test]
fn a_finding_is_1() {
    let folder = scratch("findings");
    for command in FINDINGS {
        let done = shell(&folder, command);
        assert_eq!(done.code, Some(1), "{command}\n{}{}", done.output, done.errors);
        assert!(!done.errors.is_empty(), "{command}");
    }
}

/// Spellings of NCCL, nccl-tests, MPI and PyTorch.
#[test]
fn what_people_type_works() {
    let folder = scratch("spellings");
    for command in [
        "weft plan AllReduce HGX-H100 --size 1MiB",
        "weft plan all_reduce hgx_h100 --algo Ring",
        "weft plan ncclAllReduce \"2x HGX-H100 + 8x NDR\"",
        "weft sim allreduce DGX-H100 --size 1MiB --algo ring --proto simple",
        "weft sim all_gather_into_tensor \"2x dgx-a100\" --size 1MiB",
        "weft topo hgx-h100 --path GPU0 gpu1 --size 1GB",
        "weft bench AllReduce -e 64 --iters 1 --dtype torch.float32 --operation SUM",
        "weft bench all_reduce -e 64 --iters 1 -d ncclBfloat16 -o ncclMax",
        "weft bench allreduce -e 64 --iters 1 -d fp16 --warmup_iters 0",
        "weft bench bcast --np 2 --max-bytes 64 --iters 1 -d double",
    ] {
        let done = shell(&folder, command);
        assert_eq!(done.code, Some(0), "{command}\n{}", done.errors);
    }
}
