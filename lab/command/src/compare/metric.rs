//! Metrics' names in tables.

use clap::ValueEnum;

use pagedepot_cli::design::variant::{self, FreeHighPages};
use pagedepot_cli::report::document::ResultRow;

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
    // touch and pft use as many CPUs as they have clients, a replay as many as its trace: nothing
    // to add.
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
