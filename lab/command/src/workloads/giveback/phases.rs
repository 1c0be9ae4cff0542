//! The program: a peak, a rest, and a request to give back.

use std::ptr::NonNull;
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Instant;

use pagedepot::CpuId;
use pagedepot_rseq::affinity;

use super::holder::Holder;
use super::peak::{Cpus, Peak};
use super::resident::{resident_bytes, switches_on};
use pagedepot_cli::design::page_bytes;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::stop;

/// Pages of blocks, the last of them rare: many small ones make up half of the bytes. Each design
/// can give back a whole page alone.
const SIZES: [usize; 8] = [1, 1, 1, 2, 4, 8, 16, 64];
/// One of so many blocks stays in use.
const KEPT: usize = 10;
/// Threads that allocate.
const THREADS: usize = 2;

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    pub freed_bytes: u64,
    pub peak_bytes: u64,
    /// Bytes present after the rest, and after the request to give back.
    pub rested_bytes: u64,
    pub purged_bytes: u64,
    /// Seconds since the program fell asleep, and the bytes present then.
    pub over_time: Vec<(f64, f64)>,
    /// Switches on the isolated CPU while it slept.
    pub isolated_switches: Option<u64>,
}

impl Run {
    /// The share of freed bytes that are no longer present.
    pub fn share(&self, now_bytes: u64) -> f64 {
        (self.peak_bytes as f64 - now_bytes as f64) / self.freed_bytes as f64
    }
}

/// Steps that threads take together. They sleep in between: a waiter that spins is no program at
/// rest.
#[derive(Default)]
struct Stage {
    /// The step that threads may go to, and the number of threads that have got there.
    state: Mutex<(u32, usize)>,
    changed: Condvar,
}

impl Stage {
    /// Tells that a thread has done its part of a stage, and waits for the next.
    fn reached(&self, stage: u32) {
        let mut state = self.state.lock().expect("no thread panics with it");
        state.1 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.0 <= stage));
    }

    /// Waits until `count` threads have got there; the program's main thread calls this.
    fn await_all(&self, count: usize) {
        let state = self.state.lock().expect("no thread panics with it");
        drop(self.changed.wait_while(state, |state| state.1 < count));
    }

    fn go_on(&self) {
        let mut state = self.state.lock().expect("no thread panics with it");
        *state = (state.0 + 1, 0);
        self.changed.notify_all();
    }
}

/// Blocks of a thread.
struct Blocks(Vec<(NonNull<u8>, usize)>);

// SAFETY: it owns its blocks.
unsafe impl Send for Blocks {}

/// Runs the program once.
pub fn measure(holder: &dyn Holder, peak: &Peak, cpus: &Cpus) -> Result<Run, Failure> {
    let (stage, asleep) = (Stage::default(), Stage::default());
    thread::scope(|scope| {
        if let Some(cpu) = cpus.isolated {
            let asleep = &asleep;
            scope.spawn(move || {
                // Where it is refused, the thread sleeps elsewhere, and no switch is seen.
                let _ = affinity::pin(cpu);
                asleep.reached(0);
            });
            asleep.await_all(1);
        }
        let workers: Vec<_> = (0..THREADS)
            .map(|nth| {
                let stage = &stage;
                let cpu = cpus.working[nth % cpus.working.len()];
                scope.spawn(move || worker(holder, peak, (nth as u64, cpu), stage))
            })
            .collect();
        let found = watch(holder, peak, cpus, &stage);
        // Whatever happened, nothing waits for good.
        (0..3).for_each(|_| stage.go_on());
        asleep.go_on();
        let freed: Option<u64> =
            workers.into_iter().map(|worker| worker.join().expect("a worker only allocates")).sum();
        let freed_bytes = freed.ok_or_else(|| Failure::Run("out of memory".to_owned()))?;
        found.map(|run| Run { freed_bytes, ..run })
    })
}

/// Does the work of the program's main thread meanwhile.
fn watch(holder: &dyn Holder, peak: &Peak, cpus: &Cpus, stage: &Stage) -> Result<Run, Failure> {
    let mut run = Run::default();
    stage.await_all(THREADS);
    run.peak_bytes = resident_bytes(holder)?;
    stage.go_on();
    stage.await_all(THREADS);
    let switches = || cpus.isolated.map(|cpu| switches_on(cpu.get()));
    let (start, before) = (Instant::now(), switches());
    while start.elapsed() < peak.rest && !stop::is_asked() {
        let bytes = resident_bytes(holder)?;
        run.over_time.push((start.elapsed().as_secs_f64(), bytes as f64));
        thread::sleep(peak.look.min(peak.rest.saturating_sub(start.elapsed())));
    }
    run.isolated_switches = switches().zip(before).map(|(now, before)| now - before);
    run.rested_bytes = resident_bytes(holder)?;
    run.over_time.push((start.elapsed().as_secs_f64(), run.rested_bytes as f64));
    holder.purge();
    run.purged_bytes = resident_bytes(holder)?;
    Ok(run)
}

/// Returns the bytes freed after the peak; `None`: it got too little.
fn worker(
    holder: &dyn Holder,
    peak: &Peak,
    (nth, cpu): (u64, CpuId),
    stage: &Stage,
) -> Option<u64> {
    // Where it is refused, it runs on another one.
    let _ = affinity::pin(cpu);
    let mut random = fastrand::Rng::with_seed(peak.seed.wrapping_mul(31).wrapping_add(nth));
    let blocks = fill(holder, peak.bytes / THREADS, &mut random);
    stage.reached(0);
    let Some(Blocks(mut blocks)) = blocks else {
        stage.reached(1);
        return None;
    };
    random.shuffle(&mut blocks);
    let kept = blocks.len() / KEPT;
    let freed = blocks[kept..].iter().map(|&(_, bytes)| bytes as u64).sum();
    for (block, bytes) in blocks.drain(kept..) {
        holder.free(block, bytes);
    }
    stage.reached(1);
    for (block, bytes) in blocks {
        holder.free(block, bytes);
    }
    Some(freed)
}

/// Blocks of `bytes` bytes in all, each page written to; `None`: there is too little memory.
fn fill(holder: &dyn Holder, bytes: usize, random: &mut fastrand::Rng) -> Option<Blocks> {
    // As long as it may get: it must not grow while the program is measured.
    let mut blocks = Vec::with_capacity(bytes / page_bytes());
    let mut total = 0;
    while total < bytes {
        let size = SIZES[random.usize(..SIZES.len())] * page_bytes();
        let block = holder.alloc(size)?;
        for at in (0..size).step_by(page_bytes()) {
            // SAFETY: inside the block, which is this thread's.
            unsafe { block.add(at).write(1) };
        }
        blocks.push((block, size));
        total += size;
    }
    Some(Blocks(blocks))
}
