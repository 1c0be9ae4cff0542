//! Rows and tables of what all runs found.

use pagedepot::Order;

use pagedepot_cli::names::Design;
use pagedepot_cli::report::rows::Metric;
use pagedepot_cli::report::{Report, counted, table};
use pagedepot_cli::workloads::shape::Shape;

/// The workload of all rows.
pub const NAME: &str = "stress";

const METRICS: [Metric; 3] =
    [("whole_of_free_share", "1"), ("whole_by_held_share", "1"), ("op_ns", "ns")];

/// LLFree's score in percent, by its own program: 4 GiB, two threads, single frames, nothing to
/// drain. It is in no package registry, so it cannot be a row.
const LLFREE_PERCENT: u32 = 37;

/// Adds a row per design and metric.
pub fn add(
    report: &mut Report,
    shape: &Shape,
    order_max: Order,
    designs: &[Design],
    found: &[[Vec<f64>; 3]],
) {
    let mut params = shape.params(shape.rounds);
    params.remove("free_percent");
    params.insert("order_max", order_max.get().into());
    for (&design, found) in designs.iter().zip(found) {
        for (metric, samples) in METRICS.into_iter().zip(found) {
            report.add(NAME, design, metric, (shape.threads, &params), samples);
        }
    }
}

/// The table.
pub fn show(
    report: &mut Report,
    shape: &Shape,
    order_max: Order,
    designs: &[Design],
    found: &[[Vec<f64>; 3]],
) {
    let blocks = match order_max {
        Order::BASE => format!("single frames (LLFree's own program: {LLFREE_PERCENT})"),
        _ => format!("blocks of orders 0 to {order_max}"),
    };
    report.say(format!(
        "{NAME}: {} MiB, {}, {blocks}.\n\
         Wholly free pageblocks, in % of what is free, mean of {} in each of {}: nothing\n\
         drained; and where what caches have counts as free; ns per operation, median",
        shape.mib(),
        counted(shape.threads, "thread"),
        counted(shape.rounds as usize, "look"),
        counted(shape.runs as usize, "run"),
    ));
    let mut table = table::new(["design", "score", "by held", "op ns"]);
    for (design, [whole, by_held, op_ns]) in designs.iter().zip(found) {
        let [whole, by_held] = [whole, by_held].map(|shares| format!("{:.1}", mean(shares) * 1e2));
        table.add_row([design.name().to_owned(), whole, by_held, table::median(op_ns)]);
    }
    report.say(table::align(table, 1));
}

/// The mean, as LLFree's program scores; not-a-number of nothing.
fn mean(shares: &[f64]) -> f64 {
    shares.iter().sum::<f64>() / shares.len() as f64
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_score_is_the_mean_of_all_looks() {
        assert_eq!(super::mean(&[0.25, 0.5, 0.75, 1.0]), 0.625);
        assert!(super::mean(&[]).is_nan());
    }
}
