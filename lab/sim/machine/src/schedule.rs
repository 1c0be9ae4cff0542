//! The choice of the task that runs next.

use fastrand::Rng;

/// Rules by which tasks are scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// The task with the earliest clock: simulated time.
    Earliest,
    /// Any task, by chance, for so many accesses on average: exploration. Costs have no meaning.
    Random {
        /// Accesses between two switches, on average.
        stretch: u32,
    },
    /// The task with the highest priority; `changes` times, at moments chosen by chance among
    /// `steps` accesses, the running task falls to the lowest (probabilistic concurrency testing;
    /// Burckhardt et al., ASPLOS 2010). Exploration, as `Random`.
    Pct {
        /// Changes of priority.
        changes: u32,
        /// Accesses among which they are chosen.
        steps: u64,
    },
}

/// The choices of an exploration.
pub(crate) struct Explorer {
    schedule: Schedule,
    rng: Rng,
    steps: u64,
    change_at: Vec<u64>,
    priorities: Vec<i64>,
    lowest: i64,
}

impl Explorer {
    pub fn new(schedule: Schedule, seed: u64, tasks: usize) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut change_at = Vec::new();
        if let Schedule::Pct { changes, steps } = schedule {
            change_at = (0..changes).map(|_| rng.u64(..steps.max(1))).collect();
            change_at.sort_unstable_by_key(|&step| std::cmp::Reverse(step));
        }
        let mut priorities: Vec<i64> = (0..tasks as i64).collect();
        rng.shuffle(&mut priorities);
        Explorer { schedule, rng, steps: 0, change_at, priorities, lowest: -1 }
    }

    fn demote(&mut self, task: usize) {
        self.priorities[task] = self.lowest;
        self.lowest -= 1;
    }

    /// Whether the running task stops before its next access.
    pub fn stops(&mut self, task: usize) -> bool {
        self.steps += 1;
        match self.schedule {
            Schedule::Random { stretch } => self.rng.u32(..stretch.max(1)) == 0,
            _ => {
                let falls = self.change_at.pop_if(|&mut at| at <= self.steps).is_some();
                if falls {
                    self.demote(task);
                }
                falls
            }
        }
    }

    /// The running task waits for others in a loop.
    pub fn spins(&mut self, task: usize) {
        self.demote(task);
    }

    /// One of the tasks that are ready: its place in the list.
    pub fn choose(&mut self, ready: &[u32]) -> usize {
        match self.schedule {
            Schedule::Random { .. } => self.rng.usize(..ready.len()),
            _ => {
                let by_priority = ready.iter().enumerate();
                by_priority
                    .max_by_key(|(_, task)| self.priorities[**task as usize])
                    .map_or(0, |best| best.0)
            }
        }
    }
}
