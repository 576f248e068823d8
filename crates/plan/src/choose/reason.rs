//! Why one candidate is slower than another, in a sentence: the term of the formula that differs most.

use weftlink_fabric::rate::{Domain, OneWay, Rate};

use crate::cost::constants::payload;
use crate::cost::{Entrant, Limit, Medium, Picoseconds, Prediction};
use crate::plan::Protocol;

type Ran<'a> = (&'a Entrant, &'a Prediction);

/// What cost the loser most, against the winner.
pub(super) fn reason(loser: Ran<'_>, winner: Ran<'_>) -> String {
    let lost = |term: fn(&Prediction) -> Picoseconds| term(loser.1).beyond(term(winner.1));
    let terms = [
        lost(|cost| cost.transfer),
        lost(|cost| cost.across),
        lost(|cost| cost.inside),
        lost(|cost| cost.messages),
        lost(|cost| cost.launch),
    ];
    let largest = terms.iter().copied().max().unwrap_or_default();
    let name = named(winner.0);
    if largest == Picoseconds(0) {
        return format!("as fast; {name} is listed first");
    }
    match terms.iter().position(|term| *term == largest) {
        Some(0) => transfer(loser, winner),
        Some(1) => hops(
            (loser.1.work.hops_across, winner.1.work.hops_across),
            (loser.0.hop_across, winner.0.hop_across),
            across(loser.0),
            &name,
        ),
        Some(2) => hops(
            (loser.1.work.hops_inside, winner.1.work.hops_inside),
            (loser.0.hop_inside, winner.0.hop_inside),
            "inside the island",
            &name,
        ),
        Some(3) => {
            let (messages, each) = (loser.0.messages_across, loser.0.message_across);
            format!("hands {messages} messages to the network, {each} each")
        }
        _ => format!("takes {} to start, {name} {}", loser.1.launch, winner.1.launch),
    }
}

/// More of them, or slower ones.
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
    format!("a hop {place} takes {each}, with {name} {other}")
}

fn transfer(loser: Ran<'_>, winner: Ran<'_>) -> String {
    let place = match loser.1.limit {
        Limit::Inside => "inside the island",
        Limit::Across => across(loser.0),
        Limit::Turns if loser.1.work.island_bytes > 0 => {
            return format!("steps inside islands and across take turns, {} for the bytes", loser.1.transfer);
        }
        Limit::Turns => return format!("partners take turns, {} for the bytes", loser.1.transfer),
        Limit::Cut if loser.0.bound_bytes_per_second < winner.0.bound_bytes_per_second => {
            return format!("its ranks add up themselves, switches do it for {}", named(winner.0));
        }
        Limit::Cut => return format!("its bytes take {} through the narrowest cut", loser.1.transfer),
    };
    let own = Limited::of(loser, loser.1.limit);
    let other = Limited::of(winner, loser.1.limit);
    // Where the winner moves nothing here, all of it is too much.
    let Some(other) = other.filter(|other| other.bytes > 0) else {
        let bytes = own.as_ref().map_or(0, |own| own.bytes);
        return format!("moves {} {place}, {} nothing", amount(bytes), named(winner.0));
    };
    let Some(own) = own else { return format!("its bytes wait {place}") };
    let by_bytes = ratio(own.bytes, other.bytes);
    let by_rate = ratio(other.rate, own.rate);
    let by_protocol = ratio(own.payload.1 * other.payload.0, own.payload.0 * other.payload.1);
    if by_protocol >= by_bytes && by_protocol >= by_rate && by_protocol > 100 {
        return match loser.0.protocol {
            Some(Protocol::Ll) => own.by_words(),
            _ => "protocol LL128 spends 8 of 128 bytes on flags".to_owned(),
        };
    }
    if by_bytes >= by_rate && by_bytes > 100 {
        let verb = if loser.1.limit == Limit::Across { "crosses" } else { "moves" };
        let tenths = rounded(own.bytes, other.bytes, 10);
        let factor = format!("{}.{}x", tenths / 10, tenths % 10);
        return match (loser.1.limit, by_bytes) {
            (_, ..110) => format!(
                "{verb} more bytes {place}: {}, {} {}",
                amount(own.bytes),
                named(winner.0),
                amount(other.bytes)
            ),
            (Limit::Across, _) => format!("moves {factor} the bytes {place}"),
            _ => format!("{verb} {factor} the bytes {place}"),
        };
    }
    if by_rate > 100 && own.links > own.rate {
        return own.by_words();
    }
    if by_rate > 100 {
        return format!("gets {} {place}, {} {}", rate(own.rate), named(winner.0), rate(other.rate));
    }
    format!("its bytes take {} {place}", loser.1.transfer)
}

/// What one side of the wiring means to a candidate.
struct Limited {
    bytes: u64,
    rate: u64,
    /// What the links would carry of another protocol.
    links: u64,
    payload: (u64, u64),
}

impl Limited {
    fn of((entrant, cost): Ran<'_>, limit: Limit) -> Option<Self> {
        let (inside, across) = entrant.links_bytes_per_second;
        let (bytes, rate, links) = match limit {
            Limit::Inside => (cost.work.rank_bytes, entrant.inside_bytes_per_second?, inside?),
            Limit::Across => (cost.work.island_bytes, entrant.across_bytes_per_second?, across?),
            Limit::Turns | Limit::Cut => return None,
        };
        Some(Self { bytes, rate, links, payload: entrant.protocol.map_or((1, 1), payload) })
    }

    /// What is left of the links where half of what passes is flags, and small words take their time.
    fn by_words(&self) -> String {
        let (part, whole) = self.payload;
        format!("protocol LL gets {} of {}", rate(self.rate / whole * part), rate(self.links))
    }
}

/// In hundredths.
fn ratio(more: u64, less: u64) -> u64 {
    rounded(more, less, 100)
}

/// How many times as much, in such parts, to the nearest.
fn rounded(more: u64, less: u64, parts: u64) -> u64 {
    let less = u128::from(less.max(1));
    u64::try_from((u128::from(more) * u128::from(parts) + less / 2) / less).unwrap_or(u64::MAX)
}

fn across(entrant: &Entrant) -> &'static str {
    match entrant.between {
        Medium::Network => "across the network",
        Medium::GpuLinks | Medium::Pcie => "between islands",
    }
}

fn named(entrant: &Entrant) -> String {
    match entrant.protocol {
        Some(protocol) => format!("{} with {protocol}", entrant.algorithm),
        None => entrant.algorithm.to_string(),
    }
}

fn amount(bytes: u64) -> String {
    weftlink_fabric::bytes::Bytes(bytes).to_string()
}

fn rate(bytes_per_second: u64) -> String {
    Rate::<Domain, OneWay>::from_bytes(bytes_per_second).amount().to_string()
}
