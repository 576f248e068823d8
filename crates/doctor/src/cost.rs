//! What a fault costs: the same call on the fabric as it is and as it should be.

use weftlink_fabric::Fabric;
use weftlink_plan::Kind;
use weftlink_sim::predict::{Options, predict};

use crate::finding::Cost;

/// Bytes of the call whose bandwidth is compared.
const BYTES: u64 = 1 << 30;

/// The bus bandwidth of an all-reduce of 1 GiB on both fabrics; None if neither can be predicted or they differ by less than 1 %.
pub fn of_all_reduce(now: &Fabric, usual: &Fabric) -> Option<Cost> {
    let gb_per_s = |fabric: &Fabric| -> Option<f64> {
        let predicted = predict(Kind::AllReduce, fabric, &[BYTES], &Options::default()).ok()?;
        let ranks = fabric.gpus().len() as f64;
        let time_us = predicted.rows[0].time_us();
        Some(BYTES as f64 / time_us / 1e3 * 2.0 * (ranks - 1.0) / ranks)
    };
    let (now_gb_per_s, usual_gb_per_s) = (gb_per_s(now)?, gb_per_s(usual)?);
    if now_gb_per_s > usual_gb_per_s * 0.99 {
        return None;
    }
    let sentence = format!(
        "all-reduce of 1 GiB: {now_gb_per_s:.1} instead of {usual_gb_per_s:.1} GB/s (bus bandwidth, predicted)"
    );
    Some(Cost { sentence, now_gb_per_s, usual_gb_per_s })
}
