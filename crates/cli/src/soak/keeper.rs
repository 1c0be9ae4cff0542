//! Kills processes of the storm, forks others in their place, and looks at the segment.

use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fastrand::Rng;
use pagedepot_linux::shared::{SharedDepot, SharedOptions};
use rustix::process::Signal;

use super::board::{Action, Board};
use super::options::SoakOptions;
use super::{census, storm};
use crate::failure::Failure;
use crate::harness::fork::Child;
use crate::report::Progress;

/// Mean time between two kills. The first milliseconds of a process are its fork and its joining.
const BETWEEN: Duration = Duration::from_micros(1500);
/// Kills between two looks at stopped processes, and between two counts of all pages.
const LOOK_AFTER: u32 = 50;
const COUNT_AFTER: u32 = 1000;
/// Time between two looks for progress, and looks without any after which a process is stuck: a
/// minute, in which the keeper itself was at work.
const PROGRESS_AFTER: Duration = Duration::from_millis(1);
const PATIENCE: u32 = 60_000;

/// A process of the storm.
struct Member {
    child: Child,
    /// Place on the board.
    seat: usize,
}

/// The storm, seen by its keeper.
struct Keeper {
    segment: OwnedFd,
    board: Board,
    random: Rng,
    members: Vec<Member>,
    /// Counts of the board when all pages were counted last.
    before: [u64; Action::ALL.len()],
    patience: u32,
    kills: u32,
    looks: u32,
    counts: u32,
}

/// Runs a storm of as many kills as the options ask for.
///
/// # Errors
/// When a page was lost or handed out twice, or the system refuses what a storm needs.
pub fn run(options: &SoakOptions) -> Result<String, Failure> {
    let begun = Instant::now();
    let mut keeper = Keeper::new(options.seed)?;
    let step = Progress::on_stderr().task("soak --shared: kills", options.kills.into());
    let ended = keeper.storm(options, &|| step.tick());
    drop(step);
    match ended {
        Ok(()) => Ok(keeper.summary(options, begun.elapsed())),
        Err(fault) => Err(Failure::Run(format!(
            "soak --shared: after {} kills, with --seed {}: {fault}: please report it",
            keeper.kills, options.seed
        ))),
    }
}

impl Keeper {
    fn new(seed: u64) -> Result<Self, Failure> {
        let options = SharedOptions::new(storm::BYTES).grow_to(storm::BYTES_MAX).answers(false);
        let depot = SharedDepot::create_memfd("pagedepot-soak", &options);
        let depot = depot.map_err(|error| Failure::Run(format!("soak: {error}")))?;
        let segment = depot.file().try_clone_to_owned();
        Ok(Keeper {
            segment: segment.map_err(|error| Failure::Run(format!("soak: {error}")))?,
            board: Board::new()?,
            random: Rng::with_seed(seed),
            members: Vec::new(),
            before: [0; Action::ALL.len()],
            patience: PATIENCE,
            kills: 0,
            looks: 0,
            counts: 0,
        })
    }

    fn storm(&mut self, options: &SoakOptions, tick: &dyn Fn()) -> Result<(), String> {
        while self.kills < options.kills {
            self.fill(options)?;
            // Now and then at once, now and then late.
            sleep(BETWEEN.mul_f64(-self.random.f64().max(1e-9).ln()));
            let at = self.random.usize(..self.members.len());
            self.kill(at)?;
            tick();
            if self.kills.is_multiple_of(LOOK_AFTER) {
                self.look()?;
            }
            if self.kills.is_multiple_of(COUNT_AFTER) && self.kills < options.kills {
                self.fill(options)?;
                self.count(tick)?;
            }
        }
        self.fill(options)?;
        self.count(tick)
    }

    /// Forks the processes that are missing.
    fn fill(&mut self, options: &SoakOptions) -> Result<(), String> {
        while self.members.len() < options.processes as usize {
            self.fork()?;
        }
        Ok(())
    }

    fn fork(&mut self) -> Result<(), String> {
        let seed = self.random.u64(..);
        self.fork_with(|segment, board, seat| storm::rage(segment, board, seat, seed))
    }

    fn fork_with(
        &mut self,
        program: impl FnOnce(BorrowedFd<'_>, &Board, usize),
    ) -> Result<(), String> {
        let is_free = |&seat: &usize| self.members.iter().all(|member| member.seat != seat);
        let seat = (0..).find(is_free).expect("there are as many seats as processes");
        let program = || {
            self.board.count_panics();
            program(self.segment.as_fd(), &self.board, seat);
        };
        let child = Child::fork(program).map_err(|error| format!("cannot fork: {error}"))?;
        self.members.push(Member { child, seat });
        Ok(())
    }

    /// Kills a process, which must have been there until now, and at work: one that panicked may
    /// still be dropping its values, and be killed before it ends by itself.
    fn kill(&mut self, at: usize) -> Result<(), String> {
        let Member { mut child, .. } = self.members.swap_remove(at);
        child.signal(Signal::KILL);
        let status = child.wait();
        let signal = status.and_then(|status| status.terminating_signal());
        if signal != Some(Signal::KILL.as_raw()) {
            return Err(format!("a process ended by itself ({status:?}): see what it said above"));
        }
        self.no_panics()?;
        self.kills += 1;
        Ok(())
    }

    fn no_panics(&self) -> Result<(), String> {
        match self.board.panics() {
            0 => Ok(()),
            panics => Err(format!("processes panicked {panics} times: see what they said above")),
        }
    }

    /// Waits, and kills no process, until each has begun another step: none waits for ever for
    /// what a dead one had.
    fn await_steps(&mut self) -> Result<(), String> {
        let steps = self.of_seats(|board, seat| board.steps(seat).0);
        self.await_progress(|board| {
            let mut stuck = steps.iter().filter(|&&(seat, steps)| board.steps(seat).0 == steps);
            let &(seat, _) = stuck.next()?;
            Some(format!("a process is stuck; its last step counts as {}", board.steps(seat).1))
        })
    }

    /// Waits, and kills no process, until each has been given memory by another request, and all
    /// has been done that is sure to be done since all pages were counted last.
    fn await_actions(&mut self) -> Result<(), String> {
        let (before, requests) = (self.before, self.of_seats(Board::requests));
        self.await_progress(|board| {
            if requests.iter().any(|&(seat, requests)| board.requests(seat) == requests) {
                return Some("no request of a process finds memory".to_owned());
            }
            let mut sure = Action::ALL.iter().filter(|(action, _)| action.is_sure());
            let (_, what) =
                sure.find(|&&(action, _)| board.count(action) == before[action as usize])?;
            Some(format!("processes do not do all that they try; there are no more {what}"))
        })
    }

    /// Seats of all processes, with a number of each.
    fn of_seats(&self, number: impl Fn(&Board, usize) -> u64) -> Vec<(usize, u64)> {
        let seats = self.members.iter().map(|member| member.seat);
        seats.map(|seat| (seat, number(&self.board, seat))).collect()
    }

    /// Waits while something is missing. Looks are counted rather than time, which goes on while
    /// this program and its processes are stopped.
    fn await_progress(&mut self, missing: impl Fn(&Board) -> Option<String>) -> Result<(), String> {
        let mut looks = 0;
        while let Some(fault) = missing(&self.board) {
            self.no_panics()?;
            if let Some(status) = self.members.iter_mut().find_map(|it| it.child.ended()) {
                return Err(format!("a process ended by itself ({status:?}): see above"));
            }
            if looks == self.patience {
                return Err(fault);
            }
            sleep(PROGRESS_AFTER);
            looks += 1;
        }
        Ok(())
    }

    /// Looks at the segment while all processes are stopped.
    fn look(&mut self) -> Result<(), String> {
        self.await_steps()?;
        for Member { child, .. } in &mut self.members {
            child.signal(Signal::STOP);
            let status = child.wait_stopped();
            if status.is_none_or(|status| !status.stopped()) {
                return Err(format!("a process ended by itself ({status:?}): see above"));
            }
        }
        self.no_panics()?;
        census::of_stopped(self.segment.as_fd())?;
        self.looks += 1;
        self.members.iter().for_each(|member| member.child.signal(Signal::CONT));
        Ok(())
    }

    /// Kills all processes, and counts all pages.
    fn count(&mut self, tick: &dyn Fn()) -> Result<(), String> {
        self.await_steps()?;
        self.await_actions()?;
        while !self.members.is_empty() {
            self.kill(0)?;
            tick();
        }
        census::of_dead(self.segment.as_fd())?;
        self.counts += 1;
        // What is in them has gone back.
        while self.board.take().is_some() {}
        self.before = Action::ALL.map(|(action, _)| self.board.count(action));
        Ok(())
    }

    fn summary(&self, options: &SoakOptions, elapsed: Duration) -> String {
        let mut text = format!(
            "{} kills in {:.1} s, {} processes at a time: no page was lost, and none handed out \
             twice.\nAll pages were counted {} times; {} times processes were looked at while they \
             were stopped.\n\n",
            self.kills,
            elapsed.as_secs_f64(),
            options.processes,
            self.counts,
            self.looks,
        );
        for (action, what) in Action::ALL {
            let _ = writeln!(text, "{:>12}  {what}", self.board.count(action));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::harness::fork::{Shared, bump, sleep_while};

    /// A value that is never dropped to the end, and says when its drop begins.
    struct Slow<'w>(&'w AtomicU32);

    impl Drop for Slow<'_> {
        fn drop(&mut self) {
            bump(self.0);
            sleep(Duration::MAX);
        }
    }

    #[test]
    fn a_process_that_panicked_was_not_killed_at_work() {
        let (mut keeper, dropping) = (Keeper::new(1).unwrap(), Shared::new(AtomicU32::new(0)));
        let dropping = dropping.unwrap();
        let program = |_: BorrowedFd<'_>, _: &Board, _| {
            let _slow = Slow(&dropping);
            panic!("on purpose");
        };
        keeper.fork_with(program).unwrap();
        // Acquire: pairs with the Release of `bump`.
        while dropping.load(Ordering::Acquire) == 0 {
            sleep_while(&dropping, 0);
        }
        let fault = keeper.kill(0).unwrap_err();
        assert!(fault.contains("panicked"), "{fault}");
        assert_eq!(keeper.kills, 0);
        let sleeps = |_: BorrowedFd<'_>, _: &Board, _| sleep(Duration::MAX);
        let mut keeper = Keeper::new(1).unwrap();
        keeper.fork_with(sleeps).unwrap();
        assert_eq!((keeper.kill(0), keeper.kills), (Ok(()), 1));
    }

    /// A keeper of little patience whose only process runs `program`.
    fn impatient(program: impl FnOnce(BorrowedFd<'_>, &Board, usize)) -> Keeper {
        let mut keeper = Keeper::new(1).unwrap();
        keeper.patience = 1;
        keeper.fork_with(program).unwrap();
        keeper
    }

    #[test]
    fn a_process_that_makes_no_step_is_stuck() {
        let sleeps = |_: BorrowedFd<'_>, _: &Board, _| sleep(Duration::MAX);
        let fault = impatient(sleeps).look().unwrap_err();
        assert!(fault.contains("stuck"), "{fault}");
        let mut keeper = impatient(sleeps);
        assert!(keeper.count(&|| ()).unwrap_err().contains("stuck"));
        assert_eq!((keeper.kills, keeper.counts), (0, 0));
    }

    #[test]
    fn requests_that_always_fail_are_a_fault() {
        // Its steps go on, and none of its requests finds memory.
        let fails = |_: BorrowedFd<'_>, board: &Board, seat| {
            loop {
                board.begin(seat, Action::Allocate);
                board.add(Action::Short, 1);
            }
        };
        let mut keeper = impatient(fails);
        // So little patience may end before the process has begun.
        let mut faults = std::iter::repeat_with(|| keeper.count(&|| ()).unwrap_err());
        let fault = faults.find(|fault| !fault.contains("stuck")).unwrap();
        assert!(fault.contains("no request of a process finds memory"), "{fault}");
    }
}
