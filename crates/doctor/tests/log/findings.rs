//! Each finding: where it must fire, where it must not, and where the log does not say.

use weftlink_doctor::Severity;

use crate::{
    CALLS, HEALTHY, INFINIBAND, MISSING_NVLINKS, NO_GPUDIRECT, PLUGIN, RCCL, SHARED_MEMORY, SOCKETS, TIMEOUT,
    WARNINGS, found, is_fine, is_unknown, report, report_on, sentence,
};

/// A line of a process, without saying how far it came.
fn line(text: &str) -> String {
    format!("{HEALTHY}gpu7:210:230 [0] {text}\n")
}

fn warning(text: &str) -> String {
    line(&format!("misc/x.cc:7 NCCL WARN {text}"))
}

/// The log of a level that shows only warnings.
fn only_warnings() -> String {
    "gpu7:210:230 [0] misc/x.cc:7 NCCL WARN Something\n".to_owned()
}

#[test]
fn a_healthy_log_has_no_finding() {
    for (text, fabric) in
        [(HEALTHY, None), (PLUGIN, None), (INFINIBAND, None), (RCCL, None), (HEALTHY, Some("hgx-h200"))]
    {
        let report = fabric.map_or_else(|| report(text), |fabric| report_on(text, fabric));
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        assert_eq!(report.exit_code(), if fabric.is_some() { 3 } else { 0 }, "{:#?}", report.uninspected);
    }
}

#[test]
fn sockets() {
    let words = sentence(&report(SOCKETS), "log-socket");
    assert!(words.contains("8 connections") && words.contains("found no InfiniBand"), "{words}");
    let disabled = SOCKETS.replace("NET/IB : No device found.", "NCCL_IB_DISABLE set by environment to 1.");
    let report_of = report(&disabled);
    assert!(sentence(&report_of, "log-socket").contains("NCCL_IB_DISABLE is 1"));
    assert_eq!(found(&report_of, "log-socket")[0].fixes[0], "unset NCCL_IB_DISABLE");
    assert!(is_fine(&report(INFINIBAND), "log-socket"));
    // One host needs no network.
    assert!(is_fine(&report(SHARED_MEMORY), "log-socket"));
    assert!(is_unknown(&report(&only_warnings()), "log-socket"));
    // Two ranks of which one is in the log.
    let half: String = SOCKETS
        .lines()
        .filter(|line| line.starts_with("alpha") && !line.contains(" via "))
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(is_unknown(&report(&half), "log-socket"));
}

#[test]
fn sockets_have_a_cost_on_a_fabric() {
    let report = report_on(SOCKETS, "2x hgx-h100 + 8x ndr");
    let cost = found(&report, "log-socket")[0].cost.clone().expect("a cost");
    assert!(cost.now_gb_per_s < cost.usual_gb_per_s / 2.0, "{cost:?}");
}

#[test]
fn gpudirect() {
    let off = report(NO_GPUDIRECT);
    let words = sentence(&off, "log-gpudirect");
    assert!(words.contains("off on 8 of 8 connections"), "{words}");
    assert!(found(&off, "log-gpudirect")[0].evidence[0].text.contains("Disabled for HCA 0"));
    assert!(is_fine(&report(INFINIBAND), "log-gpudirect"));
    assert!(found(&report(SOCKETS), "log-gpudirect").is_empty());
    // Connections are not in the log.
    let quiet: String =
        INFINIBAND.lines().filter(|line| !line.contains(" via ")).map(|line| format!("{line}\n")).collect();
    assert!(is_unknown(&report(&quiet), "log-gpudirect"));
}

#[test]
fn interfaces() {
    let docker = SOCKETS.replace("eno1:10.20.0", "docker0:172.17.0");
    let report_of = report(&docker);
    assert!(sentence(&report_of, "log-interface").contains("docker0"));
    assert_eq!(found(&report_of, "log-interface")[0].severity, Severity::Critical);
    assert!(is_fine(&report(SOCKETS), "log-interface"));
    // On one host any interface will do.
    assert!(is_fine(&report(&SHARED_MEMORY.replace("enp5s0", "lo")), "log-interface"));
    assert!(is_unknown(&report(&only_warnings()), "log-interface"));
    assert!(is_unknown(&report("a:1:1 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n"), "log-interface"));
}

#[test]
fn plugins() {
    let asked = format!(
        "ip-10-0-0-1:33:44 [0] NCCL INFO NCCL_NET_PLUGIN set by environment to ofi\n{}",
        PLUGIN
            .replace("AWS Libfabric", "Socket")
            .replace("Successfully loaded external network plugin", "NET/Plugin: Could not find:")
    );
    assert!(sentence(&report(&asked), "log-plugin").contains("did not use the network plugin ofi"));
    let failed = format!(
        "{PLUGIN}ip-10-0-0-1:33:44 [0] nccl_net_ofi_init:77 NCCL WARN NET/OFI Unable to find a protocol that worked\n"
    );
    assert!(sentence(&report(&failed), "log-plugin").contains("reported errors"));
    let needed = report_on(SOCKETS, "2x p5");
    assert!(sentence(&needed, "log-plugin").contains("need a network plugin"));
    assert!(is_fine(&report(PLUGIN), "log-plugin"));
    assert!(is_fine(&report(INFINIBAND), "log-plugin"), "no plugin is needed for InfiniBand");
    assert!(is_unknown(&report(&only_warnings()), "log-plugin"));
}

#[test]
fn versions() {
    let mixed = format!("{HEALTHY}NCCL version 2.21.5+cuda12.4\n");
    assert!(sentence(&report(&mixed), "log-versions").contains("NCCL 2.21.5 and NCCL 2.28.9"));
    let refused = warning("Mismatched NCCL version detected : rank 0 version 22809 rank 1 version 22105");
    assert_eq!(found(&report(&refused), "log-versions")[0].severity, Severity::Critical);
    let drivers = HEALTHY.replacen("cudaDriverVersion 13000", "cudaDriverVersion 12080", 1);
    assert!(
        report(&drivers)
            .findings
            .iter()
            .any(|finding| finding.what.contains("different drivers: CUDA 12.8 on gpu7"))
    );
    assert!(is_fine(&report(HEALTHY), "log-versions"));
    assert!(is_unknown(&report(&only_warnings()), "log-versions"));
}

#[test]
fn drivers() {
    let old = HEALTHY.replace("cudaDriverVersion 13000", "cudaDriverVersion 12040");
    assert!(
        sentence(&report(&old), "log-driver")
            .contains("supports CUDA 12.4, and NCCL was built with CUDA 13.0")
    );
    assert!(is_fine(&report(HEALTHY), "log-driver"));
    // RCCL does not print it.
    let rccl = report(RCCL);
    assert!(found(&rccl, "log-driver").is_empty() && !is_fine(&rccl, "log-driver"));
}

#[test]
fn shared_memory() {
    let report_of = report_on(SHARED_MEMORY, "2x-rtx3090-bridge");
    assert!(sentence(&report_of, "log-shared-memory").contains("host memory (SHM): 0-1"));
    assert!(found(&report_of, "log-shared-memory")[0].cost.is_some());
    // GeForce cards without a bridge have no peer access.
    assert!(is_fine(&report_on(SHARED_MEMORY, "2x-rtx4090"), "log-shared-memory"));
    assert!(is_unknown(&report(SHARED_MEMORY), "log-shared-memory"));
    assert!(is_fine(&report(HEALTHY), "log-shared-memory"));
    assert!(is_unknown(&report(&only_warnings()), "log-shared-memory"));
    // The log itself says that NVLink connects them.
    let detected = MISSING_NVLINKS.replace("P2P/direct pointer/read", "SHM/direct/direct");
    assert!(sentence(&report(&detected), "log-shared-memory").contains("0-1, 0-3, 1-2 and 2-3"));
}

#[test]
fn peer_access() {
    let words = sentence(&report(SHARED_MEMORY), "log-peer-access");
    assert!(words.contains("the driver refuses peer access"), "{words}");
    let disabled = line("NCCL INFO NCCL_P2P_DISABLE set by environment to 1");
    assert!(sentence(&report(&disabled), "log-peer-access").contains("NCCL_P2P_DISABLE=1"));
    let broken = warning(
        "P2P is disabled between NVLINK connected GPUs 0 and 1. This should not be the case given their connectivity",
    );
    assert_eq!(found(&report(&broken), "log-peer-access")[0].severity, Severity::Critical);
    assert!(is_fine(&report(HEALTHY), "log-peer-access"));
    assert!(is_unknown(&report(&only_warnings()), "log-peer-access"));
}

#[test]
fn topology() {
    let words = sentence(&report(MISSING_NVLINKS), "log-topology");
    assert!(words.contains("GPU/4C000 has 80 of 240 GB/s of NVLink"), "{words}");
    let even = MISSING_NVLINKS.replace("NVL[80.0]", "NVL[240.0]");
    assert!(is_fine(&report(&even), "log-topology"));
    assert!(is_fine(&report_on(&even, "dgx-a100"), "log-topology"));
    // All of them have too few.
    let few = MISSING_NVLINKS.replace("NVL[240.0]", "NVL[80.0]");
    let of_all = sentence(&report_on(&few, "dgx-a100"), "log-topology");
    assert!(of_all.contains("12 links, 240 GB/s") && of_all.contains("GPU/7000 with 80 GB/s"), "{of_all}");
    let far = even.replace("/NVL)", "/SYS)");
    let of_paths = sentence(&report_on(&far, "dgx-a100"), "log-topology");
    assert!(of_paths.contains("is SYS instead of NVL"), "{of_paths}");
    let narrow = even.replace("PCI[24.0] - GPU/B000", "PCI[6.0] - GPU/B000");
    assert!(sentence(&report(&narrow), "log-topology").contains("6.0 of 24.0 GB/s of PCIe"));
    assert!(is_unknown(&report_on(HEALTHY, "hgx-h100"), "log-topology"));
}

#[test]
fn duplicate_gpus() {
    let same = HEALTHY.replace("2a000", "18000");
    assert!(sentence(&report(&same), "log-duplicate-gpu").contains("ranks 0 and 1 use GPU 18000 of gpu7"));
    let refused = warning("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 18000");
    assert!(sentence(&report(&refused), "log-duplicate-gpu").contains("same GPU"));
    assert!(is_fine(&report(HEALTHY), "log-duplicate-gpu"));
    assert!(is_unknown(&report(&only_warnings()), "log-duplicate-gpu"));
}

#[test]
fn channels() {
    let other = HEALTHY.replacen("4 coll channels", "2 coll channels", 1);
    assert!(sentence(&report(&other), "log-channels").contains("2 channels and 0 of NVLS on rank 0"));
    let fewer = HEALTHY.replace("4 coll channels", "8 coll channels");
    assert!(sentence(&report(&fewer), "log-channels").contains("fewer rings or trees"));
    assert!(is_fine(&report(HEALTHY), "log-channels"));
    assert!(is_unknown(&report(&only_warnings()), "log-channels"));
}

#[test]
fn warnings_in_words() {
    let report_of = report(WARNINGS);
    let words = sentence(&report_of, "log-shm-full");
    assert!(words.contains("2 warnings of pod-a:91"), "{words}");
    assert!(sentence(&report_of, "log-memlock").contains("pod-b:77"));
    // The exception follows from the warnings.
    assert_eq!(found(&report_of, "log-exception")[0].severity, Severity::Note);
    let alone = format!("{HEALTHY}[rank0]: ncclSystemError: System call failed\n");
    assert_eq!(found(&report(&alone), "log-exception")[0].severity, Severity::Critical);
    for (id, text) in [
        ("log-cuda-error", "Cuda failure 2 'out of memory'"),
        ("log-cuda-error", "Cuda failure 'initialization error'"),
        ("log-fabric-manager", "Cuda failure 802 'system not yet initialized'"),
        (
            "log-fabric-manager",
            "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 1 'invalid argument'.",
        ),
        ("log-bootstrap", "Bootstrap Root : rank 1 of 8 ranks has already checked in"),
        ("log-bootstrap", "Bootstrap Root : mismatch in rank count from procs 6 : 3"),
        (
            "log-connect",
            "socketPollConnect: connect to 10.0.0.2<45763> returned Connection refused, exceeded error retry count after 35 attempts",
        ),
        ("log-connect", "socketProgress: Connection closed by remote peer n2<57557>"),
        (
            "log-network-error",
            "NET/IB: Got completion from peer 10.0.0.2<4791> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=0 reqSize=0 vendor_err=129 req_type=Send",
        ),
        ("log-network-error", "NET/IB : mlx5_0:1 async fatal event: local catastrophic error"),
        ("log-mismatch", "Message truncated : received 1024 bytes instead of 256"),
        ("log-usage", "AllReduce : invalid root 9 (root should be in the 0..8 range)"),
        ("log-warning", "Something that nobody has seen before"),
    ] {
        let report_of = report(&warning(text));
        let words = sentence(&report_of, id);
        let all: Vec<&str> = report_of.findings.iter().map(|finding| finding.id).collect();
        assert_eq!(all, [id], "{text}: {words}");
    }
    assert!(
        sentence(&report(&warning("Cuda failure 2 'out of memory'")), "log-cuda-error")
            .contains("no memory left")
    );
    let healthy = report(HEALTHY);
    assert!(is_fine(&healthy, "log-warning"));
    for id in [
        "log-shm-full",
        "log-memlock",
        "log-cuda-error",
        "log-fabric-manager",
        "log-bootstrap",
        "log-connect",
        "log-network-error",
        "log-mismatch",
        "log-usage",
        "log-exception",
    ] {
        assert!(found(&healthy, id).is_empty(), "{id}");
    }
}

#[test]
fn a_consequence_is_no_finding_beside_its_cause() {
    let both = warning("Cuda failure 700 'an illegal memory access was encountered'")
        + "gpu7:210:230 [0] proxy.cc:9 NCCL WARN [Proxy Service 0] Failed to execute operation Connect from rank 0, retcode 2\n";
    let ids: Vec<&str> = report(&both).findings.iter().map(|finding| finding.id).collect();
    assert_eq!(ids, ["log-cuda-error"]);
    let alone = warning("[Proxy Service 0] Failed to execute operation Connect from rank 0, retcode 2");
    assert!(sentence(&report(&alone), "log-warning").contains("1 warning"));
}

#[test]
fn repeated_connects() {
    let retry = "gpu7:210:230 [0] NCCL INFO Call to connect returned Connection refused, retrying\n";
    let report_of = report(&format!("{HEALTHY}{}", retry.repeat(4)));
    assert!(sentence(&report_of, "log-connect").contains("repeated calls to connect 4 times"));
    assert!(found(&report(&format!("{HEALTHY}{retry}")), "log-connect").is_empty());
}

#[test]
fn settings() {
    for (setting, words) in [
        ("NCCL_PROTO set by environment to LL", "half of the bandwidth"),
        ("NCCL_PROTO set by environment to simpel", "`simpel` is no protocol"),
        ("NCCL_ALGO set by environment to Rign", "`rign` is no algorithm"),
        ("NCCL_ALGO set by environment to allreduce:ring;broadcast:tree", "tuner"),
        ("NCCL_MAX_NCHANNELS set by environment to 2.", "few channels"),
        ("NCCL_BUFFSIZE set by environment to 65536", "buffers below 1 MiB"),
        ("NCCL_NET_GDR_LEVEL set by environment to LOC", "GPUDirect RDMA is off"),
        ("NCCL_IGNORE_DISABLED_P2P set by environment to 1", "hides a fault"),
        ("NCCL_SHM_DISABLE set by environment to 1", "over the network"),
        ("NCCL_TOPO_FILE set by environment to /etc/topo.xml", "this file instead of the machine"),
    ] {
        let found = sentence(&report(&line(&format!("NCCL INFO {setting}"))), "log-settings");
        assert!(found.contains(words), "{found}");
    }
    let differ = line("NCCL INFO NCCL_IB_TC set by environment to 106")
        + "gpu7:211:231 [1] NCCL INFO NCCL_IB_TC set by environment to 0\n";
    assert!(
        sentence(&report(&differ), "log-settings")
            .contains("NCCL_IB_TC differs between ranks: 106 on gpu7:210 and 0 on gpu7:211")
    );
    assert!(is_fine(&report(INFINIBAND), "log-settings"));
    assert!(is_fine(&report(HEALTHY), "log-settings"));
    assert!(is_unknown(&report(&only_warnings()), "log-settings"));
}

#[test]
fn xids() {
    assert!(
        sentence(&report(TIMEOUT), "log-xid")
            .contains("GPU 0000:5d:00 reported Xid 79: the GPU has fallen off the bus")
    );
    assert!(found(&report(CALLS), "log-xid").is_empty());
}

#[test]
fn a_file_without_a_line_of_nccl_is_unknown() {
    let report_of = report("Traceback (most recent call last):\n");
    assert!(report_of.findings.is_empty() && is_unknown(&report_of, "log"));
    assert_eq!(report_of.exit_code(), 3);
}
