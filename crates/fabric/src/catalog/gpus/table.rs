//! The table of GPUs, one row per model.
//!
//! Memory sizes are those that the maker advertises for one GPU of the product: 180 GB for a B200 and 270 GB for a B300,
//! whose chips have 192 and 288 GB. PCI device ids are from the public PCI id repository. Launch prices are given where the
//! maker announced one for the card itself. Google's TPUs and AWS's Trainium are out of scope.

use super::GpuModel;
use super::row::{amd, intel, nvidia};
use crate::catalog::links::{
    C2C, C2C_GB10, C2C_VERA, NVLINK, NVLINK3_GEFORCE, UALINK, XE_LINK, XGMI2, XGMI3, XGMI4, XGMI4_MI350,
};

const NO_NVLINK_ON_V100_PCIE: &str = "the PCIe V100 has no NVLink connector: only the SXM modules have";
const NO_NVLINK_ON_ADA: &str = "Ada cards have no NVLink connector: GPUs communicate over PCIe only";
const NO_NVLINK_ON_BLACKWELL_CARDS: &str =
    "Blackwell cards have no NVLink connector: GPUs communicate over PCIe only";

/// Every GPU of the catalog, by maker, data-centre parts before cards, oldest first.
pub static GPUS: &[GpuModel] = &[
    nvidia("p100", "NVIDIA P100 SXM2 16GB", 2016, 60)
        .memory(16, 732, "NVIDIA Tesla P100 data sheet")
        .wired(&NVLINK[0], 4)
        .pcie(3, 16, &[0x15f9])
        .model(),
    nvidia("p100-pcie", "NVIDIA P100 PCIe 16GB", 2016, 60)
        .memory(16, 732, "NVIDIA Tesla P100 data sheet")
        .absent("the PCIe P100 has no NVLink connector: only the SXM2 module has")
        .pcie(3, 16, &[0x15f8])
        .model(),
    nvidia("v100-16gb", "NVIDIA V100 SXM2 16GB", 2017, 70)
        .memory(16, 900, "NVIDIA V100 data sheet")
        .wired(&NVLINK[1], 6)
        .pcie(3, 16, &[0x1db1])
        .model(),
    nvidia("v100", "NVIDIA V100 SXM 32GB", 2018, 70)
        .memory(32, 900, "NVIDIA V100 data sheet")
        .wired(&NVLINK[1], 6)
        .pcie(3, 16, &[0x1db5, 0x1db8])
        .model(),
    nvidia("v100-pcie-16gb", "NVIDIA V100 PCIe 16GB", 2017, 70)
        .memory(16, 900, "NVIDIA V100 data sheet")
        .absent(NO_NVLINK_ON_V100_PCIE)
        .pcie(3, 16, &[0x1db4])
        .model(),
    nvidia("v100-pcie", "NVIDIA V100 PCIe 32GB", 2018, 70)
        .memory(32, 900, "NVIDIA V100 data sheet")
        .absent(NO_NVLINK_ON_V100_PCIE)
        .pcie(3, 16, &[0x1db6])
        .model(),
    nvidia("a100-40gb", "NVIDIA A100 SXM4 40GB", 2020, 80)
        .memory(40, 1_555, "NVIDIA A100 data sheet")
        .wired(&NVLINK[2], 12)
        .pcie(4, 16, &[0x20b0])
        .model(),
    nvidia("a100", "NVIDIA A100 SXM4 80GB", 2020, 80)
        .memory(80, 2_039, "NVIDIA A100 data sheet")
        .wired(&NVLINK[2], 12)
        .pcie(4, 16, &[0x20b2])
        .model(),
    // Export versions of the A100 and the H100 have 8 of the links.
    nvidia("a800", "NVIDIA A800 SXM4 80GB", 2022, 80)
        .memory(80, 2_039, "NVIDIA A800 data sheet: 400 GB/s of NVLink (unverified)")
        .wired(&NVLINK[2], 8)
        .pcie(4, 16, &[0x20f3])
        .model(),
    nvidia("a100-pcie-40gb", "NVIDIA A100 PCIe 40GB", 2020, 80)
        .memory(40, 1_555, "NVIDIA A100 data sheet")
        .bridge(&NVLINK[2], 12, 3)
        .pcie(4, 16, &[0x20f1])
        .model(),
    nvidia("a100-pcie", "NVIDIA A100 PCIe 80GB", 2021, 80)
        .memory(80, 1_935, "NVIDIA A100 data sheet")
        .bridge(&NVLINK[2], 12, 3)
        .pcie(4, 16, &[0x20b5])
        .model(),
    nvidia("h100", "NVIDIA H100 SXM5 80GB", 2022, 90)
        .memory(80, 3_350, "NVIDIA H100 data sheet")
        .wired(&NVLINK[3], 18)
        .pcie(5, 16, &[0x2330])
        .model(),
    nvidia("h800", "NVIDIA H800 SXM5 80GB", 2023, 90)
        .memory(80, 3_350, "NVIDIA H800 data sheet: 400 GB/s of NVLink (unverified)")
        .wired(&NVLINK[3], 8)
        .pcie(5, 16, &[0x2324])
        .model(),
    // The chip has 18 links; the card's three connectors bring out 12, 600 GB/s both ways.
    nvidia("h100-pcie", "NVIDIA H100 PCIe 80GB", 2022, 90)
        .memory(80, 2_000, "NVIDIA H100 PCIe product brief")
        .bridge(&NVLINK[3], 12, 3)
        .pcie(5, 16, &[0x2331])
        .model(),
    nvidia("h100-nvl", "NVIDIA H100 NVL 94GB", 2023, 90)
        .memory(94, 3_938, "NVIDIA H100 NVL product brief")
        .bridge(&NVLINK[3], 12, 3)
        .pcie(5, 16, &[0x2321])
        .model(),
    // Data moves over C2C; the PCI function is a narrow link for management (one lane; width and generation unverified).
    nvidia("gh200", "NVIDIA GH200 96GB", 2023, 90)
        .memory(96, 4_000, "NVIDIA GH200 data sheet")
        .wired(&NVLINK[3], 18)
        .c2c(&C2C, 10)
        .pcie(4, 1, &[0x2342])
        .model(),
    nvidia("gh200-144gb", "NVIDIA GH200 144GB", 2024, 90)
        .memory(144, 4_900, "NVIDIA GH200 data sheet")
        .wired(&NVLINK[3], 18)
        .c2c(&C2C, 10)
        .pcie(4, 1, &[0x2348])
        .model(),
    nvidia("h20", "NVIDIA H20 96GB", 2024, 90)
        .memory(96, 4_000, "NVIDIA H20 data sheet")
        .wired(&NVLINK[3], 18)
        .pcie(5, 16, &[0x2329])
        .model(),
    nvidia("h200", "NVIDIA H200 SXM 141GB", 2024, 90)
        .memory(141, 4_800, "NVIDIA H200 data sheet")
        .wired(&NVLINK[3], 18)
        .pcie(5, 16, &[0x2335])
        .model(),
    // Bridges of two or of four cards, over all 18 links.
    nvidia("h200-nvl", "NVIDIA H200 NVL 141GB", 2024, 90)
        .memory(141, 4_800, "NVIDIA H200 data sheet: 900 GB/s of NVLink over a bridge of 2 or 4 cards")
        .bridge(&NVLINK[3], 18, 3)
        .pcie(5, 16, &[0x233b])
        .model(),
    nvidia("b200", "NVIDIA B200 180GB", 2024, 100)
        .memory(180, 8_000, "NVIDIA DGX B200 data sheet: 1,440 GB and 64 TB/s over 8 GPUs; HGX sheets have 7.7 TB/s each")
        .wired(&NVLINK[4], 18)
        .pcie(5, 16, &[0x2901])
        .model(),
    // The slot is that of p6e-gb200, to a switch whose link to Grace is one lane of Gen4; data moves over C2C.
    nvidia("gb200", "NVIDIA GB200 186GB", 2024, 100)
        .memory(186, 8_000, "NVIDIA GB200 NVL72 data sheet: 13.4 TB and 576 TB/s over 72 GPUs")
        .wired(&NVLINK[4], 18)
        .c2c(&C2C, 5)
        .pcie(5, 16, &[0x2941])
        .model(),
    nvidia("b300", "NVIDIA B300 270GB", 2025, 103)
        .memory(270, 8_000, "NVIDIA HGX B300 data sheet: 2.1 TB over 8 GPUs; sheets differ on the rate, 7.7 or 8 TB/s")
        .wired(&NVLINK[4], 18)
        .pcie(6, 16, &[0x3182])
        .model(),
    nvidia("gb300", "NVIDIA GB300 279GB", 2025, 103)
        .memory(279, 8_000, "NVIDIA GB300 NVL72 data sheet: 20 TB and 576 TB/s over 72 GPUs")
        .wired(&NVLINK[4], 18)
        .c2c(&C2C, 5)
        .pcie(6, 16, &[0x31c2])
        .model(),
    // Slot, device id and C2C links are those of a published topology dump.
    nvidia("vr200", "NVIDIA Rubin VR200 288GB", 2026, 107)
        .memory(288, 22_000, "NVIDIA Vera Rubin NVL72 product page: 20.7 TB and 1,580 TB/s over 72 GPUs, preliminary (unverified)")
        .wired(&NVLINK[5], 36)
        .c2c(&C2C_VERA, 7)
        .pcie(6, 2, &[0x307f])
        .model(),
    // CPU and GPU share one memory; NVML reports 8 C2C links and a Gen1 x16 PCI function.
    nvidia("gb10", "NVIDIA GB10 (DGX Spark)", 2025, 121)
        .memory(128, 273, "NVIDIA DGX Spark data sheet")
        .absent("the GB10 has no NVLink: two DGX Sparks connect through their ConnectX-7 ports")
        .c2c(&C2C_GB10, 8)
        .pcie(1, 16, &[0x2e12])
        .model(),
    nvidia("a10g", "NVIDIA A10G", 2021, 86)
        .memory(24, 600, "AWS EC2 G5 instance types: 24 GB; the rate is that of the A10 (unverified)")
        .absent("the A10G has no NVLink connector: GPUs communicate over PCIe only")
        .pcie(4, 16, &[0x2237])
        .model(),
    nvidia("t4", "NVIDIA T4", 2018, 75)
        .memory(16, 320, "NVIDIA T4 data sheet")
        .absent("the T4 has no NVLink connector: GPUs communicate over PCIe only")
        .pcie(3, 16, &[0x1eb8])
        .model(),
    nvidia("a40", "NVIDIA A40", 2020, 86)
        .memory(48, 696, "NVIDIA A40 data sheet: 112.5 GB/s of NVLink both ways")
        .bridge(&NVLINK3_GEFORCE, 4, 1)
        .pcie(4, 16, &[0x2235])
        .model(),
    nvidia("l4", "NVIDIA L4", 2023, 89)
        .memory(24, 300, "NVIDIA L4 data sheet")
        .absent(NO_NVLINK_ON_ADA)
        .pcie(4, 16, &[0x27b8])
        .model(),
    nvidia("l40", "NVIDIA L40", 2022, 89)
        .memory(48, 864, "NVIDIA L40 data sheet")
        .absent(NO_NVLINK_ON_ADA)
        .pcie(4, 16, &[0x26b5])
        .model(),
    nvidia("l40s", "NVIDIA L40S", 2023, 89)
        .memory(48, 864, "NVIDIA L40S data sheet")
        .absent(NO_NVLINK_ON_ADA)
        .pcie(4, 16, &[0x26b9])
        .model(),
    nvidia("rtx2080ti", "GeForce RTX 2080 Ti", 2018, 75)
        .memory(11, 616, "NVIDIA Turing whitepaper")
        .bridge(&NVLINK[1], 2, 1)
        .pcie(3, 16, &[0x1e04, 0x1e07])
        .list_usd(999)
        .model(),
    nvidia("rtx3090", "GeForce RTX 3090", 2020, 86)
        .memory(24, 936, "NVIDIA Ampere GA102 whitepaper")
        .bridge(&NVLINK3_GEFORCE, 4, 1)
        .pcie(4, 16, &[0x2204])
        .list_usd(1_499)
        .model(),
    nvidia("rtx4090", "GeForce RTX 4090", 2022, 89)
        .memory(24, 1_008, "NVIDIA Ada whitepaper")
        .absent(NO_NVLINK_ON_ADA)
        .pcie(4, 16, &[0x2684])
        .list_usd(1_599)
        .model(),
    nvidia("rtx6000ada", "RTX 6000 Ada Generation", 2022, 89)
        .memory(48, 960, "NVIDIA RTX 6000 Ada data sheet")
        .absent(NO_NVLINK_ON_ADA)
        .pcie(4, 16, &[0x26b1])
        .model(),
    nvidia("rtx4070tis", "GeForce RTX 4070 Ti SUPER", 2024, 89)
        .memory(16, 672, "NVIDIA GeForce RTX 4070 family page")
        .absent(NO_NVLINK_ON_ADA)
        .pcie(4, 16, &[0x2705])
        .list_usd(799)
        .model(),
    nvidia("rtx5090", "GeForce RTX 5090", 2025, 120)
        .memory(32, 1_792, "NVIDIA RTX Blackwell whitepaper")
        .absent(NO_NVLINK_ON_BLACKWELL_CARDS)
        .pcie(5, 16, &[0x2b85])
        .list_usd(1_999)
        .model(),
    nvidia("rtxpro6000", "RTX PRO 6000 Blackwell Workstation", 2025, 120)
        .memory(96, 1_792, "NVIDIA RTX PRO 6000 Blackwell Workstation data sheet")
        .absent(NO_NVLINK_ON_BLACKWELL_CARDS)
        .pcie(5, 16, &[0x2bb1, 0x2bb4])
        .model(),
    nvidia("rtxpro6000-server", "RTX PRO 6000 Blackwell Server", 2025, 120)
        .memory(96, 1_597, "NVIDIA RTX PRO 6000 Blackwell Server data sheet")
        .absent(NO_NVLINK_ON_BLACKWELL_CARDS)
        .pcie(5, 16, &[0x2bb5])
        .model(),
    amd("mi100", "AMD Instinct MI100", 2020, 908)
        .memory(32, 1_228, "AMD Instinct MI100 data sheet")
        .wired(&XGMI2, 3)
        .pcie(4, 16, &[0x738c])
        .model(),
    // Bridges of two or of four cards, over all three links.
    amd("mi210", "AMD Instinct MI210", 2022, 910)
        .memory(64, 1_638, "AMD Instinct MI210 data sheet: 300 GB/s of Infinity Fabric both ways")
        .bridge(&XGMI3, 3, 3)
        .pcie(4, 16, &[0x740f])
        .model(),
    // One of the two dies, each of which is a GPU to programs. One of a die's eight links leads to the host. Some MI250X have the
    // PCI device id of the MI250, whose memory and links are the same.
    amd("mi250", "AMD Instinct MI250, one die", 2021, 910)
        .memory(64, 1_638, "AMD Instinct MI250 data sheet: 128 GB and 3.2 TB/s over two dies")
        .wired(&XGMI3, 7)
        .pcie(4, 16, &[0x740c])
        .model(),
    amd("mi250x", "AMD Instinct MI250X, one die", 2021, 910)
        .memory(64, 1_638, "AMD Instinct MI250X data sheet: 128 GB and 3.2 TB/s over two dies")
        .wired(&XGMI3, 7)
        .pcie(4, 16, &[0x7408])
        .model(),
    // CPU and GPU share one memory and one package. Four of these in a node have two links between each two.
    amd("mi300a", "AMD Instinct MI300A", 2023, 942)
        .memory(128, 5_300, "AMD Instinct MI300A data sheet")
        .wired(&XGMI4, 6)
        .pcie(5, 16, &[0x74a0])
        .model(),
    amd("mi300x", "AMD Instinct MI300X", 2023, 942)
        .memory(192, 5_300, "AMD Instinct MI300X data sheet")
        .wired(&XGMI4, 7)
        .pcie(5, 16, &[0x74a1, 0x74b5])
        .model(),
    amd("mi325x", "AMD Instinct MI325X", 2024, 942)
        .memory(256, 6_000, "AMD Instinct MI325X data sheet")
        .wired(&XGMI4, 7)
        .pcie(5, 16, &[0x74a5])
        .model(),
    amd("mi350x", "AMD Instinct MI350X", 2025, 950)
        .memory(288, 8_000, "AMD Instinct MI350X data sheet")
        .wired(&XGMI4_MI350, 7)
        .pcie(5, 16, &[0x75a0])
        .model(),
    amd("mi355x", "AMD Instinct MI355X", 2025, 950)
        .memory(288, 8_000, "AMD Instinct MI355X data sheet")
        .wired(&XGMI4_MI350, 7)
        .pcie(5, 16, &[0x75a3])
        .model(),
    // Of the MI450 series, announced: its architecture is unknown, the slot is unverified, and the number of ports is the announced
    // rate over that of a port. No system has it, because the switches of the rack and their wiring are not published.
    amd("mi455x", "AMD Instinct MI455X", 2026, 0)
        .memory(432, 19_600, "AMD Helios announcement: 31 TB, 1.4 PB/s and 260 TB/s of UALink over 72 GPUs, preliminary (unverified)")
        .wired(&UALINK, 18)
        .pcie(6, 16, &[])
        .model(),
    intel("max1550", "Intel Data Center GPU Max 1550", 2023)
        .memory(128, 3_277, "Intel Data Center GPU Max 1550 product brief")
        .wired(&XE_LINK, 16)
        .pcie(5, 16, &[0x0bd5, 0x0bd6])
        .model(),
];
