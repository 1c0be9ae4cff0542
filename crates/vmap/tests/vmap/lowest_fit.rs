//! The free address space against a list of intervals: the lowest place, exactly.

use pagedepot_vmap::{Options, PurgeDepth, VirtAddr, VmapConfig, VmapError};
use proptest::prelude::*;

use crate::paper::{PAGE, Paged, check_all_back, paged_at};

const PAGES: u32 = 600;
/// Options without a guard.
const BARE: Options = Options::DEFAULT.guard_pages(0);
const BASE: usize = 0x12_3456_7000;

/// The taken pages, as page numbers from the range's start.
#[derive(Default)]
struct Naive(Vec<(u64, u64)>);

impl Naive {
    fn is_free(&self, start: u64, end: u64) -> bool {
        self.0.iter().all(|&(from, to)| end <= from || to <= start)
    }

    fn lowest(&self, pages: u64, align: u64, window: (u64, u64)) -> Option<u64> {
        let base = (BASE / PAGE) as u64;
        (window.0..window.1).find(|&at| {
            (base + at).is_multiple_of(align)
                && at + pages <= window.1
                && self.is_free(at, at + pages)
        })
    }
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { pages: u32, align_shift: u32, guard: u8, window: Option<(u32, u32)> },
    Reserve { at: u32, pages: u32 },
    Free(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let window = prop::option::weighted(0.2, (0..PAGES, 1..PAGES));
    prop_oneof![
        4 => (1..40u32, 0..6u32, 0..3u8, window).prop_map(|(pages, align_shift, guard, window)| {
            Step::Alloc { pages, align_shift, guard, window }
        }),
        1 => (0..PAGES, 1..30u32).prop_map(|(at, pages)| Step::Reserve { at, pages }),
        4 => any::<usize>().prop_map(Step::Free),
    ]
}

fn run(vmap: &mut Paged, steps: Vec<Step>) {
    let mut naive = Naive::default();
    let page = |at: u64| VirtAddr::new(BASE + at as usize * PAGE);
    for step in steps {
        match step {
            Step::Alloc { pages, align_shift, guard, window } => {
                let window = window.map_or((0, PAGES), |(at, size)| (at, (at + size).min(PAGES)));
                let mut options = Options::DEFAULT.align(PAGE << align_shift).guard_pages(guard);
                if window != (0, PAGES) {
                    options = options.window(page(window.0.into()), page(window.1.into()));
                }
                let total = u64::from(pages) + u64::from(guard);
                let expected =
                    naive.lowest(total, 1 << align_shift, (window.0.into(), window.1.into()));
                assert_eq!(
                    vmap.alloc(pages, options),
                    expected.map(page).ok_or(VmapError::NoSpace)
                );
                naive.0.extend(expected.map(|at| (at, at + total)));
            }
            Step::Reserve { at, pages } => {
                let (start, end) = (u64::from(at), u64::from(at) + u64::from(pages));
                let expected = if end > u64::from(PAGES) {
                    Err(VmapError::BadSize)
                } else if naive.is_free(start, end) {
                    naive.0.push((start, end));
                    Ok(page(start))
                } else {
                    Err(VmapError::Occupied)
                };
                assert_eq!(vmap.alloc_at(page(start), pages, BARE), expected);
            }
            Step::Free(which) => {
                if naive.0.is_empty() {
                    continue;
                }
                let (start, _) = naive.0.swap_remove(which % naive.0.len());
                vmap.free(page(start)).unwrap();
                vmap.purge(PurgeDepth::Lazy);
            }
        }
        let census = vmap.validate().unwrap();
        assert_eq!(census.busy_pages, naive.0.iter().map(|(from, to)| to - from).sum::<u64>());
    }
    for (start, _) in naive.0 {
        vmap.free(page(start)).unwrap();
    }
    check_all_back(vmap);
}

proptest! {
    #[test]
    fn the_lowest_place_is_found(steps in prop::collection::vec(step(), 1..120)) {
        // Without pools, what is freed is free after a purge.
        let config = VmapConfig { pool_pages_max: Some(0), ..VmapConfig::new(1, 400) };
        run(&mut paged_at(BASE, PAGES, 64, &config), steps);
    }
}

#[test]
fn many_misaligned_gaps_do_not_hide_an_aligned_one() {
    let config = VmapConfig { pool_pages_max: Some(0), ..VmapConfig::new(1, 4000) };
    let mut vmap = paged_at(1 << 30, 4000, 64, &config);
    let page = |at: usize| VirtAddr::new((1 << 30) + at * PAGE);
    // Gaps of three pages that begin at 8n + 5: too many to look at each.
    let walls: Vec<_> = (0..499).map(|i| vmap.alloc_at(page(i * 8), 5, BARE).unwrap()).collect();
    let options = Options::DEFAULT.guard_pages(0).align(8 * PAGE);
    assert_eq!(vmap.alloc(3, options), Ok(page(499 * 8)));
    assert_eq!(vmap.alloc(3, options.align(PAGE)), Ok(page(5)));
    vmap.free(page(499 * 8)).unwrap();
    // With nothing else left, the search looks at every one of them.
    let rest = vmap.alloc_at(page(499 * 8), 8, BARE).unwrap();
    assert_eq!(vmap.alloc(3, options), Err(VmapError::NoSpace));
    vmap.free(walls[400]).unwrap();
    assert_eq!(vmap.alloc(3, options), Ok(walls[400]));
    walls.into_iter().chain([page(5), rest]).for_each(|addr| vmap.free(addr).unwrap());
    check_all_back(&mut vmap);
}

#[test]
fn many_gaps_between_few_places_do_not_hide_the_lowest() {
    let config = VmapConfig { pool_pages_max: Some(0), ..VmapConfig::new(1, 4000) };
    let mut vmap = paged_at(1 << 30, 4000, 64, &config);
    let page = |at: usize| VirtAddr::new((1 << 30) + at * PAGE);
    // Gaps of a page, all misaligned; behind them everything is free.
    let walls: Vec<_> = (0..1050).map(|i| vmap.alloc_at(page(i * 2), 1, BARE).unwrap()).collect();
    vmap.free(page(1024)).unwrap();
    vmap.purge(PurgeDepth::Lazy);
    let options = Options::DEFAULT.guard_pages(0).align(1024 * PAGE);
    assert_eq!(vmap.alloc(1, options), Ok(page(1024)));
    assert_eq!(vmap.alloc(1, options), Ok(page(3 * 1024)));
    assert_eq!(vmap.alloc(1, options), Err(VmapError::NoSpace));
    walls.into_iter().chain([page(3 * 1024)]).for_each(|addr| vmap.free(addr).unwrap());
    check_all_back(&mut vmap);
}
