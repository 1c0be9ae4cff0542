//! What machines say, under the names that scripts read.

use std::collections::BTreeMap;

/// The designs, in the order of tables.
pub const STOCK: &str = "linux-stock";
/// Linux with its per-CPU lists in the library.
pub const DEPOT: &str = "linux-depot";
/// Linux's own lists, drained by a work item on every CPU, as it was before 6.0.
pub const WORK: &str = "linux-work";

/// Design, metric and parameters of a figure of a machine that was booted as `design`; `None`: it
/// is for people alone.
pub fn named<'n>(
    design: &'static str,
    metric: &'n str,
    mut params: BTreeMap<String, i64>,
) -> Option<(&'static str, &'n str, BTreeMap<String, i64>)> {
    let (metric, design) = match metric {
        "drain_quiet_ns" | "drain_full_ns" | "drain_work_ns" => {
            params.insert("full".to_owned(), i64::from(metric != "drain_quiet_ns"));
            let by_work = metric == "drain_work_ns";
            // By work, the lists are what they are: one design, whichever was booted.
            if by_work && design != STOCK {
                return None;
            }
            ("drain_ns", if by_work { WORK } else { design })
        }
        "isolated_interrupts" => {
            params.remove("drains");
            match params.get("mode") {
                Some(2) if design == STOCK => {
                    params.insert("mode".to_owned(), 1);
                    (metric, WORK)
                }
                Some(2) => return None,
                _ => (metric, design),
            }
        }
        "depot" | "cpus" => return None,
        _ => (metric, design),
    };
    Some((design, metric, params))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, i64)]) -> BTreeMap<String, i64> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn figures_have_the_names_that_scripts_read() {
        for (design, metric, given, named_so) in [
            (
                STOCK,
                "pair_ns",
                params(&[("order", 0)]),
                Some((STOCK, "pair_ns", params(&[("order", 0)]))),
            ),
            (
                DEPOT,
                "drain_quiet_ns",
                params(&[]),
                Some((DEPOT, "drain_ns", params(&[("full", 0)]))),
            ),
            (STOCK, "drain_work_ns", params(&[]), Some((WORK, "drain_ns", params(&[("full", 1)])))),
            (DEPOT, "drain_work_ns", params(&[]), None),
            (
                STOCK,
                "isolated_interrupts",
                params(&[("mode", 2), ("busy", 1), ("drains", 100)]),
                Some((WORK, "isolated_interrupts", params(&[("mode", 1), ("busy", 1)]))),
            ),
            (STOCK, "cpus", params(&[]), None),
        ] {
            assert_eq!(named(design, metric, given), named_so, "{metric}");
        }
    }
}
