//! The source of interrupts.

use std::cell::{Cell, RefCell};

use pagedepot::CpuId;
use pagedepot::cpus::{Context, Here};

use crate::common::rng::Rng;

const CPUS: u32 = 3;
/// CPUs of some runs, so many that counts of free pages are grouped.
pub const CPUS_MAX: u32 = 17;
/// The deepest nesting of handlers: an interrupt, and two above it that get no guard.
const DEPTH_MAX: usize = 3;
/// An interrupt comes at one point in this many, by depth.
const ODDS: [u64; DEPTH_MAX] = [12, 60, 400];

/// A handler and its argument.
type Handler = (unsafe fn(*const ()), *const ());

/// Calls a handler at random points.
pub struct Source {
    pub cpus: u32,
    rng: RefCell<Rng>,
    cpu: Cell<u32>,
    depth: Cell<usize>,
    interrupts: Cell<u64>,
    /// The CPU of the sequence under way, by the depth of its code.
    sequences: [Cell<Option<u32>>; DEPTH_MAX + 1],
    handler: Cell<Option<Handler>>,
    now_ms: Cell<u64>,
}

// SAFETY: one thread makes it and uses it.
unsafe impl Sync for Source {}
// SAFETY: as above.
unsafe impl Send for Source {}

impl Source {
    pub fn new(seed: u64) -> Self {
        Source {
            cpus: if seed % 8 >= 6 { CPUS_MAX } else { CPUS },
            rng: RefCell::new(Rng::new(seed)),
            cpu: Cell::new(0),
            depth: Cell::new(0),
            interrupts: Cell::new(0),
            sequences: [const { Cell::new(None) }; DEPTH_MAX + 1],
            handler: Cell::new(None),
            now_ms: Cell::new(1),
        }
    }

    /// Calls `handler` with `about` from now on.
    ///
    /// # Safety
    /// `handler` may be called with it until [`forget_handler`](Self::forget_handler).
    pub unsafe fn set_handler<T>(&self, handler: unsafe fn(*const ()), about: *const T) {
        self.handler.set(Some((handler, about.cast())));
    }

    pub fn forget_handler(&self) {
        self.handler.set(None);
    }

    pub fn depth(&self) -> usize {
        self.depth.get()
    }

    /// Handlers called so far.
    pub fn interrupts(&self) -> u64 {
        self.interrupts.get()
    }

    fn one_in(&self, n: u64) -> bool {
        self.rng.borrow_mut().one_in(n)
    }

    /// An interrupt may come here.
    pub fn point(&self) {
        let depth = self.depth.get();
        let Some((handler, about)) = self.handler.get() else { return };
        if depth == DEPTH_MAX || !self.one_in(ODDS[depth]) {
            return;
        }
        self.depth.set(depth + 1);
        self.interrupts.set(self.interrupts.get() + 1);
        // SAFETY: by the promise of `set_handler`.
        unsafe { handler(about) };
        self.depth.set(depth);
    }

    /// An interrupt may come here, and this code may go on on another CPU.
    pub fn preemption_point(&self) {
        self.point();
        if self.depth.get() == 0 && self.one_in(20) {
            self.cpu.set(self.rng.borrow_mut().below(u64::from(self.cpus) + 1) as u32);
        }
    }

    pub fn cpu(&self) -> CpuId {
        CpuId::new(self.cpu.get())
    }

    /// CPU and context of this code in a kernel with two contexts; `None` in nested interrupts.
    pub fn kernel_here(&self) -> Option<Here> {
        let context = match self.depth.get() {
            0 => Context::Task,
            1 => Context::Interrupt,
            _ => return None,
        };
        Some(Here { cpu: self.cpu(), context })
    }

    /// Records that the code of this depth is in a sequence on `cpu`, or in none.
    pub fn set_sequence(&self, cpu: Option<u32>) {
        self.sequences[self.depth.get()].set(cpu);
    }

    /// Whether `cpu` is in the middle of a sequence that this code has interrupted.
    pub fn has_interrupted(&self, cpu: CpuId) -> bool {
        self.sequences[..self.depth.get()].iter().any(|sequence| sequence.get() == Some(cpu.get()))
    }

    /// A clock that advances now and then.
    pub fn now_ms(&self) -> u64 {
        if self.one_in(10) {
            self.now_ms.set(self.now_ms.get() + 300);
        }
        self.now_ms.get()
    }
}
