//! CPU-local data: found through a register, changed by its own CPU, read by all.

use core::fmt;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

use pagedepot::CpuId;
use pagedepot::cpus::Context;

use crate::arch::{self, Tables, interrupts};
use crate::call::Calls;
use crate::smp::Job;

/// The most CPUs this kernel starts.
pub const CPUS_MAX: usize = 64;

/// The state of a CPU, as far as other CPUs must know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// The CPU is not started, or stopped.
    Offline = 0,
    /// The CPU runs in the kernel.
    Running = 1,
    /// Halted or in user mode: it holds no guard, and passes [`Cpu::leave_quiescence`] before it
    /// does anything else in the kernel.
    Quiescent = 2,
}

/// The data of one CPU.
///
/// Assembly uses the first fields by their offsets.
#[repr(C, align(128))]
pub struct Cpu {
    /// Address of this structure on x86-64, a word of the trap's code on RISC-V; at offset 0.
    this: AtomicUsize,
    /// Stack for interrupts of user mode, where the processor does not keep it; at offset 8.
    pub kernel_stack: AtomicU64,
    number: u32,
    hardware_id: AtomicU64,
    state: AtomicU32,
    /// Interrupt handlers on this CPU right now.
    depth: AtomicU32,
    /// Guards taken and dropped, by context: odd while one is held.
    pub guards: [AtomicU64; 2],
    /// This CPU is isolated: no timer, no full drains while it runs.
    pub isolated: AtomicBool,
    /// Interrupts received, of every kind.
    pub interrupts: AtomicU64,
    /// Interrupts that ended a halt, or came in user mode.
    pub wakeups: AtomicU64,
    /// The last flush of all address spaces that this CPU has taken part in.
    seen_flush: AtomicU64,
    /// Requests of other CPUs to this one.
    pub calls: Calls,
    /// The job that this CPU runs next.
    pub job: AtomicPtr<Job<'static>>,
    /// This CPU's stack, while it has one from the allocator.
    pub stack_top: AtomicU64,
    /// The processor's own tables of this CPU.
    pub tables: Tables,
}

static CPUS: [Cpu; CPUS_MAX] = {
    let mut cpus = [const { Cpu::new() }; CPUS_MAX];
    let mut i = 0;
    while i < CPUS_MAX {
        cpus[i].number = i as u32;
        i += 1;
    }
    cpus
};
/// The number of CPUs in this machine.
static COUNT: AtomicU32 = AtomicU32::new(1);

impl Cpu {
    const fn new() -> Self {
        Cpu {
            this: AtomicUsize::new(0),
            kernel_stack: AtomicU64::new(0),
            number: 0,
            hardware_id: AtomicU64::new(0),
            state: AtomicU32::new(State::Offline as u32),
            depth: AtomicU32::new(0),
            guards: [const { AtomicU64::new(0) }; 2],
            isolated: AtomicBool::new(false),
            interrupts: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
            seen_flush: AtomicU64::new(0),
            calls: Calls::new(),
            job: AtomicPtr::new(core::ptr::null_mut()),
            stack_top: AtomicU64::new(0),
            tables: Tables::new(),
        }
    }

    /// The CPU that runs this code. Tasks do not move between CPUs in this kernel.
    #[inline]
    pub fn here() -> &'static Cpu {
        // SAFETY: `enter` has set the register to a CPU's static data.
        unsafe { &*arch::cpu_pointer() }
    }

    /// A CPU of this machine.
    ///
    /// # Panics
    /// When there is no such CPU.
    pub fn get(id: CpuId) -> &'static Cpu {
        assert!(id.get() < count(), "there is no {id:?}");
        &CPUS[id.index()]
    }

    /// Makes this structure the running CPU's.
    pub fn enter(&'static self) {
        self.tables.load();
        let address = &raw const *self;
        self.this.store(address.expose_provenance(), Ordering::Relaxed);
        arch::set_cpu_pointer(self);
        self.begin_to_run();
        arch::tlb::use_all_tables();
    }

    /// This CPU's number.
    pub fn id(&self) -> CpuId {
        CpuId::new(self.number)
    }

    /// The machine's name of this CPU: of its local APIC, its affinity, its hart.
    pub fn hardware_id(&self) -> u64 {
        self.hardware_id.load(Ordering::Relaxed)
    }

    /// The CPU's state. A caller that changed something that the CPU reads in the kernel may rely
    /// on "not running": the CPU will have seen the change when it runs.
    pub fn state(&self) -> State {
        // The other half of Dekker's pattern in `begin_to_run`.
        fence(Ordering::SeqCst);
        // Acquire: pairs with the Release in `set_state`: what a resting CPU did before is visible.
        match self.state.load(Ordering::Acquire) {
            0 => State::Offline,
            1 => State::Running,
            _ => State::Quiescent,
        }
    }

    /// Whether this CPU is isolated.
    pub fn is_isolated(&self) -> bool {
        self.isolated.load(Ordering::Relaxed)
    }

    /// Whether this CPU is isolated, and halted or in user mode.
    pub fn rests_isolated(&self) -> bool {
        self.is_isolated() && self.state() == State::Quiescent
    }

    /// Announces that this CPU is about to halt, to enter user mode, or to stop.
    pub fn set_state(&self, state: State) {
        debug_assert!(self.guards.iter().all(|count| count.load(Ordering::Relaxed) % 2 == 0));
        self.state.store(state as u32, Ordering::Release);
    }

    /// Ends quiescence, with interrupts off: a handler that came between the store and the fence of
    /// `begin_to_run` would find this CPU running, and pass no fence. An interrupted CPU calls this
    /// first. Returns whether the CPU was quiescent.
    #[inline]
    pub fn leave_quiescence(&self) -> bool {
        debug_assert!(!interrupts::are_enabled());
        if self.state.load(Ordering::Relaxed) != State::Quiescent as u32 {
            return false;
        }
        self.begin_to_run();
        true
    }

    /// Announces that this CPU runs, and catches up.
    ///
    /// Dekker's pattern: this CPU writes its state and then reads (gates, the number of flushes);
    /// others write these and then read its state, with a SeqCst fence in between on both sides. So
    /// either the other CPU sees this one running and waits for it, or this CPU sees what the other
    /// wrote. A SeqCst swap would be enough on x86-64 alone: elsewhere later loads may overtake it.
    fn begin_to_run(&self) {
        self.state.store(State::Running as u32, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        crate::flush::catch_up(&self.seen_flush);
    }

    /// The context of the code that runs here; `None` in nested interrupts and NMI.
    #[inline]
    pub fn context(&self) -> Option<Context> {
        match self.depth.load(Ordering::Relaxed) {
            0 => Some(Context::Task),
            1 => Some(Context::Interrupt),
            _ => None,
        }
    }

    /// Whether an interrupt handler runs here.
    pub fn in_handler(&self) -> bool {
        self.depth.load(Ordering::Relaxed) > 0
    }

    /// Handlers that run here, one above the other.
    pub fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    /// Counts a handler until the value is dropped. An NMI counts as two levels, so that it has no
    /// context, whatever it interrupted.
    pub fn enter_handler(&self, levels: u32) -> Handler<'_> {
        // Load and store: a handler in between leaves the depth as it found it.
        self.depth.store(self.depth() + levels, Ordering::Relaxed);
        Handler { cpu: self, levels }
    }
}

/// A handler that runs.
pub struct Handler<'c> {
    cpu: &'c Cpu,
    levels: u32,
}

impl Drop for Handler<'_> {
    fn drop(&mut self) {
        self.cpu.depth.store(self.cpu.depth() - self.levels, Ordering::Relaxed);
    }
}

/// CPUs of this machine.
pub fn count() -> u32 {
    COUNT.load(Ordering::Relaxed)
}

/// All CPUs of this machine.
pub fn all() -> impl Iterator<Item = &'static Cpu> {
    CPUS[..count() as usize].iter()
}

/// All CPUs of this machine but the one that runs this code.
pub fn others() -> impl Iterator<Item = &'static Cpu> {
    let here = Cpu::here().id();
    all().filter(move |cpu| cpu.id() != here)
}

/// Names the CPUs by their hardware ids; the boot CPU, which calls this, becomes CPU 0. Those above
/// [`CPUS_MAX`] stay unused.
pub fn set_all(boot: u64, hardware_ids: impl Iterator<Item = u64>) {
    let ids = core::iter::once(boot).chain(hardware_ids.filter(|&id| id != boot));
    for (cpu, id) in CPUS.iter().zip(ids) {
        cpu.hardware_id.store(id, Ordering::Relaxed);
        COUNT.store(cpu.number + 1, Ordering::Relaxed);
    }
}

/// The boot CPU, before `set_all`.
pub fn boot() -> &'static Cpu {
    &CPUS[0]
}

/// The name of this CPU, for a last message; works before there is CPU-local data, too.
pub fn name_here() -> impl fmt::Display {
    struct Name(Option<u32>);
    impl fmt::Display for Name {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0 {
                Some(number) => write!(f, "cpu {number}"),
                None => write!(f, "boot"),
            }
        }
    }
    Name(arch::has_cpu_pointer().then(|| Cpu::here().number))
}
