//! The limiting factor of a call.

use weftlink_fabric::Fabric;

use super::Row;

/// Utilisation from which a link limits the call; below it, latency does.
const LIMITING: f64 = 0.5;
/// The same where most of the time goes into moving data: filling and draining the pipeline lowers the utilisation.
const LIMITING_MOVING: f64 = 0.35;

impl Row {
    /// The limiting factor of the call, in words.
    pub fn limited_by(&self, fabric: &Fabric) -> String {
        let estimate = &self.execution.chosen.estimate;
        let busiest = self.execution.outcome.as_ref().and_then(|outcome| outcome.busiest());
        let latency = [
            (estimate.launch_us, "kernel launch"),
            (estimate.hops_us, "latency of its steps"),
            (estimate.host_us, "kernel launch by the host"),
        ];
        let waits_us: f64 = latency.iter().map(|(us, _)| us).sum();
        let is_moving = estimate.wire_us > waits_us;
        let limiting = if is_moving { LIMITING_MOVING } else { LIMITING };
        match busiest {
            Some((resource, part)) if part >= limiting => {
                let (from, to) = resource.link;
                format!(
                    "{} {} to {}, {:.0}% busy",
                    resource.kind,
                    fabric.device_name(from),
                    fabric.device_name(to),
                    part * 1e2
                )
            }
            busiest => {
                let most = match is_moving {
                    true => "bandwidth of its lanes",
                    false => {
                        latency.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or("", |(_, what)| what)
                    }
                };
                let used = busiest.map_or_else(String::new, |(resource, part)| {
                    format!("; {} {:.0}% busy", resource.kind, part * 1e2)
                });
                format!("{most}{used}")
            }
        }
    }
}
