//! The figures of a depot for Prometheus (feature `prometheus`), by the crate `prometheus-client`:
//! programs that are scraped have a registry of it, or of something that reads its text.
//!
//! ```
//! use pagedepot_linux::Depot;
//! use pagedepot_linux::views::prometheus::{DepotCollector, text};
//! use prometheus_client::registry::Registry;
//!
//! let depot = Depot::new(16 << 20)?;
//! let mut registry = Registry::default();
//! registry.register_collector(Box::new(DepotCollector::new(&depot)));
//! // Without a registry of one's own:
//! let managed = "pagedepot_zone_managed_pages{node=\"0\",zone=\"Normal\"} 4096.0\n";
//! assert!(text(&depot).contains(managed));
//! # Ok::<(), pagedepot_linux::BuildError>(())
//! ```

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::depot::handle::{Depot, WeakDepot};

use super::{CacheInfo, FragmentationInfo, ZoneInfo};

/// Reads a depot whenever a registry is encoded. It keeps no handle: once the depot's handles have
/// gone, it has no figures.
#[derive(Debug)]
pub struct DepotCollector(WeakDepot);

impl DepotCollector {
    /// Makes a collector of this depot.
    pub fn new(depot: &Depot) -> Self {
        DepotCollector(depot.downgrade())
    }
}

/// The figures of a depot as text, for programs without a registry.
pub fn text(depot: &Depot) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(DepotCollector::new(depot)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)
        .expect("a string takes what it is given");
    text
}

/// A family of gauges: a value for each set of labels.
fn gauges<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    values: impl Iterator<Item = (L, f64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

impl Collector for DepotCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(depot) = self.0.upgrade() else { return Ok(()) };
        encode_zones(&ZoneInfo::of(&depot), &mut encoder)?;
        encode_caches(&CacheInfo::of(&depot), &mut encoder)?;
        encode_maps(&FragmentationInfo::of(&depot), &mut encoder)
    }
}

fn zone_labels(node: u32, name: &str) -> [(&'static str, String); 2] {
    [("node", node.to_string()), ("zone", name.to_owned())]
}

fn encode_zones(info: &ZoneInfo, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    type Of = fn(&super::Zone) -> u64;
    let figures: [(&str, &str, Of); 7] = [
        ("managed_pages", "Pages that were given to the zone", |zone| zone.managed_pages),
        ("free_pages", "Pages free in the store", |zone| zone.free_pages),
        ("cached_pages", "Pages that CPUs cache", |zone| zone.cached_pages),
        ("carved_pages", "Pages taken for magazines", |zone| zone.carved_pages),
        ("min_pages", "The watermark min", |zone| zone.min_pages),
        ("low_pages", "The watermark low", |zone| zone.low_pages),
        ("high_pages", "The watermark high", |zone| zone.high_pages),
    ];
    for (name, help, of) in figures {
        let values =
            info.zones.iter().map(|zone| (zone_labels(zone.node, &zone.name), of(zone) as f64));
        gauges(encoder, (&format!("pagedepot_zone_{name}"), help), values)?;
    }
    let names: Vec<&String> =
        info.zones.first().into_iter().flat_map(|zone| zone.counters.keys()).collect();
    for name in names {
        let full = format!("pagedepot_zone_{name}");
        let help = match name.as_str() {
            "first_touches" | "refaults" => "Pageblocks, counted by pagedepot::ResidencyCounts",
            _ => "A counter of pagedepot::Counts",
        };
        let mut family = encoder.encode_descriptor(&full, help, None, MetricType::Counter)?;
        for zone in &info.zones {
            let count = zone.counters.get(name).copied().unwrap_or(0);
            let labels = zone_labels(zone.node, &zone.name);
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn encode_caches(info: &CacheInfo, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    type Of = fn(&super::CpuCache) -> f64;
    let figures: [(&str, &str, Of); 5] = [
        ("front_pages", "Pages in fronts, out of a quiet drain's reach", |cpu| {
            cpu.front_pages as f64
        }),
        ("drainable_pages", "Pages that a quiet drain takes", |cpu| {
            cpu.quietly_drainable_pages() as f64
        }),
        ("high_pages", "The most pages that the CPU may cache now", |cpu| cpu.high_pages as f64),
        ("idle_seconds", "Since the CPU's slow path last ran", |cpu| cpu.idle_ms as f64 / 1000.0),
        ("hit_ratio", "Operations that the fronts served alone, since construction", |cpu| {
            cpu.hit_permille().map_or(f64::NAN, |permille| permille / 1000.0)
        }),
    ];
    for (name, help, of) in figures {
        let values = info
            .caches
            .iter()
            .map(|cpu| ([("cpu", cpu.cpu.to_string()), ("zone", cpu.zone_name.clone())], of(cpu)));
        gauges(encoder, (&format!("pagedepot_cpu_{name}"), help), values)?;
    }
    Ok(())
}

fn encode_maps(info: &FragmentationInfo, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    type Of = fn(&super::FragmentationMap) -> u64;
    let figures: [(&str, &str, Of); 4] = [
        ("pageblocks", "Pageblocks of 512 pages", |map| map.pageblocks),
        ("whole_pageblocks", "Pageblocks that are wholly free", |map| map.whole),
        ("evacuating_pageblocks", "Pageblocks that evacuate", |map| map.evacuating),
        ("tainted_pageblocks", "Pageblocks that unmovable pages were mixed into", |map| {
            map.tainted
        }),
    ];
    for (name, help, of) in figures {
        let values =
            info.zones.iter().map(|map| (zone_labels(map.node, &map.name), of(map) as f64));
        gauges(encoder, (&format!("pagedepot_zone_{name}"), help), values)?;
    }
    let help = "The share of free pages in blocks smaller than the order";
    let values = info.zones.iter().flat_map(|map| {
        map.unusable.iter().enumerate().map(|(order, &share)| {
            let [node, zone] = zone_labels(map.node, &map.name);
            ([node, zone, ("order", order.to_string())], share)
        })
    });
    gauges(encoder, ("pagedepot_zone_unusable_ratio", help), values)
}
