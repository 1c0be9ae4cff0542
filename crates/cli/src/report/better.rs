//! The direction in which a metric is better.

use super::document::ResultRow;

/// The direction in which a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
    /// Given by the workload, or neither good nor bad: percentages make no sense.
    Neither,
}

impl Better {
    /// Percent by which `new` is better than `base`, by mmtests' convention: positive is better.
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
        "allocs" | "frees" | "unknown_frees" | "drained_pages" | "recovered_pages" => {
            Better::Neither
        }
        // A soak's turns, which drains do not wait for.
        "used_up" | "drains" => Better::Neither,
        "pages" => Better::Higher,
        // What contiguity is judged by; how little could be tainted depends on what was allocated.
        "whole_share" | "whole_drained_share" | "gib_ranges" | "gib_drained_ranges" => {
            Better::Higher
        }
        "whole_of_free_share" | "whole_by_held_share" => Better::Higher,
        "gib_allocated" | "gib_compacted" | "huge_allocated" => Better::Higher,
        "packed_share" => Better::Neither,
        // They explain a rate; which way is good depends on the machine's caches.
        "crossed_percent" | "reuse_distance_bytes" | "reuse_distance_p90_bytes" => Better::Neither,
        "needed_pages" | "page_table_bytes_start" => Better::Neither,
        "hits" | "given_back_share" | "returned_share" => Better::Higher,
        // What a workload asked for.
        "peak_bytes" | "freed_bytes" => Better::Neither,
        "huge_bytes" => Better::Higher,
        "isolated_interrupts_before_per_s" => Better::Neither,
        metric if metric.ends_with("_per_s") || metric.ends_with("_per_cpu_s") => Better::Higher,
        _ if row.unit.ends_with("/s") => Better::Higher,
        _ => Better::Lower,
    }
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
        assert_eq!(better(&row("whole_share", "1", 1, &[])), Better::Higher);
        assert_eq!(better(&row("huge_allocated", "blocks", 1, &[])), Better::Higher);
        assert_eq!(better(&row("tainted_share", "1", 1, &[])), Better::Lower);
    }
}
