//! The figures that machines print, under the names that scripts read.

use std::collections::BTreeMap;

use xtask::results::Param;

/// The designs, in the order of tables.
pub const STOCK: &str = "linux-stock";
/// Linux with its per-CPU lists in the library.
pub const DEPOT: &str = "linux-depot";
/// Linux's own lists, drained by a work item on every CPU, as it was before 6.0.
pub const WORK: &str = "linux-work";
/// Two sets of lists per CPU, which a drain switches and empties after a grace period.
pub const RCU: &str = "linux-rcu";
/// Lists that CPUs share, each behind a spinlock.
pub const MAGAZINE: &str = "linux-magazine";
/// Linux 5.10 as it comes, whose lists are drained by a work item on every CPU.
pub const OLD: &str = "linux-5.10";
/// The designs of a second kernel, see `glue/rivals.c`. There is one for user mode alone.
pub const RIVALS: [&str; 2] = [RCU, MAGAZINE];
/// All of them.
pub const DESIGNS: [&str; 6] = [STOCK, DEPOT, WORK, RCU, MAGAZINE, OLD];

/// Metric and parameters of a figure of a machine; `None`: it is for people alone. `counts`: its
/// nanoseconds are instructions.
pub fn named(
    metric: &str,
    mut params: BTreeMap<String, Param>,
    counts: bool,
) -> Option<(&str, BTreeMap<String, Param>)> {
    match metric {
        "cpus" => return None,
        "loop_ns" if counts => return Some(("loop_instructions", params)),
        "fault_ns" if counts => return Some(("fault_instructions", params)),
        // How many drains there were is the same for all.
        "isolated_interrupts" => drop(params.remove("drains")),
        _ => {}
    }
    Some((metric, params))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, i64)]) -> BTreeMap<String, Param> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
    }

    #[test]
    fn figures_have_the_names_that_scripts_read() {
        let counted = named("loop_ns", params(&[("test", 1)]), true);
        assert_eq!(counted, Some(("loop_instructions", params(&[("test", 1)]))));
        for (metric, given, named_so) in [
            ("pair_ns", params(&[("order", 0)]), Some(params(&[("order", 0)]))),
            (
                "isolated_interrupts",
                params(&[("mode", 2), ("busy", 1), ("drains", 100)]),
                Some(params(&[("mode", 2), ("busy", 1)])),
            ),
            ("cpus", params(&[]), None),
        ] {
            let named = named(metric, given, false);
            assert_eq!(named, named_so.map(|params| (metric, params)), "{metric}");
        }
    }
}
