//! Properties of replays:
//! 1. any sequence of page events makes a plan that runs, balances, gives every frame one holder
//!    and gets every frame back;
//! 2. a program that frees only what it holds is replayed as it was: no free is unknown or missed;
//! 3. what is planned agrees with a plain model of held blocks.

use std::time::Duration;

use pagedepot::Mobility;
use pagedepot_cli::tested::{Outcome, Plan, ReplayMachine, Verify, WatchedTarget, run, with_depot};
use pagedepot_linux::trace::{Stamp, TraceWriter, TracedBlock};
use proptest::prelude::*;

use crate::naive::Naive;

/// Frames that the random traces use.
const FRAMES: u64 = 1 << 11;

#[derive(Clone, Debug)]
struct Step {
    cpu: u32,
    after_ms: u64,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    Alloc(TracedBlock, Mobility),
    Free(TracedBlock),
    FreeMany(Vec<TracedBlock>),
}

fn block() -> impl Strategy<Value = TracedBlock> {
    let order = prop_oneof![8 => 0..=3_u32, 2 => 4..=9_u32];
    (1..FRAMES, order).prop_map(|(pfn, order)| TracedBlock {
        pfn: (pfn >> order << order).max(1 << order),
        order,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let action = prop_oneof![
        (block(), 0..3_usize).prop_map(|(block, kind)| Action::Alloc(block, Mobility::ALL[kind])),
        block().prop_map(Action::Free),
        prop::collection::vec(block(), 1..40).prop_map(Action::FreeMany),
    ];
    (0..4_u32, 0..800_u64, action).prop_map(|(cpu, after_ms, action)| Step {
        cpu,
        after_ms,
        action,
    })
}

fn write(steps: &[Step]) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new());
    let mut time = Duration::ZERO;
    for Step { cpu, after_ms, action } in steps {
        time += Duration::from_millis(*after_ms);
        let at = Stamp { comm: "prop", pid: 1, cpu: *cpu, time };
        match action {
            &Action::Alloc(block, mobility) => writer.alloc(&at, block, mobility),
            &Action::Free(block) => writer.free(&at, block),
            Action::FreeMany(blocks) => writer.free_many(&at, blocks),
        }
        .unwrap();
    }
    writer.finish().unwrap()
}

/// A model that knows frames only: which are held.
fn held_frames(steps: &[Step]) -> u64 {
    let mut owner = vec![0_usize; 2 * FRAMES as usize];
    let frames =
        |block: &TracedBlock| block.pfn as usize..(block.pfn as usize + (1 << block.order));
    for (id, step) in (1..).zip(steps) {
        match &step.action {
            Action::Alloc(block, _) => {
                // Whatever overlaps must have been freed whole.
                let gone: Vec<usize> =
                    frames(block).map(|frame| owner[frame]).filter(|&id| id > 0).collect();
                owner.iter_mut().filter(|id| gone.contains(id)).for_each(|id| *id = 0);
                owner[frames(block)].fill(id);
            }
            Action::Free(block) => owner[frames(block)].fill(0),
            Action::FreeMany(blocks) => {
                blocks.iter().for_each(|block| owner[frames(block)].fill(0))
            }
        }
    }
    owner.iter().filter(|&&id| id > 0).count() as u64
}

/// Runs on both allocators; panics when anything is wrong.
fn run_both(plan: &Plan) {
    let mut naive = Naive::new(plan.cpus.len().max(1), plan.zone_pages());
    let naive = run(plan, &mut WatchedTarget::new(&mut naive, Verify::default()))
        .and_then(Outcome::balanced);
    naive.unwrap_or_else(|error| panic!("naive: {error}"));
    let machine = ReplayMachine::for_plan(plan, None);
    let depot =
        with_depot(machine, |depot| run(plan, &mut WatchedTarget::new(depot, Verify::default())))
            .unwrap();
    let depot = depot.and_then(Outcome::balanced).unwrap_or_else(|error| panic!("depot: {error}"));
    // Unwatched, the same happens.
    let again = with_depot(machine, |depot| run(plan, depot)).unwrap();
    again.and_then(|again| again.same_as(&depot)).unwrap_or_else(|error| panic!("again: {error}"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_events_replay(steps in prop::collection::vec(step(), 1..200)) {
        let plan = Plan::read(&write(&steps)[..], "steps", None).unwrap();
        prop_assert_eq!(plan.work.implausible, 0);
        run_both(&plan);
    }

    #[test]
    fn what_is_held_agrees_with_a_model(steps in prop::collection::vec(step(), 1..100)) {
        // A missed free of a block that was split frees only the part that shows; the model, which
        // knows no splits, frees all of it. So keep to blocks of which no part is freed.
        let steps: Vec<Step> = steps.into_iter().filter(|step| match &step.action {
            Action::Alloc(block, _) | Action::Free(block) => block.order == 0,
            Action::FreeMany(blocks) => blocks.iter().all(|block| block.order == 0),
        }).collect();
        prop_assume!(!steps.is_empty());
        let plan = Plan::read(&write(&steps)[..], "steps", None).unwrap();
        prop_assert_eq!(plan.work.held.pages, held_frames(&steps));
    }

    #[test]
    fn frees_of_parts_agree_with_a_model(
        allocs in prop::collection::vec(4..=9_u32, 1..8),
        frees in prop::collection::vec((0..8_usize, block()), 1..60),
    ) {
        // Blocks apart from each other, and frees inside them.
        let at = |cpu, action| Step { cpu, after_ms: 1, action };
        let base = |i: usize| 512 * (i as u64 + 1);
        let alloc = |(i, &order): (usize, &u32)| {
            at(0, Action::Alloc(TracedBlock { pfn: base(i), order }, Mobility::Movable))
        };
        let mut steps: Vec<Step> = (0..).zip(&allocs).map(alloc).collect();
        steps.extend(frees.into_iter().filter(|(i, _)| *i < allocs.len()).map(|(i, block)| {
            let inside = (block.pfn % 512) & !((1 << block.order) - 1);
            at(1, Action::Free(TracedBlock { pfn: base(i) + inside, ..block }))
        }));
        let plan = Plan::read(&write(&steps)[..], "steps", None).unwrap();
        let mut owner = vec![false; 512 * 9];
        for step in &steps {
            let (block, held) = match &step.action {
                Action::Alloc(block, _) => (block, true),
                Action::Free(block) => (block, false),
                Action::FreeMany(_) => unreachable!("not made above"),
            };
            owner[block.pfn as usize..][..1 << block.order].fill(held);
        }
        prop_assert_eq!(plan.work.held.pages, owner.iter().filter(|&&held| held).count() as u64);
        run_both(&plan);
    }

    #[test]
    fn a_correct_program_has_no_unknown_and_no_missed_frees(
        choices in prop::collection::vec(
            (any::<bool>(), any::<prop::sample::Index>(), 0..=3_u32, 0..4_u32),
            1..300,
        ),
    ) {
        let (mut steps, mut held, mut next) = (Vec::new(), Vec::new(), 8);
        for (is_alloc, index, order, cpu) in choices {
            if is_alloc || held.is_empty() {
                let block = TracedBlock { pfn: next, order };
                next += 8;
                held.push(block);
                let action = Action::Alloc(block, Mobility::ALL[order as usize % 3]);
                steps.push(Step { cpu, after_ms: 1, action });
            } else {
                let block = held.swap_remove(index.index(held.len()));
                steps.push(Step { cpu, after_ms: 1, action: Action::Free(block) });
            }
        }
        let plan = Plan::read(&write(&steps)[..], "steps", None).unwrap();
        let work = &plan.work;
        prop_assert_eq!((work.unknown_frees, work.missed_frees), (0, 0));
        prop_assert_eq!((work.split_frees, work.larger_frees), (0, 0));
        prop_assert_eq!(work.held.blocks, held.len() as u64);
        prop_assert_eq!(work.allocs.blocks() + work.frees.blocks(), steps.len() as u64);
        run_both(&plan);
    }
}
