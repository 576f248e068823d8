//! What a call spends most of its time on.

use weftlink_fabric::Fabric;

use super::Row;

/// A link that is used so much of the time is what limits a call; below that, latency does.
const LIMITS: f64 = 0.5;
/// The same where most of the time goes into moving data, while pipelines fill and run empty.
const LIMITS_MOVING: f64 = 0.35;

impl Row {
    /// What a call spends most of its time on.
    pub fn limited_by(&self, fabric: &Fabric) -> String {
        let estimate = &self.execution.chosen.estimate;
        let busiest = self.execution.outcome.as_ref().and_then(|outcome| outcome.busiest());
        let latency = [
            (estimate.launch_us, "starting the kernels"),
            (estimate.hops_us, "latency of its steps"),
            (estimate.host_us, "the host that starts the kernels"),
        ];
        let waits_us: f64 = latency.iter().map(|(us, _)| us).sum();
        let is_moving = estimate.wire_us > waits_us;
        let limits = if is_moving { LIMITS_MOVING } else { LIMITS };
        match busiest {
            Some((resource, part)) if part >= limits => {
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
                    true => "what its lanes carry",
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
