//! Random rounds: all CPUs allocate everything, frames and segments, and free it in random order.
//! Handlers allocate above them, and drains run beside them. Each round finds every page.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::alloc::Layout;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ostd::cpu::num_cpus;
use ostd::early_println as println;
use ostd::mm::{PAGE_SIZE, Paddr};

use super::Design;
use super::cpus::{Barrier, on_all};
use super::marks::Marks;
use super::random::Random;
use super::refill::{Held, fill, scatter};

/// One request in so many is for a segment, of at most so many frames.
const SEGMENT_EACH: usize = 16;
const SEGMENT_FRAMES_MAX: usize = 16;
/// A drain after about so many requests.
const DRAIN_EACH: usize = 4096;
/// Rounds between checks of the allocator, which look at all memory.
const CHECK_EACH: u64 = 64;
/// Rounds between lines on the console.
const SAY_EACH: u64 = 50;

struct Rounds {
    design: Design,
    held: Held,
    marks: Marks,
    barrier: Barrier,
    /// Pages that there are, from the first round on.
    managed: AtomicU64,
    /// Timer handlers allocate.
    has_handlers: AtomicBool,
    /// Frames that handlers got.
    handled: AtomicU64,
    failed: ostd::sync::SpinLock<Option<String>>,
}

pub fn run(design: Design, rounds: u64, seed: u64) {
    let cpus = num_cpus();
    let work = Arc::new(Rounds {
        design,
        held: Held::new(cpus),
        marks: Marks::new(),
        barrier: Barrier::new(cpus),
        managed: AtomicU64::new(0),
        has_handlers: AtomicBool::new(false),
        handled: AtomicU64::new(0),
        failed: ostd::sync::SpinLock::new(None),
    });
    let shared = work.clone();
    on_all(move |cpu| shared.run(cpu, rounds, Random::new(seed, cpu)));
    let failed = work.failed.lock().take();
    super::said("rounds", failed.map_or(Ok(()), |why| Err(format!("{why} (seed={seed})"))));
    let have_handlers_run = work.handled.load(Ordering::Relaxed) > 0;
    let outcome = if have_handlers_run { Ok(()) } else { Err("no handler got a frame".into()) };
    super::said("handlers", outcome);
}

impl Rounds {
    fn run(self: &Arc<Self>, cpu: usize, rounds: u64, mut random: Random) {
        let handler = self.clone();
        ostd::timer::register_callback_on_cpu(move || handler.on_tick());
        // The heap, which has the callback of each CPU, gets no page once one CPU has them all.
        self.barrier.wait();
        // Whatever this CPU's first calls allocate for good, they have.
        self.held.with(cpu, |own| fill(self.design.frames, own));
        self.barrier.wait();
        self.held.with(cpu, |own| scatter(self.design.frames, own, &mut random));
        for round in 0..rounds {
            if cpu == 0 && round.is_multiple_of(SAY_EACH) {
                println!("= begin round {} of {}", round, rounds);
            }
            self.allocate(cpu, &mut random);
            self.barrier.wait_while(cpu, || self.compare(round, true));
            self.free((cpu + 1) % num_cpus(), cpu, &mut random);
            self.barrier.wait_while(cpu, || self.compare(round, false));
            if self.failed.lock().is_some() {
                return;
            }
        }
    }

    /// Allocates with handlers at work until nothing is left, then without them what they had.
    fn allocate(&self, cpu: usize, random: &mut Random) {
        self.switch_handlers(cpu, true);
        let mut has_segments = true;
        self.held.with(cpu, |own| {
            while let Some((addr, frames)) = self.request(random, &mut has_segments) {
                own.extend((0..frames).map(|nth| addr + nth * PAGE_SIZE));
                if random.below(DRAIN_EACH) == 0 {
                    (self.design.drain)();
                }
            }
        });
        self.switch_handlers(cpu, false);
        self.held.with(cpu, |own| {
            fill(self.design.frames, own);
            if let Some(addr) = self.marks.set(own) {
                self.fail(format!("the frame at {addr:#x} was handed out twice"));
            }
        });
    }

    /// A frame, or a segment as long as `has_segments`, which the first that is refused ends: each
    /// refusal drains all CPUs first, and a round would be little else.
    fn request(&self, random: &mut Random, has_segments: &mut bool) -> Option<(Paddr, usize)> {
        let frames = match random.below(SEGMENT_EACH) {
            0 if *has_segments => 2 + random.below(SEGMENT_FRAMES_MAX - 1),
            _ => 1,
        };
        let alloc = |frames: usize| {
            let layout = Layout::from_size_align(frames * PAGE_SIZE, PAGE_SIZE).expect("pages");
            self.design.frames.alloc(layout).map(|addr| (addr, frames))
        };
        alloc(frames).or_else(|| {
            *has_segments = false;
            alloc(1)
        })
    }

    /// Frees what CPU `of` allocated, in random order.
    fn free(&self, of: usize, cpu: usize, random: &mut Random) {
        self.switch_handlers(cpu, true);
        self.held.with(of, |frames| {
            self.marks.clear(frames);
            scatter(self.design.frames, frames, random);
        });
        self.switch_handlers(cpu, false);
    }

    /// Afterwards no handler that began under the other setting still runs: each CPU has returned
    /// from its own.
    fn switch_handlers(&self, cpu: usize, are_on: bool) {
        self.barrier.wait_while(cpu, || self.has_handlers.store(are_on, Ordering::Relaxed));
        self.barrier.wait();
    }

    /// Does the work of a handler: allocates a frame and returns it at once.
    fn on_tick(&self) {
        if !self.has_handlers.load(Ordering::Relaxed) {
            return;
        }
        let mut held = [None; 4];
        let frame = Layout::from_size_align(PAGE_SIZE, PAGE_SIZE).expect("a page");
        for slot in &mut held {
            *slot = self.design.frames.alloc(frame);
            // Each refusal drains all CPUs: four take longer than a tick where each is emulated.
            if slot.is_none() {
                break;
            }
        }
        for addr in held.into_iter().flatten() {
            self.handled.fetch_add(1, Ordering::Relaxed);
            self.design.frames.dealloc(addr, PAGE_SIZE);
        }
    }

    /// Compares what is held with what there is, while no CPU and no handler allocates.
    fn compare(&self, round: u64, are_held: bool) {
        let total = self.held.total();
        let managed = match self.managed.load(Ordering::Relaxed) {
            0 => total,
            managed => managed,
        };
        self.managed.store(managed, Ordering::Relaxed);
        let expected = if are_held { managed } else { 0 };
        let mut outcome = Ok(());
        if total != expected {
            outcome = Err(format!("{total} pages are held, and {expected} should be"));
        } else if round.is_multiple_of(CHECK_EACH) {
            outcome = (self.design.check)(managed - total);
        }
        if let Err(why) = outcome {
            self.fail(format!("round {round}: {why}"));
        }
    }

    /// Ends the rounds; the first reason is the one to report.
    fn fail(&self, why: String) {
        self.failed.lock().get_or_insert(why);
    }
}
