//! Warnings and errors of the library, in words.
//!
//! Each class names texts that a warning contains. The first class that fits counts; a warning that fits none is listed as it is, and one
//! that only says that another rank or thread failed is not a finding of its own where there is a cause.

use super::{Context, LogCheck, counted, listed, shown_by};
use crate::finding::{Finding, Outcome, Severity};
use crate::log::model::{Seen, Warning};

/// Warnings that mean the same.
struct Class {
    id: &'static str,
    finds: &'static str,
    severity: Severity,
    /// A warning is of the class if it contains all of one of these.
    texts: &'static [&'static [&'static str]],
    means: &'static str,
    fixes: &'static [&'static str],
}

const CLASSES: &[Class] = &[
    Class {
        id: "log-shm-full",
        finds: "shared memory (/dev/shm) that is full or too small",
        severity: Severity::Critical,
        texts: &[
            &["No space left on device"],
            &["failed to extend", "/dev/shm"],
            &["creating shared memory segment"],
            &["posix_fallocate failed"],
        ],
        means: "/dev/shm is full or too small for NCCL's buffers",
        fixes: &[
            "run `df -h /dev/shm` in the job; in containers enlarge it: `docker run --shm-size=8g` or `--ipc=host`, in Kubernetes an emptyDir with medium: Memory at /dev/shm",
            "remove what crashed jobs left: `rm /dev/shm/nccl-*` while no job runs",
        ],
    },
    Class {
        id: "log-memlock",
        finds: "a limit of locked memory that is too low for RDMA",
        severity: Severity::Critical,
        texts: &[
            &["ibv_reg_mr", "Cannot allocate memory"],
            &["ibv_reg_mr", "failed"],
            &["ibv_create_cq", "Cannot allocate memory"],
            &["ibv_create_qp", "Cannot allocate memory"],
            &["ibv_reg_dmabuf_mr", "failed"],
        ],
        means: "a NIC could not register memory: usually the limit of locked memory is too low",
        fixes: &[
            "run `ulimit -l` inside the job (`srun bash -c 'ulimit -l'`); it must print `unlimited`. Set `* - memlock unlimited` in /etc/security/limits.conf, LimitMEMLOCK=infinity for slurmd or the container runtime, `docker run --ulimit memlock=-1`",
            "if the limit is unlimited and the buffer is on a GPU, load nvidia_peermem (`modprobe nvidia-peermem`) or set NCCL_NET_GDR_LEVEL=LOC to confirm that GPUDirect is the cause",
        ],
    },
    Class {
        id: "log-fabric-manager",
        finds: "NVLink switches that multicast or share memory across hosts, and are not set up",
        severity: Severity::Critical,
        texts: &[&["NVLink SHARP"], &["MNNVL"], &["cuMulticast"], &["system not yet initialized"]],
        means: "the NVLink switches are not set up: Fabric Manager or IMEX does not run as it should",
        fixes: &[
            "run `systemctl status nvidia-fabricmanager` and `nvidia-smi -q | grep -A3 Fabric`: the state must be Completed. Fabric Manager must have the driver's version",
            "on NVLink domains of several hosts run `nvidia-imex-ctl -N`",
            "to go on without: NCCL_NVLS_ENABLE=0, or NCCL_MNNVL_ENABLE=0",
        ],
    },
    Class {
        id: "log-cuda-error",
        finds: "calls of CUDA that failed",
        severity: Severity::Critical,
        texts: &[
            &["Cuda failure"],
            &["CUDA failure"],
            &["HIP failure"],
            &["CUDA error"],
            &["Failed to CUDA"],
        ],
        means: "a call of CUDA failed",
        fixes: &[],
    },
    Class {
        id: "log-bootstrap",
        finds: "ranks that could not meet",
        severity: Severity::Critical,
        texts: &[
            &["Bootstrap Root"],
            &["Bootstrap : no socket interface"],
            &["no socket interface found"],
            &["NCCL_COMM_ID"],
            &["NET/Socket : no interface found"],
            &["No usable listening interface"],
            &["NCCL_OOB_NET_IFNAME"],
            &["NET/IB : No IP interface found"],
        ],
        means: "ranks could not meet: different numbers of ranks, one rank twice, or no interface",
        fixes: &[
            "start each rank once, with the same world size everywhere (WORLD_SIZE, MASTER_ADDR and MASTER_PORT under torchrun)",
            "run `ip -br addr`, and set NCCL_SOCKET_IFNAME to an interface that is up and has an address on every host",
        ],
    },
    Class {
        id: "log-connect",
        finds: "hosts that cannot be reached, and peers that are gone",
        severity: Severity::Critical,
        texts: &[
            &["Connection refused"],
            &["Connection timed out"],
            &["No route to host"],
            &["Network is unreachable"],
            &["connect", "exceeded"],
            &["Software caused connection abort"],
            &["onnection closed by remote peer"],
            &["Connection reset by peer"],
            &["Broken pipe"],
            &["Accept failed"],
        ],
        means: "a rank could not connect to another, or lost it: the other one died first, or a firewall or the wrong interface is between them",
        fixes: &[
            "find the rank that failed first: the earliest error of all ranks is the cause, the others follow from it",
            "check that hosts reach each other on all ports: `nc -l 12345` on one and `nc -vz HOST 12345` on the other, over the interface that NCCL prints; open the firewall between them",
            "set NCCL_SOCKET_IFNAME to the interface that connects the hosts",
        ],
    },
    Class {
        id: "log-network-error",
        finds: "errors of the RDMA network",
        severity: Severity::Critical,
        texts: &[
            &["Got completion"],
            &["async fatal event"],
            &["Got async event"],
            &["ibv_modify_qp"],
            &["ibv_post_"],
            &["ibv_poll_cq"],
            &["GID table changed"],
            &["NET/IB", "incompatible"],
            &["fatal event"],
        ],
        means: "the RDMA network failed",
        fixes: &[
            "run `ibstat` and `ibv_devinfo` on both hosts: ports must be Active at the same rate; look for `link_downed` and `symbol_error` in /sys/class/infiniband/*/ports/*/counters",
            "test the pair of hosts without NCCL: `ib_write_bw -d DEVICE HOST`",
            "status 12 is a peer that does not answer: routes between subnets, partitions or, with RoCE, the GID index (NCCL_IB_GID_INDEX, `show_gids`) and priority flow control; a longer NCCL_IB_TIMEOUT (22) helps only against congestion",
        ],
    },
    Class {
        id: "log-mismatch",
        finds: "ranks that called different collectives or sizes",
        severity: Severity::Critical,
        texts: &[&["Message truncated"], &["mismatch in collective sizes"], &["message truncated"]],
        means: "ranks sent and expected different sizes: they called different collectives, counts or types",
        fixes: &[
            "run with NCCL_DEBUG_SUBSYS=INIT,COLL, or TORCH_DISTRIBUTED_DEBUG=DETAIL with PyTorch: both show which rank calls what",
            "compare NCCL_ALGO, NCCL_PROTO and other variables of the ranks: they must be equal",
        ],
    },
    Class {
        id: "log-usage",
        finds: "wrong use of the library",
        severity: Severity::Critical,
        texts: &[
            &["invalid root"],
            &["is not a valid pointer"],
            &["argument is NULL"],
            &["mismatchs with NCCL device"],
            &["Invalid rank requested"],
            &["no algorithm/protocol available"],
            &["Invalid config"],
            &["not in a group call"],
            &["has already been destroyed"],
            &["before the previous operation returned"],
        ],
        means: "the program, or a setting, asked for something that NCCL does not allow",
        fixes: &[
            "read the warning: it names the argument. A pointer must belong to the communicator's GPU: call cudaSetDevice (torch.cuda.set_device) before",
            "where no algorithm is available, unset NCCL_ALGO and NCCL_PROTO",
        ],
    },
];

/// Warnings that have checks of their own.
const ELSEWHERE: [&str; 6] = [
    "Duplicate GPU detected",
    "Mismatched NCCL version",
    "NCCL version mismatch",
    "P2P is disabled between NVLINK",
    "NET/OFI",
    "CUDA Driver version found is",
];

/// Warnings that only follow from others.
const CONSEQUENCES: [&str; 12] = [
    "[Proxy Service",
    "[Service thread]",
    "Proxy Call to rank",
    "Socket recv failed while polling",
    "Failed to execute operation",
    "communicator encountered a fatal error",
    "is in abort state",
    "ncclCommSetAsyncError",
    "commReclaim",
    "commDestroySync",
    "Async thread",
    "sets state",
];

pub(super) const CHECKS: &[LogCheck] = &[
    check(0, |context| of_class(context, 0)),
    check(1, |context| of_class(context, 1)),
    check(2, |context| of_class(context, 2)),
    check(3, cuda),
    check(4, |context| of_class(context, 4)),
    check(5, connections),
    check(6, |context| of_class(context, 6)),
    check(7, |context| of_class(context, 7)),
    check(8, |context| of_class(context, 8)),
    LogCheck {
        id: "log-exception",
        finds: "exceptions that name an error of NCCL without its cause",
        run: exceptions,
    },
    LogCheck { id: "log-warning", finds: "other warnings of NCCL", run: others },
];

const fn check(index: usize, run: fn(&Context<'_>) -> Vec<Outcome>) -> LogCheck {
    LogCheck { id: CLASSES[index].id, finds: CLASSES[index].finds, run }
}

/// The class of a warning.
fn class_of(warning: &Warning) -> Option<usize> {
    let text = warning.text.as_str();
    if ELSEWHERE.iter().any(|known| text.contains(known)) {
        return None;
    }
    let fits = |class: &Class| class.texts.iter().any(|all| all.iter().all(|part| text.contains(part)));
    CLASSES.iter().position(fits)
}

fn warnings_of<'c>(context: &'c Context<'_>, class: usize) -> Vec<&'c Warning> {
    context.log.warnings.iter().filter(|warning| class_of(warning) == Some(class)).collect()
}

/// The processes of warnings.
fn places(context: &Context<'_>, warnings: &[&Warning]) -> String {
    let mut places: Vec<String> = warnings.iter().map(|warning| context.process(warning.process)).collect();
    places.sort_unstable();
    places.dedup();
    listed(places)
}

fn finding(context: &Context<'_>, class: &Class, warnings: &[&Warning]) -> Finding {
    let what =
        format!("{} ({} of {})", class.means, counted(warnings.len(), "warning"), places(context, warnings));
    let lines =
        warnings.iter().flat_map(|warning| [&warning.seen].into_iter().chain(warning.context.first()));
    let finding = shown_by(Finding::new(class.id, class.severity, what), lines);
    class.fixes.iter().fold(finding, |finding, fix| finding.fixed_by(*fix))
}

fn of_class(context: &Context<'_>, index: usize) -> Vec<Outcome> {
    let warnings = warnings_of(context, index);
    if warnings.is_empty() {
        return Vec::new();
    }
    vec![Outcome::Found(finding(context, &CLASSES[index], &warnings))]
}

/// What failures of CUDA mean: a part of the text, words, and what to do.
const CUDA: &[(&str, &str, &str)] = &[
    (
        "out of memory",
        "the GPU has no memory left for NCCL's buffers",
        "leave NCCL some memory: a smaller batch, NCCL_BUFFSIZE=2097152, fewer communicators; `nvidia-smi` shows other processes on the GPU",
    ),
    (
        "initialization error",
        "CUDA was used before a fork, or the driver is broken",
        "start workers with the spawn method (`torch.multiprocessing.set_start_method(\"spawn\")`), and check `nvidia-smi`",
    ),
    (
        "invalid device ordinal",
        "a rank names a GPU that it cannot see",
        "compare LOCAL_RANK with the number of GPUs in CUDA_VISIBLE_DEVICES",
    ),
    (
        "no kernel image",
        "the build of NCCL has no code for this GPU",
        "install a build for the GPU's architecture: Blackwell needs NCCL 2.25 or later, built with CUDA 12.8 or later",
    ),
    ("driver version is insufficient", "the driver is older than the CUDA runtime", "install a newer driver"),
    (
        "peer access",
        "the driver refuses peer access",
        "run `nvidia-smi topo -p2p r`, and see the finding on peer access",
    ),
    (
        "uncorrectable",
        "the GPU's memory has an uncorrectable error",
        "run `nvidia-smi -q -d ECC,ROW_REMAPPER`, reset the GPU, and replace it if the error returns",
    ),
    (
        "illegal memory access",
        "a kernel accessed memory out of bounds; usually not one of NCCL",
        "run the program under `compute-sanitizer`, or with CUDA_LAUNCH_BLOCKING=1 to find the kernel",
    ),
    (
        "unspecified launch failure",
        "a kernel crashed; usually not one of NCCL",
        "run the program under `compute-sanitizer`, and look for Xid in `dmesg`",
    ),
    (
        "misaligned address",
        "a kernel used a misaligned address; usually not one of NCCL",
        "run the program under `compute-sanitizer`",
    ),
    ("unknown error", "the driver or the GPU failed", "look for Xid in `dmesg -T | grep -i xid`"),
    (
        "operation not supported",
        "the driver or the container does not allow a kind of memory",
        "set NCCL_CUMEM_ENABLE=0 and NCCL_NVLS_ENABLE=0; if that helps, update the driver or the container runtime",
    ),
    (
        "invalid argument",
        "CUDA refused an argument: often another version of the driver, or memory from another allocator",
        "set NCCL_CUMEM_ENABLE=0; compare the driver's and the container's CUDA version (`nvidia-smi`)",
    ),
];

fn cuda(context: &Context<'_>) -> Vec<Outcome> {
    let class = &CLASSES[3];
    let warnings = warnings_of(context, 3);
    let kind = |warning: &Warning| {
        CUDA.iter().position(|(part, ..)| warning.text.to_ascii_lowercase().contains(part))
    };
    let mut kinds: Vec<Option<usize>> = warnings.iter().map(|warning| kind(warning)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let of = |wanted: Option<usize>| {
        let these: Vec<&Warning> =
            warnings.iter().copied().filter(|warning| kind(warning) == wanted).collect();
        let mut found = finding(context, class, &these);
        let (words, fix) = wanted.map_or(
            (
                "a call of CUDA failed",
                "look for Xid in `dmesg -T | grep -i xid`, and run again with CUDA_LAUNCH_BLOCKING=1",
            ),
            |kind| (CUDA[kind].1, CUDA[kind].2),
        );
        found.what = format!(
            "CUDA failed: {words} ({} of {})",
            counted(these.len(), "warning"),
            places(context, &these)
        );
        Outcome::Found(found.fixed_by(fix))
    };
    kinds.into_iter().map(of).collect()
}

/// A repeated call to connect is not a warning. Many of them mean that no peer answers.
const RETRIES_LEAST: usize = 3;

fn connections(context: &Context<'_>) -> Vec<Outcome> {
    let warnings = warnings_of(context, 5);
    let retried: Vec<_> = context
        .log
        .processes
        .iter()
        .enumerate()
        .filter_map(|(index, process)| Some((index, process.retries.as_ref()?)))
        .filter(|(_, (count, _))| *count >= RETRIES_LEAST)
        .collect();
    if warnings.is_empty() && retried.is_empty() {
        return Vec::new();
    }
    let mut found = finding(context, &CLASSES[5], &warnings);
    if warnings.is_empty() {
        let total: usize = retried.iter().map(|(_, (count, _))| count).sum();
        let names = listed(retried.iter().map(|(index, _)| context.process(*index)));
        found.what =
            format!("{names} repeated calls to connect {total} times: the other side does not answer");
        found.severity = Severity::Warning;
    }
    vec![Outcome::Found(shown_by(found, retried.iter().map(|(_, (_, seen))| seen)))]
}

/// What the errors of exceptions mean.
fn meaning(name: &str) -> &'static str {
    match name {
        "ncclUnhandledCudaError" => "a call of CUDA failed",
        "ncclSystemError" => "a call of the operating system or of the network failed",
        "ncclInternalError" => "a check inside NCCL failed",
        "ncclInvalidArgument" => "an argument is wrong",
        "ncclInvalidUsage" => "the library was used in a wrong way",
        _ => "another rank failed, or the network to it did",
    }
}

fn exceptions(context: &Context<'_>) -> Vec<Outcome> {
    let log = context.log;
    let Some(first) = log.exceptions.first() else { return Vec::new() };
    let is_explained = log.warnings.iter().any(|warning| {
        class_of(warning).is_some() || ELSEWHERE.iter().any(|known| warning.text.contains(known))
    });
    let severity = if is_explained { Severity::Note } else { Severity::Critical };
    let mut names: Vec<&str> = log.exceptions.iter().map(|exception| exception.name).collect();
    names.sort_unstable();
    names.dedup();
    let words = names.iter().map(|name| format!("{name} ({})", meaning(name)));
    let what = format!("the program ended with {}", listed(words));
    let finding = shown_by(Finding::new("log-exception", severity, what), [&first.seen]);
    let fix = match is_explained {
        true => "the other findings name the cause",
        false => {
            "the exception alone names no cause: run again with NCCL_DEBUG=INFO, and look at the first warning of all ranks"
        }
    };
    vec![Outcome::Found(finding.fixed_by(fix))]
}

fn others(context: &Context<'_>) -> Vec<Outcome> {
    let log = context.log;
    if log.warnings.is_empty() {
        return vec![Outcome::Fine(format!("no warning in {}", counted(log.messages, "line")))];
    }
    let is_elsewhere = |warning: &Warning| ELSEWHERE.iter().any(|known| warning.text.contains(known));
    let is_consequence = |warning: &Warning| CONSEQUENCES.iter().any(|known| warning.text.contains(known));
    let open = log.warnings.iter().filter(|warning| class_of(warning).is_none() && !is_elsewhere(warning));
    let (consequences, open): (Vec<&Warning>, Vec<&Warning>) =
        open.partition(|warning| is_consequence(warning));
    let is_explained = log.warnings.len() > consequences.len();
    let listed = if open.is_empty() && !is_explained { consequences } else { open };
    if listed.is_empty() {
        return Vec::new();
    }
    let what = format!(
        "NCCL warned of something else ({} of {})",
        counted(listed.len(), "warning"),
        places(context, &listed)
    );
    let lines: Vec<&Seen> = listed.iter().map(|warning| &warning.seen).collect();
    let finding = shown_by(Finding::new("log-warning", Severity::Warning, what), lines)
        .fixed_by("search for the text in https://github.com/NVIDIA/nccl/issues; run again with NCCL_DEBUG=INFO to see what led to it");
    vec![Outcome::Found(finding)]
}
