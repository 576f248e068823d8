//! Why one candidate is slower than another: the term of the cost model that differs most, as text.

use weftlink_fabric::rate::{Domain, OneWay, Rate};

use crate::cost::{Candidate, Limit, Medium, Picoseconds, Prediction};
use crate::plan::Protocol;

type Predicted<'a> = (&'a Candidate, &'a Prediction);

/// The reason why the loser is slower than the winner.
pub(super) fn reason(loser: Predicted<'_>, winner: Predicted<'_>) -> String {
    let lost = |term: fn(&Prediction) -> Picoseconds| term(loser.1).beyond(term(winner.1));
    let terms = [
        lost(|cost| cost.transfer),
        lost(|cost| cost.across.beyond(cost.hidden)),
        lost(|cost| cost.inside),
        lost(|cost| cost.messages),
        lost(|cost| cost.launch),
        lost(|cost| cost.fill),
    ];
    let largest = terms.iter().copied().max().unwrap_or_default();
    let name = named(winner.0);
    if largest == Picoseconds(0) {
        return format!("as fast as {name}, which is listed first");
    }
    match terms.iter().position(|term| *term == largest) {
        Some(0) => transfer(loser, winner),
        Some(1) => hops(
            (loser.1.work.hops_across, winner.1.work.hops_across),
            (
                each(loser.1.across, loser.1.work.hops_across),
                each(winner.1.across, winner.1.work.hops_across),
            ),
            across(loser.0),
            &name,
        ),
        Some(2) => hops(
            (loser.1.work.hops_inside, winner.1.work.hops_inside),
            (
                each(loser.1.inside, loser.1.work.hops_inside),
                each(winner.1.inside, winner.1.work.hops_inside),
            ),
            "inside the island",
            &name,
        ),
        Some(3) => {
            let (messages, each) = (loser.0.messages_across, loser.0.message_across);
            format!("sends {messages} messages into the network one by one, {each} each")
        }
        Some(4) => format!("takes {} to start; {name} takes {}", loser.1.launch, winner.1.launch),
        _ => format!("takes {} to fill its pipeline; {name} takes {}", loser.1.fill, winner.1.fill),
    }
}

/// The time of one hop.
fn each(all: Picoseconds, hops: u64) -> Picoseconds {
    Picoseconds(all.0 / hops.max(1))
}

/// More hops, or slower ones.
fn hops(
    (more, fewer): (u64, u64),
    (each, other): (Picoseconds, Picoseconds),
    place: &str,
    name: &str,
) -> String {
    let by_count = each.times(more.saturating_sub(fewer));
    let by_time = each.beyond(other).times(fewer);
    if by_count >= by_time {
        let count = more - fewer;
        let hops = if count == 1 { "hop" } else { "hops" };
        let each_time = if count == 1 { "" } else { " each" };
        return format!("{count} more {hops} {place} at {each}{each_time}");
    }
    format!("a hop {place} takes {each}; with {name} {other}")
}

fn transfer(loser: Predicted<'_>, winner: Predicted<'_>) -> String {
    let place = match loser.1.limit {
        Limit::Inside => "inside the island",
        Limit::Across => across(loser.0),
        Limit::Serial if loser.1.work.island_bytes > 0 => {
            return format!("steps inside and across islands alternate: the bytes take {}", loser.1.transfer);
        }
        Limit::Serial => {
            return format!("serves one peer after the other: the bytes take {}", loser.1.transfer);
        }
        Limit::Cut if loser.0.bound_bytes_per_second < winner.0.bound_bytes_per_second => {
            return format!("its ranks do the sums that switches do for {}", named(winner.0));
        }
        Limit::Cut => return format!("the bytes take {} through the narrowest cut", loser.1.transfer),
    };
    let own = Limited::of(loser, loser.1.limit);
    let other = Limited::of(winner, loser.1.limit);
    // The winner moves nothing over these links.
    let Some(other) = other.filter(|other| other.bytes > 0) else {
        let bytes = own.as_ref().map_or(0, |own| own.bytes);
        return format!("moves {} {place}; {} moves nothing", amount(bytes), named(winner.0));
    };
    let Some(own) = own else { return format!("the bytes wait {place}") };
    let by_bytes = ratio(own.bytes, other.bytes);
    let by_rate = ratio(other.rate, own.rate);
    let by_links = ratio(other.links, own.links);
    if let Some(protocol) =
        loser.0.protocol.filter(|_| by_rate >= by_bytes && by_rate > by_links && own.links > own.rate)
    {
        return own.by_protocol(protocol);
    }
    if by_bytes >= by_rate && by_bytes > 100 {
        let tenths = rounded(own.bytes, other.bytes, 10);
        let factor = format!("{}.{}x", tenths / 10, tenths % 10);
        return match by_bytes {
            ..110 => format!(
                "moves more bytes {place}: {}; {} moves {}",
                amount(own.bytes),
                named(winner.0),
                amount(other.bytes)
            ),
            _ => format!("moves {factor} the bytes {place}"),
        };
    }
    if by_rate > 100 {
        return format!("gets {} {place}; {} gets {}", rate(own.rate), named(winner.0), rate(other.rate));
    }
    format!("the bytes take {} {place}", loser.1.transfer)
}

/// A candidate's bytes and rate inside or across islands.
struct Limited {
    bytes: u64,
    rate: u64,
    /// The rate of the links, flags included.
    links: u64,
}

impl Limited {
    fn of((candidate, cost): Predicted<'_>, limit: Limit) -> Option<Self> {
        let (inside, across) = candidate.links_bytes_per_second;
        let (bytes, rate, links) = match limit {
            Limit::Inside => (cost.work.rank_bytes, candidate.inside_bytes_per_second?, inside?),
            Limit::Across => (cost.work.island_bytes, candidate.across_bytes_per_second?, across?),
            Limit::Serial | Limit::Cut => return None,
        };
        Some(Self { bytes, rate, links })
    }

    /// The protocol's flags and lanes limit the rate.
    fn by_protocol(&self, protocol: Protocol) -> String {
        format!("protocol {protocol} gets {} of {}", rate(self.rate), rate(self.links))
    }
}

/// A ratio in hundredths.
fn ratio(more: u64, less: u64) -> u64 {
    rounded(more, less, 100)
}

/// A ratio in fractions of `1 / parts`, rounded to the nearest.
fn rounded(more: u64, less: u64, parts: u64) -> u64 {
    let less = u128::from(less.max(1));
    u64::try_from((u128::from(more) * u128::from(parts) + less / 2) / less).unwrap_or(u64::MAX)
}

fn across(candidate: &Candidate) -> &'static str {
    match candidate.between {
        Medium::Network => "across the network",
        Medium::GpuLinks | Medium::Pcie => "between islands",
    }
}

fn named(candidate: &Candidate) -> String {
    match candidate.protocol {
        Some(protocol) => format!("{} with {protocol}", candidate.algorithm),
        None => candidate.algorithm.to_string(),
    }
}

fn amount(bytes: u64) -> String {
    weftlink_fabric::bytes::Bytes(bytes).to_string()
}

fn rate(bytes_per_second: u64) -> String {
    Rate::<Domain, OneWay>::from_bytes(bytes_per_second).amount().to_string()
}
