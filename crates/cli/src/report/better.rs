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
/// interruptions. Of a metric that is not listed here no direction is known.
pub fn better(row: &ResultRow) -> Better {
    listed(&row.metric, &row.unit).unwrap_or(Better::Neither)
}

fn listed(metric: &str, unit: &str) -> Option<Better> {
    Some(match metric {
        "allocs" | "frees" | "unknown_frees" | "recovered_pages" => Better::Neither,
        metric if metric.ends_with("drained_pages") => Better::Neither,
        // A soak's turns, which drains do not wait for.
        "used_up" | "drains" => Better::Neither,
        "pages" => Better::Higher,
        // What contiguity is judged by; how little could be tainted depends on what was allocated.
        "whole_share" | "whole_drained_share" | "gib_ranges" | "gib_drained_ranges" => {
            Better::Higher
        }
        "whole_of_free_share" | "whole_by_held_share" | "whole_pageblocks" => Better::Higher,
        "tainted_share" | "mixed_share" | "tainted_pageblocks" => Better::Lower,
        "unusable_index" | "fallbacks" => Better::Lower,
        "gib_allocated" | "gib_compacted" | "huge_allocated" => Better::Higher,
        "packed_share" => Better::Neither,
        // What contiguity costs.
        "moved_pages" | "churn_moved_pages" => Better::Lower,
        // They explain a rate; which way is good depends on the machine's caches.
        "crossed_percent" | "reuse_distance_bytes" | "reuse_distance_p90_bytes" => Better::Neither,
        // As mmtests has it.
        "cpu_percent" => Better::Lower,
        "lock_wait_share" | "spinning_percent" => Better::Lower,
        // What a Linux did under a zone's lock.
        metric if metric.starts_with("zone_lock_") => Better::Lower,
        "efficiency" => Better::Higher,
        // What passes between CPUs and the store, and what CPUs keep from others.
        "refilled_blocks" | "spilled_blocks" | "cached_pages" => Better::Lower,
        "lost_frames" | "lost_pages" => Better::Lower,
        metric if metric.ends_with("pending_pages") => Better::Lower,
        "needed_pages" | "page_table_bytes_start" => Better::Neither,
        "flushed_pages" | "page_table_bytes_peak" | "page_table_bytes_end" => Better::Lower,
        "pagetable_pages" | "metadata_bytes_per_gib" => Better::Lower,
        "hits" | "given_back_share" | "returned_share" => Better::Higher,
        "present_share" | "resident_bytes" => Better::Lower,
        // What a workload asked for.
        "peak_bytes" | "freed_bytes" => Better::Neither,
        "huge_bytes" => Better::Higher,
        "tests_passed" => Better::Higher,
        "tests_failed" => Better::Lower,
        "tests_ignored" => Better::Neither,
        "isolated_interrupts_before_per_s" => Better::Neither,
        metric if metric.ends_with("interrupts") || metric.ends_with("interruptions") => {
            Better::Lower
        }
        metric if metric.ends_with("_interrupts_per_drain") => Better::Lower,
        "tlb_shootdowns" | "isolated_switches" => Better::Lower,
        "faults_after" | "second_peak_faults" => Better::Lower,
        metric if metric.ends_with("_per_s") || metric.ends_with("_per_cpu_s") => Better::Higher,
        _ if unit.ends_with("/s") => Better::Higher,
        _ if matches!(unit, "ns" | "us" | "ms" | "s" | "instructions") => Better::Lower,
        // Times that a mail gave without a unit.
        "alloc" | "free" | "total" => Better::Lower,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

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
        assert_eq!(better(&row("whole_pageblocks", "pageblocks", 1, &[])), Better::Higher);
        assert_eq!(better(&row("efficiency", "", 1, &[])), Better::Higher);
        assert_eq!(better(&row("burst_drained_pages", "pages", 1, &[])), Better::Neither);
        assert_eq!(better(&row("zone_lock_contended", "", 1, &[])), Better::Lower);
        assert_eq!(better(&row("of_another_program", "1", 1, &[])), Better::Neither);
    }

    /// Adds the pairs of two names in quotes, as metrics are written with their units, of the
    /// sources below a folder.
    fn add_pairs(folder: &Path, found: &mut BTreeSet<(String, String)>) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                add_pairs(&entry, found);
                continue;
            }
            let text = fs::read_to_string(&entry).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            for after in code.split("(\"").skip(1) {
                let Some((metric, rest)) = after.split_once("\", \"") else { continue };
                let Some((unit, _)) = rest.split_once("\")") else { continue };
                let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                if metric.chars().all(is_name) && !unit.contains(['"', ' ']) {
                    found.insert((metric.to_owned(), unit.to_owned()));
                }
            }
        }
    }

    #[test]
    fn every_metric_of_the_workloads_is_listed() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = BTreeSet::new();
        for folder in ["replay", "workloads"] {
            add_pairs(&sources.join(folder), &mut found);
        }
        assert!(found.len() > 60, "the sources are read: {found:?}");
        // A package of this crate has no lab beside it.
        let lab = sources.join("../../../lab/command/src/workloads");
        if lab.is_dir() {
            add_pairs(&lab, &mut found);
        }
        found.retain(|(metric, unit)| listed(metric, unit).is_none());
        assert!(found.is_empty(), "{found:?}");
    }
}
