//! Threads on so little address space, for so few steps, that Miri can run them.
//! `.ci/steps/miri` runs it with several schedules.

use std::cell::Cell;

use pagedepot::cpus::{Environment, WhichCpu};
use pagedepot::{CpuId, PageSize, Pfn};
use pagedepot_vmap::{NoFrames, NullMapper, Options, PurgeDepth, Span, VirtAddr, Vmap, VmapConfig};

const CPUS: u32 = 2;

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

struct Here;

impl Environment for Here {}
impl WhichCpu for Here {
    fn cpu(&self) -> Option<CpuId> {
        Some(CpuId::new(CPU.get()))
    }
}

#[test]
fn areas_and_purges() {
    let mapper = NullMapper::new(Span::new(VirtAddr::new(1 << 20), 512), PageSize::Kib4);
    let config = VmapConfig::new(CPUS, 60);
    let host = NoFrames(Here);
    let bytes = Vmap::<NullMapper, NoFrames<Here>>::metadata_bytes(&config, &mapper).unwrap();
    // In one step: an interpreter would clone the bytes into a `Vec` one by one.
    let mut metadata = Box::new_uninit_slice(bytes);
    // SAFETY: nothing is ever reached through its addresses, and there are no frames.
    let mut vmap = unsafe { Vmap::new(&config, &mut metadata, mapper, host) }.unwrap();
    let shared = &vmap;
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                CPU.set(thread % CPUS);
                for round in 0..8 {
                    let area = shared.alloc(1 + round % 2, Options::DEFAULT).unwrap();
                    let mapped = shared.vmap(&[Pfn::new(thread)], Options::DEFAULT).unwrap();
                    assert_eq!(shared.frame_at(mapped), Some(Pfn::new(thread)));
                    shared.free(area).unwrap();
                    shared.vunmap(mapped).unwrap();
                }
            });
        }
        scope.spawn(move || {
            for depth in [PurgeDepth::Lazy, PurgeDepth::Decay, PurgeDepth::Everything] {
                shared.purge(depth);
                assert!(shared.areas().is_sorted_by(|a, b| a.span.start < b.span.start));
            }
        });
    });
    vmap.purge(PurgeDepth::Everything);
    let census = vmap.validate().unwrap();
    assert_eq!((census.busy_areas, census.free_pages), (0, 512));
}
