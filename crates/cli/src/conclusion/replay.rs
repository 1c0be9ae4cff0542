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
    let kernel = Design::Kernel.name();
    let theirs = count(kernel, "refilled_blocks").zip(count(kernel, "spilled_blocks"));
    let Some((refilled, spilled)) = ours else { return vec![first + "."] };
    first += &format!(
        ", which refilled its CPUs with {refilled:.0} blocks and spilled {spilled:.0} back to the \
         store."
    );
    let second = theirs.map(|(kernel_refilled, kernel_spilled)| {
        format!(
            "Each of these is work on the store that CPUs share, so fewer are better. The kernel \
             that was recorded refilled {kernel_refilled:.0} ({design}{}) and spilled \
             {kernel_spilled:.0} ({design}{}).",
            change(refilled, kernel_refilled),
            change(spilled, kernel_spilled)
        )
    });
    [Some(first), second].into_iter().flatten().collect()
}

/// The difference of a design's count from the kernel's, and whether that is good.
fn change(ours: f64, kernel: f64) -> String {
    if kernel == 0.0 {
        return format!(" {ours:.0}");
    }
    let percent = (ours / kernel - 1.0) * 100.0;
    let verdict = match percent {
        more if more >= 0.05 => "worse",
        less if less <= -0.05 => "better",
        _ => "the same",
    };
    format!(" {percent:+.1} %, {verdict}")
}
