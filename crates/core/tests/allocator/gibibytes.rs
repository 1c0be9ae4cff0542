//! Gibibytes that unmovable frames keep clear of.
use crate::common::{Single, metadata, open_zone, single};
use pagedepot::{Config, Flags, FrameRange, Mode, Order, Pfn, Scope};

const GIB_FRAMES: u32 = 1 << 18;
const RANGES: [FrameRange; 1] = [FrameRange::new(Pfn::new(0), 4 * GIB_FRAMES)];

fn with_depot(test: impl FnOnce(&Single<'_>)) {
    let zones = [open_zone("Normal", &RANGES)];
    let config = Config::new(2, &zones);
    let mut memory = metadata(&config);
    let mut depot = single(&config, &mut memory);
    test(&depot);
    depot.drain(Scope::ALL, Mode::Full);
    assert_eq!(depot.validate().unwrap().held_pages(), 0);
}

/// Blocks of one frame, allocated on a CPU.
fn alloc(depot: &Single<'_>, cpu: u32, flags: Flags, count: u32) -> Vec<Pfn> {
    depot.cpus().0.run_on(cpu);
    (0..count).map(|_| depot.alloc(Order::BASE, flags).unwrap()).collect()
}

fn gib(pfn: &Pfn) -> u32 {
    pfn.get() / GIB_FRAMES
}

#[test]
fn unmovable_frames_of_all_cpus_gather_in_one_gibibyte() {
    with_depot(|depot| {
        let mut held = alloc(depot, 0, Flags::MOVABLE, 2000);
        held.extend(alloc(depot, 1, Flags::MOVABLE, 2000));
        let mut fixed = alloc(depot, 0, Flags::UNMOVABLE, 2000);
        fixed.extend(alloc(depot, 1, Flags::UNMOVABLE, 2000));
        fixed.extend(alloc(depot, 1, Flags::RECLAIMABLE, 2000));
        let first = gib(&fixed[0]);
        assert!(fixed.iter().all(|pfn| gib(pfn) == first));
        held.into_iter().chain(fixed).for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
    });
}
