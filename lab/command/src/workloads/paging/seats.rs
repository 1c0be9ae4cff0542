//! Clients as contenders, on a seat each.

use std::sync::Arc;
use std::time::Instant;

use super::client::Client;
use super::sweep::Sweep;
use pagedepot_cli::harness::clock::{cpu_seconds, on_cpu_ns};
use pagedepot_cli::harness::{Contender, Seat, Subject};

/// Metrics of a window: nanoseconds until a page was there, pages per CPU second and per second,
/// and the window's elapsed, user and system seconds.
pub const METRICS: usize = 6;

/// The seats of one client each. A seat's samples are pages, nanoseconds until all of them were
/// there, CPU seconds, and the last three metrics; `combine` makes the others of them.
pub struct ClientSeats {
    pub client: Box<dyn Client>,
    pub share: u32,
    pub sweep: Arc<Sweep>,
}

impl Contender<METRICS> for ClientSeats {
    fn subject(&self) -> &dyn Subject {
        self.client.subject()
    }

    fn owned_subject(&mut self) -> Option<&mut dyn Subject> {
        self.client.owned_subject()
    }

    /// Designs that share memory would find in the cache what the one before them has touched.
    fn prepare(&self) {
        self.sweep.run();
    }

    fn window(&self, seat: Seat, _units: u64) -> [f64; METRICS] {
        let (cpu_ns, [user, system]) = (on_cpu_ns(), cpu_seconds());
        let start = Instant::now();
        let had = self.client.run(seat.index, self.share);
        let elapsed = start.elapsed().as_secs_f64();
        let (cpu_s, [user_after, system_after]) =
            ((on_cpu_ns() - cpu_ns) as f64 / 1e9, cpu_seconds());
        let touching_ns = had.touching.as_nanos() as f64;
        [had.pages as f64, touching_ns, cpu_s, elapsed, user_after - user, system_after - system]
    }

    fn combine(&self, seats: &[[f64; METRICS]]) -> [f64; METRICS] {
        let sum = |of: usize| seats.iter().map(|seat| seat[of]).sum::<f64>();
        let pages = sum(0);
        let elapsed = seats.iter().map(|seat| seat[3]).fold(0.0, f64::max);
        [sum(1) / pages, pages / sum(2), pages / elapsed, elapsed, sum(4), sum(5)]
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::KernelFaults;
    use super::*;

    #[test]
    fn clients_are_summed_and_the_last_one_counts() {
        let clients =
            ClientSeats { client: Box::new(KernelFaults), share: 0, sweep: Arc::new(Sweep::new()) };
        // Pages, ns until they were there, CPU, elapsed, user, system.
        let metrics =
            clients.combine(&[[100.0, 1e9, 2.0, 2.0, 0.25, 1.5], [300.0, 3e9, 3.0, 4.0, 0.5, 2.0]]);
        assert_eq!(metrics, [4e9 / 400.0, 400.0 / 5.0, 400.0 / 4.0, 4.0, 0.75, 3.5]);
    }

    #[test]
    fn the_kernel_gives_as_many_pages_as_asked_for() {
        assert_eq!(KernelFaults.run(0, 33).pages, 33);
    }
}
