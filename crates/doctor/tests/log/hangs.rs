//! Which rank stopped where.

use crate::{
    CALLS, HEALTHY, INFINIBAND, RANK_MISSING, SOCKETS, TIMEOUT, WARNINGS, found, is_fine, is_unknown, report,
    sentence,
};

#[test]
fn a_rank_that_stops_in_the_initialisation() {
    let words = sentence(&report(RANK_MISSING), "log-init");
    assert_eq!(words, "rank 3 of 4 stopped at the rendezvous, and 3 ranks came further");
    let absent: String = RANK_MISSING
        .lines()
        .filter(|line| !line.contains("c1:53:") && !line.contains("Trees") && !line.contains("nNodes"))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(
        sentence(&report(&absent), "log-init"),
        "3 of 4 ranks stopped at the rendezvous, and the log has no line of rank 3"
    );
    for healthy in [HEALTHY, SOCKETS, INFINIBAND] {
        assert!(is_fine(&report(healthy), "log-init"));
    }
    assert!(is_unknown(&report(WARNINGS), "log-init"));
}

#[test]
fn old_versions_name_ranks_late() {
    let end = SOCKETS.find("beta:5200:5230 [0] NCCL INFO Connected all rings").unwrap();
    let words = sentence(&report(&SOCKETS[..end]), "log-init");
    assert_eq!(words, "rank 1 of 2 stopped while connecting to neighbours, and 1 rank came further");
    // Only the rendezvous.
    let begun: String = SOCKETS.lines().take(11).map(|line| format!("{line}\n")).collect();
    assert!(sentence(&report(&begun), "log-init").contains("2 processes chose an interface"));
}

#[test]
fn collectives_that_differ() {
    let words = sentence(&report(CALLS), "log-behind");
    assert!(words.starts_with("collective 11 does not match: rank 1 called AllGather of 4096"), "{words}");
    assert!(words.contains("rank 0 called AllReduce of 262144"), "{words}");
}

#[test]
fn a_rank_that_is_behind() {
    let last = CALLS.lines().filter(|line| {
        !line.contains("opCount b ") && (line.starts_with("0:") || !line.contains("opCount a "))
    });
    let text: String = last.map(|line| format!("{line}\n")).collect();
    let words = sentence(&report(&text), "log-behind");
    assert_eq!(
        words,
        "rank 1 of 2 stopped after collective 9 (AllReduce of 262144 elements), and others called 1 more"
    );
    let even =
        CALLS.replace("AllGather: opCount b", "AllReduce: opCount b").replace("count 4096", "count 262144");
    assert!(is_fine(&report(&even), "log-behind"));
    // Sends and receives differ between ranks by their nature.
    let sends = even
        + "0: hgx01:610:640 [0] NCCL INFO Send: opCount c sendbuff 0x1 recvbuff (nil) count 9 datatype 7 op 0 root 1 comm 0x5560aa000 [nranks=2] stream 0x1\n";
    assert!(is_fine(&report(&sends), "log-behind"));
    assert!(is_unknown(&report(TIMEOUT), "log-behind"));
}

#[test]
fn the_rank_that_others_wait_for() {
    let words = sentence(&report(TIMEOUT), "log-timeout");
    assert_eq!(
        words,
        "3 ranks waited in work 418 (ALLREDUCE) of process group 0(default_pg), and rank 2 reported nothing: they did not call it, or died"
    );
    let late = TIMEOUT.replace("[rank3]", "[rank2]").replace("Rank 3]", "Rank 2]");
    let all = late.clone()
        + &late
            .lines()
            .filter(|line| line.starts_with("[rank2]"))
            .map(|line| line.replace("ank2", "ank3").replace("Rank 2", "Rank 3") + "\n")
            .collect::<String>();
    assert!(sentence(&report(&all), "log-timeout").contains("all 4 ranks waited in work 418"));
    let never = all.replace("last enqueued NCCL work: 420", "last enqueued NCCL work: 417");
    assert_eq!(
        sentence(&report(&never), "log-timeout"),
        "rank 1 never called work 418 of process group 0(default_pg), in which the others wait"
    );
    let other = all.replacen("OpType=ALLREDUCE", "OpType=BROADCAST", 1);
    let words = sentence(&report(&other), "log-timeout");
    assert!(words.contains("does not match: ranks 1, 2 and 3 called ALLREDUCE of 25557032 elements and rank 0 called BROADCAST"), "{words}");
    assert!(found(&report(HEALTHY), "log-timeout").is_empty());
}

#[test]
fn older_lines_of_the_watchdog() {
    let text = "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out.\n\
                [E ProcessGroupNCCL.cpp:737] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=BROADCAST, Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out.\n";
    let words = sentence(&report(text), "log-timeout");
    assert_eq!(
        words,
        "rank 0 waited in work 9 (BROADCAST), and others already in work 12: they are not in the same collective"
    );
}
