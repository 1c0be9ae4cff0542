//! Reports of idle caches, and of the memory that the allocator uses itself.

use crate::common::{metadata, open_zone, range, single};
use pagedepot::{Config, CpuId, Flags, Mode, Order, Pfn, Scope, ZoneId};

const ZONE: ZoneId = ZoneId::new(0);

#[test]
fn what_is_stranded_has_the_age_of_the_last_slow_path() {
    let ranges = [range(0, 1 << 15)];
    let zones = [open_zone("z", &ranges)];
    let config = Config::new(2, &zones);
    let mut memory = metadata(&config);
    let depot = single(&config, &mut memory);
    let anywhere = &depot.cpus().0;
    let idle_ms = |cpu| depot.cpu_stats(CpuId::new(cpu), ZONE).unwrap().idle_ms;
    let alloc = |cpu, count| -> Vec<Pfn> {
        anywhere.run_on(cpu);
        (0..count).map(|_| depot.alloc(Order::BASE, Flags::default()).unwrap()).collect()
    };
    let free =
        |blocks: Vec<Pfn>| blocks.into_iter().for_each(|pfn| depot.free(pfn, Order::BASE).unwrap());
    // Without a clock nothing has an age.
    free(alloc(0, 300));
    assert_eq!((idle_ms(0), idle_ms(1)), (0, 0));
    anywhere.set_now_ms(5000);
    free(alloc(0, 300));
    assert_eq!((idle_ms(0), idle_ms(1)), (0, 0));
    anywhere.set_now_ms(5250);
    free(alloc(1, 300));
    anywhere.set_now_ms(7000);
    // An allocation that the front serves takes no slow path.
    free(alloc(1, 1));
    assert_eq!((idle_ms(0), idle_ms(1)), (2000, 1750));
    free(alloc(0, 300));
    assert_eq!((idle_ms(0), idle_ms(1)), (0, 1750));
    // A drain does not reset the age.
    depot.drain(Scope::ALL, Mode::Quiet);
    assert_eq!((idle_ms(0), idle_ms(1)), (0, 1750));
}

#[test]
fn metadata_are_accounted_for_by_purpose() {
    let ranges = [range(0, 1 << 18)];
    let zones = [open_zone("z", &ranges)];
    let plain = Config::new(2, &zones);
    let use_of = |config: &Config<'_>| {
        let mut memory = metadata(config);
        let depot = single(config, &mut memory);
        let (used, (_, bytes)) = (depot.metadata_use(), depot.metadata());
        assert!(
            used.total() <= bytes && bytes <= used.total() + used.total() / 8,
            "{used:?} of {bytes}"
        );
        used
    };
    let base = use_of(&plain);
    assert!(
        base.sections > 0
            && base.tables > 0
            && base.cpus > 0
            && base.magazines > 0
            && base.carved == 0
    );
    // One byte per frame.
    assert_eq!(use_of(&Config { checked: true, ..plain }).sections - base.sections, 1 << 18);
    // More CPUs: more words and shelves.
    assert!(use_of(&Config { cpus: 8, ..plain }).cpus > 2 * base.cpus);
}
