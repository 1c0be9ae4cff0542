//! The lab's designs, as the product's workloads and replays use them.

use std::sync::Arc;

use pagedepot_cli::design::lineup::lacks_sequences;
use pagedepot_cli::design::variant::Store;
use pagedepot_cli::design::{AllocatorUser, Demand, Lineup};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::Design;
use pagedepot_cli::replay::threads::{CacheUser, ReplayLineup};

use super::dispatch::{Lab, by_thread_design, with_design};

impl Lineup for Lab {
    fn elsewhere(&self, design: Design) -> Option<&'static str> {
        if design == Design::Tcmalloc && !cfg!(feature = "tcmalloc") {
            return Some(
                "cargo run --release --manifest-path lab/Cargo.toml --features tcmalloc --",
            );
        }
        (design.is_peer() && !cfg!(feature = "peers"))
            .then_some("cargo run --release --manifest-path lab/Cargo.toml --features peers --")
    }

    fn unavailable(&self, design: Design) -> Option<String> {
        if let Some(command) = self.elsewhere(design) {
            return Some(format!("design {design} is not compiled in: `{command} ...` has it"));
        }
        #[cfg(feature = "peers")]
        if design == Design::MimallocPprof {
            return super::mimalloc_pprof::unavailable();
        }
        #[cfg(feature = "tcmalloc")]
        if design == Design::Tcmalloc {
            return super::tcmalloc::unavailable();
        }
        lacks_sequences(design)
    }

    fn with_allocator<U: AllocatorUser>(
        &self,
        design: Design,
        demand: &Demand,
        user: U,
    ) -> Result<U::Output, Failure> {
        with_design!(any design, demand, |allocator| -> U::Output { user.with(allocator) })
    }
}

impl ReplayLineup for Lab {
    fn with_cache<U: CacheUser<Self>>(
        &self,
        design: Design,
        store: Store,
        user: U,
    ) -> Result<U::Output, U> {
        by_thread_design!(
            design, store, Arc, type Cache => Ok(user.with::<Cache>()), _ => Err(user)
        )
    }
}

/// The reason why `design` cannot run here, with a remedy.
pub fn unavailable(design: Design) -> Option<String> {
    Lab.unavailable(design)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pagedepot_cli::design::variant::Variant;
    use pagedepot_cli::replay::{Plan, Zoneinfos, replay};
    use pagedepot_trace::ExpandLimit;

    use super::*;

    #[test]
    fn every_design_replays_the_shipped_trace() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../crates/cli/traces/build.perf.txt.zst");
        for zoneinfos in [Zoneinfos::find(&path, None, None).unwrap(), Zoneinfos::default()] {
            let plan =
                Plan::load(&path, zoneinfos.before.as_ref(), ExpandLimit::default()).unwrap();
            let designs = (Design::PAGED, &Variant::default());
            let report = replay::<Lab>(&plan, &zoneinfos, designs, 1, || ()).unwrap();
            assert_eq!(report.replays.len(), 9);
            for replay in &report.replays {
                let outcome = &replay.outcome;
                assert!(outcome.balance.holds() && outcome.lost_frames == 0, "{}", replay.design);
                assert_eq!(outcome.held_pages, plan.work.held.pages, "{}", replay.design);
                let caches = replay.design != Design::ZoneLock;
                assert_eq!(outcome.balance.after > 0, caches, "{}", replay.design);
            }
            // Two designs with the same lists and the same policy.
            let counts = |design| {
                let replay = report.replays.iter().find(|replay| replay.design == design);
                let counts = &replay.expect("it was replayed into").outcome.counts;
                (counts.refilled.blocks, counts.spilled.blocks)
            };
            assert_eq!(counts(Design::Local), counts(Design::Rcu));
        }
    }
}
