//! The fields of `nvidia-smi -q` that are read, with their names and values below `nvml/`.

/// How a value is written there, and how it becomes the value of the same name that NVML's values have below `nvml/`.
#[derive(Clone, Copy)]
pub(super) enum Value {
    /// As it is.
    Text,
    /// In lower case: `completed`.
    Lower,
    /// `Enabled` becomes `on`, `Disabled` becomes `off`.
    Switch,
    /// `Yes` becomes 1, `No` becomes 0.
    Truth,
    /// A number with this unit behind it, which is removed.
    Number(&'static str),
    /// A number with this unit behind it, in units so many times smaller.
    Scaled(&'static str, f64),
}

use Value::{Lower, Number, Scaled, Switch, Text, Truth};

const MIB: f64 = 1_048_576.0;

/// A name here, the sections and the name there, and the value. Where drivers changed a name, each has a row.
pub(super) const FIELDS: &[(&str, &str, Value)] = &[
    ("product_name", "Product Name", Text),
    ("architecture", "Product Architecture", Text),
    ("vbios", "VBIOS Version", Text),
    ("persistence_mode", "Persistence Mode", Switch),
    ("addressing_mode", "Addressing Mode", Text),
    ("mig_mode", "MIG Mode/Current", Switch),
    ("mig_mode_pending", "MIG Mode/Pending", Switch),
    ("compute_mode", "Compute Mode", Lower),
    ("c2c_mode", "GPU C2C Mode", Switch),
    ("virtualization_mode", "GPU Virtualization Mode/Virtualization Mode", Lower),
    ("reset_required", "GPU Reset Status/Reset Required", Truth),
    ("recovery_action", "GPU Recovery Action", Lower),
    ("pcie_generation_max", "PCI/GPU Link Info/PCIe Generation/Max", Number("")),
    ("pcie_generation", "PCI/GPU Link Info/PCIe Generation/Current", Number("")),
    ("pcie_generation_device_max", "PCI/GPU Link Info/PCIe Generation/Device Max", Number("")),
    ("pcie_generation_host_max", "PCI/GPU Link Info/PCIe Generation/Host Max", Number("")),
    ("pcie_width_max", "PCI/GPU Link Info/Link Width/Max", Number("x")),
    ("pcie_width", "PCI/GPU Link Info/Link Width/Current", Number("x")),
    ("pcie_replays", "PCI/Replays Since Reset", Number("")),
    ("pcie_replay_rollovers", "PCI/Replay Number Rollovers", Number("")),
    ("pcie_tx_kb_per_s", "PCI/Tx Throughput", Number("KB/s")),
    ("pcie_rx_kb_per_s", "PCI/Rx Throughput", Number("KB/s")),
    ("pcie_atomics_outbound", "PCI/Atomic Caps Outbound", Text),
    ("pcie_atomics_inbound", "PCI/Atomic Caps Inbound", Text),
    ("performance_state", "Performance State", Text),
    ("bar1_bytes", "BAR1 Memory Usage/Total", Scaled("MiB", MIB)),
    ("memory_bytes", "FB Memory Usage/Total", Scaled("MiB", MIB)),
    ("ecc_mode", "ECC Mode/Current", Switch),
    ("ecc_mode", "Ecc Mode/Current", Switch),
    ("ecc_volatile_sram_corrected", "ECC Errors/Volatile/SRAM Correctable", Number("")),
    ("ecc_volatile_sram_uncorrected", "ECC Errors/Volatile/SRAM Uncorrectable", Number("")),
    ("ecc_volatile_sram_uncorrected_parity", "ECC Errors/Volatile/SRAM Uncorrectable Parity", Number("")),
    ("ecc_volatile_sram_uncorrected_sec_ded", "ECC Errors/Volatile/SRAM Uncorrectable SEC-DED", Number("")),
    ("ecc_volatile_dram_corrected", "ECC Errors/Volatile/DRAM Correctable", Number("")),
    ("ecc_volatile_dram_uncorrected", "ECC Errors/Volatile/DRAM Uncorrectable", Number("")),
    ("ecc_aggregate_sram_corrected", "ECC Errors/Aggregate/SRAM Correctable", Number("")),
    ("ecc_aggregate_sram_uncorrected", "ECC Errors/Aggregate/SRAM Uncorrectable", Number("")),
    ("ecc_aggregate_sram_uncorrected_parity", "ECC Errors/Aggregate/SRAM Uncorrectable Parity", Number("")),
    ("ecc_aggregate_sram_uncorrected_sec_ded", "ECC Errors/Aggregate/SRAM Uncorrectable SEC-DED", Number("")),
    ("ecc_aggregate_dram_corrected", "ECC Errors/Aggregate/DRAM Correctable", Number("")),
    ("ecc_aggregate_dram_uncorrected", "ECC Errors/Aggregate/DRAM Uncorrectable", Number("")),
    ("retired_pages_double_bit", "Retired Pages/Double Bit ECC", Number("")),
    ("retired_pages_pending", "Retired Pages/Pending Page Blacklist", Truth),
    ("remapped_rows_corrected", "Remapped Rows/Correctable Error", Number("")),
    ("remapped_rows_uncorrected", "Remapped Rows/Uncorrectable Error", Number("")),
    ("remapped_rows_pending", "Remapped Rows/Pending", Truth),
    ("remapped_rows_failed", "Remapped Rows/Remapping Failure Occurred", Truth),
    ("temperature_c", "Temperature/GPU Current Temp", Number("C")),
    ("temperature_margin_c", "Temperature/GPU T.Limit Temp", Number("C")),
    ("temperature_slowdown_c", "Temperature/GPU Slowdown Temp", Number("C")),
    ("temperature_shutdown_c", "Temperature/GPU Shutdown Temp", Number("C")),
    ("temperature_memory_c", "Temperature/Memory Current Temp", Number("C")),
    ("power_draw_mw", "GPU Power Readings/Power Draw", Scaled("W", 1e3)),
    ("power_draw_mw", "GPU Power Readings/Average Power Draw", Scaled("W", 1e3)),
    ("power_draw_mw", "Power Readings/Power Draw", Scaled("W", 1e3)),
    ("power_limit_mw", "GPU Power Readings/Current Power Limit", Scaled("W", 1e3)),
    ("power_limit_mw", "Power Readings/Power Limit", Scaled("W", 1e3)),
    ("power_limit_default_mw", "GPU Power Readings/Default Power Limit", Scaled("W", 1e3)),
    ("power_limit_default_mw", "Power Readings/Default Power Limit", Scaled("W", 1e3)),
    ("clock_sm_mhz", "Clocks/SM", Number("MHz")),
    ("clock_memory_mhz", "Clocks/Memory", Number("MHz")),
    ("clock_sm_max_mhz", "Max Clocks/SM", Number("MHz")),
    ("clock_memory_max_mhz", "Max Clocks/Memory", Number("MHz")),
    ("clock_graphics_max_mhz", "Max Clocks/Graphics", Number("MHz")),
    ("clock_graphics_application_mhz", "Applications Clocks/Graphics", Number("MHz")),
    ("clock_memory_application_mhz", "Applications Clocks/Memory", Number("MHz")),
    ("clock_graphics_default_mhz", "Default Applications Clocks/Graphics", Number("MHz")),
    ("utilization_percent", "Utilization/Gpu", Number("%")),
    ("utilization_percent", "Utilization/GPU", Number("%")),
    ("fabric_state", "Fabric/State", Lower),
    ("fabric_status", "Fabric/Status", Lower),
    ("fabric_clique", "Fabric/CliqueId", Text),
    ("fabric_health", "Fabric/Health/Summary", Lower),
    ("fabric_bandwidth", "Fabric/Health/Bandwidth", Lower),
];

/// Sums of the fields whose names start alike.
pub(super) const SUMS: [&str; 4] = [
    "ecc_volatile_corrected",
    "ecc_volatile_uncorrected",
    "ecc_aggregate_corrected",
    "ecc_aggregate_uncorrected",
];

/// The bits of NVML's `nvmlClocksEventReasons`.
pub(super) const EVENT_BITS: [(&str, u64); 9] = [
    ("Idle", 0x1),
    ("Applications Clocks Setting", 0x2),
    ("SW Power Cap", 0x4),
    ("HW Slowdown", 0x8),
    ("Sync Boost", 0x10),
    ("SW Thermal Slowdown", 0x20),
    ("HW Thermal Slowdown", 0x40),
    ("HW Power Brake Slowdown", 0x80),
    ("Display Clock Setting", 0x100),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_found_by_one_row() {
        for (index, (name, path, _)) in FIELDS.iter().enumerate() {
            assert!(FIELDS[..index].iter().all(|(_, other, _)| other != path), "{path}");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{name}");
        }
    }
}
