//! Sequences stopped at each of their instructions, by a breakpoint of the processor.
//!
//! 1. A sequence that is stopped before the instruction behind its commit goes on at its abort
//!    address and has changed no word. Stopped there, it has committed.
//! 2. The stops are all instructions of the descriptor's range, and as many as the source has.
//! 3. What happens in between does no harm to a whole depot: an allocation and a free of another
//!    thread on that CPU, a full drain, a migration to another CPU. No page is lost or handed out
//!    twice.
//!
//! A perf event raises SIGTRAP before the instruction at its address is executed. The kernel
//! aborts the sequence when it delivers the signal, so the handler finds the abort address in the
//! context, and what the handler waits for happens between the abort and the next attempt.

use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::{AtomicI32, AtomicPtr};
use std::sync::{Mutex, PoisonError};

use pagedepot::Pfn;
use pagedepot::cpus::implement::Fill;

use super::*;
use crate::{Depot, Flags, Mode, Order, Scope};

/// Instructions of each sequence in `x86_64.rs`, the load of the CPU's number included.
const POP_INSTRUCTIONS: usize = 11;
const PUSH_INSTRUCTIONS: usize = 11;
const COMPARE_STORE_INSTRUCTIONS: usize = 10;
const MANY_INSTRUCTIONS: usize = 27;

/// Most attempts until a stop is reached: preemptions abort sequences before it.
const ATTEMPTS_MAX: u32 = 1000;

/// Tests that use the one handler of this process.
static TURN: Mutex<()> = Mutex::new(());
/// Stops since [`Breakpoint::arm`].
static HITS: AtomicU64 = AtomicU64::new(0);
/// Address at which the thread went on after the last stop.
static WENT_ON_AT: AtomicU64 = AtomicU64::new(0);
/// The event of the breakpoint; the handler disables it.
static EVENT: AtomicI32 = AtomicI32::new(-1);
/// The function that the handler calls.
static AT_STOP: AtomicPtr<&(dyn Fn() + Sync)> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn stopped(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a ucontext to a handler installed with SA_SIGINFO. The event is
    // open, or the call fails. What AT_STOP points to lives while the breakpoint is armed.
    let act = unsafe {
        let context = &*context.cast::<libc::ucontext_t>();
        WENT_ON_AT
            .store(context.uc_mcontext.gregs[libc::REG_RIP as usize] as u64, Ordering::Relaxed);
        libc::ioctl(EVENT.load(Ordering::Relaxed), PERF_EVENT_IOC_DISABLE, 0);
        AT_STOP.load(Ordering::Relaxed).as_ref()
    };
    HITS.fetch_add(1, Ordering::Relaxed);
    // A sequence was interrupted, no lock is held: what follows may allocate and wait.
    act.into_iter().for_each(|act| act());
}

fn install_handler() {
    // SAFETY: a handler with the flags it expects.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = stopped as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()), 0);
    }
}

/// A stop of the calling thread at an address.
struct Breakpoint(libc::c_int);

const PERF_TYPE_BREAKPOINT: u64 = 5;
const PERF_EVENT_IOC_ENABLE: libc::c_ulong = 0x2400;
const PERF_EVENT_IOC_DISABLE: libc::c_ulong = 0x2401;
/// Words of `struct perf_event_attr` as it was when it got `sig_data`.
const ATTR_WORDS: usize = 16;

impl Breakpoint {
    /// A breakpoint that is not armed yet.
    fn new(address: u64) -> std::io::Result<Self> {
        const DISABLED: u64 = 1 << 0;
        const EXCLUDE_KERNEL: u64 = 1 << 5;
        const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
        const REMOVE_ON_EXEC: u64 = 1 << 36;
        const SIGTRAP: u64 = 1 << 37;
        const EXECUTE: u64 = 4;
        let mut attr = [0u64; ATTR_WORDS];
        attr[0] = PERF_TYPE_BREAKPOINT | (size_of_val(&attr) as u64) << 32;
        attr[2] = 1; // a signal for each hit
        attr[5] = DISABLED | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR | REMOVE_ON_EXEC | SIGTRAP;
        attr[6] = EXECUTE << 32;
        attr[7] = address;
        attr[8] = size_of::<libc::c_long>() as u64;
        // SAFETY: the attributes are as long as they say; the thread is this one, on any CPU.
        let event =
            unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), 0, -1, -1, 0) };
        if event < 0 {
            Err(std::io::Error::last_os_error())
        } else {
            Ok(Breakpoint(event as libc::c_int))
        }
    }

    /// Calls `operation`, and `act` at its first stop. Returns how often it stopped, and where it
    /// went on.
    fn arm(&self, act: &(dyn Fn() + Sync), operation: impl FnOnce()) -> (u64, u64) {
        HITS.store(0, Ordering::Relaxed);
        EVENT.store(self.0, Ordering::Relaxed);
        // SAFETY: the handler reads it while this function runs, at most.
        let act: &&'static (dyn Fn() + Sync) = unsafe { std::mem::transmute(&act) };
        AT_STOP.store(std::ptr::from_ref(act).cast_mut(), Ordering::Relaxed);
        self.control(PERF_EVENT_IOC_ENABLE);
        operation();
        self.control(PERF_EVENT_IOC_DISABLE);
        AT_STOP.store(std::ptr::null_mut(), Ordering::Relaxed);
        (HITS.load(Ordering::Relaxed), WENT_ON_AT.load(Ordering::Relaxed))
    }

    fn control(&self, request: libc::c_ulong) {
        // SAFETY: an event of this process.
        assert_eq!(unsafe { libc::ioctl(self.0, request, 0) }, 0);
    }
}

impl Drop for Breakpoint {
    fn drop(&mut self) {
        // SAFETY: opened by `new`.
        unsafe { libc::close(self.0) };
    }
}

/// Says that nothing is tested, past the harness, which keeps what passing tests print.
fn skip(why: impl Display) {
    let _ = writeln!(
        std::io::stderr(),
        "\nSKIPPED: sequences are not stopped at each instruction: {why}"
    );
}

/// Prepares a test: sequences, a CPU to itself, breakpoints.
fn prepare() -> Option<(Area, Vec<u32>)> {
    let Some(area) = Area::find() else {
        skip("this program has no rseq registration");
        return None;
    };
    if let Err(error) = Breakpoint::new(stopped as *const () as u64) {
        skip(format_args!(
            "perf_event_open refuses breakpoints ({error}); it needs Linux 5.13, debug registers, \
             and kernel.perf_event_paranoid of at most 2"
        ));
        return None;
    }
    install_handler();
    let cpus = usable_cpus();
    pin(cpus[0]);
    Some((area, cpus))
}

/// The descriptor of a sequence for the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Descriptor {
    start: u64,
    bytes: u64,
    abort: u64,
}

impl Descriptor {
    /// The descriptor of the last sequence of this thread; `None` if the kernel has cleared it
    /// since.
    fn last(area: Area) -> Option<Self> {
        let address: usize;
        // SAFETY: reads a field of the thread's own area, which is a descriptor's address or 0.
        unsafe {
            std::arch::asm!(
                "mov {address}, qword ptr fs:[{area} + 8]",
                address = out(reg) address,
                area = in(reg) area.offset(),
                options(nostack, readonly, preserves_flags),
            );
            let place = std::ptr::with_exposed_provenance::<[u64; 4]>(address);
            place.as_ref().map(|&[_, start, bytes, abort]| Descriptor { start, bytes, abort })
        }
    }

    /// The descriptors of the sequence that `operation` ends with, this time and the next.
    fn of(area: Area, mut operation: impl FnMut()) -> Self {
        let mut last = || {
            operation();
            Self::last(area)
        };
        (0..ATTEMPTS_MAX)
            .find_map(|_| last().filter(|&first| last() == Some(first)))
            .expect("a thread that is not preempted all the time")
    }

    fn end(self) -> u64 {
        self.start + self.bytes
    }
}

/// Offsets of instructions: they begin at the first byte, have 15 bytes at most, and are as many
/// as expected.
#[track_caller]
fn check_stops(name: &str, stops: &[u64], expected: usize, descriptor: Descriptor) {
    assert_eq!(stops.len(), expected, "{name}: stops at {stops:?} of {} bytes", descriptor.bytes);
    assert_eq!(stops[0], 0, "{name}: the first instruction was not stopped");
    let ends = stops[1..].iter().chain([&descriptor.bytes]);
    let mut lengths = stops.iter().zip(ends).map(|(at, end)| end - at);
    assert!(lengths.all(|length| (1..=15).contains(&length)), "{name}: {stops:?}");
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

/// Stops at each byte of a sequence; returns the offsets at which it did stop.
fn stop_everywhere(
    area: Area,
    cpu: u32,
    operation: Attempt,
    is_of_two: bool,
) -> (Vec<u64>, Descriptor) {
    let fronts = Fronts::new(cpus());
    let cell = fronts.cell(cpu);
    if is_of_two {
        let (loaded, second) = (fronts.word(cpu).loaded().unwrap(), fronts.spare(cpu));
        // Each magazine has half of the blocks, or of the room.
        let is_take = operation(area, &fronts) && fronts.word(cpu).rounds() < ROUNDS;
        let (rounds, fill) = if is_take { (5, Fill::Full) } else { (58, Fill::Empty) };
        cell.store(Word::new(loaded, rounds, Some((second, fill))).0, Ordering::Relaxed);
    }
    let fresh = fronts.word(cpu).0;
    let attempt = || {
        cell.store(fresh, Ordering::Relaxed);
        operation(area, &fronts)
    };
    let descriptor = Descriptor::of(area, || {
        attempt();
    });
    let mut stops = Vec::new();
    for address in descriptor.start..=descriptor.end() {
        let breakpoint = Breakpoint::new(address).unwrap();
        let is_behind = address == descriptor.end();
        // Until it stops, or ends without a stop because no instruction begins there.
        let is_settled = (0..ATTEMPTS_MAX).any(|_| {
            let mut done = false;
            let (hits, went_on_at) = breakpoint.arm(&|| {}, || done = attempt());
            let at = address - descriptor.start;
            assert_eq!(
                done,
                fronts.word(cpu).0 != fresh,
                "at {at}: what it says is not what it did"
            );
            if hits > 0 && !is_behind {
                assert!(!done, "at {at}: it was stopped before its commit and has committed");
                assert_eq!(
                    went_on_at, descriptor.abort,
                    "at {at}: it did not go on at its abort address"
                );
                stops.push(at);
            } else if hits > 0 {
                assert_eq!(went_on_at, address, "behind its commit a sequence was aborted");
            }
            // Ways out without a commit may lead there, too.
            done || hits > 0 && !is_behind
        });
        assert!(is_settled, "aborted {ATTEMPTS_MAX} times");
    }
    assert!(fronts.is_refusing());
    (stops, descriptor)
}

#[test]
fn every_stop_before_the_commit_aborts() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((area, cpus)) = prepare() else { return };
    let sequences: [(_, Attempt, _); 7] = [
        ("pop", pops, POP_INSTRUCTIONS),
        ("push", pushes, PUSH_INSTRUCTIONS),
        ("take many", takes::<OF_ONE>, MANY_INSTRUCTIONS),
        ("put many", puts::<OF_ONE>, MANY_INSTRUCTIONS),
        ("take many of two magazines", takes::<OF_TWO>, MANY_INSTRUCTIONS),
        ("put many into two magazines", puts::<OF_TWO>, MANY_INSTRUCTIONS),
        ("compare-store", stores, COMPARE_STORE_INSTRUCTIONS),
    ];
    for (name, operation, expected) in sequences {
        let is_of_two = name.contains("two");
        let (stops, descriptor) = stop_everywhere(area, cpus[0], operation, is_of_two);
        check_stops(name, &stops, expected, descriptor);
    }
}

/// Blocks that are allocated and freed at once: more than go one by one, and an odd number.
const BATCH: usize = 9;

/// A depot whose operations are stopped, and the pages that the test holds.
struct Stopped {
    depot: Depot,
    held: Vec<Pfn>,
}

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

/// The operation that is stopped, by the sequence it ends with.
#[derive(Clone, Copy, Debug)]
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
}

impl Stopped {
    /// Makes `operation` end with its sequence: the front has a magazine, neither empty nor full;
    /// for a refill there is none.
    fn make_ready(&mut self, operation: Operation) {
        let kept = BATCH.min(self.held.len());
        self.held.drain(kept..).for_each(|pfn| give(&self.depot, pfn));
        self.depot.drain(Scope::ALL, Mode::Full);
        if !matches!(operation, Operation::Refill) {
            self.held.extend([(); BATCH + 6].map(|()| take(&self.depot)));
        }
    }

    fn perform(&mut self, operation: Operation) {
        match operation {
            Operation::Allocate | Operation::Refill => {
                let pfn = take(&self.depot);
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
                give(&self.depot, pfn);
            }
        }
    }

    /// Each page is in one place, and no two holders have one.
    fn check(&mut self, at: &str) {
        let mut held: Vec<_> = self.held.iter().map(|pfn| pfn.get()).collect();
        held.sort_unstable();
        assert!(
            held.windows(2).all(|pair| pair[0] != pair[1]),
            "{at}: a page was handed out twice"
        );
        let census = self.depot.validate().unwrap_or_else(|fault| panic!("{at}: {fault:?}"));
        assert_eq!(census.held_pages(), held.len() as u64, "{at}: pages were lost");
    }
}

/// The event at a stop.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Another thread allocates, frees and keeps pages on that CPU.
    Neighbour,
    /// Another thread takes what all CPUs cache.
    FullDrain,
    /// The thread goes on on another CPU, and a neighbour has the one it left.
    Migration,
}

/// Lets it happen, on the stopped thread and another one; returns the pages that the other keeps.
fn happen(event: Event, depot: &Depot, cpus: &[u32]) -> Vec<Pfn> {
    if matches!(event, Event::Migration) {
        pin(cpus[1]);
    }
    let neighbour = || {
        pin(cpus[0]);
        let (a, b, c) = (take(depot), take(depot), take(depot));
        give(depot, b);
        vec![a, c]
    };
    let drainer = || {
        pin(*cpus.last().expect("a CPU"));
        depot.drain(Scope::ALL, Mode::Full);
        Vec::new()
    };
    std::thread::scope(|scope| match event {
        Event::Neighbour | Event::Migration => scope.spawn(neighbour).join(),
        Event::FullDrain => scope.spawn(drainer).join(),
    })
    .unwrap_or_default()
}

/// Performs `operation` until it stops at `address` and `event` happens there.
fn stop_once(
    stopped: &mut Stopped,
    (operation, event): (Operation, Event),
    address: u64,
    cpus: &[u32],
) {
    let breakpoint = Breakpoint::new(address).unwrap();
    let at = format!("{event:?} at {address:#x} of {operation:?}");
    for _ in 0..ATTEMPTS_MAX {
        stopped.make_ready(operation);
        let depot: *const Depot = &stopped.depot;
        let depot = depot.expose_provenance();
        let kept = Mutex::new(Vec::new());
        let act = || {
            // SAFETY: the depot lives, and the operation that is stopped shares it.
            let depot = unsafe { &*std::ptr::with_exposed_provenance::<Depot>(depot) };
            kept.lock().unwrap().extend(happen(event, depot, cpus));
        };
        let (hits, _) = breakpoint.arm(&act, || stopped.perform(operation));
        pin(cpus[0]);
        stopped.held.extend(kept.into_inner().unwrap());
        stopped.check(&at);
        if hits > 0 {
            return;
        }
    }
    panic!("{at}: no stop in {ATTEMPTS_MAX} attempts");
}

#[test]
fn what_happens_at_a_stop_loses_no_page() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((area, cpus)) = prepare() else { return };
    let depot = Depot::builder(8 << 20).build().unwrap();
    if !depot.fronts().are_sequences() {
        return skip(depot.fronts());
    }
    let mut stopped = Stopped { depot, held: Vec::new() };
    let mut events = vec![Event::Neighbour, Event::FullDrain];
    if cpus.len() > 1 {
        events.push(Event::Migration);
    } else {
        skip("a migration needs a second CPU");
    }
    for (operation, expected) in [
        (Operation::Allocate, POP_INSTRUCTIONS),
        (Operation::Free, PUSH_INSTRUCTIONS),
        (Operation::AllocateMany, MANY_INSTRUCTIONS),
        (Operation::FreeMany, MANY_INSTRUCTIONS),
        (Operation::Refill, COMPARE_STORE_INSTRUCTIONS),
    ] {
        let descriptor = Descriptor::of(area, || {
            stopped.make_ready(operation);
            stopped.perform(operation);
        });
        let stops: Vec<_> = (0..descriptor.bytes)
            .filter(|offset| {
                let breakpoint = Breakpoint::new(descriptor.start + offset).unwrap();
                // An operation that was preempted before the stop does not count.
                (0..20).any(|_| {
                    stopped.make_ready(operation);
                    breakpoint.arm(&|| {}, || stopped.perform(operation)).0 > 0
                })
            })
            .collect();
        check_stops(&format!("{operation:?}"), &stops, expected, descriptor);
        for event in &events {
            for stop in stops.iter().copied().chain([descriptor.bytes]) {
                stop_once(&mut stopped, (operation, *event), descriptor.start + stop, &cpus);
            }
        }
    }
}
