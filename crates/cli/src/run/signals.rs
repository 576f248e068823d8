//! Signals that `weft run` gets are for its ranks.
//!
//! A thread of its own passes them on, so that a Ctrl-C arrives even while the main thread waits for whoever reads its
//! output. What is ignored at the start, as by nohup, stays ignored.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals as Watched;

use super::helpers::Attending;
use super::host::ends;
use super::wire::Order;
use crate::limits;

/// What is known of signals so far.
#[derive(Clone, Default)]
pub(super) struct Signals {
    /// The first that asked to end, or 0.
    first: Arc<AtomicI32>,
    /// How often SIGINT (Ctrl-C) and SIGTERM came.
    times: [Arc<AtomicU32>; 2],
    attending: Arc<Mutex<Option<Attending>>>,
}

impl Signals {
    pub(super) fn watch() -> anyhow::Result<Signals> {
        let signals = Signals::default();
        let ignored = ignored();
        let all = [SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2].into_iter();
        let all = all.filter(|signal| ignored & (1 << (signal - 1)) == 0);
        let mut watched = Watched::new(all).context("cannot watch for signals")?;
        let ours = signals.clone();
        limits::listener(move || watched.forever().for_each(|signal| ours.pass_on(signal)))?;
        Ok(signals)
    }

    /// Who gets signals from now on.
    pub(super) fn attend(&self, attending: Option<Attending>) {
        if let Ok(mut place) = self.attending.lock() {
            *place = attending;
        }
    }

    /// The signal that asked the job to end, if one did.
    pub(super) fn ending(&self) -> Option<i32> {
        Some(self.first.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }

    fn pass_on(&self, signal: i32) {
        if ends(signal) {
            let _ = self.first.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
        }
        let counted = [SIGINT, SIGTERM].iter().position(|one| *one == signal);
        let times = counted.map_or(0, |one| self.times[one].fetch_add(1, Ordering::SeqCst) + 1);
        let order = if times < 2 { Order::Signal(signal) } else { Order::Kill };
        if let Some(attending) = self.attending.lock().ok().and_then(|place| place.clone()) {
            attending.tell(&order);
        }
        // Nothing moves any more: the helpers end the ranks when they see this process gone.
        if times > 2 {
            std::process::exit(128 + signal);
        }
    }
}

/// The signals that are ignored, a bit each from 1.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
}
