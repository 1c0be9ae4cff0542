//! The conclusion from a run's figures, in plain sentences: the cost of a page, its ratio to the
//! bound and to the best rival, the pages that a drain takes and its cost, and a replay beside the
//! kernel.
//!
//! Sentences are made of result rows alone, so that saved files get the same ones.

mod cost;
mod drain;
mod figures;
mod replay;
mod shared;

use self::figures::Figures;
use crate::report::document::ResultRow;

/// Two sentences, or fewer, about each workload that the rows are of, in their order. The first is
/// about the workload's main figure.
pub fn sentences(rows: &[ResultRow]) -> Vec<String> {
    let mut workloads: Vec<&str> = Vec::new();
    for row in rows {
        if !workloads.contains(&row.workload.as_str()) {
            workloads.push(&row.workload);
        }
    }
    workloads.into_iter().flat_map(|workload| of_workload(rows, workload)).collect()
}

fn of_workload(rows: &[ResultRow], workload: &str) -> Vec<String> {
    let figures = Figures::new(rows, workload);
    match workload {
        "drain" => drain::sentences(&figures),
        "replay" => replay::sentences(&figures),
        "shared" => shared::sentences(&figures),
        _ => cost::sentences(&figures),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(workload: &str, design: &str, metric: &str, cpus: u32, sample: f64) -> ResultRow {
        ResultRow {
            workload: workload.into(),
            design: design.into(),
            metric: metric.into(),
            unit: "ns".into(),
            cpus,
            samples: vec![sample; 3],
            ..ResultRow::default()
        }
    }

    fn with(mut row: ResultRow, params: &[(&str, i64)]) -> ResultRow {
        row.params = params.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        row
    }

    #[test]
    fn a_pages_cost_is_told_beside_the_bound_and_the_best_rival() {
        let rows = [
            row("hot", "depot", "pair_ns", 1, 3.0),
            row("hot", "floor-rseq", "pair_ns", 1, 2.0),
            row("hot", "floor-spin", "pair_ns", 1, 1.0),
            row("hot", "spin", "pair_ns", 1, 15.0),
            row("hot", "rcu", "pair_ns", 1, 18.0),
            row("hot", "depot", "pair_ns", 2, 4.0),
            row("hot", "spin", "pair_ns", 2, 16.0),
        ];
        assert_eq!(
            sentences(&rows),
            [
                "A page allocated and freed costs 3.00 ns with depot, 1.5 times a bare restartable \
                 sequence (floor-rseq, a bound); spin, the best rival here, takes 15.0 ns, 5.0 \
                 times as long.",
                "On 2 CPUs at once it costs 4.00 ns on each; with spin 16.0 ns."
            ]
        );
        // Without the depot the best of the others is told of.
        let rest: Vec<_> = rows.into_iter().filter(|row| row.design != "depot").collect();
        assert!(
            sentences(&rest)[0].starts_with("A page allocated and freed costs 15.0 ns with spin")
        );
    }

    /// The medians are compared where a base has other rounds.
    #[test]
    fn costs_are_compared_round_by_round() {
        let of = |design: &str, samples: &[f64]| ResultRow {
            samples: samples.to_vec(),
            ..row("hot", design, "pair_ns", 1, 0.0)
        };
        let ours = of("depot", &[2.0, 4.0, 6.0]);
        let floor = of("floor-rseq", &[2.0, 1.0, 2.0]);
        let said = sentences(&[ours.clone(), floor, of("spin", &[8.0; 3])]);
        assert_eq!(
            said,
            ["A page allocated and freed costs 4.00 ns with depot, 3.0 times a bare restartable \
              sequence (floor-rseq, a bound); spin, the best rival here, takes 8.00 ns, 2.0 times \
              as long."]
        );
        let said = sentences(&[ours, of("floor-rseq", &[2.0]), of("spin", &[20.0, 4.0, 6.0])]);
        assert!(said[0].contains(", 2.0 times a bare"), "{said:?}");
        assert!(said[0].contains("6.00 ns, 1.0 times as long"), "{said:?}");
    }

    #[test]
    fn of_floors_alone_no_allocator_is_made() {
        let rows = [row("hot", "floor-tls", "pair_ns", 1, 1.0)];
        assert_eq!(
            sentences(&rows),
            ["A page allocated and freed costs 1.00 ns with floor-tls, which is a bound, not an \
              allocator."]
        );
    }

    #[test]
    fn all_rounds_are_one_figure() {
        let round = |nth: i64, ns: f64| {
            with(row("fragmentation", "depot", "realloc_ns", 2, ns), &[("round", nth)])
        };
        let said = sentences(&[round(1, 30.0), round(2, 10.0), round(3, 11.0)]);
        assert_eq!(said, ["A frame freed and another allocated cost 11.0 ns with depot."]);
    }

    #[test]
    fn drains_say_pages_time_and_the_owners_cost() {
        let (none, quiet, full) = (
            [("drains_per_s", 0), ("full", 0)],
            [("drains_per_s", 1000), ("full", 0)],
            [("drains_per_s", 1000), ("full", 1)],
        );
        let of = |design: &str, metric: &str, params: &[(&str, i64)], sample: f64| {
            with(row("drain", design, metric, 2, sample), params)
        };
        let rows = [
            of("depot", "owner_ns", &none, 3.0),
            of("depot", "owner_ns", &quiet, 3.01),
            of("depot", "drain_ns", &quiet, 1300.0),
            of("depot", "drained_pages", &quiet, 566.0),
            of("depot", "interrupts", &quiet, 0.0),
            of("depot", "drain_ns", &full, 13_000.0),
            of("depot", "drained_pages", &full, 640.0),
            of("depot", "interrupts", &full, 13.0),
            of("floor-spin", "drain_ns", &quiet, 40.0),
            of("floor-spin", "drained_pages", &quiet, 630.0),
            of("spin", "drain_ns", &quiet, 9000.0),
            of("spin", "drained_pages", &quiet, 600.0),
        ];
        assert_eq!(
            sentences(&rows),
            [
                "Taking back 566 pages costs 1.30 us with depot, does not interrupt its owner's \
                 CPU, and changes what its owner's operations cost by +0.3 % (median of 3 \
                 windows); with spin 600 pages take 9.00 us.",
                "A full drain, of fronts too, takes 640 pages in 13.0 us, and the owner's CPU \
                 gets 13 interrupts in a window."
            ]
        );
    }

    /// A change is told as one only where the windows show it, however small it is.
    #[test]
    fn what_drains_cost_their_owner_is_judged_by_the_windows() {
        let of = |metric: &str, per_s: i64, samples: &[f64]| {
            let mut row = row("drain", "depot", metric, 2, 1.0);
            row.samples = samples.to_vec();
            with(row, &[("drains_per_s", per_s), ("full", 0)])
        };
        let said = |with_drains: &[f64]| {
            let rows = [
                of("owner_ns", 0, &[100.0; 11]),
                of("owner_ns", 1000, with_drains),
                of("drain_ns", 1000, &[1300.0]),
                of("drained_pages", 1000, &[566.0]),
            ];
            sentences(&rows)[0].clone()
        };
        let small = [101.9, 102.0, 102.1, 102.2, 102.3, 102.4, 102.5, 102.6, 102.7, 102.8, 99.0];
        let small = said(&small);
        assert!(
            small.ends_with(
                "with depot, and changes what its owner's operations cost by +2.3 % (median of 11 \
                 windows; 95 % interval +1.9 to +2.7 %)."
            ),
            "{small}"
        );
        let noise = [90.0, 91.0, 92.0, 93.0, 94.0, 95.0, 96.0, 107.0, 108.0, 109.0, 110.0];
        let noise = said(&noise);
        assert!(
            noise.ends_with(
                "with depot, and costs its owner nothing that 11 windows show (-5.0 % per \
                 operation; 95 % interval -9.0 to +9.0 %)."
            ),
            "{noise}"
        );
    }

    #[test]
    fn a_shared_depot_is_told_beside_a_private_one_and_a_mutex() {
        let of = |design: &str, metric: &str, params: &[(&str, i64)], sample| {
            with(row("shared", design, metric, 1, sample), params)
        };
        let (batch, open) = ([("batch", 512)], [("gib", 1), ("open", 1)]);
        let rows = [
            of("depot-shared", "pair_ns", &[], 3.0),
            of("depot", "pair_ns", &[], 2.0),
            of("mutex", "pair_ns", &[], 30.0),
            of("depot-shared", "alloc_ns", &batch, 2.0),
            of("depot-shared", "free_ns", &batch, 3.0),
            of("depot", "alloc_ns", &batch, 2.0),
            of("depot-shared", "frame_ns", &[("processes", 2)], 50.0),
            of("depot-shared", "batch_frame_ns", &[("processes", 2)], 20.0),
            of("depot", "frame_ns", &[("processes", 1)], 10.0),
            of("mutex", "frame_ns", &[("processes", 2)], 200.0),
            of("depot-shared", "recovered_pages", &open, 262_144.0),
            of("depot-shared", "recover_ms", &open, 4.0),
            of("depot-shared", "recover_ms", &[("gib", 64), ("open", 0)], 300.0),
            of("mutex", "recovered_pages", &open, 0.0),
        ];
        assert_eq!(
            sentences(&rows),
            [
                "A page allocated and freed costs 3.00 ns with depot-shared, 1.50 times a private \
                 depot's; with a robust mutex 30.0 ns.",
                "Of 512 pages at a time each costs 2.00 ns to allocate, 1.00 times a private \
                 depot's, and 3.00 ns to free.",
                "A page from one process to another costs 50.0 ns, 5.00 times what it costs \
                 between two threads of a private depot; sent and claimed 64 at a time 20.0 ns; \
                 with a robust mutex 200 ns.",
                "Of a killed process that held 1 GiB a survivor takes back 262144 pages in 4.00 \
                 ms; a file of 64 GiB that no process has open is open again after 300 ms; a \
                 mutex gives back 0 pages."
            ]
        );
        assert!(sentences(&rows[1..2])[0].starts_with("shared: pair_ns is 2.00 ns with depot"));
    }

    #[test]
    fn replays_are_told_beside_the_kernel() {
        let rows = [
            row("replay", "depot", "event_ns", 2, 7.0),
            row("replay", "depot", "refilled_blocks", 2, 101.0),
            row("replay", "depot", "spilled_blocks", 2, 99.0),
            row("replay", "kernel", "refilled_blocks", 2, 100.0),
            row("replay", "kernel", "spilled_blocks", 2, 98.0),
        ];
        assert_eq!(
            sentences(&rows),
            [
                "An event of the recording costs 7.00 ns with depot, which refilled its CPUs with \
                 101 blocks and spilled 99 back to the store.",
                "The kernel that was recorded refilled 100 and spilled 98; its CPUs had pages \
                 cached when the recording began, and depot's had none."
            ]
        );
        let said = sentences(&rows[..4]);
        assert!(said[1].starts_with("The kernel that was recorded refilled 100;"), "{said:?}");
        assert_eq!(sentences(&rows[..3]).len(), 1, "the kernel's events were not recorded");
    }

    /// Neither a bound, nor a variant of the depot, nor a drain that finds nothing is a rival.
    #[test]
    fn rivals_are_other_designs_that_do_the_job() {
        let rows = [
            row("fragmentation", "depot", "realloc_ns", 1, 20.0),
            row("fragmentation", "depot-still", "realloc_ns", 1, 10.0),
            row("fragmentation", "depot-uncached", "realloc_ns", 1, 11.0),
            row("fragmentation", "spin", "realloc_ns", 1, 30.0),
        ];
        assert!(sentences(&rows)[0].contains("; spin, the best rival here, takes 30.0 ns"));
        assert!(!sentences(&rows[..3])[0].contains("rival"));
        let quiet = [("drains_per_s", 1000), ("full", 0)];
        let of = |design: &str, metric: &str, sample| {
            with(row("drain", design, metric, 2, sample), &quiet)
        };
        let rows = [
            of("depot", "drain_ns", 1300.0),
            of("depot", "drained_pages", 566.0),
            of("zone-lock", "drain_ns", 1.15),
            of("zone-lock", "drained_pages", 0.0),
            of("rcu", "drain_ns", 300.0),
            of("rcu", "drained_pages", 20.0),
            of("spin", "drain_ns", 9000.0),
            of("spin", "drained_pages", 600.0),
        ];
        let said = sentences(&rows);
        assert!(said[0].ends_with("; with spin 600 pages take 9.00 us."), "{said:?}");
        assert!(!sentences(&rows[..6])[0].contains("with rcu"), "{said:?}");
    }

    #[test]
    fn unknown_workloads_get_a_sentence_of_their_first_metric() {
        let rows = [row("new", "depot", "odd_ns", 1, 5.0), row("new", "rcu", "odd_ns", 1, 10.0)];
        let told = "new: odd_ns is 5.00 ns with depot; rcu, the best rival here, takes 10.0 ns, \
                    2.0 times as long.";
        assert_eq!(sentences(&rows), [told]);
        assert!(sentences(&[]).is_empty());
        // Rows by whose params it is not the same are no figure beside it.
        let of = |design: &str, cpus, after_s, share: f64| {
            let mut row = with(
                row("giveback", design, "returned_share", cpus, share),
                &[("after_s", after_s), ("store", 1)],
            );
            row.unit = "1".into();
            row
        };
        let rows = [of("depot", 1, 1, 0.97), of("glibc", 1, 1, 0.87), of("depot", 2, 10, 0.98)];
        let told = "giveback: returned_share (after_s 1) is 0.97 with depot; glibc, the best \
                    rival here, has 0.87.";
        assert_eq!(sentences(&rows), [told]);
    }

    /// The bound of a workload between two CPUs makes pages up: it is no sequence's cost.
    #[test]
    fn pages_between_cpus_are_told_beside_the_ring_alone() {
        let rows = [
            row("producer-consumer", "depot", "frame_ns", 2, 40.0),
            row("producer-consumer", "floor-rseq", "frame_ns", 2, 10.0),
        ];
        let told = "A page allocated on one CPU and freed on another costs 40.0 ns with depot, of \
                    which the ring between the CPUs costs 10.0 ns (floor-rseq, a bound).";
        assert_eq!(sentences(&rows), [told]);
    }
}
