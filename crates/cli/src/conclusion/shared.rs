//! Sentences on a depot that processes share, beside a private one and a mutex.

use super::cost;
use super::figures::{Figures, Params, median, time};
use crate::harness::samples;
use crate::names::Design;
use crate::report::document::ResultRow;

const OURS: &str = Design::DepotShared.name();
const PRIVATE: &str = Design::Depot.name();
const MUTEX: &str = Design::Mutex.name();

/// A sentence about each of: a page, many pages, pages between processes, and recovery.
pub fn sentences(figures: &Figures<'_>) -> Vec<String> {
    let all = [pair(figures), batch(figures, 512), batch(figures, 1 << 15), passing(figures)];
    let all: Vec<_> = all.into_iter().chain([recovery(figures)]).flatten().collect();
    // Of a run without the design in question.
    if all.is_empty() { cost::sentences(figures) } else { all }
}

fn row<'r>(
    figures: &Figures<'r>,
    design: &str,
    metric: &str,
    params: Params<'_>,
) -> Option<&'r ResultRow> {
    figures.of(metric, params).into_iter().find(|row| row.design == design)
}

/// `, 1.02 times a private depot's`, round by round.
fn beside(ours: &ResultRow, base: Option<&ResultRow>, whose: &str) -> String {
    let ratio = base.and_then(|base| samples::median_ratio(&ours.samples, &base.samples));
    ratio.map_or_else(String::new, |ratio| format!(", {ratio:.2} times {whose}"))
}

fn pair(figures: &Figures<'_>) -> Option<String> {
    let of = |design| row(figures, design, "pair_ns", &[]);
    let ours = of(OURS)?;
    let mut sentence = format!("A page allocated and freed costs {}", time(median(ours)?));
    sentence += &format!(" with {OURS}{}", beside(ours, of(PRIVATE), "a private depot's"));
    if let Some(mutex) = of(MUTEX).and_then(median) {
        sentence += &format!("; with a robust mutex {}", time(mutex));
    }
    Some(sentence + ".")
}

fn batch(figures: &Figures<'_>, pages: i64) -> Option<String> {
    let params = [("batch", pages)];
    let part = |metric: &str, verb: &str| {
        let of = |design| row(figures, design, metric, &params);
        let ours = of(OURS)?;
        let beside = beside(ours, of(PRIVATE), "a private depot's");
        Some(format!("{} to {verb}{beside}", time(median(ours)?)))
    };
    let (alloc, free) = (part("alloc_ns", "allocate")?, part("free_ns", "free")?);
    let kind = if pages > 1 << 10 { ", which caches do not hold," } else { "" };
    Some(format!("Of {pages} pages at a time{kind} each costs {alloc}, and {free}."))
}

fn passing(figures: &Figures<'_>) -> Option<String> {
    let of = |design, processes| row(figures, design, "frame_ns", &[("processes", processes)]);
    let ours = of(OURS, 2)?;
    let mut sentence = format!("A page from one process to another costs {}", time(median(ours)?));
    let threads = "what it costs between two threads of a private depot";
    sentence += &beside(ours, of(PRIVATE, 1), threads);
    let batch = row(figures, OURS, "batch_frame_ns", &[("processes", 2)]);
    if let Some(batch) = batch.and_then(median) {
        sentence += &format!("; sent and claimed 64 at a time {}", time(batch));
    }
    if let Some(mutex) = of(MUTEX, 2).and_then(median) {
        sentence += &format!("; with a robust mutex {}", time(mutex));
    }
    Some(sentence + ".")
}

fn recovery(figures: &Figures<'_>) -> Option<String> {
    let open = [("open", 1)];
    let survivor = row(figures, OURS, "recover_ms", &open)?;
    let pages = figures.median(OURS, "recovered_pages", &open)?;
    let gib = survivor.params.get("gib")?;
    let mut sentence = format!(
        "Of a killed process that held {gib} GiB a survivor takes back {pages:.0} pages in {}",
        time(median(survivor)? * 1e6)
    );
    if let Some(file) = row(figures, OURS, "recover_ms", &[("open", 0)]) {
        let gib = file.params.get("gib")?;
        sentence += &format!(
            "; a file of {gib} GiB that no process has open is open again after {}",
            time(median(file)? * 1e6)
        );
    }
    if let Some(mutex) = figures.median(MUTEX, "recovered_pages", &open) {
        sentence += &format!("; a mutex gives back {mutex:.0} pages");
    }
    Some(sentence + ".")
}
