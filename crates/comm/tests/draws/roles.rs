//! The role of each rank of a draw.

use std::time::Duration;

use crate::draw::{Draw, Kind, Phase};
use crate::proxy::Proxy;
use crate::rank::{Gate, Role};
use crate::{addresses, early, resume, skew};

/// The role of one rank.
pub(crate) fn role(draw: &Draw, rank: usize, address: &str, proxy: Option<&Proxy>) -> Role {
    let is_victim = rank == draw.victim;
    let is_silent = draw.kind == Kind::Cut && draw.way % 3 == 2;
    let stops_early = draw.kind == Kind::Early && !early::kills(draw);
    let has_long_deadline = !(draw.kind == Kind::Stop || stops_early || is_silent);
    let may_fail_to_join = matches!(draw.kind, Kind::Kill | Kind::Stop | Kind::Cut | Kind::Corrupt);
    let join_timeout = match draw.kind {
        Kind::Early => early::JOIN_TIMEOUT,
        // Foreign connections do not delay the rendezvous for long.
        Kind::Flood | Kind::Descriptors => Duration::from_secs(12),
        _ if draw.phase == Phase::Rendezvous && may_fail_to_join => Duration::from_secs(3),
        _ => Duration::from_secs(30),
    };
    let (deadline, warn_after) = match draw.kind {
        Kind::Resume => (resume::DEADLINE, resume::WARN_AFTER),
        Kind::Partition => (Duration::from_secs(8), Duration::from_secs(10)),
        _ if has_long_deadline => (Duration::from_secs(20), Duration::from_secs(10)),
        _ => (Duration::from_millis(2500), Duration::from_millis(500)),
    };
    let holds = match draw.phase {
        _ if matches!(draw.kind, Kind::SingleCopy | Kind::Handler) => vec![Gate::Next],
        _ if draw.kind == Kind::Addresses && rank == addresses::leader(draw) => vec![Gate::Shrink],
        Phase::Rendezvous => vec![Gate::Join],
        Phase::Creating if is_victim => vec![Gate::Create],
        Phase::First if is_victim || draw.way % 2 == 1 => vec![Gate::First],
        Phase::Between => vec![Gate::Next],
        _ => vec![],
    };
    let round = match draw.phase {
        Phase::First => 0,
        Phase::Large => draw.way as usize % 3,
        _ => draw.way as usize / 64 % 30,
    };
    let address = match proxy {
        Some(proxy) if rank > 0 => format!("127.0.0.1:{}", proxy.rendezvous_port),
        _ => address.to_owned(),
    };
    let skewed = draw.kind == Kind::Skew && rank == draw.victim.max(1);
    Role {
        seed: draw.seed,
        rank,
        token: format!("the secret of draw {}", draw.seed),
        announced_port: proxy.map(|proxy| proxy.ports[rank]),
        join_timeout,
        deadline,
        warn_after,
        holds,
        differs: (draw.kind == Kind::Mismatch && is_victim).then_some((round, draw.way % 7)),
        terms: (skewed && draw.way % 3 == 1).then(|| ("WEFT_ENCRYPT".to_owned(), "on".to_owned())),
        wrong_address: (skewed && draw.way % 3 == 2).then(|| skew::listen(draw, &address)),
        descriptors_max: (draw.kind == Kind::Descriptors).then_some(128),
        is_foreign: false,
        address,
    }
}
