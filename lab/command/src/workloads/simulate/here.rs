//! This machine as a topology for simulations: what it costs to move a cache line between its CPUs.
//!
//! Two threads change the same lines in turn, one line after another, and what each line costs is
//! its transfer and the change ([`round_trip::transfer_ns`]).

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pagedepot::CpuId;
use pagedepot_rseq::CpuSet;
use pagedepot_sim::topology::Topology;

use pagedepot_cli::design::allocator::Allocator as _;
use pagedepot_cli::design::demand::Demand;
use pagedepot_cli::design::floor_rseq::FloorRseq;
use pagedepot_cli::failure::Failure;
use pagedepot_cli::harness::ring::Ring;
use pagedepot_cli::harness::{cpus, round_trip, samples};
use pagedepot_cli::workloads::hot;

/// Samples, of which the fastest counts, and operations in each: so few that some sample is not
/// interrupted, however busy the machine is.
const SAMPLES: usize = 501;
const LOOPS: u64 = 1000;
/// Samples of touched memory, 64 MiB each.
const TOUCH_SAMPLES: usize = 5;
/// Turns, with a pause before each, because a host's phases outlast all samples of one. Of what a
/// CPU costs alone the least turn counts: in slow phases it is half as fast. Of a line that moves,
/// and of a page touched beside another CPU, the median counts: a host may run both CPUs on one
/// core for a while.
const TURNS: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);
/// Words of a buffer, 16 KiB, and buffers: more than caches hold, or so few that they stay there.
const BUFFER_WORDS: usize = 2 << 10;
const BUFFERS: usize = 4096;
const CACHED_BUFFERS: usize = 64;
const RING_SLOTS: u32 = 32;
/// Time of [`private_pair`] on the machine that the default's `load_ns`, `store_ns` and
/// `slow_step_ns` were fitted to. Not measured there, but inferred: the design `floor-tls` of
/// `bench hot`, which is such a loop, takes 1.1 ns there, and 0.632 where this takes 0.53.
const FITTED_PAIR_NS: f64 = 0.92;
/// Time of [`sequence_pair`] on the machine that the default's `sequence_ns` was fitted to: there
/// `bench hot` has 2.2 ns for `depot`, 1.36 times `floor-rseq`.
const FITTED_SEQUENCES_NS: f64 = 1.62;

/// A counter on lines of its own.
#[repr(align(128))]
struct Ball(AtomicU64);

/// Measures this machine. What cannot be measured, because it has too few CPUs, is the default's.
///
/// # Errors
/// When this process may use no second CPU, or a CPU refuses a thread.
pub fn measure() -> Result<Topology, Failure> {
    let usable = cpus::usable()?;
    let [first, ..] = usable[..] else {
        return Err(Failure::Run("this process may use no CPU".to_owned()));
    };
    let (complex, socket) = (sharers(first), package(first));
    let other = |is_wanted: &dyn Fn(CpuId) -> bool| {
        usable.iter().copied().find(|&cpu| cpu != first && is_wanted(cpu))
    };
    let mut topology = Topology {
        name: "this machine".to_owned(),
        source: "measured by --topology here".to_owned(),
        ..Topology::default()
    };
    let count = |set: &CpuSet| usable.iter().filter(|&&cpu| set.contains(cpu)).count() as u32;
    topology.complex_cpus = count(&complex).max(1);
    let complexes = count(&socket).max(1).div_ceil(topology.complex_cpus);
    topology.socket_cpus = complexes * topology.complex_cpus;
    let near = other(&|cpu| complex.contains(cpu));
    let far = other(&|cpu| socket.contains(cpu) && !complex.contains(cpu));
    let remote = other(&|cpu| !socket.contains(cpu));
    if near.or(far).or(remote).is_none() {
        return Err(Failure::Usage(
            "--topology here passes a line between two CPUs, and this process may use one: give a \
             FILE, or run it where there are two"
                .to_owned(),
        ));
    }
    let alone = std::thread::scope(|scope| scope.spawn(move || measure_alone(first)).join());
    let alone = alone.expect("it only measures");
    let mut nearest = None;
    for (pair, cost) in [
        (near, &mut topology.complex_ns),
        (far, &mut topology.socket_ns),
        (remote, &mut topology.remote_ns),
    ] {
        if let Some(second) = pair {
            cpus::check_seats(&[first, second])?;
            let transfer_ns = transfer_ns(first, second);
            *cost = (transfer_ns - alone.rmw_ns).max(1.0);
            nearest.get_or_insert((second, transfer_ns));
        }
    }
    if let Some((second, transfer_ns)) = nearest {
        topology.migratory = is_migratory(first, second, transfer_ns);
    }
    (topology.rmw_ns, topology.touch_ns) = (alone.rmw_ns, alone.touch_ns);
    (topology.clock_ns, topology.spin_ns) = (alone.clock_ns, alone.spin_ns);
    if let Some(second) = near {
        topology.touch_beside_ns = Some(touch_beside(first, second).max(alone.touch_ns));
        topology.stream_line_ns = stream_line(first, second, CACHED_BUFFERS);
        topology.stream_memory_line_ns =
            stream_line(first, second, BUFFERS).max(topology.stream_line_ns);
    }
    let plain = alone.pair_ns / FITTED_PAIR_NS;
    for cost in [&mut topology.load_ns, &mut topology.store_ns, &mut topology.slow_step_ns] {
        *cost *= plain;
    }
    topology.sequence_ns *= alone.sequences_ns.map_or(plain, |ns| ns / FITTED_SEQUENCES_NS);
    Ok(topology)
}

/// The CPUs that share a last-level cache with this one.
fn sharers(cpu: CpuId) -> CpuSet {
    let read = |index| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}/shared_cpu_list");
        std::fs::read_to_string(path).ok()
    };
    (0..8).rev().find_map(read).and_then(|list| list.trim().parse().ok()).unwrap_or_default()
}

/// The CPUs of this one's socket.
fn package(cpu: CpuId) -> CpuSet {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/package_cpus_list");
    let list = std::fs::read_to_string(path).ok();
    list.and_then(|list| list.trim().parse().ok()).unwrap_or_default()
}

/// Nanoseconds to change a line that another CPU has changed.
fn transfer_ns(first: CpuId, second: CpuId) -> f64 {
    median_turn(|| round_trip::transfer_ns(first, second))
}

/// Whether a load takes a line that the other CPU has changed: to change it after that then takes
/// far less than a transfer.
fn is_migratory(first: CpuId, second: CpuId, transfer_ns: f64) -> bool {
    median_turn(|| round_trip::change_after_load_ns(first, second)) < transfer_ns / 2.0
}

/// The median of all turns.
fn median_turn(mut turn: impl FnMut() -> f64) -> f64 {
    let turns: Vec<f64> = (0..TURNS)
        .map(|_| {
            std::thread::sleep(PAUSE);
            turn()
        })
        .collect();
    samples::median(&turns).expect("there are some")
}

/// Times that one CPU can measure alone.
struct OneCpuTimes {
    rmw_ns: f64,
    /// Reading the clock.
    clock_ns: f64,
    /// A turn of a spin loop.
    spin_ns: f64,
    /// The first write to a page.
    touch_ns: f64,
    /// Time of [`private_pair`].
    pair_ns: f64,
    /// Time of [`sequence_pair`]; `None`: without restartable sequences.
    sequences_ns: Option<f64>,
}

fn measure_alone(cpu: CpuId) -> OneCpuTimes {
    cpus::pin(cpu);
    let demand =
        Demand { blocks_per_cpu: 1, frames_per_block: 1, cpus: vec![cpu], ..Demand::default() };
    let floor = FloorRseq::new(&demand).ok();
    let ball = Ball(AtomicU64::new(0));
    let mut touched = TouchBuffer::new();
    let mut least = OneCpuTimes {
        rmw_ns: f64::INFINITY,
        clock_ns: f64::INFINITY,
        spin_ns: f64::INFINITY,
        touch_ns: f64::INFINITY,
        pair_ns: f64::INFINITY,
        sequences_ns: None,
    };
    for _ in 0..TURNS {
        std::thread::sleep(PAUSE);
        let rmw_ns = fastest(SAMPLES, LOOPS, || _ = ball.0.fetch_add(1, Ordering::AcqRel));
        let clock_ns = fastest(SAMPLES, LOOPS, || _ = black_box(Instant::now()));
        let spin_ns = fastest(SAMPLES, LOOPS, std::hint::spin_loop);
        let touch_ns = touched.sample(TOUCH_SAMPLES);
        least.rmw_ns = least.rmw_ns.min(rmw_ns);
        least.clock_ns = least.clock_ns.min(clock_ns);
        least.spin_ns = least.spin_ns.min(spin_ns);
        least.touch_ns = least.touch_ns.min(touch_ns);
        least.pair_ns = least.pair_ns.min(private_pair());
        if let Some(floor) = &floor {
            let before = least.sequences_ns.unwrap_or(f64::INFINITY);
            least.sequences_ns = Some(sequence_pair(floor).min(before));
        }
    }
    least
}

/// Memory whose pages are written in turn.
struct TouchBuffer {
    memory: Vec<u8>,
    page: usize,
}

impl TouchBuffer {
    /// More than caches hold, as when memory is used up.
    const PAGES: usize = 1 << 14;

    fn new() -> Self {
        TouchBuffer { memory: vec![1; 4096 * Self::PAGES], page: 0 }
    }

    /// Nanoseconds a page.
    fn sample(&mut self, samples: usize) -> f64 {
        fastest(samples, Self::PAGES as u64, || {
            self.page = (self.page + 1) % Self::PAGES;
            self.memory[4096 * self.page..][..4096].fill(black_box(0));
        })
    }
}

/// Nanoseconds a page, written by one CPU while another does so, too.
fn touch_beside(first: CpuId, second: CpuId) -> f64 {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cpus::pin(second);
            let mut touched = TouchBuffer::new();
            // Relaxed: nothing is published but the flag.
            while !is_over.load(Ordering::Relaxed) {
                touched.sample(1);
            }
        });
        let measured = scope.spawn(|| {
            cpus::pin(first);
            let mut touched = TouchBuffer::new();
            let median = median_turn(|| touched.sample(TOUCH_SAMPLES));
            is_over.store(true, Ordering::Relaxed);
            median
        });
        measured.join().expect("it only measures")
    })
}

/// Nanoseconds a line of buffers that one CPU fills and another reads, one after another, as in
/// `ring-stream`.
fn stream_line(first: CpuId, second: CpuId, buffers: usize) -> f64 {
    let memory: Vec<_> = (0..buffers).map(|_| Mutex::new(vec![0u64; BUFFER_WORDS])).collect();
    let words = |at: usize| memory[at].lock().unwrap_or_else(PoisonError::into_inner);
    let ring = Ring::new(RING_SLOTS, 1);
    let messages = 2 * BUFFERS as u64;
    let fastest = std::thread::scope(|scope| {
        scope.spawn(|| {
            cpus::pin(second);
            let read = |at| words(at).iter().fold(0u64, |sum, &word| sum.wrapping_add(word));
            (0..TURNS).for_each(|_| ring.consume(messages, |at: usize| _ = black_box(read(at))));
        });
        let sender = scope.spawn(|| {
            cpus::pin(first);
            let mut at = 0;
            let samples = (0..TURNS).map(|_| {
                let begun = Instant::now();
                ring.produce(messages, || {
                    at = (at + 1) % buffers;
                    words(at).fill(black_box(1));
                    at
                });
                begun.elapsed()
            });
            samples.min().unwrap_or(Duration::ZERO)
        });
        sender.join().expect("it only measures")
    });
    fastest.as_nanos() as f64 / (messages * BUFFER_WORDS as u64 / 8) as f64
}

/// Nanoseconds of a pop and a push on a stack that only this thread knows: loads and stores that
/// hit, each waiting for the one before.
fn private_pair() -> f64 {
    let stack = [const { AtomicU32::new(0) }; 64];
    let count = AtomicUsize::new(32);
    // Through a pointer that may point anywhere, and Relaxed: every load and store is made.
    let (stack, count) = (black_box(&stack), black_box(&count));
    let slot = |at: usize| &stack[at % stack.len()];
    fastest(SAMPLES, LOOPS, || {
        let popped = count.load(Ordering::Relaxed) - 1;
        let top = slot(popped).load(Ordering::Relaxed);
        count.store(popped, Ordering::Relaxed);
        let pushed = count.load(Ordering::Relaxed);
        slot(pushed).store(top, Ordering::Relaxed);
        count.store(pushed + 1, Ordering::Relaxed);
    })
}

/// Nanoseconds of a pop and a push by a restartable sequence each, on an array of this CPU.
fn sequence_pair(floor: &FloorRseq) -> f64 {
    (0..SAMPLES).map(|_| hot::pair_ns(floor, LOOPS)).fold(f64::INFINITY, f64::min)
}

fn fastest(samples: usize, times: u64, mut work: impl FnMut()) -> f64 {
    let samples = (0..samples).map(|_| {
        let begun = Instant::now();
        (0..times).for_each(|_| work());
        begun.elapsed()
    });
    samples.min().unwrap_or(Duration::ZERO).as_nanos() as f64 / times as f64
}
