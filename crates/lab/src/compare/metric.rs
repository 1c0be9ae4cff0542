//! Metrics by their names: which way is better, and their names in tables.

use clap::ValueEnum;

use super::document::ResultRow;
use crate::design::variant::{self, FreeHighPages};

/// The direction in which a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
    /// Given by the workload, or neither good nor bad: percentages make no sense.
    Neither,
}

impl Better {
    /// By how many percent `new` is better than `base`, by mmtests' convention: positive is better.
    /// `None` where there is no such figure.
    pub fn percent(self, new: f64, base: f64) -> Option<f64> {
        if new == base && self != Better::Neither {
            return Some(0.0);
        }
        let percent = match self {
            Better::Lower => 100.0 - new * 100.0 / base,
            Better::Higher => new * 100.0 / base - 100.0,
            Better::Neither => return None,
        };
        percent.is_finite().then_some(percent)
    }

    /// 1 where more is better, -1 where it is worse.
    pub fn sign(self) -> Option<f64> {
        match self {
            Better::Lower => Some(-1.0),
            Better::Higher => Some(1.0),
            Better::Neither => None,
        }
    }
}

/// The direction in which a row's metric is better: more for rates, less for times, sizes and
/// interruptions.
pub fn better(row: &ResultRow) -> Better {
    match row.metric.as_str() {
        "allocs" | "frees" | "unknown_frees" | "drained_pages" => Better::Neither,
        // A soak's turns, which drains do not wait for.
        "used_up" | "drains" => Better::Neither,
        "pages" => Better::Higher,
        // They explain a rate; which way is good depends on the machine's caches.
        "crossed_percent" | "reuse_distance_bytes" | "reuse_distance_p90_bytes" => Better::Neither,
        "needed_pages" | "page_table_bytes_start" => Better::Neither,
        "hits" => Better::Higher,
        metric if metric.ends_with("_per_s") || metric.ends_with("_per_cpu_s") => Better::Higher,
        _ if row.unit.ends_with("/s") => Better::Higher,
        _ => Better::Lower,
    }
}

/// Params that a workload is scaled by: the N in mmtests' `workload-N`. The first there is counts.
const SCALES: [&str; 6] = ["clients", "batch", "threads", "streams", "drains_per_s", "cpu"];

/// A row's name in the table, as mmtests has it: `system-4`, `order-0 alloc-16`. Where nothing
/// scales the workload, N is the number of CPUs; drains back to back are `max`. Which variant of
/// its design a row is of belongs to the column.
pub fn label(row: &ResultRow) -> String {
    let scale = SCALES.into_iter().find(|&scale| row.params.contains_key(scale));
    let is_other = |name: &str| Some(name) != scale && !variant::PARAMS.contains(&name);
    let others = row.params.iter().filter(|(name, _)| is_other(name));
    let mut label: String = others.map(|(name, &value)| param(name, value) + " ").collect();
    // pft uses as many CPUs as it has clients, a replay as many as its trace: nothing to add.
    if matches!(scale, Some("batch" | "drains_per_s")) && row.cpus > 1 {
        label += &format!("cpus-{} ", row.cpus);
    }
    let n = match scale {
        Some("drains_per_s") if row.params["drains_per_s"] < 0 => "max".to_owned(),
        Some(scale) => row.params[scale].to_string(),
        None => row.cpus.to_string(),
    };
    format!("{label}{}-{n}", short(&row.metric))
}

/// A param in a label: `order-3`, `policy-4batch`.
pub fn param(name: &str, value: i64) -> String {
    match usize::try_from(value).ok().and_then(|at| FreeHighPages::value_variants().get(at)) {
        Some(policy) if name == "policy" => format!("{name}-{}", policy.name()),
        _ => format!("{name}-{value}"),
    }
}

/// mmtests' name of a metric, or ours without its unit.
fn short(metric: &str) -> String {
    for (end, mmtests) in [("_per_cpu_s", "/cpu"), ("_per_s", "/sec"), ("_ns", ""), ("_s", "")] {
        if let Some(what) = metric.strip_suffix(end) {
            return what.to_owned() + mmtests;
        }
    }
    metric.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(metric: &str, unit: &str, cpus: u32, params: &[(&str, i64)]) -> ResultRow {
        let params = params.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        ResultRow { metric: metric.into(), unit: unit.into(), cpus, params, ..ResultRow::default() }
    }

    #[test]
    fn positive_is_better_in_both_directions() {
        assert_eq!(Better::Higher.percent(150.0, 100.0), Some(50.0));
        assert_eq!(Better::Higher.percent(75.0, 100.0), Some(-25.0));
        assert_eq!(Better::Lower.percent(75.0, 100.0), Some(25.0));
        assert_eq!(Better::Lower.percent(400.0, 100.0), Some(-300.0));
        assert_eq!(Better::Lower.percent(0.0, 0.0), Some(0.0));
        assert_eq!(Better::Lower.percent(1.0, 0.0), None);
        assert_eq!(Better::Neither.percent(2.0, 1.0), None);
    }

    #[test]
    fn rates_go_up_times_go_down_and_given_counts_nowhere() {
        assert_eq!(better(&row("faults_per_s", "1/s", 1, &[])), Better::Higher);
        assert_eq!(better(&row("throughput", "Mb/s", 1, &[])), Better::Higher);
        assert_eq!(better(&row("pair_ns", "ns", 1, &[])), Better::Lower);
        assert_eq!(better(&row("elapsed_s", "s", 1, &[])), Better::Lower);
        assert_eq!(better(&row("interrupts", "interrupts", 1, &[])), Better::Lower);
        assert_eq!(better(&row("allocs", "blocks", 1, &[])), Better::Neither);
        assert_eq!(better(&row("crossed_percent", "%", 1, &[])), Better::Neither);
    }

    #[test]
    fn labels_are_those_of_mmtests() {
        assert_eq!(label(&row("faults_per_cpu_s", "1/s", 4, &[("clients", 4)])), "faults/cpu-4");
        assert_eq!(label(&row("system_s", "s", 4, &[("clients", 4)])), "system-4");
        assert_eq!(
            label(&row("alloc_ns", "ns", 1, &[("order", 0), ("batch", 16)])),
            "order-0 alloc-16"
        );
        assert_eq!(label(&row("pair_ns", "ns", 2, &[])), "pair-2");
        let stream = row("mib_per_s", "MiB/s", 2, &[("streams", 1), ("in_flight", 64)]);
        assert_eq!(label(&stream), "in_flight-64 mib/sec-1");
        assert_eq!(label(&row("pair_ns", "ns", 2, &[("lock", 1), ("store", 0)])), "pair-2");
        let drain = row("owner_ns", "ns", 2, &[("drains_per_s", -1), ("full", 1)]);
        assert_eq!(label(&drain), "full-1 cpus-2 owner-max");
    }
}
