//! Exit codes: 0 fine, 1 a failed check or run, 2 misuse. Misuse is reported before anything is printed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

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
    ("weft sim scan hgx-h100", "nccl has no scan"),
    ("weft topo 2x hgx-h100 + 8x ndr", "quote the cluster: weft topo \"2x hgx-h100 + 8x ndr\""),
    ("weft sim all-reduce 2x hgx-h100 + 8x ndr --size 1G", "\"2x hgx-h100 + 8x ndr\" --size 1G"),
    ("weft plan all-reduce hgx-h100 --size 64 MiB", "one word: 64MiB"),
    ("weft sim all-reduce hgx-h100 dgx-h100", "weft sim compare hgx-h100 dgx-h100"),
    ("weft plan all-reduce hgx-h100 more", "unexpected `more`"),
    ("weft topo 'hgx-h100 + 8x ndr'", "`1x hgx-h100 + 8x ndr`"),
    ("weft topo ''", "is empty"),
    ("weft topo '2x hgx-h100 + 8x infiniband'", "`ndr`"),
    ("weft topo '-2x hgx-h100'", "give a positive number"),
    ("weft topo .", "cannot read"),
    ("echo nonsense | weft topo -", "standard input"),
    ("echo '{ \"weft\": \"plan/1\" }' > p.json; weft topo p.json", "p.json is a plan"),
    ("weft topo hgx-h100 --svg /nowhere/a.svg", "cannot write /nowhere/a.svg"),
    ("weft topo hgx-h100 --path gpu0 gpu9", "The GPUs are gpu0 to gpu7"),
    ("weft plan hgx-h100", "write the collective first: weft plan all-reduce hgx-h100"),
    ("weft sim hgx-h100 all-reduce", "write the collective first"),
    ("weft bench hgx-h100", "weft bench measures this host"),
    ("weft plan ar hgx-h100", "Did you mean `all-reduce`"),
    ("weft sim all2all hgx-h100", "Did you mean `all-to-all`"),
    ("weft plan verfy x.json", "Did you mean `verify`"),
    ("weft sim comapre a b", "Did you mean `compare`"),
    ("weft plan all-reduce hgx-h100 --proto LL", "`weft sim` can fix NCCL's"),
    ("weft bench all-reduce --protocol LL", "`weft sim` can fix NCCL's"),
    ("weft plan all-reduce -n -4 --algorithm ring", "must be a whole number between 1 and 1024"),
    ("weft plan all-reduce '2x hgx-h100'", "add NICs"),
    ("weft sim all-reduce '2x hgx-h100'", "no network connects"),
    ("weft sim all-reduce hgx-h100 -b 8 -e 1M", "--sizes 8..1MiB"),
    ("weft sim all-reduce -n 0", "must be a whole number between 2 and 1024"),
    ("weft sim all-reduce dgx-h100 --throttle 9=0.7", "no GPU 9"),
    ("weft sim all-reduce dgx-h100 --gpus 0-9", "no GPU 8"),
    ("weft sim all-reduce hgx-h100 --algorithm PAT", "PAT is for all-gather and reduce-scatter"),
    ("weft sim all-reduce hgx-h100 --algorithm collnetdirect", ""),
    ("weft sim all-reduce hgx-h100 --plot /nowhere/a.svg", "cannot write /nowhere/a.svg"),
    ("echo a,b > bad.csv; weft sim accuracy bad.csv", "column \"id\" is missing"),
    ("echo '{}' > e.json; weft plan verify e.json", "not a plan"),
    ("weft plan verify /dev/null", "is empty"),
    (
        "weft plan all-reduce -n 2 --algorithm ring --emit json > r.json; weft plan import r.json",
        "in JSON already",
    ),
    ("weft bench all-reduce -f 1", "must be a whole number of 2 or more"),
    ("weft bench broadcast -r -2", "must be a whole number between -1 and 1023"),
    ("weft bench all-reduce -d fp8", "Did you mean `fp8_e4m3`"),
    ("weft bench all-reduce -o add", "Did you mean `sum`"),
    ("weft bench all-reduce --csv /nowhere/x.csv", "cannot write /nowhere/x.csv"),
    ("WEFT_DEADLINE=5x weft bench all-reduce -n 2 -e 8", "WEFT_DEADLINE"),
    ("weft bench --gpu", "needs a collective: weft bench all-reduce --gpu"),
    ("weft bench all-reduce --gpu --stats", "calls of a graph are not timed one by one"),
    ("weft bench all-reduce --gpu -n 64", "--gpu takes up to 32 ranks"),
    ("weft bench all-reduce --gpu -o mulsum -d complex128", "not supported on GPUs"),
    ("weft bench all-reduce --device 1", "--gpu"),
    ("weft bench all-reduce --gpu --device 0,1", "0,1"),
    (
        "RANK=1 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 weft bench all-reduce --gpu",
        "--launcher none",
    ),
    ("weft run --nnodes 2 -- true", "--hosts a,b"),
    ("weft run -n 2 --oversubscribe -- true", "--bind"),
    ("weft run -n 2 --gpus all --mps -- true", "add --gpus shared"),
    ("weft run -n 2 --gpus h100 -- true", "use all, shared, or numbers"),
    ("weft run -n -2 -- true", "must be a whole number between 1 and 4096"),
    ("weft knobs NCCL_DEBUG", "there is no setting NCCL_DEBUG. Did you mean `WEFT_DEBUG`?"),
    ("weft version", "weft --version"),
    ("weft verify x.json", "weft plan verify FILE"),
    ("weft presets", "weft topo --list"),
    ("weft --verbose topo", "WEFT_DEBUG=INFO"),
    ("weft bench all-reduce --foo 1", "try 'weft bench --help'"),
    ("weft sim compare hgx-h100 --foo", "try 'weft sim compare --help'"),
    ("weft plan import /etc/passwd", "neither with `{` (JSON) nor with `<`"),
    ("weft plan broadcast hgx-h100 --root -1", "must be a whole number of 0 or more"),
    ("weft plan all-reduce --size 1", "name a fabric: `weft plan all-reduce hgx-h100`"),
    ("weft plan all-reduce hgx-h100 --sizes 1..", "write two sizes"),
    ("weft plan all-reduce hgx-h100 --size 8..1GiB", "for a range: --sizes 8..1GiB"),
    ("weft bench all-reduce --size 1.5", "`1.5` is not a size"),
    ("weft bench all-reduce hgx-h100", "`weft sim all-reduce hgx-h100` predicts others"),
    ("weft sim all-reduce hgx-h100 --beside all-reduce:1G@9", "no GPU 9: the fabric has 8"),
    ("weft sim all-reduce hgx-h100 --size 8 -f 3", "cannot be used with"),
    ("weft sim compare all-reduce hgx-h100", "weft sim compare hgx-h100 --collective all-reduce"),
    ("weft sim copy hgx-h100 gpu0 gpu1", "weft sim copy gpu0 gpu1 --fabric hgx-h100"),
    ("weft run --standalone -n 2 true", "leave it out"),
    ("weft run --allow-run-as-root -n 2 true", "leave it out"),
    ("weft run --map-by socket -n 2 true", "--bind sets the cores"),
    ("weft run --output logs -n 2 true", "write --output-dir DIR"),
    ("weft why --attach 1", "process 1"),
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
    ("weft bench all-reduce -n -2", "must be a whole number between 1 and 1024"),
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
    "weft plan all-reduce -n 2 --algorithm ring --emit json | sed 's/\"ranks\": 2/\"ranks\": 3/' | weft plan verify -",
    "weft run -n 1 -- false",
    "weft topo hgx-h100 --svg /dev/full",
];

#[test]
fn misuse_exits_with_2_and_prints_nothing() {
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
fn failed_checks_exit_with_1() {
    let folder = scratch("findings");
    for command in FINDINGS {
        let done = shell(&folder, command);
        assert_eq!(done.code, Some(1), "{command}\n{}{}", done.output, done.errors);
        assert!(!done.errors.is_empty(), "{command}");
    }
}

/// Spellings of NCCL, nccl-tests, MPI and PyTorch.
#[test]
fn spellings_of_other_tools_work() {
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
        "weft bench all-reduce -np 2 -e 64 --iters 1",
        "weft run -n 1 -H localhost -- true",
    ] {
        let done = shell(&folder, command);
        assert_eq!(done.code, Some(0), "{command}\n{}", done.errors);
    }
}
