//! Sentences on a drain: the pages that it takes back, its time, and its cost to the CPU that is
//! drained.

use super::figures::{self, Figures, best_of, time};
use crate::harness::samples;
use crate::report::counted;

/// The rate that sentences are about, where it was measured: frequent, and not without pause.
const PER_S: i64 = 1000;
/// A rival's drains take at least this share of the pages that the design's take.
const LIKE_SHARE: f64 = 0.5;

/// One sentence about quiet drains, and one about full ones.
pub fn sentences(figures: &Figures<'_>) -> Vec<String> {
    let quiet = [("drains_per_s", PER_S), ("full", 0)];
    let Some(subject) = figures.subject("drain_ns", &quiet) else { return Vec::new() };
    [quiet_sentence(figures, subject), full_sentence(figures, subject)]
        .into_iter()
        .flatten()
        .collect()
}

fn quiet_sentence(figures: &Figures<'_>, design: &str) -> Option<String> {
    let quiet = [("drains_per_s", PER_S), ("full", 0)];
    let (pages, ns) = (
        figures.median(design, "drained_pages", &quiet)?,
        figures.median(design, "drain_ns", &quiet)?,
    );
    let mut sentence = format!("Taking back {pages:.0} pages costs {} with {design}", time(ns));
    if figures::is_bound(design) {
        return Some(sentence + ", which is a bound, not an allocator.");
    }
    match figures.median(design, "interrupts", &quiet) {
        Some(interrupts) if interrupts < 0.5 => sentence += ", does not interrupt its owner's CPU",
        Some(interrupts) => {
            sentence += &format!(", interrupts its owner's CPU {interrupts:.0} times in a window");
        }
        None => {}
    }
    sentence += &owners_cost(figures, design).unwrap_or_default();
    let rivals = figures.of("drain_ns", &quiet);
    let rivals = rivals.into_iter().filter(|row| figures::is_rival(row, design));
    // A drain that finds less is less work: a design without caches drains nothing, at once.
    let rivals = rivals.filter(|row| {
        let theirs = figures.median(&row.design, "drained_pages", &quiet);
        theirs.is_some_and(|theirs| theirs >= pages * LIKE_SHARE)
    });
    if let Some(rival) = best_of(rivals)
        && let (Some(ns), Some(pages)) =
            (figures::median(rival), figures.median(&rival.design, "drained_pages", &quiet))
    {
        sentence += &format!("; with {} {pages:.0} pages take {}", rival.design, time(ns));
    }
    Some(sentence + ".")
}

/// The difference that drains make to what an operation of the owner costs, round by round.
fn owners_cost(figures: &Figures<'_>, design: &str) -> Option<String> {
    let samples = |per_s| {
        let rows = figures.of("owner_ns", &[("drains_per_s", per_s), ("full", 0)]);
        rows.into_iter().find(|row| row.design == design).map(|row| row.samples.as_slice())
    };
    let ratios = samples::ratios(samples(PER_S)?, samples(0)?)?;
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let (median, windows) = (percent(samples::median(&ratios)?), ratios.len());
    let changes = format!(", and changes what its owner's operations cost by {median:+.1} %");
    let Some((low, high)) = samples::median_interval(&ratios) else {
        return Some(format!("{changes} (median of {})", counted(windows, "window")));
    };
    let interval = format!("95 % interval {:+.1} to {:+.1} %", percent(low), percent(high));
    Some(if (low..=high).contains(&1.0) {
        format!(
            ", and costs its owner nothing that {windows} windows show ({median:+.1} % per \
             operation; {interval})"
        )
    } else {
        format!("{changes} (median of {windows} windows; {interval})")
    })
}

fn full_sentence(figures: &Figures<'_>, design: &str) -> Option<String> {
    let full = [("drains_per_s", PER_S), ("full", 1)];
    let pages = figures.median(design, "drained_pages", &full)?;
    let ns = figures.median(design, "drain_ns", &full)?;
    let interrupts = figures.median(design, "interrupts", &full).map(|interrupts| {
        format!(", and the owner's CPU gets {interrupts:.0} interrupts in a window")
    });
    let interrupts = interrupts.unwrap_or_default();
    Some(format!(
        "A full drain, of fronts too, takes {pages:.0} pages in {}{interrupts}.",
        time(ns)
    ))
}
