//! The program: threads that go on working, and a peak that passes.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use pagedepot::CpuId;
use pagedepot_rseq::affinity;
use serde::{Deserialize, Serialize};

use super::holder::{Holder, HolderDemand, MakeHolder};
use super::system::{self, Memory};
use crate::design::page_bytes;
use crate::failure::Failure;
use crate::harness::histogram::Histogram;
use crate::names::Design;
use crate::workloads::settings::Settings;

/// Pages of blocks, the last of them rare: many small ones make up half of the bytes. Each design
/// can give back a whole page alone.
const SIZES: [usize; 8] = [1, 1, 1, 2, 4, 8, 16, 64];
/// Seconds after the peak at which rows say what came back.
pub const MOMENTS_S: [u32; 4] = [1, 2, 5, 10];
/// The time between two operations of a thread.
const PERIOD: Duration = Duration::from_millis(1);
/// Longer operations count as so long.
const LATENCY_MAX_NS: u64 = 1_000_000_000;

/// The sizes and times of the program.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of the peak, over all threads.
    pub peak_bytes: usize,
    /// Bytes that each thread works with.
    pub working_bytes: usize,
    /// Time before the first peak.
    pub quiet: Duration,
    /// Time for which the peak is held.
    pub held: Duration,
    /// Time after the peak.
    pub after: Duration,
    /// Time between two looks at what is present.
    pub look: Duration,
    /// Whether times are a tenth of the others: as a test, not to judge by.
    pub quick: bool,
}

impl Shape {
    pub const FULL: Shape = Shape {
        peak_bytes: 256 << 20,
        working_bytes: 4 << 20,
        quiet: Duration::from_secs(5),
        held: Duration::from_secs(1),
        after: Duration::from_secs(12),
        look: Duration::from_millis(250),
        quick: false,
    };
    pub const QUICK: Shape = Shape {
        peak_bytes: 32 << 20,
        working_bytes: 1 << 20,
        quiet: Duration::from_millis(500),
        held: Duration::from_millis(100),
        after: Duration::from_millis(1200),
        look: Duration::from_millis(50),
        quick: true,
    };

    /// The time in this program of a moment of the full one.
    fn moment(&self, seconds: u32) -> f64 {
        f64::from(seconds) / if self.quick { 10.0 } else { 1.0 }
    }
}

/// Latencies of operations.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    pub p999_ns: u64,
    pub worst_ns: u64,
}

/// The result of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    pub peak_bytes: u64,
    pub freed_bytes: u64,
    /// The share of the freed bytes that is not present any more at each of [`MOMENTS_S`].
    pub returned: Vec<f64>,
    /// Operations of the threads that shared in the peak: before it, and afterwards.
    pub quiet: Latency,
    pub after: Latency,
    /// Operations of the thread on the isolated CPU: before, and afterwards.
    pub isolated_quiet: Latency,
    pub isolated_after: Latency,
    /// Function calls that interrupted the isolated CPU, per second before and in all afterwards.
    pub isolated_interrupts_quiet_per_s: Option<f64>,
    pub isolated_interrupts: Option<u64>,
    /// Function calls and TLB shoot-downs afterwards, by CPU.
    pub interrupts: Vec<(u32, Option<u64>, Option<u64>)>,
    pub releaser_cpu_ms: f64,
    pub huge_bytes: u64,
    /// Page faults of the process afterwards, before the second peak.
    pub faults_after: u64,
    pub second_peak_faults: u64,
    pub second_peak_ms: f64,
    /// Seconds since the end of the peak, and bytes present.
    pub over_time: Vec<(f64, f64)>,
}

/// The work that the threads do now.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Settle,
    Quiet,
    Peak,
    Free,
    After,
    SecondPeak,
    End,
}

/// The state that the threads share with the program's main thread.
struct Stage<'h> {
    holder: &'h dyn Holder,
    phase: AtomicU32,
    shape: Shape,
    seed: u64,
}

impl Stage<'_> {
    fn set(&self, phase: Phase) {
        // Release: pairs with the Acquire in `is`; nothing else is published by it.
        self.phase.store(phase as u32, Ordering::Release);
    }

    fn is(&self, phase: Phase) -> bool {
        // Acquire: pairs with the Release in `set`.
        self.phase.load(Ordering::Acquire) == phase as u32
    }
}

/// A thread's word to the main thread.
enum Word {
    /// The id of the thread.
    Here(u32),
    /// It holds its part of the peak.
    Reached,
    /// It has freed so many bytes.
    Freed(u64),
    /// It has ended: before the main thread has ended the program, for want of memory.
    Ended,
}

/// A thread that asks the holder to give back, for as long as that takes, while the main thread
/// looks at the memory. It ends with the program: a thread that ends interrupts the CPUs that run
/// others of its process, and those interrupts are counted.
struct Asker {
    ask: Sender<()>,
    /// Milliseconds of a CPU that asking took.
    done: Receiver<f64>,
}

impl Asker {
    fn start<'s>(scope: &'s Scope<'s, '_>, holder: &'s dyn Holder, to: Sender<Word>) -> Self {
        let ((ask, asks), (tell, done)) = (channel(), channel());
        scope.spawn(move || {
            let _ = to.send(Word::Here(own_id()));
            for () in asks {
                let before_ns = own_cpu_ns();
                holder.ask();
                let _ = tell.send((own_cpu_ns() - before_ns) as f64 / 1e6);
            }
        });
        Asker { ask, done }
    }
}

/// Says that a thread ends, also when it panics.
struct Ending<'s>(&'s Sender<Word>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let _ = self.0.send(Word::Ended);
    }
}

/// Measures the program with a design, in this process.
///
/// # Errors
/// When the design cannot be made, runs out of memory, or the system does not tell.
pub fn measure(
    (design, asked): (Design, bool),
    shape: Shape,
    settings: &Settings,
    make: MakeHolder,
) -> Result<Run, Failure> {
    let (working, isolated) = match &*settings.cpus {
        [working @ .., last] if !working.is_empty() => (working, Some(*last)),
        all => (all, None),
    };
    // What the design starts keeps off the isolated CPU, too.
    affinity::confine(&working.iter().copied().collect())
        .map_err(|error| Failure::Run(format!("cannot keep off a CPU: {error}")))?;
    let bytes = shape.peak_bytes + settings.cpus.len() * shape.working_bytes;
    let demand = HolderDemand { bytes, isolated, quick: shape.quick };
    let holder = make(design, &demand)?;
    let phase = AtomicU32::new(Phase::Settle as u32);
    let stage = Stage { holder: &*holder, phase, shape, seed: settings.seed };
    thread::scope(|scope| {
        let (sender, receiver) = channel();
        let share = shape.peak_bytes / working.len();
        let start = |cpu: CpuId, share: usize| {
            let (stage, sender) = (&stage, sender.clone());
            scope.spawn(move || owner(stage, (cpu, share), &sender))
        };
        let owners: Vec<_> = working.iter().map(|&cpu| start(cpu, share)).collect();
        let alone = isolated.map(|cpu| start(cpu, 0));
        let asker = asked.then(|| Asker::start(scope, stage.holder, sender.clone()));
        let found = watch(&stage, working.len(), isolated, asker.as_ref(), &receiver);
        stage.set(Phase::End);
        let join = |owner: thread::ScopedJoinHandle<'_, [Latency; 2]>| {
            owner.join().expect("an owner only allocates")
        };
        let ended: Vec<_> = owners.into_iter().map(join).collect();
        let mut run = found?;
        let worst = |at: usize| Latency {
            p999_ns: ended.iter().map(|latencies| latencies[at].p999_ns).max().unwrap_or(0),
            worst_ns: ended.iter().map(|latencies| latencies[at].worst_ns).max().unwrap_or(0),
        };
        (run.quiet, run.after) = (worst(0), worst(1));
        if let Some([quiet, after]) = alone.map(join) {
            (run.isolated_quiet, run.isolated_after) = (quiet, after);
        }
        Ok(run)
    })
}

/// Waits for a word of each of `count` threads. Each phase has words of its own.
///
/// # Errors
/// When a thread has ended, so that others may never come.
fn hear<T>(
    count: usize,
    from: &Receiver<Word>,
    of: impl Fn(Word) -> Option<T>,
) -> Result<Vec<T>, Failure> {
    let out_of_memory = || Failure::Run("out of memory: free some, or use --quick".to_owned());
    let words = from.iter().take(count);
    words.map(|word| of(word).ok_or_else(out_of_memory)).collect()
}

fn reached(count: usize, from: &Receiver<Word>) -> Result<(), Failure> {
    let is_there = |word| matches!(word, Word::Reached).then_some(());
    hear(count, from, is_there).map(drop)
}

/// Does the work of the program's main thread.
fn watch(
    stage: &Stage<'_>,
    sharing: usize,
    isolated: Option<CpuId>,
    asker: Option<&Asker>,
    from: &Receiver<Word>,
) -> Result<Run, Failure> {
    let shape = stage.shape;
    let mut run = Run::default();
    let threads = sharing + usize::from(isolated.is_some()) + usize::from(asker.is_some());
    let mut ids = hear(threads, from, |word| match word {
        Word::Here(id) => Some(id),
        _ => None,
    })?;
    ids.push(own_id());
    thread::sleep(shape.held);
    let before = system::interrupts();
    stage.set(Phase::Quiet);
    thread::sleep(shape.quiet);
    let quiet = system::interrupts();
    run.isolated_interrupts_quiet_per_s = isolated
        .and_then(|cpu| system::function_calls(&before, &quiet, cpu))
        .map(|count| count as f64 / shape.quiet.as_secs_f64());
    stage.set(Phase::Peak);
    reached(sharing, from)?;
    thread::sleep(shape.held);
    run.peak_bytes = system::memory()?.present_bytes;
    stage.set(Phase::Free);
    let freed = hear(sharing, from, |word| match word {
        Word::Freed(bytes) => Some(bytes),
        _ => None,
    })?;
    run.freed_bytes = freed.into_iter().sum();
    let before = system::interrupts();
    let (faults, before_ns) = (system::faults(), system::cpu_ns_beside(&ids));
    stage.set(Phase::After);
    let asked_ms = rest(stage, asker, &mut run, &system::memory)?;
    let after = system::interrupts();
    let ran_ns = system::cpu_ns_beside(&ids).saturating_sub(before_ns);
    run.releaser_cpu_ms = ran_ns as f64 / 1e6 + asked_ms;
    run.isolated_interrupts = isolated.and_then(|cpu| system::function_calls(&before, &after, cpu));
    run.interrupts = after
        .iter()
        .filter_map(|(cpu, now)| {
            let then = before.get(cpu)?;
            let since = |kind: usize| Some(now[kind]?.saturating_sub(then[kind]?));
            Some((*cpu, since(0), since(1)))
        })
        .collect();
    run.faults_after = system::faults() - faults;
    let began = Instant::now();
    stage.set(Phase::SecondPeak);
    reached(sharing, from)?;
    run.second_peak_ms = began.elapsed().as_secs_f64() * 1000.0;
    run.second_peak_faults = system::faults() - faults - run.faults_after;
    Ok(run)
}

/// The time after the peak, in which `look` says what is present; returns the milliseconds of a CPU
/// that asking took.
fn rest(
    stage: &Stage<'_>,
    asker: Option<&Asker>,
    run: &mut Run,
    look: &dyn Fn() -> Result<Memory, Failure>,
) -> Result<f64, Failure> {
    let shape = stage.shape;
    let began = Instant::now();
    let mut to_ask = asker;
    while began.elapsed() < shape.after {
        let Memory { present_bytes, huge_bytes } = look()?;
        run.over_time.push((began.elapsed().as_secs_f64(), present_bytes as f64));
        run.huge_bytes = huge_bytes;
        thread::sleep(shape.look.min(shape.after.saturating_sub(began.elapsed())));
        if began.elapsed().as_secs_f64() >= shape.moment(1)
            && let Some(asker) = to_ask.take()
        {
            let _ = asker.ask.send(());
        }
    }
    run.returned = MOMENTS_S
        .iter()
        .map(|&moment| {
            let at = run.over_time.iter().rev().find(|(s, _)| *s <= shape.moment(moment));
            let present = at.map_or(run.peak_bytes as f64, |&(_, bytes)| bytes);
            (run.peak_bytes as f64 - present) / run.freed_bytes as f64
        })
        .collect();
    let Some(asker) = asker.filter(|_| to_ask.is_none()) else { return Ok(0.0) };
    let failed = |_| Failure::Run("the design failed to give back".to_owned());
    asker.done.recv().map_err(failed)
}

/// The id of the calling thread.
fn own_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Nanoseconds that the calling thread ran so far.
fn own_cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Blocks of a thread.
struct Blocks<'h> {
    holder: &'h dyn Holder,
    blocks: Vec<(NonNull<u8>, usize)>,
    random: fastrand::Rng,
}

impl Blocks<'_> {
    /// Adds a block of some size, each page written to; its size, `None`: there is no memory.
    fn add(&mut self) -> Option<usize> {
        let size = SIZES[self.random.usize(..SIZES.len())] * page_bytes();
        let block = self.holder.alloc(size)?;
        for at in (0..size).step_by(page_bytes()) {
            // SAFETY: inside the block, which is this thread's.
            unsafe { block.add(at).write(1) };
        }
        self.blocks.push((block, size));
        Some(size)
    }

    /// Adds blocks of so many bytes.
    fn fill(&mut self, bytes: usize) -> bool {
        let mut filled = 0;
        while filled < bytes {
            let Some(size) = self.add() else { return false };
            filled += size;
        }
        true
    }

    /// Frees all blocks beyond the first `kept`, in random order; returns their bytes.
    fn free_beyond(&mut self, kept: usize) -> u64 {
        self.random.shuffle(&mut self.blocks);
        let freed = self.blocks.drain(kept..);
        freed
            .map(|(block, bytes)| {
                self.holder.free(block, bytes);
                bytes as u64
            })
            .sum()
    }

    /// Frees a random block and allocates another; returns how long that took. `None`: there are no
    /// blocks left, because there was no memory for others.
    fn exchange(&mut self) -> Option<u64> {
        if self.blocks.is_empty() {
            return None;
        }
        let at = self.random.usize(..self.blocks.len());
        let (block, bytes) = self.blocks.swap_remove(at);
        let began = Instant::now();
        self.holder.free(block, bytes);
        let _ = self.add();
        Some(began.elapsed().as_nanos().try_into().unwrap_or(u64::MAX))
    }
}

/// A thread that works at its rate; returns the latencies before the peak and after it.
fn owner(stage: &Stage<'_>, (cpu, share): (CpuId, usize), to: &Sender<Word>) -> [Latency; 2] {
    let _ending = Ending(to);
    // Where it is refused, it runs elsewhere.
    let _ = affinity::pin(cpu);
    let _ = to.send(Word::Here(own_id()));
    let random =
        fastrand::Rng::with_seed(stage.seed.wrapping_mul(31).wrapping_add(cpu.get().into()));
    // As long as it may get: it must not grow while the program is measured.
    let blocks = Vec::with_capacity((share + 2 * stage.shape.working_bytes) / page_bytes() + 1);
    let mut own = Blocks { holder: stage.holder, blocks, random };
    let mut latencies = [(); 2].map(|()| Histogram::new(LATENCY_MAX_NS));
    if !own.fill(stage.shape.working_bytes) {
        own.free_beyond(0);
        return Default::default();
    }
    let mut working = own.blocks.len();
    // The peaks that it has taken and given back.
    let (mut taken, mut freed) = (0, 0);
    let mut next = Instant::now();
    while !stage.is(Phase::End) {
        let wants = match () {
            () if stage.is(Phase::SecondPeak) => 2,
            () if stage.is(Phase::Peak) => 1,
            () => taken,
        };
        if share > 0 && taken < wants {
            taken = wants;
            working = own.blocks.len();
            if !own.fill(share) {
                break;
            }
            let _ = to.send(Word::Reached);
            next = Instant::now();
        }
        if share > 0 && freed < 1 && stage.is(Phase::Free) {
            freed = 1;
            let _ = to.send(Word::Freed(own.free_beyond(working)));
            next = Instant::now();
        }
        let Some(ns) = own.exchange() else { break };
        match () {
            () if stage.is(Phase::Quiet) => latencies[0].record(ns),
            () if stage.is(Phase::After) => latencies[1].record(ns),
            () => {}
        }
        next += PERIOD;
        match next.checked_duration_since(Instant::now()) {
            Some(left) => thread::sleep(left),
            None => next = Instant::now(),
        }
    }
    own.free_beyond(0);
    latencies.map(|of| Latency { p999_ns: of.quantile(0.999), worst_ns: of.max() })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use super::super::holder::Glibc;
    use super::*;
    use crate::design::Product;
    use crate::workloads::options::MeasureOptions;
    use crate::workloads::settings::Effort;

    /// Memory for so many blocks, and then for none.
    struct Scarce {
        left: AtomicUsize,
    }

    impl Scarce {
        fn boxed(left: usize) -> Box<dyn Holder> {
            Box::new(Scarce { left: AtomicUsize::new(left) })
        }
    }

    impl Holder for Scarce {
        fn alloc(&self, bytes: usize) -> Option<NonNull<u8>> {
            let take = |left: usize| left.checked_sub(1);
            let has = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
            has.then(|| Glibc.alloc(bytes)).flatten()
        }

        fn free(&self, block: NonNull<u8>, bytes: usize) {
            Glibc.free(block, bytes);
        }

        fn ask(&self) {}
    }

    /// Measures a small program of three threads, on one CPU.
    fn measured(make: MakeHolder) -> Result<Run, Failure> {
        let shape = Shape {
            peak_bytes: 1 << 20,
            working_bytes: 1,
            quiet: Duration::from_millis(50),
            held: Duration::from_millis(20),
            after: Duration::from_millis(20),
            look: Duration::from_millis(10),
            quick: true,
        };
        // On a thread of its own, which is confined to the program's CPUs.
        let program = move || {
            let options = MeasureOptions::default();
            let settings = Settings::new(&Product, &options, Effort::Quick)?;
            let cpus = vec![settings.cpus[0]; 3];
            measure((Design::Glibc, false), shape, &Settings { cpus, ..settings }, make)
        };
        thread::spawn(program).join().unwrap()
    }

    /// Counts looks, and waits for another one when it is asked.
    #[derive(Default)]
    struct Looked {
        looks: AtomicUsize,
        is_seen: AtomicBool,
    }

    impl Holder for Looked {
        fn alloc(&self, _bytes: usize) -> Option<NonNull<u8>> {
            None
        }

        fn free(&self, _block: NonNull<u8>, _bytes: usize) {}

        fn ask(&self) {
            let (before, began) = (self.looks.load(Ordering::Relaxed), Instant::now());
            // Without an end, a main thread that waits would wait for ever.
            while began.elapsed() < Duration::from_secs(5) {
                if self.looks.load(Ordering::Relaxed) > before {
                    return self.is_seen.store(true, Ordering::Relaxed);
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn memory_is_looked_at_while_the_holder_gives_back() {
        let (after, look) = (Duration::from_secs(1), Duration::from_millis(1));
        let shape = Shape { after, look, ..Shape::QUICK };
        let holder = Looked::default();
        let phase = AtomicU32::new(Phase::After as u32);
        let stage = Stage { holder: &holder, phase, shape, seed: 1 };
        let look = || {
            holder.looks.fetch_add(1, Ordering::Relaxed);
            Ok(Memory::default())
        };
        thread::scope(|scope| {
            let asker = Asker::start(scope, &holder, channel().0);
            rest(&stage, Some(&asker), &mut Run::default(), &look).unwrap();
        });
        assert!(holder.is_seen.load(Ordering::Relaxed));
    }

    #[test]
    fn threads_without_memory_end_the_program() {
        // The first fill of one thread fails, or of all; each has one block, and no other for it.
        let makers: [MakeHolder; 3] =
            [|_, _| Ok(Scarce::boxed(2)), |_, _| Ok(Scarce::boxed(0)), |_, _| Ok(Scarce::boxed(3))];
        for make in makers {
            let failure = measured(make).unwrap_err().to_string();
            assert!(failure.contains("out of memory"), "{failure}");
        }
        assert!(measured(|_, _| Ok(Scarce::boxed(usize::MAX))).is_ok());
    }
}
