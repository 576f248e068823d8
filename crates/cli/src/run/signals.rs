//! Forwarding of signals to the ranks.
//!
//! A separate thread forwards them, so that Ctrl-C works even while the main thread is blocked on its output. Signals that are
//! ignored at the start, as under nohup, stay ignored.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals as Watched;

use super::helpers::Attending;
use super::host::ends;
use super::wire::Order;
use crate::limits;

/// The signals received so far.
#[derive(Clone, Default)]
pub(super) struct Signals {
    /// The first that asked the job to stop, or 0.
    first: Arc<AtomicI32>,
    /// The number of SIGINT (Ctrl-C) and SIGTERM.
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

    /// Forwards signals to these helpers from now on.
    pub(super) fn attend(&self, attending: Option<Attending>) {
        if let Ok(mut place) = self.attending.lock() {
            *place = attending;
        }
    }

    /// The signal that asked the job to stop, if any.
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
        // Exit at once: the helpers kill the ranks when this process is gone.
        if times > 2 {
            std::process::exit(128 + signal);
        }
    }
}

/// The ignored signals, one bit each, from 1.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
}
