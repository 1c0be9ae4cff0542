//! The result of a replay as rows of figures, for scripts.

use std::collections::BTreeMap;

use serde::Serialize;

use super::report::{CpuPages, Replay, Report};

/// The workload of all rows.
const WORKLOAD: &str = "replay";
/// The design of what the recorded kernel did.
const KERNEL: &str = "kernel";

/// A figure: what was measured, of whom, and its samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub workload: &'static str,
    /// Its name; `kernel` for what the recorded kernel did.
    pub design: &'static str,
    pub metric: &'static str,
    pub unit: &'static str,
    /// CPUs of the trace, or those that they were folded onto.
    pub cpus: u32,
    pub params: BTreeMap<&'static str, i64>,
    /// One per run for times. Counts are the same in every run and have one.
    pub samples: Vec<f64>,
}

impl Report {
    /// All figures.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<_> =
            self.replays.iter().flat_map(|replay| self.rows_of(replay)).collect();
        for (metric, value) in [
            ("allocs", self.kernel.allocs),
            ("frees", self.kernel.frees),
            ("refilled_blocks", self.kernel.counts.refilled.blocks),
            ("spilled_blocks", self.kernel.counts.spilled.blocks),
        ] {
            rows.push(self.row(KERNEL, metric, "blocks", value));
        }
        rows.extend(
            self.cached_rows(KERNEL, self.kernel.cached_pages.as_deref().unwrap_or_default()),
        );
        rows
    }

    fn rows_of(&self, replay: &Replay) -> Vec<Row> {
        let (design, counts) = (replay.design, &replay.outcome.counts);
        let mut rows =
            vec![Row { samples: replay.event_ns.clone(), ..self.row(design, "event_ns", "ns", 0) }];
        for (metric, unit, value) in [
            ("allocs", "blocks", self.work.allocs.blocks()),
            ("frees", "blocks", self.work.frees.blocks()),
            ("unknown_frees", "blocks", self.work.unknown_frees),
            ("refilled_blocks", "blocks", counts.refilled.blocks),
            ("spilled_blocks", "blocks", counts.spilled.blocks),
            ("lost_frames", "pages", replay.outcome.lost_frames.unsigned_abs()),
        ] {
            rows.push(self.row(design, metric, unit, value));
        }
        rows.extend(self.cached_rows(design, &replay.cached_pages));
        for row in &mut rows {
            row.params.insert("store", replay.store);
        }
        rows
    }

    fn row(
        &self,
        design: &'static str,
        metric: &'static str,
        unit: &'static str,
        value: u64,
    ) -> Row {
        let is_recorded = design == KERNEL;
        let cpus =
            if is_recorded { self.trace.cpus_recorded } else { self.trace.cpus.len() } as u32;
        Row {
            workload: WORKLOAD,
            design,
            metric,
            unit,
            cpus,
            params: BTreeMap::new(),
            samples: vec![value as f64],
        }
    }

    fn cached_rows(&self, design: &'static str, cached: &[CpuPages]) -> impl Iterator<Item = Row> {
        cached.iter().map(move |&CpuPages { cpu, pages }| Row {
            params: BTreeMap::from([("cpu", i64::from(cpu))]),
            ..self.row(design, "cached_pages", "pages", pages)
        })
    }
}
