//! The tests: each a program that runs on all CPUs, chosen by the command line.
//!
//! Every test runs between two counts of all frames, which must agree. It marks every block that it
//! gets, so that it finds a block handed out twice at once.

mod compact;
mod cpu_unplug;
pub mod design;
mod handover;
mod isolate;
pub mod local;
mod oom;
mod pft;
mod producer_consumer;
mod reentry;
mod rhythms;
mod vmalloc;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use design::Design;
use pagedepot::{AllocError, Flags, Order, Pfn};

use crate::arch::exit;
use crate::call::wait_until;
use crate::console::Exit;
use crate::{clock, cpu, figure, flush, memory, progress, smp, timer};

/// The options of the command line, as `name=value` words.
#[derive(Clone, Copy)]
pub struct Options {
    test: &'static str,
    /// The design that serves the test's pages.
    pub design: Design,
    /// Number of rounds of a test that repeats.
    pub rounds: Option<u64>,
    /// Seconds that a test by time runs, or each of its parts.
    pub seconds: Option<u64>,
}

impl Options {
    /// Reads the command line.
    ///
    /// # Errors
    /// The first unknown word.
    pub fn parse(line: &'static str) -> Result<Self, &'static str> {
        let mut options = Options { test: "", design: Design::Depot, rounds: None, seconds: None };
        for word in line.split_ascii_whitespace() {
            match word.split_once('=').ok_or(word)? {
                ("test", name) => options.test = name,
                ("design", name) => options.design = Design::named(name).ok_or(word)?,
                ("rounds", number) => options.rounds = Some(number.parse().map_err(|_| word)?),
                ("seconds", number) => options.seconds = Some(number.parse().map_err(|_| word)?),
                _ => return Err(word),
            }
        }
        Ok(options)
    }
}

type Test = (&'static str, fn(&Options));

const TESTS: [Test; 10] = [
    ("pft", pft::run),
    ("vmalloc", vmalloc::run),
    ("producer-consumer", producer_consumer::run),
    ("oom", oom::run),
    ("cpu-unplug", cpu_unplug::run),
    ("reentry", reentry::run),
    ("isolate", isolate::run),
    ("compact", compact::run),
    ("handover", handover::run),
    ("rhythms", rhythms::run),
];

/// Runs the test that the options name, and ends the machine.
pub fn run(options: &Options) -> ! {
    let Some((name, test)) = TESTS.iter().find(|(name, _)| *name == options.test) else {
        panic!("no test {:?}: there are {:?}", options.test, TESTS.map(|(name, _)| name));
    };
    let held_before = held_pages();
    figure!("cpus", cpu::count());
    let [dma32_pages, normal_pages] = memory::managed_pages();
    figure!("dma32_pages", dma32_pages);
    figure!("normal_pages", normal_pages);
    progress!("test {name} begins with design {}", options.design.name());
    timer::switch(true);
    let began = clock::now_ms();
    test(options);
    timer::switch(false);
    figure!("test_ms", clock::now_ms() - began);
    figure!("ticks", timer::ticks());
    figure!("flushes", flush::counts().0);
    figure!("flush_interrupts", flush::counts().1);
    let held_after = held_pages();
    assert!(
        held_before == held_after,
        "{held_before} pages were in use before the test, {held_after} are after it"
    );
    progress!("test {name} passed");
    exit(Exit::Passed)
}

/// Pages in use, by a count of all frames.
fn held_pages() -> u64 {
    smp::await_idle();
    design::drain_all();
    // The other CPUs are idle and no timer runs: `run` starts them afterwards, or has stopped them.
    memory::census().held_pages()
}

/// The mark of a block in use, in the first word of each of its frames.
fn mark_of(pfn: Pfn) -> u64 {
    0x9a9e_de90_0000_0000 | u64::from(pfn.get())
}

fn mark_word(pfn: Pfn) -> &'static AtomicU64 {
    // SAFETY: frames given to the allocator are mapped there; this word of them is only accessed as
    // an atomic while tests run.
    unsafe { &*core::ptr::with_exposed_provenance::<AtomicU64>(memory::address(pfn)) }
}

fn frames_of(pfn: Pfn, order: Order) -> impl Iterator<Item = Pfn> {
    (0..order.frames()).map(move |i| pfn.add(i))
}

/// Allocates a block and marks it.
///
/// # Errors
/// As the allocator's.
///
/// # Panics
/// When a frame of it is in use.
fn take(order: Order, flags: Flags) -> Result<Pfn, AllocError> {
    let pfn = design::alloc(order, flags)?;
    for frame in frames_of(pfn, order) {
        let before = mark_word(frame).swap(mark_of(frame), Ordering::Relaxed);
        assert!(before != mark_of(frame), "{frame:?} was handed out twice");
    }
    Ok(pfn)
}

/// Unmarks a block and frees it.
///
/// # Panics
/// When other code has written to it.
fn give(pfn: Pfn, order: Order) {
    for frame in frames_of(pfn, order) {
        let before = mark_word(frame).swap(0, Ordering::Relaxed);
        assert!(
            before == mark_of(frame),
            "{frame:?} was overwritten with {before:#x} while in use"
        );
    }
    design::free(pfn, order);
}

/// CPUs wait here for one another.
struct Barrier {
    size: u32,
    arrived: AtomicU32,
    passed: AtomicU32,
}

impl Barrier {
    fn new(size: u32) -> Self {
        Barrier { size, arrived: AtomicU32::new(0), passed: AtomicU32::new(0) }
    }

    fn wait(&self) {
        let generation = self.passed.load(Ordering::Acquire);
        // AcqRel: what each CPU did before is visible to all CPUs afterwards.
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.size {
            self.arrived.store(0, Ordering::Relaxed);
            self.passed.store(generation + 1, Ordering::Release);
        }
        wait_until(|| self.passed.load(Ordering::Acquire) != generation);
    }
}

/// A small generator of numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % limit
    }
}

/// Up to `N` pages of order 0 that a test holds for a while.
struct Held<const N: usize> {
    pages: [Pfn; N],
    count: usize,
}

impl<const N: usize> Held<N> {
    fn new() -> Self {
        Held { pages: [Pfn::new(0); N], count: 0 }
    }

    /// Allocates pages until it holds `count`.
    fn fill(&mut self, count: usize) {
        while self.count < count {
            let pfn = take(Order::BASE, Flags::MOVABLE);
            self.pages[self.count] =
                pfn.unwrap_or_else(|error| panic!("{error}:\n{}", memory::depot().shortage()));
            self.count += 1;
        }
    }

    /// Frees pages until it holds `count`.
    fn empty(&mut self, count: usize) {
        while self.count > count {
            self.count -= 1;
            give(self.pages[self.count], Order::BASE);
        }
    }

    /// Allocates or frees pages until it holds a random number of them.
    fn churn(&mut self, random: &mut Random) {
        let count = random.below(N as u64 + 1) as usize;
        self.fill(count);
        self.empty(count);
    }
}
