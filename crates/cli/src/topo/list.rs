//! `weft topo --list`: what the catalog holds.

use std::io::{self, Write};

use serde_json::{Map, Value, json};
use weftlink_fabric::catalog::gpus::{GPUS, GpuLinks, GpuModel, Price};
use weftlink_fabric::catalog::switches::{NVSWITCHES, NvSwitch, chips};
use weftlink_fabric::catalog::{links as catalog_links, systems as catalog_systems};
use weftlink_fabric::cliff;
use weftlink_fabric::figure::{Figure, LinkRate};
use weftlink_fabric::rate::Rate;
use weftlink_fabric::{DeviceKind, Fabric, LinkKind, LinkSpec};

use super::List;
use crate::screen::{self, prose};
use crate::table::Table;

pub(super) fn print(what: List, as_json: bool) -> io::Result<()> {
    if as_json {
        let value = match what {
            List::Systems => json!({ "systems": systems_json() }),
            List::Links => json!({ "links": links_json() }),
            List::Gpus => json!({ "gpus": gpus_json() }),
            List::Switches => json!({ "switches": switches_json() }),
        };
        return crate::print_json(&value);
    }
    let (table, note) = match what {
        List::Systems => (systems(), SYSTEMS_NOTE),
        List::Links => (links(), LINKS_NOTE),
        List::Gpus => (gpus(), GPUS_NOTE),
        List::Switches => (switches(), SWITCHES_NOTE),
    };
    let price = if table.shows("list price") { PRICE_NOTE } else { "" };
    writeln!(screen::stdout(), "{table}\n{}", prose(&format!("{note}{price}")))
}

const SYSTEMS_NOTE: &str = "NIC rates are each way per port. A cluster: `weft topo \"2x hgx-h100 + 8x ndr\"`; \
                            parts: `--list links`, `--list gpus`, `--list switches`.";
const LINKS_NOTE: &str = "Rates are each way per link (a PCIe slot of that width, a network port). \
                          Effective is what large GPU transfers get: NCCL's planning figures inside a host, fits to \
                          published runs between hosts; plain TCP passes some 3.3 GB/s per NIC. edr, hdr, ndr and xdr are also \
                          ib100, ib200, ib400 and ib800; networks at other rates are named by their Gb/s: roce50, eth40. \
                          `checked`: the rate was compared with the source. `--json` has every source.";
const SWITCHES_NOTE: &str = "The rate is each way over all ports of one chip.";
const GPUS_NOTE: &str = "The link rate is each way per GPU over all its links. \
                         The slot is what the PCI function reports; gb10, gh200, gb200, gb300 and vr200 reach their CPU over C2C, and the slots of \
                         gh200 and gb300 are unverified. Memory is as advertised for one GPU of the product.";
const PRICE_NOTE: &str = " List price -: sold in systems, or not published.";

fn systems() -> Table {
    let mut table =
        Table::new(["system", "hosts", "GPUs", "GPU", "links of a GPU", "NVSwitches", "NICs", "what it is"])
            .optional(&["NVSwitches", "GPU", "hosts"]);
    for system in catalog_systems::all() {
        let fabric = system.fabric();
        let model = first_model(&fabric);
        let nics = cliff::nics(&fabric).map_or_else(|| "-".to_owned(), |nics| nics.describe(1));
        table.row([
            system.name.to_owned(),
            fabric.hosts().len().to_string(),
            fabric.gpus().len().to_string(),
            model.map_or("?", |model| model.id).to_owned(),
            model.map_or_else(|| "-".to_owned(), |model| links_in_use(&fabric, model)),
            chips(&fabric).to_string(),
            nics,
            system.summary.to_owned(),
        ]);
    }
    table
}

fn links_in_use(fabric: &Fabric, model: &GpuModel) -> String {
    let used = fabric.gpus().first().map_or(0, |gpu| {
        let links = fabric.links_from(*gpu).iter().filter(|link| fabric.spec(link).kind.is_gpu_fabric());
        links.map(|link| link.count).sum()
    });
    match model.gpu_links() {
        Some((link, _)) if used > 0 => format!("{used} x {}", link.kind),
        _ => "PCIe only".to_owned(),
    }
}

fn links() -> Table {
    let mut table =
        Table::new(["link", "name", "nominal", "effective", "latency", "source of the nominal rate"])
            .optional(&["name", "latency"]);
    let amount = |figure: &Option<LinkRate>| {
        figure.as_ref().map_or_else(|| "-".to_owned(), |figure| figure.value.amount().to_string())
    };
    for spec in catalog_links::all() {
        table.row([
            catalog_links::id_of(&spec),
            spec.kind.to_string(),
            amount(&spec.nominal),
            amount(&spec.effective),
            spec.latency.as_ref().map_or_else(|| "-".to_owned(), |latency| latency.value.to_string()),
            spec.nominal
                .as_ref()
                .or(spec.effective.as_ref())
                .map_or_else(String::new, |figure| figure.provenance().to_string()),
        ]);
    }
    table
}

fn gpus() -> Table {
    let mut table = Table::new([
        "GPU",
        "year",
        "memory",
        "memory rate",
        "links",
        "each way",
        "slot",
        "list price",
        "name",
    ])
    .optional(&["list price", "slot", "memory rate"]);
    for model in GPUS.iter() {
        let (links, rate) = match (model.gpu_links(), model.link_rate()) {
            (Some((link, count)), Some(rate)) => {
                (format!("{count} x {}", link.kind), rate.value.amount().to_string())
            }
            _ => ("none".to_owned(), "-".to_owned()),
        };
        table.row([
            model.id.to_owned(),
            model.year.to_string(),
            model.memory.to_string(),
            model.memory_rate.value.amount().to_string(),
            links,
            rate,
            LinkKind::Pcie { generation: model.pcie.0, width: model.pcie.1 }.to_string(),
            match model.price {
                Price::ListUsd(dollars) => format!("{dollars} USD"),
                Price::OnRequest => "-".to_owned(),
            },
            model.name.to_owned(),
        ]);
    }
    table
}

fn switches() -> Table {
    let mut table = Table::new(["switch", "ports", "each port", "each way", "found in", "source"]);
    for switch in &NVSWITCHES {
        table.row([
            format!("nvswitch{}", switch.generation),
            switch.ports.to_string(),
            switch.link.kind.to_string(),
            switch.rate().map_or_else(|| "-".to_owned(), |rate| rate.value.amount().to_string()),
            switch.found_in.to_owned(),
            switch.source.to_owned(),
        ]);
    }
    table
}

fn switches_json() -> Value {
    let entry = |switch: &NvSwitch| {
        let rate = switch.rate().map(|figure| figure.value);
        let value = json!({
            "generation": switch.generation,
            "ports": switch.ports,
            "link": switch.link.kind.id(),
            "chip_gb_per_s_each_way": rate.map(Rate::gb),
            "chip_gb_per_s_both_ways": rate.map(Rate::both_ways).map(Rate::gb),
            "found_in": switch.found_in,
            "source": switch.source,
        });
        (format!("nvswitch{}", switch.generation), value)
    };
    Value::Object(NVSWITCHES.iter().map(entry).collect())
}

fn links_json() -> Value {
    let entry = |spec: LinkSpec| {
        let rate = |figure: &Option<LinkRate>| figure.as_ref().map(|figure| figure.value.gb());
        let source = |figure: &Option<LinkRate>| figure.as_ref().map(|figure| figure.source.to_string());
        let checked = |figure: &Option<LinkRate>| figure.as_ref().map(|figure| figure.checked);
        let mut value = json!({
            "name": spec.kind.to_string(),
            "nominal_gb_per_s_each_way": rate(&spec.nominal),
            "nominal_source": source(&spec.nominal),
            "nominal_checked": checked(&spec.nominal),
            "effective_gb_per_s_each_way": rate(&spec.effective),
            "effective_source": source(&spec.effective),
            "effective_checked": checked(&spec.effective),
            "latency_ns": spec.latency.as_ref().map(|latency| latency.value.0),
            "latency_source": spec.latency.as_ref().map(|latency| latency.source.to_string()),
            "latency_checked": spec.latency.as_ref().map(|latency| latency.checked),
        });
        if let LinkKind::Pcie { generation, width } = spec.kind {
            value["lanes"] = json!(width);
            value["per_lane_gb_per_s_each_way"] = json!(catalog_links::pcie_lane(generation).gb());
        }
        if let LinkKind::Network { gbit, .. } = spec.kind {
            value["gbit_per_s"] = json!(gbit);
            if let Some(id) = spec.kind.other_id() {
                value["also"] = json!(id);
            }
        }
        (catalog_links::id_of(&spec), value)
    };
    Value::Object(catalog_links::all().into_iter().map(entry).collect::<Map<_, _>>())
}

fn gpus_json() -> Value {
    let entry = |model: &GpuModel| {
        let links = model.gpu_links();
        let (slots, reason) = match &model.links {
            GpuLinks::Bridge { slots, .. } => (*slots, None),
            GpuLinks::Absent(reason) => (0, Some(*reason)),
            GpuLinks::Wired(..) => (0, None),
        };
        let rate = model.link_rate().map(|Figure { value, .. }| value);
        let value = json!({
            "name": model.name,
            "year": model.year,
            "memory_gb": model.memory.0 as f64 / 1e9,
            "memory_gb_per_s": model.memory_rate.value.gb(),
            "memory_source": model.memory_rate.source.to_string(),
            "memory_checked": model.memory_rate.checked,
            "link": links.map(|(link, _)| catalog_links::id_of(link)),
            "links": links.map_or(0, |(_, count)| count),
            "link_gb_per_s_each_way": links.and_then(|(link, _)| link.nominal.as_ref()).map(|figure| figure.value.gb()),
            "link_gb_per_s_both_ways": links.and_then(|(link, _)| link.nominal.as_ref()).map(|figure| figure.value.both_ways().gb()),
            "gpu_gb_per_s_each_way": rate.map(Rate::gb),
            "gpu_gb_per_s_both_ways": rate.map(Rate::both_ways).map(Rate::gb),
            "bridge_slots": slots,
            "no_links_because": reason,
            "pcie": LinkKind::Pcie { generation: model.pcie.0, width: model.pcie.1 }.id(),
            "list_price_usd": match model.price { Price::ListUsd(dollars) => Some(dollars), Price::OnRequest => None },
        });
        (model.id.to_owned(), value)
    };
    Value::Object(GPUS.iter().map(entry).collect())
}

fn systems_json() -> Value {
    let entry = |system: &'static catalog_systems::System| {
        let fabric = system.fabric();
        let nics = cliff::nics(&fabric);
        let value = json!({
            "summary": system.summary,
            "source": system.source,
            "checked": system.checked,
            "hosts": fabric.hosts().len(),
            "gpus": fabric.gpus().len(),
            "gpu": first_model(&fabric).map(|model| model.id),
            "nvswitches": chips(&fabric),
            "nics": fabric.devices_where(|kind| matches!(kind, DeviceKind::Nic(_))).count(),
            "network_gbit_per_s_per_host": nics.map(|nics| nics.total().bytes_per_second() as f64 / 125e6),
        });
        (system.name.to_owned(), value)
    };
    Value::Object(catalog_systems::all().map(entry).collect())
}

fn first_model(fabric: &Fabric) -> Option<&'static GpuModel> {
    fabric.gpus().first().and_then(|gpu| fabric.device(*gpu).kind.gpu_model())
}
