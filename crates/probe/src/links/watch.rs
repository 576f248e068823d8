//! Reads the links again and again, for live rates.
//!
//! On Hopper and later, NVML itself computes the rates of NVLinks and PCIe from two samples of the GPU's counters (GPM). They fill
//! [`Link::measured`](super::Link::measured), and need no command.

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml as Library;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};

use super::{Kind, LinkRates, Links, rates, this_machine};
use crate::ProbeError;

/// Reads the links of the local machine each `interval` and passes them with their rates, until `each` breaks or reading fails.
pub fn watch(
    interval: Duration,
    mut each: impl FnMut(&Links, &[LinkRates]) -> ControlFlow<()>,
) -> Result<(), ProbeError> {
    let library = crate::nvml::library().ok();
    let mut samples = library.as_ref().map(sample).unwrap_or_default();
    let (mut before, mut at) = (this_machine()?, Instant::now());
    loop {
        thread::sleep(interval.saturating_sub(at.elapsed()));
        let mut links = this_machine()?;
        let seconds = at.elapsed().as_secs_f64();
        at = Instant::now();
        if let Some(library) = &library {
            let now = sample(library);
            measure(library, &samples, &now, &mut links);
            samples = now;
        }
        let rates = rates(&before, &links, seconds);
        if each(&links, &rates).is_break() {
            return Ok(());
        }
        before = links;
    }
}

/// A sample of each GPU that has GPM, with the GPU's address.
fn sample(library: &Library) -> Vec<(String, GpmSample<'_>)> {
    let count = library.device_count().unwrap_or(0);
    let devices = (0..count).filter_map(|number| library.device_by_index(number).ok());
    devices
        .filter(|device| device.gpm_support().unwrap_or(false))
        .filter_map(|device| {
            let bus = device.pci_info().ok()?.bus_id.to_ascii_lowercase();
            Some((bus, device.gpm_sample().ok()?))
        })
        .collect()
}

/// `NVML_GPM_METRIC_NVLINK_L0_RX_PER_SEC`; the others follow, received before sent.
const METRIC_LINK_0: u32 = 62;
/// Links for which GPM has metrics.
const METRIC_LINKS: u32 = 18;

/// The rates of an NVLink, sent before received.
fn nvlink_metrics(number: u32) -> Option<[GpmMetricId; 2]> {
    let received = METRIC_LINK_0 + 2 * Some(number).filter(|number| *number < METRIC_LINKS)?;
    Some([GpmMetricId::try_from(received + 1).ok()?, GpmMetricId::try_from(received).ok()?])
}

/// Bytes in a MiB, in which GPM reports rates.
const MIB: f64 = 1_048_576.0;

fn measure(
    library: &Library,
    before: &[(String, GpmSample<'_>)],
    now: &[(String, GpmSample<'_>)],
    links: &mut Links,
) {
    for (bus, sample) in now {
        let Some((_, earlier)) = before.iter().find(|(other, _)| other == bus) else {
            continue;
        };
        let read = |metrics: &[GpmMetricId]| -> Vec<Option<u64>> {
            let results = gpm_metrics_get(library, earlier, sample, metrics).unwrap_or_default();
            let value = |value: f64| (value.is_finite() && value >= 0.0).then_some((value * MIB) as u64);
            results.into_iter().map(|result| result.ok().and_then(|result| value(result.value))).collect()
        };
        for link in &mut links.links {
            let is_here = link.bus.as_deref().is_some_and(|own| bus.ends_with(own));
            let metrics = match link.id.kind {
                Kind::NvLink => link.id.number.and_then(nvlink_metrics),
                Kind::Pcie => Some([GpmMetricId::PcieTxPerSec, GpmMetricId::PcieRxPerSec]),
                _ => None,
            };
            if let (true, Some(metrics)) = (is_here, metrics)
                && let [Some(sent), Some(received)] = read(&metrics)[..]
            {
                link.measured = Some((sent, received));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_follow_the_number_of_the_link() {
        assert_eq!(nvlink_metrics(0), Some([GpmMetricId::NvlinkL0TxPerSec, GpmMetricId::NvlinkL0RxPerSec]));
        assert_eq!(
            nvlink_metrics(17),
            Some([GpmMetricId::NvlinkL17TxPerSec, GpmMetricId::NvlinkL17RxPerSec])
        );
        assert_eq!(nvlink_metrics(18), None);
    }
}
