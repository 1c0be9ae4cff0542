//! A process that another one stops at instructions of its choice (ptrace): for the tests of this
//! crate and of `pagedepot-linux`, on x86-64 and AArch64.
//!
//! The tracee is forked. Its one traced thread [pauses](Channel::pause) before and after what is
//! looked at; between two pauses the tracer steps it, or lets it run to a breakpoint. Other threads
//! that it makes are not traced, and run while it is stopped.
//!
//! A breakpoint kills the process if another thread comes to it. There is one behind each call of
//! the vDSO and each pair of exclusives that is stepped to, in the C library too: on processors
//! without atomic instructions its locks have exclusives, and so have its calls that sleep, for
//! cancellation. So another thread sleeps by a system call alone while the traced one is stepped.
//!
//! # Stepping through a sequence
//! Each stop is a switch to another thread, so the kernel aborts a sequence that is stopped in. The
//! tracer takes back the announcement (`rseq_cs`) at the first stop in its range: then the thread
//! goes on through the sequence, and the tracer learns which instructions it has. No disassembler
//! is needed, and no number of instructions is written down.
#![allow(dead_code, reason = "each test uses some of it")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Numbers and a text that both processes see.
#[repr(C)]
pub struct Channel {
    pub words: [AtomicU64; 16],
    /// A number that threads of both processes may sleep on (a futex).
    pub request: AtomicU32,
    text_bytes: AtomicU64,
    text: [AtomicU64; 256],
}

impl Channel {
    /// Stops the traced thread until the tracer lets it go on.
    pub fn pause(&self) {
        // SAFETY: the tracer sees the signal, and never delivers it.
        unsafe { libc::raise(libc::SIGSTOP) };
    }

    fn tell(&self, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(size_of_val(&self.text))];
        for (word, part) in self.text.iter().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..part.len()].copy_from_slice(part);
            word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
        }
        self.text_bytes.store(bytes.len() as u64, Ordering::Release);
    }

    fn told(&self) -> String {
        let length = self.text_bytes.load(Ordering::Acquire) as usize;
        let bytes: Vec<u8> = self
            .text
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
            .take(length)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The tracee, seen by its tracer. Dropping it kills the process.
pub struct Tracee {
    process: libc::pid_t,
    memory: File,
    channel: &'static Channel,
}

/// A stop of the traced thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It has paused.
    Paused,
    /// It was stepped, or is at a breakpoint, at this address.
    At(u64),
}

/// The descriptor of a sequence for the kernel (`struct rseq_cs`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Descriptor {
    pub start: u64,
    pub bytes: u64,
    pub abort: u64,
}

impl Descriptor {
    /// The address behind the commit.
    pub fn end(self) -> u64 {
        self.start + self.bytes
    }

    fn contains(self, address: u64) -> bool {
        (self.start..self.end()).contains(&address)
    }
}

/// A sequence that was stepped through.
#[derive(Clone, Debug)]
pub struct Stepped {
    pub descriptor: Descriptor,
    /// Addresses of its instructions, in the order in which they were first come to.
    pub instructions: Vec<u64>,
    /// Whether it went on behind its commit.
    pub commits: bool,
}

impl Stepped {
    /// The places to stop at: its instructions, and the one behind its commit.
    pub fn stops(&self) -> impl Iterator<Item = u64> {
        let end = self.commits.then(|| self.descriptor.end());
        self.instructions.iter().copied().chain(end)
    }
}

/// Instructions that the thread runs through, because a stop among them would change what they do.
struct Stretch {
    /// Number of instructions that count, if it ends at the first of the ends.
    instructions: u64,
    /// Places behind it. Of an exclusive load, and the store that belongs to it: behind the store,
    /// and where branches before it lead.
    ends: Vec<u64>,
}

/// `struct ptrace_rseq_configuration`.
#[repr(C)]
#[derive(Default)]
struct Registration {
    area: u64,
    bytes: u32,
    signature: u32,
    flags: u32,
    padding: u32,
}

const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const RSEQ_CS: u64 = 8;

/// The place of the address that a function returns to, at its first instruction.
enum ReturnAddress {
    Register(usize),
    /// The word that this register points to.
    Stack(usize),
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use super::ReturnAddress;

    /// Registers of `NT_PRSTATUS`.
    pub const REGISTERS: usize = 27;
    pub const PROGRAM_COUNTER: usize = 16;
    pub const RETURN_ADDRESS: ReturnAddress = ReturnAddress::Stack(19);
    /// `int3`.
    pub const BREAKPOINT: &[u8] = &[0xcc];
    /// Bytes from a breakpoint to where the thread stops.
    pub const BEHIND: u64 = 1;
}
#[cfg(target_arch = "aarch64")]
mod arch {
    use super::ReturnAddress;

    /// Registers of `NT_PRSTATUS`.
    pub const REGISTERS: usize = 34;
    pub const PROGRAM_COUNTER: usize = 32;
    pub const RETURN_ADDRESS: ReturnAddress = ReturnAddress::Register(30);
    /// `brk 0`.
    pub const BREAKPOINT: &[u8] = &[0x00, 0x00, 0x20, 0xd4];
    /// Bytes from a breakpoint to where the thread stops.
    pub const BEHIND: u64 = 0;
}

impl Tracee {
    /// Forks a process that runs `program`, and waits for its first pause.
    ///
    /// # Errors
    /// Where the system refuses that a process is traced.
    pub fn fork(program: impl FnOnce(&'static Channel)) -> io::Result<Self> {
        // SAFETY: a new mapping of whole pages, zeroed, never unmapped: a channel of zeroes.
        let channel = unsafe {
            let (prot, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            let at = libc::mmap(std::ptr::null_mut(), size_of::<Channel>(), prot, flags, -1, 0);
            if at == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            &*at.cast::<Channel>()
        };
        // SAFETY: the child allocates and makes threads, which glibc allows after a fork; it ends
        // by `_exit`.
        let process = unsafe { libc::fork() };
        if process == 0 {
            // SAFETY: of this process; its tracer is its parent.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::ptrace(libc::PTRACE_TRACEME) != 0 {
                    libc::_exit(3);
                }
            }
            let ended = catch_unwind(AssertUnwindSafe(|| program(channel)));
            if let Err(why) = ended {
                let text = why.downcast_ref::<String>().map(String::as_str);
                channel.tell(text.or(why.downcast_ref::<&str>().copied()).unwrap_or("a panic"));
            }
            // SAFETY: ends this process, and runs nothing of the harness.
            unsafe { libc::_exit(1) };
        }
        if process < 0 {
            return Err(io::Error::last_os_error());
        }
        let memory = File::options().read(true).write(true).open(format!("/proc/{process}/mem"))?;
        let tracee = Tracee { process, memory, channel };
        assert_eq!(tracee.wait()?, Stop::Paused, "the first pause");
        Ok(tracee)
    }

    pub fn channel(&self) -> &'static Channel {
        self.channel
    }

    /// The number of the process.
    pub fn process(&self) -> u64 {
        self.process as u64
    }

    /// Confines the traced thread to a CPU.
    pub fn move_to(&self, cpu: u32) {
        // SAFETY: the set is as long as it says.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu as usize, &mut set);
            assert_eq!(libc::sched_setaffinity(self.process, size_of_val(&set), &set), 0);
        }
    }

    /// Lets the thread run until it stops: at a pause, or at a breakpoint that was
    /// [set](Self::set_breakpoint). `signal` is delivered first, if it is not 0.
    pub fn run(&self, signal: libc::c_int) -> Stop {
        self.resume(libc::PTRACE_CONT, signal)
    }

    /// Lets the thread execute one instruction.
    pub fn step(&self) -> Stop {
        self.resume(libc::PTRACE_SINGLESTEP, 0)
    }

    fn resume(&self, how: libc::c_uint, signal: libc::c_int) -> Stop {
        // SAFETY: the thread is stopped, and this one its tracer.
        let done = unsafe { libc::ptrace(how, self.process, 0, libc::c_long::from(signal)) };
        self.check(if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) });
        self.wait().expect("a tracee that is not gone")
    }

    /// Fails if the tracee cannot be reached, with what it has died of: SIGKILL if it has not died.
    fn check(&self, done: io::Result<()>) {
        let Err(error) = done else { return };
        let mut status = 0;
        // SAFETY: this value's own child; a status to write to.
        unsafe {
            libc::kill(self.process, libc::SIGKILL);
            libc::waitpid(self.process, &mut status, libc::__WALL);
        }
        panic!("{error}: {}", self.end(status));
    }

    fn end(&self, status: libc::c_int) -> String {
        format!("the tracee ended with status {status:#x}: {}", self.channel.told())
    }

    fn wait(&self) -> io::Result<Stop> {
        let mut status = 0;
        loop {
            // SAFETY: a status to write to.
            let waited = unsafe { libc::waitpid(self.process, &mut status, libc::__WALL) };
            if waited != self.process {
                return Err(io::Error::last_os_error());
            }
            if !libc::WIFSTOPPED(status) {
                return match libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 3 {
                    true => Err(io::Error::from(io::ErrorKind::PermissionDenied)),
                    false => panic!("{}", self.end(status)),
                };
            }
            match libc::WSTOPSIG(status) {
                libc::SIGSTOP => return Ok(Stop::Paused),
                libc::SIGTRAP => return Ok(Stop::At(self.program_counter())),
                other => {
                    let (signal, go_on) = (libc::c_long::from(other), libc::PTRACE_CONT);
                    // SAFETY: as in `resume`: a signal that is none of the tracer's.
                    let done = unsafe { libc::ptrace(go_on, self.process, 0, signal) };
                    assert_eq!(done, 0);
                }
            }
        }
    }

    fn registers(&self, request: libc::c_uint, registers: &mut [u64; arch::REGISTERS]) {
        let mut vector = libc::iovec {
            iov_base: registers.as_mut_ptr().cast(),
            iov_len: size_of_val(registers),
        };
        const NT_PRSTATUS: libc::c_long = 1;
        // SAFETY: the thread is stopped; the vector is as long as it says.
        let done = unsafe { libc::ptrace(request, self.process, NT_PRSTATUS, &raw mut vector) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
    }

    pub fn program_counter(&self) -> u64 {
        let mut registers = [0; arch::REGISTERS];
        self.registers(libc::PTRACE_GETREGSET, &mut registers);
        registers[arch::PROGRAM_COUNTER]
    }

    fn set_program_counter(&self, address: u64) {
        let mut registers = [0; arch::REGISTERS];
        self.registers(libc::PTRACE_GETREGSET, &mut registers);
        registers[arch::PROGRAM_COUNTER] = address;
        self.registers(libc::PTRACE_SETREGSET, &mut registers);
    }

    fn read<const WORDS: usize>(&self, address: u64) -> [u64; WORDS] {
        std::array::from_fn(|word| {
            let mut bytes = [0; 8];
            self.check(self.memory.read_exact_at(&mut bytes, address + 8 * word as u64));
            u64::from_ne_bytes(bytes)
        })
    }

    fn registration(&self) -> Registration {
        let mut registration = Registration::default();
        // SAFETY: the structure is as long as it says.
        let got = unsafe {
            libc::ptrace(
                PTRACE_GET_RSEQ_CONFIGURATION,
                self.process,
                size_of::<Registration>(),
                &raw mut registration,
            )
        };
        assert!(got > 0, "{}; it needs Linux 5.13", io::Error::last_os_error());
        registration
    }

    /// The sequence that the thread has announced last, and the kernel has not cleared.
    fn announced(&self, area: u64) -> Option<Descriptor> {
        let [at] = self.read(area + RSEQ_CS);
        (at != 0).then(|| {
            let [_, start, bytes, abort] = self.read(at);
            Descriptor { start, bytes, abort }
        })
    }

    /// Steps from this pause to the next. Returns the number of instructions between them, those of
    /// the pauses included, and the sequences that they went through; none was aborted. A call of
    /// the vDSO counts as one instruction.
    pub fn step_through(&self) -> (u64, Vec<Stepped>) {
        let (registration, vdso) = (self.registration(), self.vdso());
        let (mut steps, mut sequences) = (0, Vec::<Stepped>::new());
        let mut current: Option<usize> = None;
        let mut address = self.program_counter();
        loop {
            // Within a sequence each instruction counts as a stop, whatever that does to it.
            let stretch = match current {
                None if vdso.contains(&address) => Some(self.rest_of_call()),
                None => self.exclusives(address),
                Some(_) => None,
            };
            let (stop, taken) = match stretch {
                Some(stretch) => self.run_past(&stretch),
                None => (self.step(), 1),
            };
            let Stop::At(at) = stop else { break };
            (address, steps) = (at, steps + taken);
            if let Some(descriptor) = self.announced(registration.area) {
                let [signature] = self.read(descriptor.abort - 4);
                assert_eq!(signature as u32, registration.signature, "before {descriptor:x?}");
                let none = 0_u64.to_ne_bytes();
                self.check(self.memory.write_all_at(&none, registration.area + RSEQ_CS));
                let known = sequences.iter().position(|one| one.descriptor == descriptor);
                current = Some(known.unwrap_or_else(|| {
                    sequences.push(Stepped {
                        descriptor,
                        instructions: Vec::new(),
                        commits: false,
                    });
                    sequences.len() - 1
                }));
            }
            let Some(sequence) = current.map(|at| &mut sequences[at]) else { continue };
            match sequence.descriptor.contains(address) {
                true if !sequence.instructions.contains(&address) => {
                    sequence.instructions.push(address);
                }
                true => {}
                false => {
                    sequence.commits |= address == sequence.descriptor.end();
                    current = None;
                }
            }
        }
        (steps, sequences)
    }

    /// Addresses of the code that the kernel maps into each process. Its clocks are read again when
    /// the kernel has set them meanwhile, which is always where steps take longer than a tick.
    fn vdso(&self) -> Range<u64> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.process));
        let maps = maps.expect("the tracee has mappings");
        let line = maps.lines().find(|line| line.ends_with("[vdso]"));
        let range = line.and_then(|line| line.split(' ').next()?.split_once('-'));
        let number = |text| u64::from_str_radix(text, 16).expect("an address");
        range.map_or(0..0, |(start, end)| number(start)..number(end))
    }

    /// The rest of a function at whose first instruction the thread is.
    fn rest_of_call(&self) -> Stretch {
        let mut registers = [0; arch::REGISTERS];
        self.registers(libc::PTRACE_GETREGSET, &mut registers);
        let caller = match arch::RETURN_ADDRESS {
            ReturnAddress::Register(register) => registers[register],
            ReturnAddress::Stack(pointer) => self.read::<1>(registers[pointer])[0],
        };
        Stretch { instructions: 1, ends: vec![caller] }
    }

    /// The exclusive load at `address`, with the store that belongs to it: a processor that is
    /// stopped between them forgets the reservation, so that a loop around them would never end.
    #[cfg(target_arch = "aarch64")]
    fn exclusives(&self, address: u64) -> Option<Stretch> {
        /// Most instructions from the load to the store.
        const LENGTH_MAX: usize = 16;
        let is = |code: u32, kind: u32| code & 0x3fc0_0000 == kind;
        let mut bytes = [0; 4 * LENGTH_MAX];
        self.memory.read_exact_at(&mut bytes[..4], address).ok()?;
        let code = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if !is(code(&bytes), 0x0840_0000) {
            return None;
        }
        self.memory.read_exact_at(&mut bytes, address).ok()?;
        let codes: Vec<u32> = bytes.chunks(4).map(code).collect();
        let store = codes.iter().position(|&code| is(code, 0x0800_0000))?;
        let mut ends = vec![address + 4 * (store as u64 + 1)];
        for (place, code) in codes[..store].iter().enumerate() {
            // b.cond, cbz and cbnz have 19 bits of a distance in words.
            if code >> 24 == 0x54 || code >> 25 & 0x3f == 0x1a {
                let words = (code << 8) as i32 >> 13;
                ends.push((address + 4 * place as u64).wrapping_add_signed(i64::from(words) * 4));
            }
        }
        Some(Stretch { instructions: store as u64 + 1, ends })
    }

    #[cfg(target_arch = "x86_64")]
    fn exclusives(&self, _address: u64) -> Option<Stretch> {
        None
    }

    /// Runs to the first of the places where a stretch ends. Returns the stop, and the number of
    /// instructions, as if the store of exclusives had been come to at once.
    fn run_past(&self, stretch: &Stretch) -> (Stop, u64) {
        let mut before: Vec<_> =
            stretch.ends.iter().map(|&end| (end, self.set_breakpoint(end))).collect();
        let mut stop = self.run(0);
        // In the other order: two of them may be one place.
        while let Some((end, code)) = before.pop() {
            if self.clear_breakpoint(end, &code, stop) {
                stop = Stop::At(end);
            }
        }
        let is_whole = stop == Stop::At(stretch.ends[0]);
        (stop, if is_whole { stretch.instructions } else { 1 })
    }

    /// Replaces the instruction at `address` by a breakpoint. Returns what stood there.
    pub fn set_breakpoint(&self, address: u64) -> Vec<u8> {
        let mut before = vec![0; arch::BREAKPOINT.len()];
        self.check(self.memory.read_exact_at(&mut before, address));
        self.check(self.memory.write_all_at(arch::BREAKPOINT, address));
        before
    }

    /// Puts back what stood at `address`, and makes a thread that has just stopped at the
    /// breakpoint there go on with it.
    pub fn clear_breakpoint(&self, address: u64, before: &[u8], stop: Stop) -> bool {
        self.check(self.memory.write_all_at(before, address));
        let is_there = stop == Stop::At(address + arch::BEHIND);
        if is_there {
            self.set_program_counter(address);
        }
        is_there
    }

    /// Runs to `address`, or to the next pause. Returns whether it is at the address.
    pub fn run_to(&self, address: u64, signal: libc::c_int) -> bool {
        let before = self.set_breakpoint(address);
        let stop = self.run(signal);
        let is_there = self.clear_breakpoint(address, &before, stop);
        assert!(is_there || stop == Stop::Paused, "a trap that was not set: {stop:x?}");
        is_there
    }

    /// Runs to the next pause.
    pub fn run_to_pause(&self) {
        assert_eq!(self.run(0), Stop::Paused);
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // SAFETY: this value's own child, not waited for before.
        unsafe {
            libc::kill(self.process, libc::SIGKILL);
            libc::waitpid(self.process, std::ptr::null_mut(), libc::__WALL);
        }
    }
}
