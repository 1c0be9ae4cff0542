//! Barriers at which tasks wait for each other.

use std::cell::Cell;

use pagedepot_sim_machine as machine;

/// Time between two looks of a waiting task.
const LOOK_PS: u64 = 1_000_000;

/// A barrier at which processes wait for each other. It costs nothing but the time.
#[derive(Default)]
pub struct Meeting {
    arrived: Cell<u64>,
}

impl Meeting {
    /// Waits until there were so many arrivals, or for the end of the window.
    pub fn wait(&self, arrivals: u64, end_ps: u64) {
        self.arrived.set(self.arrived.get() + 1);
        while self.arrived.get() < arrivals && machine::now_ps() < end_ps {
            machine::sleep_until(machine::now_ps() + LOOK_PS);
        }
    }
}
