//! Pages from a producer to a consumer: between two processes, and between two threads.
//!
//! Each lane has a consumer of its own, which sleeps while it is not the lane's turn. The window
//! begins when the consumer is awake, and ends when the slower side has.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::thread::JoinHandle;
use std::time::Instant;

use pagedepot::{CpuId, Order};
use pagedepot_linux::shared::{SentPage, SharedDepot, SharedOptions};

use super::pools::{DepotPool, Mutex, NAME, Pool, all_free, failed, segment};
use crate::failure::Failure;
use crate::harness::barrier::Waiter;
use crate::harness::fork::{Child, Shared, bump, sleep_while};
use crate::harness::ring::Ring;
use crate::harness::{cpus, lock, noise, stop};
use crate::names::Design;
use crate::report::rows::{Metric, params};
use crate::report::{Report, table};
use crate::workloads::settings::{Settings, checked};

const FRAME: Metric = ("frame_ns", "ns");
const BATCH_FRAME: Metric = ("batch_frame_ns", "ns");

/// Pages under way at most, and those that one side moves before it tells the other: as in
/// `producer-consumer`.
const RING_SLOTS: u32 = 4096;
const PUBLISHED_AT_ONCE: u32 = 512;
/// Pages of a call, in the rows that have several.
const BATCH: usize = 64;
/// Pages of a pool: those under way, and those that both sides cache.
const PAGES: u32 = 1 << 16;

/// A pool that processes or threads pass pages of.
enum PassedPool {
    /// A segment whose pages are sent and claimed.
    Sent(Box<SharedDepot>),
    Depot(Box<DepotPool>),
    Mutex(Mutex),
}

impl PassedPool {
    fn design(&self) -> Design {
        match self {
            PassedPool::Sent(_) => Design::DepotShared,
            PassedPool::Depot(_) => Design::Depot,
            PassedPool::Mutex(_) => Design::Mutex,
        }
    }

    fn produce(&self, link: &Link, units: u64) {
        match self {
            PassedPool::Sent(depot) => link.ring.produce(units, || {
                let page = depot.page(Order::BASE).expect("the bench gives it enough memory");
                page.into_shared(depot).expect("it is this depot's").to_bits()
            }),
            PassedPool::Depot(pool) => link.ring.produce(units, || pool.alloc().into()),
            PassedPool::Mutex(pool) => link.ring.produce(units, || pool.alloc().into()),
        }
    }

    fn consume(&self, link: &Link, units: u64) {
        match self {
            PassedPool::Sent(depot) => link.ring.consume(units, |bits| {
                if depot.claim(SentPage::from_bits(bits)).is_err() {
                    // Relaxed: looked at behind the window's end.
                    link.post.refused.fetch_add(1, Ordering::Relaxed);
                }
            }),
            PassedPool::Depot(pool) => link.ring.consume(units, |page| pool.free(page as u32)),
            PassedPool::Mutex(pool) => link.ring.consume(units, |page| pool.free(page as u32)),
        }
    }
    /// Produces like [`produce`](Self::produce), [`BATCH`] pages in a call.
    fn produce_batches(&self, link: &Link, units: u64) {
        let (mut pages, mut sent) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        link.ring.produce_batches::<BATCH>(units / BATCH as u64, 0, |batch| match self {
            PassedPool::Sent(depot) => {
                while pages.len() < BATCH {
                    let got = depot.alloc_pages_into(Order::BASE, BATCH - pages.len(), &mut pages);
                    got.expect("the bench gives it enough memory");
                }
                let unsent = depot.send_pages(pages.drain(..), &mut sent);
                assert!(unsent.is_empty(), "they are this depot's");
                let messages = sent.drain(..).map(SentPage::to_bits);
                batch.iter_mut().zip(messages).for_each(|(place, bits)| *place = bits);
            }
            PassedPool::Depot(pool) => pool.alloc_many(batch),
            PassedPool::Mutex(pool) => batch.fill_with(|| pool.alloc().into()),
        });
    }

    fn consume_batches(&self, link: &Link, units: u64) {
        let (mut pages, mut sent) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        link.ring.consume_batches::<BATCH>(units / BATCH as u64, |batch| match self {
            PassedPool::Sent(depot) => {
                sent.extend(batch.iter().map(|&bits| SentPage::from_bits(bits)));
                depot.claim_pages(&sent, &mut pages, |_, _| {
                    link.post.refused.fetch_add(1, Ordering::Relaxed);
                });
                sent.clear();
                depot.free_pages(pages.drain(..));
            }
            PassedPool::Depot(pool) => pool.free_many(batch),
            PassedPool::Mutex(pool) => batch.iter().for_each(|&page| pool.free(page as u32)),
        });
    }
}

/// Words by which a producer and its consumer tell each other of windows.
#[derive(Default)]
struct Post {
    /// Windows asked for.
    asked: AtomicU32,
    /// Pages of the window; 0: the last one was.
    units: AtomicU64,
    /// Windows that the consumer was awake for.
    ready: AtomicU32,
    /// Windows that the consumer has ended.
    done: AtomicU32,
    /// Nanoseconds of the last one.
    elapsed_ns: AtomicU64,
    /// Pages that could not be claimed.
    refused: AtomicU64,
}

/// The memory that both sides of a lane share.
struct Link {
    post: Post,
    ring: Ring<u128>,
}

impl Link {
    fn new() -> Result<Shared<Self>, Failure> {
        let link = Link { post: Post::default(), ring: Ring::new(RING_SLOTS, PUBLISHED_AT_ONCE) };
        Shared::new(link).map_err(|error| failed("mapping memory")(&error))
    }

    /// Consumes window after window, until one has no pages.
    fn serve(&self, pool: &PassedPool, is_batched: bool, cpu: CpuId) {
        cpus::pin(cpu);
        let post = &self.post;
        let mut served = 0;
        loop {
            // Acquire: pairs with the Release of `bump`, for the units.
            while post.asked.load(Ordering::Acquire) == served {
                sleep_while(&post.asked, served);
            }
            served = served.wrapping_add(1);
            let units = post.units.load(Ordering::Relaxed);
            if units == 0 {
                return;
            }
            post.ready.store(served, Ordering::Release);
            let start = Instant::now();
            if is_batched {
                pool.consume_batches(self, units);
            } else {
                pool.consume(self, units);
            }
            post.elapsed_ns.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            // Release: pairs with the Acquire of `window`, for the time.
            post.done.store(served, Ordering::Release);
        }
    }

    fn ask(&self, units: u64) -> u32 {
        self.post.units.store(units, Ordering::Relaxed);
        bump(&self.post.asked)
    }
}

/// The other side of a lane.
enum Consumer {
    Process(StdMutex<Child>),
    Thread(Option<JoinHandle<()>>),
}

/// A way of pages from a producer to a consumer.
struct Lane {
    link: Arc<Shared<Link>>,
    pool: Arc<PassedPool>,
    /// Whether a call moves [`BATCH`] pages.
    is_batched: bool,
    consumer: Consumer,
}

impl Lane {
    /// A lane to a process. `open` makes the pool that it consumes with, in that process.
    fn to_process(
        pool: PassedPool,
        is_batched: bool,
        cpu: CpuId,
        open: impl FnOnce(&PassedPool) -> Option<PassedPool>,
    ) -> Result<Self, Failure> {
        let link = Link::new()?;
        let program = || match open(&pool) {
            Some(own) => link.serve(&own, is_batched, cpu),
            None => link.serve(&pool, is_batched, cpu),
        };
        let child = Child::fork(program).map_err(|error| failed("forking")(&error))?;
        let consumer = Consumer::Process(StdMutex::new(child));
        Ok(Lane { link: Arc::new(link), pool: Arc::new(pool), is_batched, consumer })
    }

    /// A lane to a thread, which begins when all processes are forked.
    fn to_thread(pool: PassedPool, is_batched: bool) -> Result<Self, Failure> {
        let (link, pool) = (Arc::new(Link::new()?), Arc::new(pool));
        Ok(Lane { link, pool, is_batched, consumer: Consumer::Thread(None) })
    }

    fn start(&mut self, cpu: CpuId) {
        if let Consumer::Thread(thread) = &mut self.consumer {
            let (link, pool) = (Arc::clone(&self.link), Arc::clone(&self.pool));
            let is_batched = self.is_batched;
            *thread = Some(std::thread::spawn(move || link.serve(&pool, is_batched, cpu)));
        }
    }

    fn processes(&self) -> i64 {
        if matches!(self.consumer, Consumer::Process(_)) { 2 } else { 1 }
    }

    fn label(&self) -> (&'static str, &'static str) {
        let ends = match (self.processes(), self.is_batched) {
            (2, false) => "two processes",
            (2, true) => "two processes, 64 at a time",
            (_, false) => "two threads",
            (_, true) => "two threads, 64 at a time",
        };
        (self.pool.design().name(), ends)
    }

    /// Whether the consumer is there no more.
    fn has_lost_consumer(&self) -> bool {
        match &self.consumer {
            Consumer::Process(child) => lock(child).ended().is_some(),
            Consumer::Thread(thread) => thread.as_ref().is_none_or(JoinHandle::is_finished),
        }
    }

    /// Waits for a step of the consumer.
    fn wait_for(&self, word: &AtomicU32, window: u32) -> Result<(), Failure> {
        let mut waiter = Waiter::default();
        let mut looks = 0u32;
        // Acquire: pairs with the Release of `serve`.
        while word.load(Ordering::Acquire) != window {
            waiter.pause();
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 20) && self.has_lost_consumer() {
                return Err(failed("passing pages")(&"the consumer has ended early"));
            }
        }
        Ok(())
    }

    /// Nanoseconds of a page, of so many.
    fn window(&self, units: u64) -> Result<f64, Failure> {
        let post = &self.link.post;
        let window = self.link.ask(units);
        self.wait_for(&post.ready, window)?;
        let start = Instant::now();
        if self.is_batched {
            self.pool.produce_batches(&self.link, units);
        } else {
            self.pool.produce(&self.link, units);
        }
        let own_ns = start.elapsed().as_nanos() as u64;
        self.wait_for(&post.done, window)?;
        let slower_ns = own_ns.max(post.elapsed_ns.load(Ordering::Relaxed));
        Ok(slower_ns as f64 / units as f64)
    }

    /// Ends the consumer, and checks that no page is missing.
    fn end(self) -> Result<(), Failure> {
        let (design, ends) = self.label();
        let fault =
            |fault: &str| Failure::Run(format!("{design}, {ends}: {fault}: please report it"));
        self.link.ask(0);
        match self.consumer {
            Consumer::Process(child) => _ = lock(&child).wait(),
            Consumer::Thread(Some(thread)) => _ = thread.join(),
            Consumer::Thread(None) => {}
        }
        let refused = self.link.post.refused.load(Ordering::Relaxed);
        if refused > 0 {
            return Err(fault(&format!("{refused} pages could not be claimed")));
        }
        match Arc::into_inner(self.pool) {
            Some(PassedPool::Sent(depot)) => all_free(&depot).map_err(|why| fault(&why)),
            Some(PassedPool::Depot(mut pool)) => checked(&mut *pool),
            Some(PassedPool::Mutex(mut pool)) => checked(&mut pool),
            None => Ok(()),
        }
    }
}

/// All lanes, with their consumers.
pub struct Lanes {
    lanes: Vec<Lane>,
    /// CPU of the producer.
    cpu: CpuId,
}

impl Lanes {
    /// Forks the consumers that are processes, then starts those that are threads.
    ///
    /// # Errors
    /// When a pool or a process cannot be had.
    pub fn new(designs: &[Design], (cpu, consumer): (CpuId, CpuId)) -> Result<Self, Failure> {
        let mut lanes = Vec::new();
        for design in designs {
            match design {
                Design::DepotShared => {
                    let pool =
                        || segment(PAGES.into()).map(|depot| PassedPool::Sent(Box::new(depot)));
                    lanes.push(Lane::to_process(pool()?, false, consumer, joined)?);
                    lanes.push(Lane::to_process(pool()?, true, consumer, joined)?);
                    lanes.push(Lane::to_thread(pool()?, false)?);
                }
                Design::Depot => {
                    let pool =
                        || DepotPool::private(PAGES).map(|pool| PassedPool::Depot(Box::new(pool)));
                    lanes.push(Lane::to_thread(pool()?, false)?);
                    lanes.push(Lane::to_thread(pool()?, true)?);
                }
                _ => {
                    let pool = || Mutex::new(PAGES).map(PassedPool::Mutex);
                    lanes.push(Lane::to_process(pool()?, false, consumer, |_| None)?);
                    lanes.push(Lane::to_thread(pool()?, false)?);
                }
            }
        }
        lanes.iter_mut().for_each(|lane| lane.start(consumer));
        Ok(Lanes { lanes, cpu })
    }

    /// Measures the lanes in turn.
    ///
    /// # Errors
    /// When a consumer dies, or pages are missing afterwards.
    pub fn measure(self, settings: &Settings, report: &mut Report) -> Result<(), Failure> {
        let rounds = settings.rounds;
        let ticks = self.lanes.len() as u64 * (u64::from(rounds) + 1);
        let step = settings.progress.task("shared, passing", ticks);
        let samples = std::thread::scope(|scope| {
            // A thread of its own: the caller stays on any CPU.
            let producer = scope.spawn(|| {
                cpus::pin(self.cpu);
                self.rounds(settings, &|| step.tick())
            });
            producer.join().expect("a producer does not panic")
        })?;
        drop(step);
        let mut shown = Vec::new();
        for (lane, samples) in self.lanes.into_iter().zip(samples) {
            let (design, processes) = (lane.pool.design(), lane.processes());
            let params = params([("processes", processes)]);
            let metric = if lane.is_batched { BATCH_FRAME } else { FRAME };
            report.add(NAME, design, metric, (2, &params), &samples);
            let is_base = design == Design::Depot && !lane.is_batched;
            shown.push((lane.label(), is_base, samples));
            lane.end()?;
        }
        report.say(format!(
            "shared: a page allocated on one CPU and freed on another; between processes by a \
             message that is claimed{}",
            settings.caveat()
        ));
        report.say(show(&shown));
        Ok(())
    }

    /// Samples by lane.
    fn rounds(&self, settings: &Settings, tick: &dyn Fn()) -> Result<Vec<Vec<f64>>, Failure> {
        let mut units = Vec::new();
        for lane in &self.lanes {
            let mut pages = u64::from(RING_SLOTS);
            // The first window has the caches to fill.
            for _ in 0..3 {
                let page_ns = lane.window(pages)?;
                pages = (settings.window().as_nanos() as f64 / page_ns) as u64;
                // Whole batches.
                pages = pages.max(RING_SLOTS.into()) / BATCH as u64 * BATCH as u64;
            }
            units.push(pages);
            tick();
        }
        let mut samples = vec![Vec::new(); self.lanes.len()];
        for _ in 0..settings.rounds {
            if stop::is_asked() {
                break;
            }
            for ((lane, &units), samples) in self.lanes.iter().zip(&units).zip(&mut samples) {
                samples.push(lane.window(units)?);
                noise::look();
                tick();
            }
        }
        Ok(samples)
    }
}

/// The segment of a depot, joined by this process.
fn joined(pool: &PassedPool) -> Option<PassedPool> {
    let PassedPool::Sent(depot) = pool else { return None };
    let own = SharedDepot::adopt(depot.file(), &SharedOptions::join().answers(false));
    Some(PassedPool::Sent(Box::new(own.expect("a segment of the parent's"))))
}

type Shown = ((&'static str, &'static str), bool, Vec<f64>);

fn show(lanes: &[Shown]) -> comfy_table::Table {
    let mut table = table::new(["design", "between", "ns per page", "quartiles", "x depot"]);
    let base = lanes.iter().find(|lane| lane.1).map(|lane| lane.2.as_slice());
    for ((design, ends), _, samples) in lanes {
        table.add_row([
            (*design).to_owned(),
            (*ends).to_owned(),
            table::median(samples),
            table::quartiles(samples),
            table::ratio(samples, base),
        ]);
    }
    table::align(table, 2)
}
