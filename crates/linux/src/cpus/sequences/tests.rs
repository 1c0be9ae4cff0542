//! 1. Frames that threads pop and push through sequences are neither lost nor doubled, whatever
//!    threads share CPUs, move between them, yield, or are interrupted by signals.
//! 2. Aborts happen, and end where they should: the kernel continues at the abort address, which
//!    the test sees from inside a signal handler.
//! 3. A handler may pop and push in the middle of a sequence of the thread it interrupted.
//! 4. A closed gate, and a CPU without a block or registration, stop every sequence.
//! 5. After a fence no sequence commits that began before the gate was closed.
//!
//! `addresses` looks at how sequences name their word. `stops` stops sequences at each of their
//! instructions.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagedepot::cpus::Here;
use pagedepot::cpus::implement::{
    self, BlockArray, GATES_ALL, GATES_AT, MagazineIndex, Parts, Word, WordOffset,
};
use pagedepot::{CpuId, Mobility, Order, Pfn, ZoneId};
use pagedepot_rseq::{Area, affinity, membarrier};

use super::*;
use crate::skip::skip;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use interrupts::{Interrupts, has_aborted, install};

#[cfg(target_arch = "x86_64")]
mod addresses;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[path = "../../../../rseq/tests/interrupts/mod.rs"]
mod interrupts;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod stops;

// SAFETY: blocks here have room for the words of one zone.
const WORD: WordOffset =
    unsafe { implement::word_offset(ZoneId::new(0), Order::BASE, Mobility::Movable) };
const ROUNDS: u32 = 40;
const STRIDE: usize = 512;

/// Blocks of CPUs, each with one magazine of [`ROUNDS`] frames.
struct Fronts {
    array: BlockArray,
    memory: Vec<Line>,
    blocks_at: usize,
    first_magazine: usize,
}

/// Memory of a magazine's size and alignment.
#[repr(C, align(256))]
struct Line([AtomicU64; 32]);

impl Fronts {
    fn new(cpus: u32) -> Self {
        // Gates; blocks; a magazine for each CPU; and one to spare.
        let gate_lines = (GATES_AT + GATES_ALL as usize * 8).div_ceil(size_of::<Line>());
        let block_lines = cpus as usize * STRIDE / size_of::<Line>();
        let first_magazine = gate_lines + block_lines;
        let lines = first_magazine + 2 * cpus as usize;
        let memory: Vec<_> =
            (0..lines).map(|_| Line(std::array::from_fn(|_| AtomicU64::new(0)))).collect();
        memory.as_ptr().expose_provenance();
        let base = memory.as_ptr().cast_mut().cast::<u8>();
        let blocks_at = gate_lines * size_of::<Line>();
        let parts = Parts { base, follows_gates: true, blocks_at, stride: STRIDE, cpus };
        // SAFETY: the memory is initialised, lives with the array, and holds all of that.
        let array = unsafe { implement::block_array(parts) };
        let fronts = Fronts { array, memory, blocks_at, first_magazine };
        for cpu in 0..cpus {
            let index = MagazineIndex::new(first_magazine as u32 + cpu).unwrap();
            for slot in 0..ROUNDS {
                fronts.magazine(index).slots[slot as usize]
                    .store(cpu * ROUNDS + slot, Ordering::Relaxed);
            }
            fronts.gate(cpu).store(fronts.open_gate(cpu), Ordering::Relaxed);
            fronts.cell(cpu).store(Word::new(index, ROUNDS, None).0, Ordering::Relaxed);
        }
        fronts
    }

    fn gate(&self, cpu: u32) -> &AtomicU64 {
        // SAFETY: this test is the array's only user.
        unsafe { implement::gate(&self.array, CpuId::new(cpu)) }
    }

    fn open_gate(&self, cpu: u32) -> u64 {
        implement::open_gate(&self.array, CpuId::new(cpu))
    }

    fn cell(&self, cpu: u32) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { implement::word(&self.array, Here::task(CpuId::new(cpu)), WORD) }
    }

    fn magazine(&self, index: MagazineIndex) -> &implement::Magazine {
        // SAFETY: words here name magazines of this memory.
        unsafe { implement::magazine(&self.array, index) }
    }

    /// A magazine that no word of a new front names.
    fn spare(&self, cpu: u32) -> MagazineIndex {
        MagazineIndex::new(self.first_magazine as u32 + self.array.cpus() + cpu).unwrap()
    }

    /// Whether the memory that sequences may read and no code may write is untouched: the gates but
    /// those of `cpus`.
    fn is_refusing(&self) -> bool {
        let words =
            self.memory[..self.blocks_at / size_of::<Line>()].iter().flat_map(|line| &line.0);
        let is_gate =
            |at: usize| (GATES_AT / 8..GATES_AT / 8 + self.array.cpus() as usize).contains(&at);
        words.enumerate().all(|(at, word)| is_gate(at) || word.load(Ordering::Relaxed) == 0)
    }

    fn word(&self, cpu: u32) -> Word {
        Word(self.cell(cpu).load(Ordering::Relaxed))
    }

    /// Folds a front as a slow path does when the operations have run up.
    fn fold(&self, area: Area) {
        let cpu = area.cpu_id();
        let word = self.word(cpu);
        if word.operations_full() {
            let here = Here::task(CpuId::new(cpu));
            compare_store(area, &self.array, here, WORD, word.0, word.with_operations(0).0);
        }
    }

    /// Takes frames of this CPU's front, as many as `out` has room for. Returns how many.
    fn take(&self, area: Area, out: &mut [Pfn]) -> usize {
        let here = Here::task(CpuId::new(area.cpu_id()));
        let Some(batch) = self.word(here.cpu.get()).batch::<false>(out.len(), 63) else { return 0 };
        let done = take_many(area, &self.array, here, WORD, &batch, out);
        if done { batch.count() } else { 0 }
    }

    /// Puts the first of these frames into this CPU's front. Returns how many.
    fn put(&self, area: Area, frames: &[Pfn]) -> usize {
        let here = Here::task(CpuId::new(area.cpu_id()));
        let Some(batch) = self.word(here.cpu.get()).batch::<true>(frames.len(), 63) else {
            return 0;
        };
        let done = put_many(area, &self.array, here, WORD, &batch, frames);
        if done { batch.count() } else { 0 }
    }

    /// All frames in the fronts.
    fn frames(&self) -> Vec<u32> {
        let mut frames = Vec::new();
        for cpu in 0..self.array.cpus() {
            let word = self.word(cpu);
            let magazine = self.magazine(word.loaded().unwrap());
            frames.extend(
                magazine.slots[..word.rounds() as usize]
                    .iter()
                    .map(|slot| slot.load(Ordering::Relaxed)),
            );
        }
        frames
    }
}

fn area() -> Option<Area> {
    let area = Area::find();
    if area.is_none() {
        skip("no rseq registration");
    }
    area
}

fn cpus() -> u32 {
    crate::depot::builder::Topology::read().cpu_count()
}

/// Signals that arrived at an abort address, and all.
static ABORTED: AtomicU64 = AtomicU64::new(0);
static SIGNALS: AtomicU64 = AtomicU64::new(0);
/// The fronts that handlers use, while their test runs.
static HANDLERS: AtomicPtr<(Area, Fronts)> = AtomicPtr::new(std::ptr::null_mut());

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
extern "C" fn interrupt(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel passes a ucontext to a handler installed with SA_SIGINFO.
    ABORTED.fetch_add(unsafe { has_aborted(context) }.into(), Ordering::Relaxed);
    // SAFETY: points to what the test owns while its threads, and so their signals, run.
    let Some((area, fronts)) = (unsafe { HANDLERS.load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    let frame = pop(*area, &fronts.array, WORD);
    while frame != NO_FRAME && !push(*area, &fronts.array, WORD, 63, frame as u32) {
        fronts.fold(*area);
    }
}

/// The numbers of the CPUs this process may use.
fn usable_cpus() -> Vec<u32> {
    affinity::allowed().unwrap().iter().map(CpuId::get).collect()
}

/// Fails in silence for CPUs that this process may not use.
fn pin(cpu: u32) {
    let _ = affinity::pin(CpuId::new(cpu));
}

/// Whether threads hammer on: until `end`, and where signals are rare (an emulated machine) until
/// one has aborted a sequence, for a minute.
fn goes_on(end: Instant) -> bool {
    let now = Instant::now();
    let is_missing = ABORTED.load(Ordering::Relaxed) == 0;
    now < end || is_missing && now < end + Duration::from_secs(60)
}

/// Pops and pushes while it [goes on](goes_on); each frame is held by one thread at a time.
fn hammer(fronts: &Fronts, area: Area, held: &[AtomicBool], end: Instant, yields: bool) {
    let mut kept = Vec::new();
    let mut turn = 0u32;
    while goes_on(end) || !kept.is_empty() {
        for _ in 0..64 {
            turn = turn.wrapping_add(1);
            // Up to three frames at a time, so that fronts neither run dry nor overflow for long.
            if turn.is_multiple_of(5) {
                exchange_many(fronts, area, held);
            } else if turn.is_multiple_of(2) && kept.len() < 3 && goes_on(end) {
                match pop(area, &fronts.array, WORD) {
                    NO_FRAME => fronts.fold(area),
                    frame => {
                        assert!(
                            !held[frame as usize].swap(true, Ordering::Relaxed),
                            "frame {frame} doubled"
                        );
                        kept.push(frame);
                    }
                }
            } else if let Some(frame) = kept.pop() {
                held[frame as usize].store(false, Ordering::Relaxed);
                if !push(area, &fronts.array, WORD, 63, frame as u32) {
                    assert!(!held[frame as usize].swap(true, Ordering::Relaxed));
                    kept.push(frame);
                    fronts.fold(area);
                }
            }
        }
        if yields {
            std::thread::yield_now();
        }
    }
}

/// Pops several frames and pushes them again.
fn exchange_many(fronts: &Fronts, area: Area, held: &[AtomicBool]) {
    let mut frames = [Pfn::new(0); 3];
    let count = fronts.take(area, &mut frames);
    let frames = &frames[..count];
    for frame in frames {
        assert!(!held[frame.get() as usize].swap(true, Ordering::Relaxed), "{frame:?} doubled");
    }
    let mut pushed = 0;
    while pushed < count {
        let rest = &frames[pushed..];
        let mark =
            |frame: &Pfn, is_held| held[frame.get() as usize].swap(is_held, Ordering::Relaxed);
        rest.iter().for_each(|frame| assert!(mark(frame, false)));
        let more = fronts.put(area, rest);
        rest[more..].iter().for_each(|frame| assert!(!mark(frame, true), "{frame:?} doubled"));
        pushed += more;
        fronts.fold(area);
    }
}

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn frames_survive_threads_signals_and_yields() {
    let Some(area) = area() else { return };
    let cpus = cpus();
    let handlers = (area, Fronts::new(cpus));
    let fronts = &handlers.1;
    HANDLERS.store((&raw const handlers).cast_mut(), Ordering::Release);
    // SAFETY: the handler only counts, pops and pushes.
    unsafe { install(libc::SIGALRM, interrupt) };
    let held: Vec<_> = (0..cpus * ROUNDS).map(|_| AtomicBool::new(false)).collect();
    let end = Instant::now() + Duration::from_millis(1500);
    std::thread::scope(|scope| {
        for thread in 0..cpus.min(16) * 2 + 2 {
            let held = &held;
            scope.spawn(move || {
                if thread % 2 == 0 {
                    pin(thread / 2 % cpus);
                }
                let _interrupts = Interrupts::every(libc::SIGALRM, Duration::from_micros(50));
                hammer(fronts, area, held, end, thread % 3 == 0);
            });
        }
    });
    HANDLERS.store(std::ptr::null_mut(), Ordering::Release);
    let mut frames = fronts.frames();
    frames.sort_unstable();
    assert_eq!(frames, (0..cpus * ROUNDS).collect::<Vec<_>>());
    let (signals, aborted) = (SIGNALS.load(Ordering::Relaxed), ABORTED.load(Ordering::Relaxed));
    assert!(aborted > 0, "none of {signals} signals aborted a sequence");
}

#[test]
fn a_closed_gate_stops_every_sequence() {
    let Some(area) = area() else { return };
    let fronts = Fronts::new(cpus());
    // Wiped, as a CPU's beyond those configured and a negative number's; disabled; a drainer's.
    for closed in [0, 1 << 63 | 2 << 32, 1 << 63 | 1 << 62 | 5 << 34 | 1 << 32] {
        for cpu in 0..fronts.array.cpus() {
            fronts.gate(cpu).store(closed, Ordering::Relaxed);
        }
        assert_nothing_happens(&fronts, area);
    }
}

#[test]
fn a_wiped_depot_stops_every_sequence() {
    let Some(area) = area() else { return };
    let fronts = Fronts::new(cpus());
    for word in fronts.memory.iter().flat_map(|line| &line.0) {
        word.store(0, Ordering::Relaxed);
    }
    assert_nothing_happens(&fronts, area);
    assert!(
        fronts.memory.iter().flat_map(|line| &line.0).all(|word| word.load(Ordering::Relaxed) == 0)
    );
}

#[test]
fn every_number_has_a_gate() {
    // Of a CPU that has an open one, of others, and of threads without registration.
    let fronts = Fronts::new(cpus());
    for number in [0, fronts.array.cpus(), 8191, -1i32 as u32, -2i32 as u32] {
        let gate = GATES_AT + 8 * (number as u16 as usize);
        assert!(gate + 8 <= fronts.blocks_at, "{number}");
        let is_open = fronts.memory[gate / 256].0[gate % 256 / 8].load(Ordering::Relaxed) != 0;
        assert_eq!(is_open, number < fronts.array.cpus(), "{number}");
    }
}

fn assert_nothing_happens(fronts: &Fronts, area: Area) {
    let before: Vec<_> = (0..fronts.array.cpus()).map(|cpu| fronts.word(cpu).0).collect();
    assert_eq!(pop(area, &fronts.array, WORD), NO_FRAME);
    assert!(!push(area, &fronts.array, WORD, 63, 7));
    assert_eq!(fronts.take(area, &mut [Pfn::new(0); 4]), 0);
    assert_eq!(fronts.put(area, &[Pfn::new(7); 4]), 0);
    let here = Here::task(CpuId::new(area.cpu_id()));
    // 1: what would show where it must not be written.
    for old in [before[here.cpu.index()], Word::EMPTY.0] {
        assert!(!compare_store(area, &fronts.array, here, WORD, old, 1));
    }
    assert!(fronts.is_refusing());
    assert_eq!((0..fronts.array.cpus()).map(|cpu| fronts.word(cpu).0).collect::<Vec<_>>(), before);
}

#[test]
fn limits_of_a_front() {
    let Some(area) = area() else { return };
    let fronts = Fronts::new(cpus());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(0);
            // `None` can also be an abort: what counts is that it stays so.
            let tries = |mut attempt: Box<dyn FnMut() -> bool + '_>| (0..10).any(|_| attempt());
            for frame in (0..ROUNDS).rev() {
                let popped = AtomicU64::new(NO_FRAME);
                assert!(tries(Box::new(|| {
                    popped.store(pop(area, &fronts.array, WORD), Ordering::Relaxed);
                    popped.load(Ordering::Relaxed) != NO_FRAME
                })));
                assert_eq!(popped.into_inner(), u64::from(frame));
            }
            assert!(
                !tries(Box::new(|| pop(area, &fronts.array, WORD) != NO_FRAME)),
                "an empty magazine"
            );
            for (length, expected) in [(20, 20), (64, 43), (64, 0)] {
                let frames: Vec<_> = (0..length).map(Pfn::new).collect();
                let mut count = 0;
                tries(Box::new(|| {
                    count = fronts.put(area, &frames);
                    count > 0
                }));
                assert_eq!(count, expected);
            }
            let mut many = [Pfn::new(99); 64];
            for (room, expected) in [(5, 38..43), (64, 0..20)] {
                let mut count = 0;
                tries(Box::new(|| {
                    count = fronts.take(area, &mut many[..room]);
                    count > 0
                }));
                assert!(many[..expected.len()].iter().copied().eq(expected.map(Pfn::new)));
            }
            assert!((0..10).all(|_| fronts.take(area, &mut many) == 0), "an empty magazine");
            for frame in 0..63 {
                assert!(tries(Box::new(|| push(area, &fronts.array, WORD, 63, frame as u32))));
            }
            assert!(
                !tries(Box::new(|| push(area, &fronts.array, WORD, 63, 63))),
                "a full magazine"
            );
            assert!(
                !tries(Box::new(|| push(area, &fronts.array, WORD, 7, 63))),
                "more than the bound"
            );
            let here = Here::task(CpuId::new(0));
            let word = fronts.word(0);
            let elsewhere = Here::task(CpuId::new(1));
            assert!(!tries(Box::new(|| compare_store(
                area,
                &fronts.array,
                elsewhere,
                WORD,
                word.0,
                0
            ))));
            assert!(!tries(Box::new(|| compare_store(
                area,
                &fronts.array,
                here,
                WORD,
                word.0 + 1,
                0
            ))));
            assert!(tries(Box::new(|| compare_store(
                area,
                &fronts.array,
                here,
                WORD,
                word.0,
                Word::EMPTY.0
            ))));
            assert!(!tries(Box::new(|| pop(area, &fronts.array, WORD) != NO_FRAME)), "no magazine");
            assert!(!tries(Box::new(|| push(area, &fronts.array, WORD, 63, 0))), "no magazine");
        });
    });
}

/// One thread pops and pushes all the time; another closes its gate, fences, and looks: what the
/// word is then, it stays.
#[test]
fn nothing_commits_after_a_fence() {
    let (Some(area), &[owner, drainer, ..]) = (area(), &*usable_cpus()) else { return };
    if membarrier::register().is_err() {
        return skip("no membarrier");
    }
    let fronts = Fronts::new(cpus());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(owner);
            while !stop.load(Ordering::Relaxed) {
                let frame = pop(area, &fronts.array, WORD);
                if frame == NO_FRAME {
                    fronts.fold(area);
                }
                while frame != NO_FRAME
                    && !push(area, &fronts.array, WORD, 63, frame as u32)
                    && !stop.load(Ordering::Relaxed)
                {
                    fronts.fold(area);
                }
            }
        });
        pin(drainer);
        let gate = fronts.gate(owner);
        let open = fronts.open_gate(owner);
        let (mut changes, mut late) = (0, None);
        let deadline = Instant::now() + Duration::from_secs(3);
        // The deadline counts once the owner has run enough: a busy machine may take its time.
        while changes < 10_000 && late.is_none() && (changes < 100 || Instant::now() < deadline) {
            // While another program has the owner's CPU, there is nothing to fence.
            let begun = (fronts.word(owner).0, Instant::now());
            while fronts.word(owner).0 == begun.0 && begun.1.elapsed() < Duration::from_millis(10) {
                std::hint::spin_loop();
            }
            let before = fronts.word(owner).0;
            assert_eq!(
                gate.compare_exchange(open, 1 << 63 | 1 << 62, Ordering::SeqCst, Ordering::Relaxed),
                Ok(open)
            );
            let fenced = membarrier::fence(CpuId::new(owner));
            let word = fronts.word(owner).0;
            (0..100).for_each(|_| std::hint::spin_loop());
            let after = fronts.word(owner).0;
            late = (after != word || fenced.is_err()).then_some((fenced, word, after));
            changes += u32::from(word != before);
            gate.store(open, Ordering::SeqCst);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(fronts.is_refusing(), "an owner wrote where its closed gate led");
        assert!(late.is_none(), "{late:?}: the word changed after the fence, or the fence failed");
        assert!(changes >= 100, "the owner hardly ran: {changes}");
    });
}
