//! Live rates: what two readings of the same links say about the time between them.
//!
//! A counter that went backwards either wrapped around or was reset, by a driver that was loaded again or by a tool. It wrapped if the
//! link could have carried the bytes that this would mean; otherwise it was reset, and the rate is unknown for this interval. A 32-bit
//! counter that can wrap more than once in the interval gives a lower bound only, and is marked.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Counter, Link, LinkId, Links};

/// The rates of one link between two readings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkRates {
    /// The link.
    pub id: LinkId,
    /// What happened to the link.
    pub change: Change,
    /// Bytes per second each way that the link should have, or for which it is trained.
    pub nominal: Option<u64>,
    /// What it sent.
    pub sent: Option<Flow>,
    /// What it received.
    pub received: Option<Flow>,
    /// The error counters that rose, and by how much.
    pub new_errors: Vec<(String, u64)>,
}

/// What happened to a link between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Nothing.
    None,
    /// It was not there before.
    Appeared,
    /// It is no longer there, as after a GPU fell off the bus.
    Vanished,
    /// It came up.
    CameUp,
    /// It went down.
    WentDown,
    /// Its counters were reset.
    Reset,
    /// It is trained for another speed or width.
    Retrained,
}

/// A rate, and what it is based on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Flow {
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// The share of the nominal rate, if that is known.
    pub share: Option<f64>,
    /// What it is based on.
    pub basis: Basis,
}

/// What a rate is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// The difference of two counts.
    Counted,
    /// At least this much: the counter may have wrapped several times, or stopped at its limit.
    AtLeast,
    /// The driver's own measurement, over a shorter interval.
    Driver,
}

/// More bytes per second than any link carries, for links of unknown rate.
const RATE_MAX: f64 = 2e12;
/// Counters and clocks are read one after the other, so that a rate may exceed that of the link a little.
const TOLERANCE: f64 = 1.2;

/// Compares two readings that are `seconds` apart. Links are in the order of `after`; those that vanished follow.
pub fn rates(before: &Links, after: &Links, seconds: f64) -> Vec<LinkRates> {
    let earlier: BTreeMap<&LinkId, &Link> = before.links.iter().map(|link| (&link.id, link)).collect();
    let mut rates: Vec<LinkRates> =
        after.links.iter().map(|link| compare(earlier.get(&link.id).copied(), link, seconds)).collect();
    let later: BTreeMap<&LinkId, &Link> = after.links.iter().map(|link| (&link.id, link)).collect();
    for link in before.links.iter().filter(|link| !later.contains_key(&link.id)) {
        rates.push(LinkRates {
            id: link.id.clone(),
            change: Change::Vanished,
            nominal: nominal(link),
            sent: None,
            received: None,
            new_errors: Vec::new(),
        });
    }
    rates
}

/// The lower one of the two rates: an NVLink is trained for its line rate, which includes what coding takes.
fn nominal(link: &Link) -> Option<u64> {
    let lower = match (link.trained, link.nominal) {
        (Some(trained), Some(nominal)) => Some(trained.min(nominal)),
        (trained, nominal) => trained.or(nominal),
    };
    lower.filter(|rate| *rate > 0)
}

fn compare(before: Option<&Link>, link: &Link, seconds: f64) -> LinkRates {
    let nominal = nominal(link);
    let mut is_reset = false;
    let mut flow = |counter: fn(&Link) -> Option<Counter>, driver: Option<u64>| {
        let counts = before.and_then(counter).zip(counter(link));
        let of_counts = counts.map(|(before, after)| counted(before, after, nominal, seconds));
        is_reset |= matches!(of_counts, Some(Difference::Reset));
        let (bytes_per_second, basis) = match (of_counts, driver) {
            (Some(Difference::Known(rate, basis)), _) => (rate, basis),
            (_, Some(rate)) => (rate as f64, Basis::Driver),
            _ => return None,
        };
        let share = nominal.map(|nominal| bytes_per_second / nominal as f64);
        Some(Flow { bytes_per_second, share, basis })
    };
    let sent = flow(|link| link.sent, link.measured.map(|(sent, _)| sent));
    let received = flow(|link| link.received, link.measured.map(|(_, received)| received));
    let mut new_errors = Vec::new();
    for error in before.iter().flat_map(|_| &link.errors) {
        let old = before.and_then(|before| before.error(&error.name)).unwrap_or(0);
        match error.count.checked_sub(old) {
            Some(0) => {}
            Some(more) => new_errors.push((error.name.clone(), more)),
            None => is_reset = true,
        }
    }
    LinkRates {
        id: link.id.clone(),
        change: change(before, link, is_reset),
        nominal,
        sent,
        received,
        new_errors,
    }
}

fn change(before: Option<&Link>, link: &Link, is_reset: bool) -> Change {
    use super::State::{Down, Up};

    let Some(before) = before else {
        return Change::Appeared;
    };
    let lanes = |link: &Link| (link.generation, link.width, link.trained);
    match (before.state, link.state) {
        (Up, Down) => Change::WentDown,
        (Down, Up) => Change::CameUp,
        _ if is_reset => Change::Reset,
        _ if lanes(before) != lanes(link) => Change::Retrained,
        _ => Change::None,
    }
}

/// The difference of two counts.
enum Difference {
    Known(f64, Basis),
    Reset,
    Unknown,
}

fn counted(before: Counter, after: Counter, nominal: Option<u64>, seconds: f64) -> Difference {
    if !(seconds.is_finite() && seconds > 0.0) || before.unit_bytes != after.unit_bytes {
        return Difference::Unknown;
    }
    // A counter that shows more than 32 bits is one of 64, although it looked narrower before.
    let bits = before.bits.max(after.bits);
    let (before, after) = (Counter { bits, ..before }, Counter { bits, ..after });
    let rate_max = nominal.map_or(RATE_MAX, |nominal| nominal as f64 * TOLERANCE);
    let rate = |counts: u64| counts as f64 * after.unit_bytes as f64 / seconds;
    if !rate(u64::MAX).is_finite() {
        return Difference::Unknown;
    }
    if after.is_at_limit() {
        return match before.is_at_limit() {
            true => Difference::Unknown,
            false => Difference::Known(rate(after.wrapped_since(before)), Basis::AtLeast),
        };
    }
    let range = 2_f64.powi(bits as i32) * after.unit_bytes as f64;
    let rate = rate(after.wrapped_since(before));
    let is_backwards = after.count < before.count;
    if is_backwards && rate > rate_max {
        return Difference::Reset;
    }
    // Without a nominal rate, nothing says how often a narrow counter wraps.
    let may_wrap_again = nominal.is_some() && rate + range / seconds <= rate_max;
    Difference::Known(rate, if may_wrap_again { Basis::AtLeast } else { Basis::Counted })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Kind, State};
    use super::*;

    fn link(sent: Counter) -> Link {
        let mut link = Link::new(Kind::InfiniBand, "mlx5_0", Some(1));
        link.state = State::Up;
        link.nominal = Some(50_000_000_000);
        link.sent = Some(sent);
        link
    }

    fn of(links: Vec<Link>) -> Links {
        Links { links, ..Links::default() }
    }

    fn one(before: Link, after: Link, seconds: f64) -> LinkRates {
        rates(&of(vec![before]), &of(vec![after]), seconds).remove(0)
    }

    #[test]
    fn counts_become_rates_and_shares() {
        let rates = one(link(Counter::of(1000, 1024)), link(Counter::of(1000 + 24_414_063, 1024)), 2.0);
        let sent = rates.sent.unwrap();
        assert!((sent.bytes_per_second / 12.5e9 - 1.0).abs() < 1e-6, "{sent:?}");
        assert!((sent.share.unwrap() - 0.25).abs() < 1e-6);
        assert_eq!((sent.basis, rates.change, rates.received), (Basis::Counted, Change::None, None));
    }

    #[test]
    fn narrow_counters_wrap() {
        let limit = u64::from(u32::MAX);
        let words = |count| link(Counter::of_32_bits(count, 4));
        // 16 GiB take longer than 0.25 s at 50 GB/s.
        let once = one(words(limit - 999), words(1000), 0.25).sent.unwrap();
        assert_eq!((once.bytes_per_second, once.basis), (32_000.0, Basis::Counted));
        let several = one(words(limit - 999), words(1000), 10.0).sent.unwrap();
        assert_eq!(several.basis, Basis::AtLeast);
        let stopped = one(words(limit - 1000), words(limit), 1.0);
        assert_eq!(stopped.sent.unwrap().basis, Basis::AtLeast);
        assert_eq!(one(words(limit), words(limit), 1.0).sent, None);
    }

    #[test]
    fn wide_counters_wrap_only_where_the_link_could_have_carried_it() {
        let wrapped = one(link(Counter::of(u64::MAX - 9, 1)), link(Counter::of(10, 1)), 1.0);
        assert_eq!(wrapped.sent.unwrap().bytes_per_second, 20.0);
        let reset = one(link(Counter::of(1 << 50, 1)), link(Counter::of(10, 1)), 1.0);
        assert_eq!((reset.sent, reset.change), (None, Change::Reset));
        // A counter that grows past 32 bits was never narrow.
        let grown =
            one(link(Counter::of_32_bits(4_000_000_000, 4)), link(Counter::of(5_000_000_000, 4)), 1.0);
        assert_eq!(grown.sent.unwrap().bytes_per_second, 4e9);
    }

    #[test]
    fn links_vanish_and_appear() {
        let gone = rates(&of(vec![link(Counter::of(1, 1))]), &of(vec![]), 1.0);
        assert_eq!((gone[0].change, gone[0].sent), (Change::Vanished, None));
        let new = rates(&of(vec![]), &of(vec![link(Counter::of(1, 1))]), 1.0);
        assert_eq!((new[0].change, new[0].sent, new[0].new_errors.len()), (Change::Appeared, None, 0));
    }

    #[test]
    fn states_widths_and_errors_are_compared() {
        let with = |state, width, errors| {
            let mut link = link(Counter::of(0, 1));
            (link.state, link.width) = (state, Some(width));
            link.set_error("symbol_error", errors);
            link
        };
        let up = with(State::Up, 16, 3);
        assert_eq!(one(up.clone(), with(State::Down, 16, 3), 1.0).change, Change::WentDown);
        assert_eq!(one(with(State::Down, 16, 3), up.clone(), 1.0).change, Change::CameUp);
        assert_eq!(one(up.clone(), with(State::Up, 4, 3), 1.0).change, Change::Retrained);
        assert_eq!(one(up.clone(), with(State::Up, 16, 0), 1.0).change, Change::Reset);
        let rates = one(up, with(State::Up, 16, 5), 1.0);
        assert_eq!(rates.new_errors, [("symbol_error".to_owned(), 2)]);
    }

    #[test]
    fn the_driver_s_measurement_is_the_last_resort() {
        let mut measured = link(Counter::of(5, 1));
        measured.measured = Some((7, 9));
        let rates = one(link(Counter::of(0, 1)), measured, 1.0);
        assert_eq!(
            (rates.sent.unwrap().basis, rates.received.unwrap().basis),
            (Basis::Counted, Basis::Driver)
        );
    }

    proptest! {
        #[test]
        fn rates_are_never_negative_or_infinite(
            before in any::<u64>(), after in any::<u64>(), unit in prop::sample::select(vec![1_u64, 4, 1024, u64::MAX]),
            bits in prop::sample::select(vec![32_u32, 64]), seconds in any::<f64>(), nominal in any::<Option<u64>>(),
        ) {
            let with = |count| {
                let mut link = link(Counter { count, unit_bytes: unit, bits });
                link.nominal = nominal;
                link
            };
            let rates = one(with(before), with(after), seconds);
            if let Some(flow) = rates.sent {
                prop_assert!(flow.bytes_per_second >= 0.0 && flow.bytes_per_second.is_finite(), "{flow:?}");
            }
        }
    }
}
