//! Static probes (USDT) on slow paths (feature `usdt`), by the crate `probe`: a `nop` each, and a
//! note in the program's file that names it. `perf` and `bpftrace` find them; docs/views.md has
//! commands.
//!
//! | probe of provider `pagedepot` | arguments |
//! |---|---|
//! | `refill`, `spill`, `drain` | CPU, zone, order, blocks |
//! | `fail` | zone, pages |

use pagedepot::cpus::{Event, Transfer};
use probe::probe;

/// Passes the probe of an event.
#[inline]
pub(crate) fn fire(event: Event) {
    let parts = |Transfer { cpu, zone, order, blocks }: Transfer| {
        (cpu.get(), zone.get(), order.get(), blocks)
    };
    match event {
        Event::Refill(transfer) => {
            let (cpu, zone, order, blocks) = parts(transfer);
            probe!(pagedepot, refill, cpu, zone, order, blocks);
        }
        Event::Spill(transfer) => {
            let (cpu, zone, order, blocks) = parts(transfer);
            probe!(pagedepot, spill, cpu, zone, order, blocks);
        }
        Event::Drain(transfer) => {
            let (cpu, zone, order, blocks) = parts(transfer);
            probe!(pagedepot, drain, cpu, zone, order, blocks);
        }
        Event::Fail { zone, pages } => {
            let zone = zone.get();
            probe!(pagedepot, fail, zone, pages);
        }
        // The core may come to have more.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use crate::skip::skip;

    /// The notes by which tools find probes are in the file, with their arguments.
    #[test]
    #[cfg_attr(miri, ignore = "starts a program")]
    fn tools_find_every_probe() {
        // Used, so that the linker keeps them.
        let depot = crate::Depot::new(1 << 20).unwrap();
        drop(depot.page(pagedepot::Order::BASE));
        let file = std::env::current_exe().unwrap();
        let Ok(output) = Command::new("readelf").arg("-n").arg(file).output() else {
            return skip("no readelf, so nothing looked for probes");
        };
        let notes = String::from_utf8_lossy(&output.stdout);
        for (name, arguments) in [("refill", 4), ("spill", 4), ("drain", 4), ("fail", 2)] {
            let note = format!("Provider: pagedepot\n    Name: {name}\n");
            let (_, after) = notes.split_once(&note).unwrap_or_else(|| panic!("{name}: {notes}"));
            let line = after.lines().find(|line| line.contains("Arguments:")).unwrap();
            assert_eq!(line.matches('@').count(), arguments, "{name}: {line}");
        }
    }
}
