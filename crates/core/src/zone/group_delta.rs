//! The pages that a group of CPUs has not told its zone yet: the second level of `zone/delta.rs`,
//! where the theory is.

use super::delta::Delta;
use super::state::Zone;

/// The pages that a group of CPUs has not told the zone yet.
pub struct GroupDelta(Delta);

impl GroupDelta {
    pub fn new() -> Self {
        GroupDelta(Delta::new())
    }

    /// Reads the pages, like [`Delta::read`].
    pub fn read(&self) -> i64 {
        self.0.read()
    }

    /// Records what a CPU of the group has kept to itself so far.
    pub fn add(&self, zone: &Zone, pages: i64) {
        let Some(most) = zone.group_delta_max() else { return zone.add_reported(pages) };
        if zone.is_above_drift(0) {
            if self.0.add_from_below(pages).abs() <= most {
                return;
            }
        } else {
            zone.add_reported(pages);
        }
        self.0.report(|pages| zone.add_reported(pages));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::delta::GROUP_CPUS;
    use super::super::{Evacuation, Watermarks};
    use super::*;
    use crate::frame::NodeId;

    fn zone(cpus: u32, pages: u64) -> Zone {
        let zone = Zone::new("z", NodeId::new(0), 0, cpus, false, Evacuation::Off);
        zone.add_managed(pages);
        zone
    }

    #[test]
    fn few_cpus_form_no_group() {
        let (zone, group) = (zone(GROUP_CPUS, 1 << 20), GroupDelta::new());
        assert_eq!((zone.delta_max(), zone.group_delta_max()), (1024, None));
        assert_eq!(zone.estimate_error(), 16 * 1024);
        zone.add_free(1 << 20);
        group.add(&zone, -1);
        assert_eq!((zone.free_estimate(), group.read()), ((1 << 20) - 1, 0));
    }

    /// 17 CPUs in two groups, each of which keeps 8 times 963 pages.
    #[test]
    fn a_group_keeps_changes_above_the_mark() {
        let (zone, group) = (zone(17, 1 << 20), GroupDelta::new());
        let (most, drift) = (8 * 963, (17 + 2 * 8) * 963);
        assert_eq!((zone.delta_max(), zone.group_delta_max()), (963, Some(most)));
        assert_eq!(zone.estimate_error(), drift);
        zone.add_free(1 << 20);
        for sign in [1, -1] {
            let free = zone.free_estimate();
            group.add(&zone, sign * most);
            assert_eq!((zone.free_estimate(), group.read()), (free, sign * most));
            group.add(&zone, sign);
            assert_eq!((zone.free_estimate(), group.read()), (free + sign * (most + 1), 0));
        }
    }

    /// Checks that the zone's count has all that CPUs reported below the drift mark.
    #[test]
    fn a_group_keeps_nothing_below_the_mark() {
        let (zone, group) = (zone(17, 1 << 20), GroupDelta::new());
        group.add(&zone, 1000);
        assert_eq!((zone.free_estimate(), group.read()), (1000, 0));
        zone.add_free(1 << 20);
        group.add(&zone, 1000);
        assert_eq!((zone.free_estimate(), group.read()), (1000 + (1 << 20), 1000));
        zone.set_watermarks(Watermarks { min: 0, low: 0, high: 1 << 20 });
        group.add(&zone, -1);
        assert_eq!((zone.free_estimate(), group.read()), (1999 + (1 << 20), 0));
    }
}
