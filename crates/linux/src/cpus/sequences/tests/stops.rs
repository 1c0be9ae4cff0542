//! Sequences stopped at each of their instructions, by a tracer.
//!
//! 1. A sequence that is stopped before the instruction behind its commit goes on at its abort
//!    address and has changed no word and no gate. Stopped there, it has committed.
//! 2. The stops are all instructions of the descriptor's range that the processor comes to.
//! 3. What happens in between does no harm to a whole depot: a preemption; a signal whose handler
//!    allocates and frees; an allocation and a free of another thread on that CPU; a full drain,
//!    which fences; a migration to another CPU. No page is lost or handed out twice.
//!
//! The tests print the number of their stops, and of pages that were lost (`cargo xtask guest`).

use std::sync::Mutex;
use std::sync::atomic::AtomicU32;

use pagedepot::cpus::implement::Fill;

use super::*;
use crate::system::prim;
use crate::test_units::mib;
use crate::{Depot, Flags, Mode, Order, Scope};
use tracer::{Channel, Descriptor, Stepped, Tracee};

#[path = "../../../../../rseq/tests/tracer/mod.rs"]
mod tracer;

/// Most attempts until a stop is reached: preemptions abort sequences before it.
const ATTEMPTS_MAX: u32 = 1000;

/// Words of the channel: the operation to perform, by its place in the test's list.
const OPERATION: usize = 0;
/// Whether the last operation says that it has committed.
const DONE: usize = 1;
/// Whether the last operation changed its word or its gate.
const CHANGED: usize = 2;
/// Pages that are lost or were handed out twice, so far.
const LOST: usize = 3;

/// Forks a tracee that is confined to the first of the CPUs, as the caller is from then on; `None`
/// where that cannot be.
fn trace(cpus: &[u32], program: impl FnOnce(&'static Channel)) -> Option<Tracee> {
    // The tracer beside it: each step would wake another CPU.
    pin(cpus[0]);
    let traced = Tracee::fork(program);
    traced.inspect_err(|error| skip(format_args!("the system refuses tracers: {error}"))).ok()
}

/// The event at a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The thread loses its CPU for a moment, as at each stop.
    Preemption,
    /// A signal interrupts it.
    Signal,
    /// Another thread allocates, frees and keeps pages on that CPU.
    Neighbour,
    /// Another thread takes what all CPUs cache, by a fence.
    FullDrain,
    /// The thread goes on on another CPU, and a neighbour has the one it left.
    Migration,
}

/// Tasks of the thread beside the traced one. The channel's request is one's number, or 0.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
enum Help {
    Allocate = 1,
    Drain = 2,
    Ask = 3,
}

impl Event {
    /// Lets it happen. Returns the signal to go on with.
    fn happen(self, tracee: &Tracee, cpus: &[u32], has_helper: bool) -> libc::c_int {
        if self == Event::Migration {
            tracee.move_to(cpus[1]);
        }
        match self {
            Event::Neighbour | Event::Migration if has_helper => {
                help(tracee.channel(), Help::Allocate);
            }
            Event::FullDrain => help(tracee.channel(), Help::Drain),
            _ => {}
        }
        if self == Event::Signal { libc::SIGUSR1 } else { 0 }
    }
}

/// Has the helper of the traced thread do something, and waits for it.
fn help(channel: &Channel, what: Help) {
    channel.request.store(what as u32, Ordering::Release);
    prim::wake_all_shared(&channel.request);
    let deadline = Instant::now() + Duration::from_secs(60);
    while channel.request.load(Ordering::Acquire) != 0 {
        assert!(Instant::now() < deadline, "the helper does not come back from {what:?}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A test of one tracee: the operations are done by it, and stopped from here.
struct Stopping<'t> {
    tracee: &'t Tracee,
    cpus: &'t [u32],
    has_helper: bool,
    stops: u64,
}

impl Stopping<'_> {
    fn word(&self, word: usize) -> u64 {
        self.tracee.channel().words[word].load(Ordering::Acquire)
    }

    /// Stops each sequence of an operation at each instruction, once for each event. The tracee is
    /// ready for an operation before and after.
    fn stop_everywhere(&mut self, (number, name): (usize, &str), events: &[Event]) {
        self.tracee.channel().words[OPERATION].store(number as u64, Ordering::Release);
        // What it was ready for until now.
        self.tracee.run_to_pause();
        self.tracee.run_to_pause();
        let (_, sequences) = self.tracee.step_through();
        self.tracee.run_to_pause();
        // A reservation does not outlive a stop.
        let by_exclusives = cfg!(all(target_arch = "aarch64", not(target_feature = "lse")))
            && name.contains("claim");
        assert!(
            by_exclusives || sequences.iter().any(|sequence| sequence.commits),
            "{name}: {sequences:x?}"
        );
        for Stepped { descriptor, instructions, .. } in &sequences {
            assert_eq!(instructions[0], descriptor.start, "{name}: the first is not stopped at");
        }
        for sequence in &sequences {
            for at in sequence.stops() {
                for &event in events {
                    self.stop_once(name, sequence.descriptor, at, event);
                }
            }
        }
    }

    /// Performs an operation until it stops at an address and the event happens there.
    fn stop_once(&mut self, name: &str, descriptor: Descriptor, at: u64, event: Event) {
        let place =
            format!("{event:?} at +{:#x} of {descriptor:x?}, {name}", at - descriptor.start);
        for _ in 0..ATTEMPTS_MAX {
            if !self.tracee.run_to(at, 0) {
                self.tracee.run_to_pause();
                continue;
            }
            let signal = event.happen(self.tracee, self.cpus, self.has_helper);
            let is_behind = at == descriptor.end();
            if is_behind {
                assert_eq!(self.tracee.run(signal), tracer::Stop::Paused, "{place}");
            } else {
                let aborted = self.tracee.run_to(descriptor.abort, signal);
                assert!(aborted, "{place}: it did not go on at its abort address");
                self.tracee.run_to_pause();
            }
            // Checks the operation, and makes ready for the next one.
            self.tracee.run_to_pause();
            let (done, changed) = (self.word(DONE) != 0, self.word(CHANGED) != 0);
            if !self.has_helper {
                assert_eq!(done, is_behind, "{place}: what it says is not what it did");
                assert_eq!(changed, is_behind, "{place}: a word has changed, or has not");
            }
            assert_eq!(self.word(LOST), 0, "{place}: pages were lost, or handed out twice");
            self.stops += 1;
            return;
        }
        panic!("{place}: not reached in {ATTEMPTS_MAX} attempts");
    }

    /// Prints the counts of stops and of lost pages, which `cargo xtask guest` reads.
    fn report(&self) {
        println!("= stops {}", self.stops);
        println!("= lost_pages {}", self.word(LOST));
    }
}

/// Tries one sequence on a front; whether it says that it has committed.
type Attempt = fn(Area, &Fronts) -> bool;

#[inline(never)]
fn pops(area: Area, fronts: &Fronts) -> bool {
    pop(area, &fronts.array, WORD) != NO_FRAME
}

#[inline(never)]
fn pushes(area: Area, fronts: &Fronts) -> bool {
    push(area, &fronts.array, WORD, 63, 77)
}

/// The number of frames from each magazine: a copy has a frame by itself and four at once.
const OF_ONE: usize = 5;
const OF_TWO: usize = 2 * OF_ONE;

#[inline(never)]
fn takes<const FRAMES: usize>(area: Area, fronts: &Fronts) -> bool {
    fronts.take(area, &mut [Pfn::new(0); FRAMES]) > 0
}

#[inline(never)]
fn puts<const FRAMES: usize>(area: Area, fronts: &Fronts) -> bool {
    fronts.put(area, &[Pfn::new(77); FRAMES]) > 0
}

#[inline(never)]
fn stores(area: Area, fronts: &Fronts) -> bool {
    let cpu = area.cpu_id();
    let (here, old) = (Here::task(CpuId::new(cpu)), fronts.word(cpu));
    compare_store(area, &fronts.array, here, WORD, old.0, Word::EMPTY.0)
}

/// A gate that a drainer asked at, and one with a ticket.
const ASKED: u64 = 1 << 63 | 1 << 32;
const TICKET: u64 = 1 << 63 | 1 << 62 | 5 << 34 | 1 << 32;

#[inline(never)]
fn claims(area: Area, fronts: &Fronts) -> bool {
    let here = Here::task(CpuId::new(area.cpu_id()));
    claim_gate(area, &fronts.array, here, ASKED, TICKET)
}

/// The sequences, by name.
const SEQUENCES: [(&str, Attempt); 8] = [
    ("pop", pops),
    ("push", pushes),
    ("take many", takes::<OF_ONE>),
    ("put many", puts::<OF_ONE>),
    ("take many of two magazines", takes::<OF_TWO>),
    ("put many into two magazines", puts::<OF_TWO>),
    ("compare-store", stores),
    ("claim", claims),
];

/// The figure with the stops of a claim: each form of its commit has one of its own.
const CLAIM_STOPS: &str = match (cfg!(target_arch = "aarch64"), cfg!(target_feature = "lse")) {
    (false, _) => "claim_stops_cmpxchg",
    (true, true) => "claim_stops_casal",
    (true, false) => "claim_stops_exclusives",
};

static SIGNALLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_signal(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    SIGNALLED.fetch_add(1, Ordering::Relaxed);
}

/// Performs sequences on one front, over and over.
fn perform_sequences(channel: &Channel, area: Area, cpu: u32) {
    // SAFETY: the handler only counts.
    unsafe { install(libc::SIGUSR1, count_signal) };
    let fronts = Fronts::new(cpus());
    let (cell, gate, open) = (fronts.cell(cpu), fronts.gate(cpu), fronts.open_gate(cpu));
    let one = fronts.word(cpu);
    loop {
        let number = channel.words[OPERATION].load(Ordering::Acquire) as usize;
        let (name, operation) = SEQUENCES[number];
        let word = match name.split_once("two").map(|(kind, _)| kind) {
            // Each magazine has half of the blocks, or of the room.
            Some("take many of ") => two(&fronts, cpu, 5, Fill::Full),
            Some(_) => two(&fronts, cpu, 58, Fill::Empty),
            None => one,
        };
        cell.store(word.0, Ordering::Relaxed);
        gate.store(if name == "claim" { ASKED } else { open }, Ordering::Relaxed);
        let before = (cell.load(Ordering::Relaxed), gate.load(Ordering::Relaxed));
        channel.pause();
        let done = operation(area, &fronts);
        channel.pause();
        pin(cpu);
        let after = (cell.load(Ordering::Relaxed), gate.load(Ordering::Relaxed));
        channel.words[DONE].store(done.into(), Ordering::Release);
        channel.words[CHANGED].store((after != before).into(), Ordering::Release);
        assert!(fronts.is_refusing(), "a sequence wrote where no CPU's word is");
    }
}

fn two(fronts: &Fronts, cpu: u32, rounds: u32, fill: Fill) -> Word {
    let loaded = MagazineIndex::new(fronts.first_magazine as u32 + cpu);
    Word::new(loaded.expect("a magazine"), rounds, Some((fronts.spare(cpu), fill)))
}

#[test]
fn every_stop_before_the_commit_aborts() {
    let Some(area) = area() else { return };
    let cpus = usable_cpus();
    let program = |channel: &'static Channel| perform_sequences(channel, area, cpus[0]);
    let Some(tracee) = trace(&cpus, program) else { return };
    let mut events = vec![Event::Preemption, Event::Signal];
    events.extend((cpus.len() > 1).then_some(Event::Migration));
    let mut stopping = Stopping { tracee: &tracee, cpus: &cpus, has_helper: false, stops: 0 };
    for (number, (name, _)) in SEQUENCES.iter().enumerate() {
        let before = stopping.stops;
        stopping.stop_everywhere((number, name), &events);
        if *name == "claim" {
            println!("= {CLAIM_STOPS} {}", stopping.stops - before);
        }
    }
    stopping.report();
}

/// Blocks that are allocated and freed at once: more than go one by one, and an odd number.
const BATCH: usize = 9;

/// The operation that is stopped, by the sequence it ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// An allocation from a front: pop.
    Allocate,
    /// A free to a front: push.
    Free,
    /// An allocation of several blocks from a front: take many.
    AllocateMany,
    /// A free of several blocks to a front: put many.
    FreeMany,
    /// An allocation that fills a front: compare-store.
    Refill,
    /// An allocation that hands over what the front has, because a drainer asked: claim.
    HandOver,
}

const OPERATIONS: [Operation; 6] = [
    Operation::Allocate,
    Operation::Free,
    Operation::AllocateMany,
    Operation::FreeMany,
    Operation::Refill,
    Operation::HandOver,
];

#[inline(never)]
fn take(depot: &Depot) -> Pfn {
    depot
        .raw()
        .alloc(Order::BASE, Flags::default())
        .expect("the depot has more pages than the test takes")
}

#[inline(never)]
fn give(depot: &Depot, pfn: Pfn) {
    // SAFETY: the test holds it, and frees it once.
    unsafe { depot.raw().free(pfn, Order::BASE) }.expect("the page was allocated");
}

/// The depot that a handler uses.
static HANDLERS_DEPOT: AtomicPtr<Depot> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn allocate(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the depot lives as long as the process.
    let depot = unsafe { HANDLERS_DEPOT.load(Ordering::Acquire).as_ref() };
    let depot = depot.expect("set before the first signal");
    give(depot, take(depot));
}

/// A depot whose operations are stopped, and the pages that the test holds.
struct Stopped {
    depot: &'static Depot,
    held: Vec<Pfn>,
}

impl Stopped {
    /// Makes `operation` end with its sequence: the front has a magazine, neither empty nor full;
    /// for a refill there is none.
    fn make_ready(&mut self, operation: Operation, ask: impl FnOnce()) {
        let kept = BATCH.min(self.held.len());
        self.held.drain(kept..).for_each(|pfn| give(self.depot, pfn));
        self.depot.drain(Scope::ALL, Mode::Full);
        if operation != Operation::Refill {
            self.held.extend([(); BATCH + 6].map(|()| take(self.depot)));
        }
        if operation == Operation::HandOver {
            ask();
        }
    }

    fn perform(&mut self, operation: Operation) {
        match operation {
            Operation::Allocate | Operation::Refill | Operation::HandOver => {
                let pfn = take(self.depot);
                self.held.push(pfn);
            }
            Operation::AllocateMany => {
                let mut blocks = [Pfn::new(0); BATCH];
                let got = self.depot.raw().alloc_many(Order::BASE, Flags::default(), &mut blocks);
                self.held.extend(&blocks[..got.expect("the depot has more pages")]);
            }
            Operation::FreeMany => {
                let blocks = self.held.split_off(self.held.len() - BATCH);
                // SAFETY: as in `give`.
                unsafe { self.depot.raw().free_many(Order::BASE, &blocks) }.expect("were held");
            }
            Operation::Free => {
                let pfn = self.held.pop().expect("the test holds some");
                give(self.depot, pfn);
            }
        }
    }

    /// The pages that are not in one place, or that two holders have.
    fn lost_pages(&self) -> u64 {
        let mut held: Vec<_> = self.held.iter().map(|pfn| pfn.get()).collect();
        held.sort_unstable();
        let doubled = held.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
        let census = self.depot.validate().unwrap_or_else(|fault| panic!("{fault:?}"));
        doubled + census.held_pages().abs_diff(held.len() as u64)
    }
}

/// Does what the tracer, or the traced thread, asks for. Between two tasks it executes loads and a
/// system call, and nothing else: there may be breakpoints then (see [`tracer`]).
fn serve(channel: &Channel, depot: &Depot, kept: &Mutex<Vec<Pfn>>, cpus: &[u32]) {
    loop {
        match channel.request.load(Ordering::Acquire) {
            0 => prim::wait_shared(&channel.request, 0, 60_000),
            what => {
                if what == Help::Allocate as u32 {
                    pin(cpus[0]);
                    let (a, b, c) = (take(depot), take(depot), take(depot));
                    give(depot, b);
                    kept.lock().unwrap().extend([a, c]);
                } else if what == Help::Drain as u32 {
                    pin(*cpus.last().expect("a CPU"));
                    depot.drain(Scope::ALL, Mode::Full);
                } else {
                    pin(*cpus.last().expect("a CPU"));
                    depot.drain_handover(Scope::ALL, None);
                }
                channel.request.store(0, Ordering::Release);
            }
        }
    }
}

/// Performs operations on a depot, over and over.
fn perform_operations(channel: &'static Channel, cpus: &[u32]) {
    let depot: &'static Depot = Box::leak(Box::new(Depot::builder(8 * mib()).build().unwrap()));
    HANDLERS_DEPOT.store(std::ptr::from_ref(depot).cast_mut(), Ordering::Release);
    // SAFETY: the handler uses a depot, as handlers may.
    unsafe { install(libc::SIGUSR1, allocate) };
    let kept: &Mutex<Vec<Pfn>> = Box::leak(Box::default());
    let all = cpus.to_vec();
    std::thread::spawn(move || serve(channel, depot, kept, &all));
    // Behind its start, which takes locks of the C library.
    help(channel, Help::Drain);
    let mut stopped = Stopped { depot, held: Vec::new() };
    loop {
        let operation = OPERATIONS[channel.words[OPERATION].load(Ordering::Acquire) as usize];
        stopped.make_ready(operation, || help(channel, Help::Ask));
        channel.pause();
        stopped.perform(operation);
        channel.pause();
        pin(cpus[0]);
        stopped.held.append(&mut kept.lock().unwrap());
        channel.words[LOST].fetch_add(stopped.lost_pages(), Ordering::Release);
    }
}

#[test]
fn what_happens_at_a_stop_loses_no_page() {
    let cpus = usable_cpus();
    let fronts = Depot::new(1 << 20).expect("a small depot").fronts();
    if !fronts.are_sequences() {
        return skip(fronts);
    }
    let program = |channel: &'static Channel| perform_operations(channel, &cpus);
    let Some(tracee) = trace(&cpus, program) else { return };
    let mut events = vec![Event::Preemption, Event::Signal, Event::Neighbour, Event::FullDrain];
    events.extend((cpus.len() > 1).then_some(Event::Migration));
    let mut stopping = Stopping { tracee: &tracee, cpus: &cpus, has_helper: true, stops: 0 };
    for (number, operation) in OPERATIONS.iter().enumerate() {
        if *operation == Operation::HandOver && cpus.len() == 1 {
            skip("a handover needs a second CPU to ask from");
            continue;
        }
        stopping.stop_everywhere((number, &format!("{operation:?}")), &events);
    }
    stopping.report();
}
