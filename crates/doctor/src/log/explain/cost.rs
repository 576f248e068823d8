//! What a finding costs: a call on the fabric with the library's usual ways, and without one of them.

use weftlink_plan::Kind;
use weftlink_sim::library::parse_library;
use weftlink_sim::predict::{Options, predict};

use super::Context;
use crate::finding::Cost;

/// Bytes of the call whose bandwidth is compared.
const BYTES: u64 = 1 << 30;
/// Larger fabrics take too long.
const GPUS_MAX: usize = 1024;

impl Context<'_> {
    /// The bus bandwidth of an all-reduce with and without a change; None without a fabric, or if the difference is below 1 %.
    pub(super) fn cost(&self, change: impl FnOnce(&mut Options)) -> Option<Cost> {
        let fabric = self.fabric.filter(|fabric| fabric.gpus().len() <= GPUS_MAX)?;
        let known = self.log.versions.first().and_then(|version| {
            let number = super::versions::number(&version.text);
            parse_library(&format!("{}:{number}", version.library.to_ascii_lowercase())).ok()
        });
        let usual = Options { library: known, ..Options::default() };
        let mut now = usual.clone();
        change(&mut now);
        let gb_per_s = |options: &Options| {
            Some(predict(Kind::AllReduce, fabric, &[BYTES], options).ok()?.rows.first()?.busbw_gb_per_s)
        };
        let (now_gb_per_s, usual_gb_per_s) = (gb_per_s(&now)?, gb_per_s(&usual)?);
        if now_gb_per_s > usual_gb_per_s * 0.99 {
            return None;
        }
        let sentence = format!(
            "all-reduce of 1 GiB on {}: {now_gb_per_s:.1} instead of {usual_gb_per_s:.1} GB/s (bus bandwidth, predicted)",
            fabric.name()
        );
        Some(Cost { sentence, now_gb_per_s, usual_gb_per_s })
    }
}
