//! The list of workloads that `bench` and `compare` know.

use pagedepot_cli::workloads::all::{named, names};
use pagedepot_cli::workloads::{
    Workload, all, drain, fragmentation, hot, pagealloc, producer_consumer,
};

use super::{
    giveback, madvise, mass_exit, mixed, netperf, pft, process_magazines, purger, replay_build,
    ring_stream, stress, touch,
};
use crate::design::Lab;

/// All workloads of `bench`. What a new one needs besides stands at the top of `mod.rs`.
pub const ALL: &[&Workload] = &[
    &hot::workload::<Lab>(),
    &pagealloc::workload::<Lab>(),
    &touch::WORKLOAD,
    &pft::WORKLOAD,
    &producer_consumer::workload::<Lab>(),
    &drain::workload::<Lab>(),
    &ring_stream::WORKLOAD,
    &netperf::WORKLOAD,
    &replay_build::WORKLOAD,
    &process_magazines::WORKLOAD,
    &fragmentation::workload::<Lab>(),
    &mixed::WORKLOAD,
    &stress::WORKLOAD,
    &mass_exit::WORKLOAD,
    &purger::WORKLOAD,
    &giveback::WORKLOAD,
    &madvise::WORKLOAD,
];

/// The workload called `name`.
///
/// # Errors
/// Lists the names there are, here and in `pagedepot` alone.
pub fn parse(name: &str) -> Result<&'static Workload, String> {
    named(ALL, name).map_err(|error| {
        let is_elsewhere = |other: &&&Workload| ALL.iter().all(|here| here.name != other.name);
        let others: Vec<_> = all::ALL.iter().filter(is_elsewhere).copied().collect();
        format!("{error}; and in pagedepot {}", names(&others))
    })
}

/// The names of all workloads, separated by commas.
pub fn list() -> String {
    names(ALL)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const PAGE: &str = include_str!("../../../../docs/workloads.md");

    /// Names of the commands that have each workload, as the page has them.
    fn commands() -> BTreeMap<&'static str, &'static str> {
        let mut commands = BTreeMap::new();
        for (here, there) in [(all::ALL, "`pagedepot`"), (ALL, "`pagedepot-lab`")] {
            for workload in here {
                commands.entry(workload.name).and_modify(|of| *of = "both").or_insert(there);
            }
        }
        commands
    }

    #[test]
    fn the_page_has_each_workload_and_its_commands() {
        let rows = PAGE.lines().skip_while(|line| !line.starts_with("| workload |")).skip(2);
        let rows = rows.take_while(|line| line.starts_with('|')).map(|row| {
            let (name, command) = (row.split('`').nth(1), row.split('|').nth(2));
            (name.expect("a name"), command.expect("a command").trim())
        });
        assert_eq!(rows.collect::<BTreeMap<_, _>>(), commands());
    }

    #[test]
    fn an_error_names_the_command_that_has_the_workload() {
        let of_lab = commands().into_iter().filter(|(_, command)| *command == "`pagedepot-lab`");
        for (name, _) in of_lab {
            assert!(all::OF_LAB.contains(&name), "{name}");
            assert!(all::parse(name).unwrap_err().contains("; and in pagedepot-lab touch, "));
        }
        assert!(all::OF_LAB.iter().all(|name| parse(name).is_ok()));
        let error = parse("shared").unwrap_err();
        assert!(error.ends_with("; and in pagedepot shared"), "{error}");
    }
}
