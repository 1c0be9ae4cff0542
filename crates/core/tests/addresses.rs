//! The sequences of [`PinnedCpus`] name a front's word by one register and a displacement. A push
//! stores the word that the next pop loads; Intel's processors since Golden Cove forward it in no
//! time only at such an address (`docs/decisions/0004-hot-pair.md`).
#![cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri))))]
// Symbols of this test's own; guards.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use pagedepot::cpus::{Context, Environment, FenceError, Guard, Here, PinnedCpus, Processor};
use pagedepot::{
    Allocator, Config, CpuId, Flags, FrameRange, HighPolicy, NodeId, Order, Pfn, ZoneConfig,
};

mod disassembly;

struct OneCpu;
struct Pin;

// SAFETY: one thread of this test uses the allocator.
unsafe impl Guard for Pin {
    fn here(&self) -> Here {
        Here { cpu: CpuId::new(0), context: Context::Task }
    }
}

// SAFETY: as above: no guard exists when another is asked for.
unsafe impl Processor for OneCpu {
    type Guard = Pin;

    fn pin(&self) -> Option<Pin> {
        Some(Pin)
    }

    fn fence(&self, _cpu: CpuId) -> Result<(), FenceError> {
        Ok(())
    }
}

impl Environment for OneCpu {}

type Depot<'m> = Allocator<'m, PinnedCpus<OneCpu>>;

// SAFETY, both: no other symbol of this program has the name.
#[unsafe(no_mangle)]
#[inline(never)]
fn pagedepot_addresses_pop(depot: &Depot<'_>) -> Option<Pfn> {
    depot.alloc_fast(Order::BASE, Flags::default())
}

#[unsafe(no_mangle)]
#[inline(never)]
fn pagedepot_addresses_push(depot: &Depot<'_>, pfn: Pfn) -> bool {
    depot.free_fast(pfn, Order::BASE)
}

#[test]
fn the_word_of_a_guarded_front_has_no_index() {
    let ranges = [FrameRange::new(Pfn::new(0), 2048)];
    let zones = [ZoneConfig {
        name: "Normal",
        node: NodeId::new(0),
        level: 2,
        ranges: &ranges,
        watermarks: None,
    }];
    let config = Config { high: HighPolicy::Fixed(128), ..Config::new(1, &zones) };
    let bytes = Depot::metadata_bytes(&config).expect("a valid configuration");
    let mut memory = vec![MaybeUninit::uninit(); bytes];
    let depot = Depot::new(&config, &mut memory, PinnedCpus(OneCpu)).expect("enough metadata");
    // The functions do what their names say: a refill leaves a full magazine.
    depot.alloc(Order::BASE, Flags::default()).expect("free frames");
    let popped = pagedepot_addresses_pop(&depot).expect("a full magazine");
    assert!(pagedepot_addresses_push(&depot, popped));

    for symbol in ["pagedepot_addresses_pop", "pagedepot_addresses_push"] {
        let operands = disassembly::memory_operands(symbol);
        // Slots have 32 bits, and no word waits for them. Without optimisation across crates the
        // stack is used, too; gates are looked up by a scale of 8.
        let words: Vec<_> = operands
            .iter()
            .filter(|at| at.starts_with("QWORD") && !at.contains("rsp") && !at.contains("rip"))
            .collect();
        let (at_index, others): (Vec<_>, Vec<_>) =
            words.into_iter().partition(|at| disassembly::has_index(at) && !at.contains("*8"));
        assert!(others.len() >= 2, "{symbol} loads and stores a word: {operands:?}");
        assert!(at_index.is_empty(), "{symbol}: {at_index:?} of {operands:?}");
    }
}
