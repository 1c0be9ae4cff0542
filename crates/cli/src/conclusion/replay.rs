//! Sentences that compare a replay with the kernel that was recorded.

use super::figures::{Figures, time};
use crate::names::Design;

/// One sentence about the design, and one about the kernel.
pub fn sentences(figures: &Figures<'_>) -> Vec<String> {
    let Some(design) = figures.subject("event_ns", &[]) else { return Vec::new() };
    let count = |design: &str, metric: &str| figures.median(design, metric, &[]);
    let Some(ns) = count(design, "event_ns") else { return Vec::new() };
    let mut first = format!("An event of the recording costs {} with {design}", time(ns));
    let ours = count(design, "refilled_blocks").zip(count(design, "spilled_blocks"));
    let Some((refilled, spilled)) = ours else { return vec![first + "."] };
    first += &format!(
        ", which refilled its CPUs with {refilled:.0} blocks and spilled {spilled:.0} back to the \
         store."
    );
    let of_kernel = |metric, did: &str| {
        count(Design::Kernel.name(), metric).map(|blocks| format!("{did} {blocks:.0}"))
    };
    let theirs = [of_kernel("refilled_blocks", "refilled"), of_kernel("spilled_blocks", "spilled")];
    let theirs: Vec<_> = theirs.into_iter().flatten().collect();
    if theirs.is_empty() {
        return vec![first];
    }
    // The model of the kernel's lists begins with those of the kernel, where they were saved.
    let began = if design == Design::Spin.name() {
        String::new()
    } else {
        format!("; its CPUs had pages cached when the recording began, and {design}'s had none")
    };
    let theirs = theirs.join(" and ");
    vec![first, format!("The kernel that was recorded {theirs}{began}.")]
}
