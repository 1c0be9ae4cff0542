//! A whole allocator inside a model, with a ledger of who holds which frame.

use std::any::Any;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex};

use crate::cpus::Cpus;
use crate::{
    AllocError, Allocator, Census, Config, ConfigError, CpuId, Evacuation, Flags, FrameRange,
    HighPolicy, Misuse, Mode, NodeId, Order, Pfn, Scope, Watermarks, ZoneConfig, ZoneId,
};

std::thread_local! {
    static MISUSES: Cell<u32> = const { Cell::new(0) };
}

fn note_misuse(_: Misuse) {
    MISUSES.set(MISUSES.get() + 1);
}

pub struct Setup {
    pub cpus: u32,
    pub frames: u32,
    pub watermarks: Watermarks,
    pub high: u64,
    /// One past the last frame that can be added; 0: none.
    pub limit: u32,
    pub evacuation: Evacuation,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            cpus: 2,
            frames: 4,
            watermarks: Watermarks::default(),
            high: 8,
            limit: 0,
            evacuation: Evacuation::Off,
        }
    }
}

impl Setup {
    /// Five frames, of which a CPU puts one magazine on its shelf at once: two do not fit.
    pub fn shelving() -> Self {
        Setup { frames: 5, high: 6, ..Setup::default() }
    }
}

/// An allocator of a few frames.
pub struct Depot<C: 'static> {
    pub allocator: Allocator<'static, C>,
    memory: *mut [MaybeUninit<u8>],
    /// The owner of the data that `allocator` refers to.
    _kept: Box<dyn Any>,
    /// Metadata of memory that was added, or refused.
    more: Mutex<Vec<*mut [MaybeUninit<u8>]>>,
    /// Holders by frame: whether a thread holds it, or it was removed.
    held: Mutex<Vec<bool>>,
    removed: Mutex<u32>,
}

// SAFETY: `memory`, `more` and `_kept` are only touched by `drop`.
unsafe impl<C: Send> Send for Depot<C> {}
// SAFETY: as above.
unsafe impl<C: Sync> Sync for Depot<C> {}

impl<C: Cpus> Depot<C> {
    pub fn new(setup: &Setup, cpus: C) -> Arc<Self> {
        Self::keeping(setup, cpus, Box::new(()))
    }

    /// Makes a depot like [`new`](Self::new), over CPUs that refer to what is in `kept`.
    pub fn keeping(setup: &Setup, cpus: C, kept: Box<dyn Any>) -> Arc<Self> {
        MISUSES.set(0);
        let ranges = [FrameRange::new(Pfn::new(0), setup.frames)];
        let zone = ZoneConfig {
            name: "Model",
            node: NodeId::new(0),
            level: 0,
            ranges: &ranges,
            watermarks: Some(setup.watermarks),
        };
        let zones = [zone];
        let config = Config {
            high: HighPolicy::Fixed(setup.high),
            evacuation: setup.evacuation,
            on_misuse: Some(note_misuse),
            pfn_limit: (setup.limit > 0).then(|| Pfn::new(setup.limit)),
            ..Config::new(setup.cpus, &zones)
        };
        let bytes = Allocator::<C>::metadata_bytes(&config).unwrap();
        let memory = Box::into_raw(vec![MaybeUninit::uninit(); bytes].into_boxed_slice());
        // SAFETY: freed by `drop`, after the allocator's last use.
        let allocator = Allocator::new(&config, unsafe { &mut *memory }, cpus).unwrap();
        let held = Mutex::new(vec![false; setup.frames.max(setup.limit) as usize]);
        Arc::new(Depot {
            allocator,
            memory,
            _kept: kept,
            more: Mutex::default(),
            held,
            removed: Mutex::default(),
        })
    }

    /// Adds frames to the zone.
    pub fn add(&self, range: FrameRange) -> Result<(), ConfigError> {
        let bytes = self.allocator.section_bytes(range);
        let memory = Box::into_raw(vec![MaybeUninit::uninit(); bytes].into_boxed_slice());
        self.more.lock().unwrap().push(memory);
        // SAFETY: freed by `drop`, after the allocator's last use.
        let added = self.allocator.add_memory(ZoneId::new(0), range, unsafe { &mut *memory });
        added.map_err(ConfigError::from)
    }

    /// Removes frames from the zone by `remove`; no thread holds one if that succeeds.
    pub fn remove_by<E>(
        &self,
        range: FrameRange,
        remove: impl FnOnce(&Allocator<'static, C>) -> Result<(), E>,
    ) -> Result<(), E> {
        remove(&self.allocator)?;
        self.note_frames(range, true);
        *self.removed.lock().unwrap() += range.frames;
        Ok(())
    }

    /// Adds frames again that were removed.
    pub fn add_again(&self, range: FrameRange) {
        self.note_frames(range, false);
        *self.removed.lock().unwrap() -= range.frames;
        self.add(range).expect("removed from this zone");
    }

    /// Allocates a frame; no other thread holds it.
    pub fn alloc(&self) -> Result<Pfn, AllocError> {
        self.alloc_block(Order::BASE, Flags::default())
    }

    pub fn free(&self, pfn: Pfn) {
        self.free_block(pfn, Order::BASE);
    }

    /// Leaves this CPU, of a depot made by [`Setup::shelving`], with an empty front and one
    /// magazine on its shelf; the frames that it then holds.
    pub fn shelve_one(&self) -> Vec<Pfn> {
        let all: Vec<_> = (0..5).map(|_| self.alloc().unwrap()).collect();
        all.into_iter().for_each(|pfn| self.free(pfn));
        let held = (0..3).map(|_| self.alloc().unwrap()).collect();
        let stats = self.allocator.cpu_stats(CpuId::new(0), ZoneId::new(0)).unwrap();
        assert_eq!(stats.shelved_pages, 2, "the front is empty, the rest is on the shelf");
        held
    }

    /// Leaves this CPU, of a depot of seven frames, with two full magazines in its front and two
    /// empty ones; the frames that it then holds. To free one puts both full ones on the shelf.
    pub fn fill_pair(&self) -> [Pfn; 2] {
        let all = [(); 7].map(|()| self.alloc().unwrap());
        all.into_iter().for_each(|pfn| self.free(pfn));
        self.allocator.drain(Scope::ALL, Mode::Full);
        let [first, last, rest @ ..] = [(); 5].map(|()| self.alloc().unwrap());
        // With the block that the last refill left there.
        rest.into_iter().for_each(|pfn| self.free(pfn));
        let stats = self.allocator.cpu_stats(CpuId::new(0), ZoneId::new(0)).unwrap();
        assert_eq!((stats.charged_pages, stats.shelved_pages), (4, 0), "two full magazines");
        [first, last]
    }

    /// Allocates up to `wanted` frames in one call; no other thread holds one of them.
    pub fn alloc_many(&self, wanted: usize) -> Vec<Pfn> {
        let mut out = vec![Pfn::new(0); wanted];
        let got = self.allocator.alloc_many(Order::BASE, Flags::default(), &mut out).unwrap();
        out.truncate(got);
        out.iter().for_each(|&pfn| self.note_got(pfn, Order::BASE));
        out
    }

    /// Frees frames in one call.
    pub fn free_many(&self, frames: &[Pfn]) {
        frames.iter().for_each(|&pfn| self.note_freed(pfn));
        self.allocator.free_many_of(Order::BASE, frames).expect("the frames were ours");
    }

    /// Allocates a block; no other thread holds a frame of it.
    pub fn alloc_block(&self, order: Order, flags: Flags) -> Result<Pfn, AllocError> {
        let pfn = self.allocator.alloc(order, flags)?;
        self.note_got(pfn, order);
        Ok(pfn)
    }

    pub fn note_got(&self, pfn: Pfn, order: Order) {
        self.note(pfn, order, true);
    }

    /// A frame that the thread holds is about to be freed, past this ledger.
    pub fn note_freed(&self, pfn: Pfn) {
        self.note(pfn, Order::BASE, false);
    }

    pub fn free_block(&self, pfn: Pfn, order: Order) {
        self.note(pfn, order, false);
        self.allocator.free(pfn, order).expect("the block was ours");
    }

    fn note(&self, pfn: Pfn, order: Order, is_held: bool) {
        self.note_frames(FrameRange::new(pfn, order.frames()), is_held);
    }

    pub fn note_frames(&self, range: FrameRange, is_held: bool) {
        let mut held = self.held.lock().unwrap();
        for frame in &mut held[range.start.index()..][..range.frames as usize] {
            assert_ne!(*frame, is_held, "{range:?} was handed out twice, or freed twice");
            *frame = is_held;
        }
    }

    /// All threads have stopped: every frame is in one place.
    pub fn finish(self: Arc<Self>) -> Census {
        let mut depot = Arc::into_inner(self).expect("all threads have been joined");
        assert_eq!(MISUSES.get(), 0, "frames came back that were free");
        let census = depot.allocator.validate().unwrap();
        let held = depot.held.lock().unwrap().iter().filter(|&&held| held).count();
        let removed = *depot.removed.lock().unwrap();
        assert_eq!(census.held_pages(), held as u64 - u64::from(removed), "frames were lost");
        census
    }
}

impl<C> Drop for Depot<C> {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw` in `new`; the allocator does nothing when dropped.
        drop(unsafe { Box::from_raw(self.memory) });
        for memory in self.more.get_mut().unwrap().drain(..) {
            // SAFETY: from `Box::into_raw` in `add`; as above.
            drop(unsafe { Box::from_raw(memory) });
        }
    }
}
