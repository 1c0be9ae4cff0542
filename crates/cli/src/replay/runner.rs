//! A whole replay: verified once, then timed.

use super::calibrate::calibrated;
use super::depot::{ReplayMachine, with_depot};
use super::engine::run;
use super::error::Error;
use super::outcome::Outcome;
use super::plan::Plan;
use super::replayed::{Replay, ReplayResult};
use super::target::ReplayTarget;
use super::threads::{CacheUser, ReplayLineup, Replays, ThreadTarget};
use super::verify::{Story, Verify};
use super::watched::WatchedTarget;
use super::zoneinfos::Zoneinfos;
use crate::design::threads::{FromSetup, ThreadDesign};
use crate::design::variant::Variant;
use crate::harness::stop;
use crate::names::Design;
use pagedepot_trace::Zoneinfo;

/// Replays a plan into each of these designs (of [`Design::PAGED`]), `runs` times, each time into a
/// new allocator, after a first run that is not timed: it checks that every frame has one holder
/// and that all pages are accounted for, and the others must do the same block by block. `progress`
/// is called after each run. When the user asks to stop, the designs that are left have no result,
/// but for the first.
///
/// # Errors
/// When the trace needs more than the allocator can manage, or the allocator fails the replay.
pub fn replay<L: ReplayLineup>(
    plan: &Plan,
    zoneinfos: &Zoneinfos,
    (designs, variant): (&[Design], &Variant),
    runs: usize,
    mut progress: impl FnMut(),
) -> Result<ReplayResult, Error> {
    let before = zoneinfos.before.as_ref();
    let has_ticks = designs.iter().any(|&design| ticks(design));
    let fitted = if has_ticks { Some(calibrated(plan, zoneinfos)?) } else { None };
    let plan = fitted.as_ref().unwrap_or(plan);
    let mut replays = Vec::with_capacity(designs.len());
    for &design in designs {
        if stop::is_asked() && !replays.is_empty() {
            break;
        }
        let into = ReplayInto { design, plan, before, variant };
        let (checked, story) = into.run::<L>(Watch::Verified)?;
        let checked = checked.balanced()?;
        progress();
        let mut event_ns = Vec::with_capacity(runs);
        for _ in 0..runs.max(1) {
            if stop::is_asked() && !event_ns.is_empty() {
                break;
            }
            event_ns.push(into.run::<L>(Watch::Timed)?.0.same_as(&checked)?.event_ns());
            progress();
        }
        replays.push(Replay::new(
            plan,
            (design, variant.replay_params(design)),
            checked,
            event_ns,
            story,
        ));
    }
    Ok(ReplayResult::new(plan, replays, zoneinfos))
}

/// Whether a design does something when a CPU ticks. The depot goes by the clock.
fn ticks(design: Design) -> bool {
    !matches!(design, Design::ZoneLock | Design::Magazine | Design::Depot)
}

/// The design that a run replays into.
#[derive(Clone, Copy)]
struct ReplayInto<'p> {
    design: Design,
    plan: &'p Plan,
    before: Option<&'p Zoneinfo>,
    variant: &'p Variant,
}

/// A run into a design of the threads.
struct RunInto<'p>(ReplayInto<'p>, Watch);

impl<L> CacheUser<L> for RunInto<'_> {
    type Output = Result<(Outcome, Story), Error>;

    fn with<C: ThreadDesign<L, Store: FromSetup + Clone> + Replays<L>>(self) -> Self::Output {
        let RunInto(into, watch) = self;
        let ReplayInto { plan, before, variant, .. } = into;
        into.run_on(&mut ThreadTarget::<C, L>::new(plan, before, variant)?, watch)
    }
}

/// Whether every frame is watched, which takes several times as long.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watch {
    Verified,
    Timed,
}

impl ReplayInto<'_> {
    /// Runs the plan into a new allocator. All designs but `spin` and the depot run over a buddy
    /// store.
    fn run<L: ReplayLineup>(self, watch: Watch) -> Result<(Outcome, Story), Error> {
        let ReplayInto { design, plan, before, variant } = self;
        let store = variant.store_of(design);
        match L::default().with_cache(design, store, RunInto(self, watch)) {
            Ok(done) => done,
            Err(RunInto(..)) => {
                let machine = ReplayMachine::for_plan(plan, before).in_variant(variant);
                with_depot(machine, |depot| self.run_on(depot, watch))?
            }
        }
    }

    fn run_on(
        self,
        target: &mut impl ReplayTarget,
        watch: Watch,
    ) -> Result<(Outcome, Story), Error> {
        Ok(match watch {
            Watch::Verified => {
                let mut watched = WatchedTarget::new(target, Verify::default());
                let outcome = run(self.plan, &mut watched)?;
                let (looks, story) = watched.watch.into_parts();
                (Outcome { looks, ..outcome }, story)
            }
            Watch::Timed => (run(self.plan, target)?, Story::default()),
        })
    }
}
