//! CPUs with preemption, and an allocator with a ledger of who holds which frame.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex as StdMutex};

use shuttle::rand::Rng as _;
use shuttle::sync::{Mutex, MutexGuard};

use super::rng::Rng;
use super::{Mutant, cpus, is_mutant};
use crate::cpus::{Cpus, Environment, FenceError, Guard, Here, Processor, WhichCpu};
use crate::{
    Allocator, Census, Config, CpuId, Evacuation, Flags, FrameRange, HighPolicy, Misuse, NodeId,
    Order, Pfn, Watermarks, ZoneConfig, ZoneId,
};

pub const CPUS: u32 = 3;
pub const SECTION: u32 = 1 << 18;

shuttle::thread_local! {
    static HERE: Cell<Here> = Cell::new(Here::task(CpuId::new(0)));
}

/// Makes the calling thread run on `cpu` from now on, under any kind of CPUs.
pub fn run_on(cpu: u32) {
    run_at(Here::task(CpuId::new(cpu)));
}

/// Makes the calling thread run like [`run_on`], in a context: an interrupt handler has fronts of
/// its own.
pub fn run_at(here: Here) {
    cpus::run_on(here.cpu.get());
    HERE.with(|at| at.set(here));
}

fn here() -> Here {
    HERE.with(Cell::get)
}

/// A generator that the schedule seeds.
pub fn rng() -> Rng {
    Rng::new(shuttle::rand::thread_rng().gen_range(0..u64::MAX))
}

/// Tells `LockedCpus` where the thread runs.
pub struct Anywhere;

impl WhichCpu for Anywhere {
    fn cpu(&self) -> Option<CpuId> {
        Some(here().cpu)
    }
}

impl Environment for Anywhere {}

/// A kernel whose preemption is a mutex per CPU and context.
pub struct Preemption(Vec<[Mutex<()>; 2]>);

impl Preemption {
    pub fn new() -> Self {
        Preemption((0..CPUS).map(|_| [Mutex::new(()), Mutex::new(())]).collect())
    }
}

pub struct Pin {
    here: Here,
    /// The lock of a `Preemption` that outlives it, see `pin`.
    _held: MutexGuard<'static, ()>,
    /// The mutex of the CPU's other context, and what holds it once this guard is known to be
    /// alone.
    other: &'static Mutex<()>,
    _alone: Cell<Option<MutexGuard<'static, ()>>>,
}

// SAFETY: the mutex of the CPU and context is held.
unsafe impl Guard for Pin {
    fn here(&self) -> Here {
        self.here
    }

    /// Handlers run beside the task here: the other context is kept out until this is dropped.
    fn is_alone(&self) -> bool {
        let other = self.other.try_lock().ok();
        let is_alone = other.is_some();
        self._alone.set(other);
        is_alone
    }
}

// SAFETY: a fence takes the mutexes of the CPU, so all guards that existed are gone.
unsafe impl Processor for Preemption {
    type Guard = Pin;

    fn pin(&self) -> Option<Pin> {
        let here = here();
        let contexts = self.0.get(here.cpu.index())?;
        let held = contexts[here.context as usize].lock().ok()?;
        // SAFETY: as below.
        let other = unsafe {
            std::mem::transmute::<&Mutex<()>, &'static Mutex<()>>(
                &contexts[1 - here.context as usize],
            )
        };
        // SAFETY: guards are local to calls of the allocator, which owns the mutexes.
        let held =
            unsafe { std::mem::transmute::<MutexGuard<'_, ()>, MutexGuard<'static, ()>>(held) };
        Some(Pin { here, _held: held, other, _alone: Cell::new(None) })
    }

    fn fence(&self, cpu: CpuId) -> Result<(), FenceError> {
        if !is_mutant(Mutant::NoFence) {
            for context in &self.0[cpu.index()] {
                drop(context.lock());
            }
        }
        Ok(())
    }
}

impl Environment for Preemption {}

pub struct Setup {
    /// Frames of the one zone, from frame 0.
    pub frames: u32,
    pub watermarks: Watermarks,
    pub high: HighPolicy,
    /// Sections that memory may be added to.
    pub sections: u32,
    /// Whether frames remember whether they are free.
    pub checked: bool,
    pub evacuation: Evacuation,
}

impl Default for Setup {
    fn default() -> Self {
        let high = HighPolicy::Fixed(256);
        Setup {
            frames: 4096,
            watermarks: Watermarks::default(),
            high,
            sections: 1,
            checked: false,
            evacuation: Evacuation::default(),
        }
    }
}

fn panic_on_misuse(misuse: Misuse) {
    panic!("misplaced frames came back: {misuse:?}");
}

/// An allocator and its memory.
pub struct Depot<C: 'static> {
    pub allocator: Allocator<'static, C>,
    memory: StdMutex<Vec<*mut [MaybeUninit<u8>]>>,
    /// Holders by frame: the thread that holds it, 0: none. No access to the allocator is made
    /// under the lock.
    held: StdMutex<Vec<u32>>,
}

// SAFETY: `memory` is only touched by `drop`.
unsafe impl<C: Send> Send for Depot<C> {}
// SAFETY: as above.
unsafe impl<C: Sync> Sync for Depot<C> {}

impl<C: Cpus> Depot<C> {
    pub fn new(setup: &Setup, cpus: C) -> Arc<Self> {
        let ranges = [FrameRange::new(Pfn::new(0), setup.frames)];
        let zones = [ZoneConfig {
            name: "Model",
            node: NodeId::new(0),
            level: 0,
            ranges: &ranges,
            watermarks: Some(setup.watermarks),
        }];
        let config = Config {
            high: setup.high,
            checked: setup.checked,
            evacuation: setup.evacuation,
            pfn_limit: Some(Pfn::new(setup.sections * SECTION - 1)),
            on_misuse: Some(panic_on_misuse),
            ..Config::new(CPUS, &zones)
        };
        let memory = new_memory(Allocator::<C>::metadata_bytes(&config).unwrap());
        // SAFETY: freed by `drop`, after the allocator's last use.
        let allocator = Allocator::new(&config, unsafe { &mut *memory }, cpus).unwrap();
        let held = StdMutex::new(vec![0; (setup.sections * SECTION) as usize]);
        Arc::new(Depot { allocator, memory: StdMutex::new(vec![memory]), held })
    }

    /// Adds memory to the zone.
    pub fn add(&self, range: FrameRange) -> bool {
        let memory = new_memory(self.allocator.section_bytes(range));
        self.memory.lock().unwrap().push(memory);
        // SAFETY: as in `new`.
        self.allocator.add_memory(ZoneId::new(0), range, unsafe { &mut *memory }).is_ok()
    }

    /// Notes that a thread got frames; no other holds one of them.
    pub fn note_got(&self, start: Pfn, frames: u32, owner: u32) {
        self.note(start, frames, 0, owner);
    }

    /// Notes that a thread is about to free frames.
    pub fn note_freed(&self, start: Pfn, frames: u32, owner: u32) {
        self.note(start, frames, owner, 0);
    }

    fn note(&self, start: Pfn, frames: u32, from: u32, to: u32) {
        let mut held = self.held.lock().unwrap();
        for mark in &mut held[start.index()..][..frames as usize] {
            assert_eq!(*mark, from, "misplaced frames: {start} + {frames} had two owners");
            *mark = to;
        }
    }

    /// All threads have ended, and freed what they held: every frame is in one place, and a full
    /// drain brings all of them to the store.
    pub fn finish(self: Arc<Self>) -> Census {
        let mut depot = Arc::into_inner(self).expect("all threads have been joined");
        let held = depot.held.lock().unwrap().iter().filter(|&&owner| owner != 0).count() as u64;
        let census = depot.allocator.validate().expect("misplaced frames");
        assert_eq!(census.held_pages(), held, "misplaced frames: lost");
        depot.allocator.cpu_caches().enable();
        let drained = depot.allocator.drain(crate::Scope::ALL, crate::Mode::Full);
        let left = (drained.busy_cpus, drained.unreachable_pages, drained.in_flight_pages);
        assert_eq!(left, (0, 0, 0), "misplaced frames: out of reach");
        let census = depot.allocator.validate().expect("misplaced frames");
        assert_eq!(census.free_pages + held, census.managed_pages, "misplaced frames: in caches");
        census
    }
}

impl<C> Drop for Depot<C> {
    fn drop(&mut self) {
        for memory in
            self.memory.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).drain(..)
        {
            // SAFETY: from `new_memory`; the allocator does nothing when dropped.
            drop(unsafe { Box::from_raw(memory) });
        }
    }
}

fn new_memory(bytes: usize) -> *mut [MaybeUninit<u8>] {
    Box::into_raw(vec![MaybeUninit::uninit(); bytes].into_boxed_slice())
}

/// The frames that a thread holds, with its ways to take and free more.
pub struct Owner<C: 'static> {
    depot: Arc<Depot<C>>,
    rng: Rng,
    number: u32,
    held: Vec<(Pfn, Order)>,
}

impl<C: Cpus> Owner<C> {
    /// Thread `number`, from 1.
    pub fn new(depot: &Arc<Depot<C>>, number: u32) -> Self {
        Owner { depot: depot.clone(), rng: rng(), number, held: Vec::new() }
    }

    /// Whether there was a block.
    pub fn alloc(&mut self, order: Order, flags: Flags) -> bool {
        let Ok(pfn) = self.depot.allocator.alloc(order, flags) else { return false };
        self.hold(pfn, order);
        true
    }

    fn hold(&mut self, pfn: Pfn, order: Order) {
        self.depot.note_got(pfn, order.frames(), self.number);
        self.held.push((pfn, order));
    }

    /// Allocates as many single frames of `wanted` as there are.
    pub fn alloc_many(&mut self, wanted: usize) -> usize {
        let mut out = [Pfn::new(0); 256];
        let got =
            self.depot.allocator.alloc_many(Order::BASE, Flags::default(), &mut out[..wanted]);
        let got = got.unwrap_or(0);
        out[..got].iter().for_each(|&pfn| self.hold(pfn, Order::BASE));
        got
    }

    /// A range of frames, given back at once.
    pub fn visit_range(&mut self, frames: u32) {
        let flags = Flags::default().no_reclaim();
        if let Ok(start) = self.depot.allocator.alloc_contiguous(frames, 1, flags) {
            self.depot.note_got(start, frames, self.number);
            self.depot.note_freed(start, frames, self.number);
            self.depot.allocator.free_contiguous(start, frames).unwrap();
        }
    }

    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Frees any of its blocks.
    pub fn free(&mut self) {
        if !self.held.is_empty() {
            let at = self.rng.index(self.held.len());
            let (pfn, order) = self.held.swap_remove(at);
            self.depot.note_freed(pfn, order.frames(), self.number);
            self.depot.allocator.free(pfn, order).unwrap();
        }
    }

    /// Frees up to `blocks` of its blocks by one call.
    pub fn free_many(&mut self, blocks: usize) {
        let from = self.held.len().saturating_sub(blocks);
        let batch: Vec<_> = self.held.drain(from..).collect();
        batch
            .iter()
            .for_each(|&(pfn, order)| self.depot.note_freed(pfn, order.frames(), self.number));
        self.depot.allocator.free_many(&batch).unwrap();
    }
}
