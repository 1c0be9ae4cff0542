//! The instructions of a hot pair, an allocation and its free, counted by a tracer that steps
//! through them: of a depot, of a bare restartable sequence on an array, and of lists behind a
//! spinlock. No sequence is aborted while it is stepped through.
//!
//! Each count is of a loop. `cargo xtask guest` collects the figures of an optimised build; here
//! `cargo test --release -p pagedepot-linux --test instructions -- --nocapture` prints them.
#![cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]

#[path = "../../core/tests/common/skip.rs"]
mod skip;
#[path = "../../rseq/tests/tracer/mod.rs"]
mod tracer;

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use pagedepot::cpus::Here;
use pagedepot_designs::{Buddy, LockMode, PageCache, Policy, Setup, Spin};
use pagedepot_linux::raw::Pfn;
use pagedepot_linux::{CpuId, Depot, Flags, Mobility, Order};
use pagedepot_rseq::{Area, affinity, sequence};
use skip::skip;
use tracer::{Channel, Tracee};

/// Most instructions of a depot's pair, as a multiple of a bare one's.
const PAIR_TIMES_MAX: f64 = 1.5;
/// Pairs in the shorter and in the longer loop: their difference is without what surrounds them.
const PAIRS: [u64; 2] = [2, 6];
/// Pages at a time.
const BATCH: usize = 512;

/// Words of the channel: what to do, and how often.
const KIND: usize = 0;
const TIMES: usize = 1;

/// A CPU's array behind bare sequences, as the floor of `pagedepot bench hot` has it.
struct Floor {
    area: Area,
    arrays: Vec<[AtomicU64; 64]>,
}

#[cfg(target_arch = "aarch64")]
impl Floor {
    #[inline]
    fn pop(&self) -> Option<u64> {
        let (left, frame): (u64, u64);
        // SAFETY: the thread is pinned to a CPU that has an array, whose count is at most 63; the
        // one store is the last instruction. A program's code stays loaded.
        unsafe {
            sequence!(
                self.area;
                body: "ldr {at:w}, [{area}, {CPU_ID}]",
                "add {at}, {slots}, {at}, lsl 9",
                "ldr {left}, [{at}, -8]",
                "subs {left}, {left}, 1",
                "b.lo 3f",
                "ldr {frame}, [{at}, {left}, lsl 3]",
                "str {left}, [{at}, -8]";
                aborted: "b 7b";
                slots = in(reg) self.arrays.as_ptr().cast::<u64>().wrapping_add(1),
                left = out(reg) left,
                frame = out(reg) frame,
                options(nostack),
            );
        }
        (left != u64::MAX).then_some(frame)
    }

    #[inline]
    fn push(&self, frame: u64) -> bool {
        // SAFETY: as in `pop`; the slot is below the array's end.
        unsafe {
            sequence!(
                self.area;
                body: "ldr {at:w}, [{area}, {CPU_ID}]",
                "add {at}, {slots}, {at}, lsl 9",
                "ldr {count}, [{at}, -8]",
                "cmp {count}, 63",
                "b.hs {full}",
                "str {frame}, [{at}, {count}, lsl 3]",
                "add {count}, {count}, 1",
                "str {count}, [{at}, -8]";
                aborted: "b 7b";
                slots = in(reg) self.arrays.as_ptr().cast::<u64>().wrapping_add(1),
                frame = in(reg) frame,
                count = out(reg) _,
                full = label { return false },
                options(nostack),
            );
        }
        true
    }
}

#[cfg(target_arch = "x86_64")]
impl Floor {
    #[inline]
    fn pop(&self) -> Option<u64> {
        let (left, frame): (u64, u64);
        // SAFETY: the thread is pinned to a CPU that has an array, whose count is at most 63; the
        // one store is the last instruction. A program's code stays loaded.
        unsafe {
            sequence!(
                self.area;
                body: "mov {at:e}, dword ptr fs:[{area} + {CPU_ID}]",
                "shl {at}, 9",
                "add {at}, {arrays}",
                "mov {left}, qword ptr [{at}]",
                "sub {left}, 1",
                "jb 3f",
                "mov {frame}, qword ptr [{at} + 8*{left} + 8]",
                "mov qword ptr [{at}], {left}";
                aborted: "jmp 7b";
                arrays = in(reg) self.arrays.as_ptr(),
                left = out(reg) left,
                frame = out(reg) frame,
                options(nostack),
            );
        }
        (left != u64::MAX).then_some(frame)
    }

    #[inline]
    fn push(&self, frame: u64) -> bool {
        // SAFETY: as in `pop`; the slot is below the array's end.
        unsafe {
            sequence!(
                self.area;
                body: "mov {at:e}, dword ptr fs:[{area} + {CPU_ID}]",
                "shl {at}, 9",
                "add {at}, {arrays}",
                "mov {count}, qword ptr [{at}]",
                "cmp {count}, 63",
                "jae {full}",
                "mov qword ptr [{at} + 8*{count} + 8], {frame}",
                "inc {count}",
                "mov qword ptr [{at}], {count}";
                aborted: "jmp 7b";
                arrays = in(reg) self.arrays.as_ptr(),
                frame = in(reg) frame,
                count = out(reg) _,
                full = label { return false },
                options(nostack),
            );
        }
        true
    }
}

impl Floor {
    fn new(area: Area, cpu: u32) -> Self {
        let arrays: Vec<[AtomicU64; 64]> =
            (0..=cpu).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect();
        arrays[cpu as usize][0].store(32, Ordering::Relaxed);
        Floor { area, arrays }
    }
}

/// Pairs, one after another, by what allocates and frees.
#[inline(never)]
fn pairs_of_floor(floor: &Floor, times: u64) {
    for _ in 0..times {
        let frame = floor.pop().expect("the array has some");
        assert!(floor.push(black_box(frame)));
    }
}

#[inline(never)]
fn pairs_of_depot(depot: &Depot, times: u64) {
    let depot = depot.raw();
    for _ in 0..times {
        let pfn = depot.alloc(Order::BASE, Flags::default()).expect("the depot has pages");
        // SAFETY: allocated just now, and not used.
        unsafe { depot.free(black_box(pfn), Order::BASE) }.expect("it was allocated");
    }
}

#[inline(never)]
fn pairs_of_spin(spin: &Spin<Buddy>, here: Here, times: u64) {
    for _ in 0..times {
        let pfn = spin.alloc(here, Order::BASE, Mobility::Movable).expect("it has pages");
        spin.free(here, black_box(pfn), Order::BASE);
    }
}

#[inline(never)]
fn batches_of_depot(depot: &Depot, times: u64) {
    let mut pages = [Pfn::new(0); BATCH];
    for _ in 0..times {
        let got = depot.raw().alloc_many(Order::BASE, Flags::default(), &mut pages);
        assert_eq!(got.ok(), Some(BATCH));
        // SAFETY: allocated just now, and not used.
        unsafe { depot.raw().free_many(Order::BASE, &pages) }.expect("they were allocated");
    }
}

/// Counted things, by their number in the channel.
#[derive(Clone, Copy)]
#[repr(u64)]
enum Kind {
    Floor,
    Depot,
    Spin,
    Batch,
}

fn perform(channel: &Channel, area: Area, cpu: CpuId) {
    affinity::pin(cpu).expect("a CPU of this process");
    let floor = Floor::new(area, cpu.get());
    let depot = Depot::builder(1 << 30).build().expect("address space for 1 GiB");
    let setup = Setup::single(cpu.get() + 1, 1 << 14);
    let buddy = Buddy::new(&setup).expect("a machine of one zone");
    let spin = Spin::new(buddy, LockMode::TryLock, Policy::default());
    loop {
        let word = |at: usize| channel.words[at].load(Ordering::Acquire);
        let act = |kind, times| match kind {
            0 => pairs_of_floor(&floor, times),
            1 => pairs_of_depot(&depot, times),
            2 => pairs_of_spin(&spin, Here::task(cpu), times),
            _ => batches_of_depot(&depot, times),
        };
        let (kind, times) = (word(KIND), word(TIMES));
        // So that what is looked at is hot, and no count runs out in the middle.
        act(kind, 4);
        channel.pause();
        act(kind, times);
        channel.pause();
    }
}

/// Instructions that one turn of `kind` takes.
fn count(tracee: &Tracee, kind: Kind, turns: [u64; 2]) -> f64 {
    let steps = turns.map(|times| {
        tracee.channel().words[KIND].store(kind as u64, Ordering::Release);
        tracee.channel().words[TIMES].store(times, Ordering::Release);
        tracee.run_to_pause();
        tracee.run_to_pause();
        let (steps, _) = tracee.step_through();
        tracee.run_to_pause();
        steps
    });
    (steps[1] - steps[0]) as f64 / (turns[1] - turns[0]) as f64
}

#[test]
fn a_hot_pair_takes_little_more_than_a_bare_one() {
    let fronts = Depot::new(1 << 20).expect("a small depot").fronts();
    let (Some(area), true) = (Area::find(), fronts.are_sequences()) else {
        return skip(format_args!("no sequences to count the instructions of: {fronts}"));
    };
    let cpu = affinity::allowed().expect("CPUs").iter().next().expect("a CPU");
    // Beside the tracee: each step would wake another CPU.
    affinity::pin(cpu).expect("a CPU of this process");
    let tracee = match Tracee::fork(|channel| perform(channel, area, cpu)) {
        Ok(tracee) => tracee,
        Err(error) => return skip(format_args!("the system refuses tracers: {error}")),
    };
    let floor = count(&tracee, Kind::Floor, PAIRS);
    let depot = count(&tracee, Kind::Depot, PAIRS);
    let spin = count(&tracee, Kind::Spin, PAIRS);
    let batch = count(&tracee, Kind::Batch, [0, 1]) / BATCH as f64;
    println!("= pair_instructions.floor-rseq {floor}");
    println!("= pair_instructions {depot}");
    println!("= pair_instructions.spin {spin}");
    println!("= batch_page_instructions {batch}");
    assert!(depot < spin, "{depot} instructions a pair, {spin} of lists behind a spinlock");
    assert!(batch < spin, "{batch} instructions a page, {BATCH} at a time");
    if cfg!(debug_assertions) {
        return eprintln!("\nwithout the bar for a pair: that is one of optimised programs");
    }
    assert!(depot <= PAIR_TIMES_MAX * floor, "{depot} instructions a pair, {floor} a bare one");
}
