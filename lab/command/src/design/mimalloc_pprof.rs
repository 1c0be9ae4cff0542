//! The crate mimalloc-pprof with its owner gate: a purge takes the heaps of threads that run, as
//! long as they are outside of the allocator.
//!
//! It links a library of the same name as mimalloc's own crate, which Cargo refuses in one program.
//! So it is a library of its own (`lab/peers/mimalloc-pprof`), loaded when it is asked for;
//! each call is one through a pointer more than those of other peers.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::OnceLock;

use libloading::Library;
use pagedepot::{CpuId, Mode};
use pagedepot_designs::DrainResult;

use super::malloc::{KEEP_MS, Memory, bytes};
use pagedepot_cli::design::allocator::Allocator;
use pagedepot_cli::design::demand::{Demand, PAGE_BYTES, page_bytes};
use pagedepot_cli::failure::Failure;
use pagedepot_cli::names::Design;
use pagedepot_cli::workloads::giveback::holder::Holder;

const LIBRARY: &str = "libpagedepot_peer_mimalloc_pprof.so";
/// Names the library, if it does not lie beside the command.
const VARIABLE: &str = "PAGEDEPOT_MIMALLOC_PPROF";

/// The library's functions. It stays loaded, because threads that end call it.
#[derive(Clone, Copy)]
struct Functions {
    keep_ms: extern "C" fn(c_int),
    alloc: extern "C" fn(usize, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    purge: unsafe extern "C" fn(*mut u64, *mut u64),
}

fn load() -> Result<Functions, libloading::Error> {
    let beside = || {
        let program = std::env::current_exe().ok();
        program.and_then(|program| Some(program.parent()?.join(LIBRARY)))
    };
    let path = std::env::var_os(VARIABLE).map(PathBuf::from).or_else(beside);
    let path = path.unwrap_or_else(|| LIBRARY.into());
    // SAFETY: what the library does when it is loaded is to set up an allocator of its own.
    let library: &Library = Box::leak(Box::new(unsafe { Library::new(path) }?));
    // SAFETY: the functions of these names have these types in `lab/peers/mimalloc-pprof`.
    unsafe {
        Ok(Functions {
            keep_ms: *library.get(b"peer_keep_ms")?,
            alloc: *library.get(b"peer_alloc")?,
            free: *library.get(b"peer_free")?,
            purge: *library.get(b"peer_purge")?,
        })
    }
}

fn functions() -> Result<Functions, &'static str> {
    static FUNCTIONS: OnceLock<Result<Functions, String>> = OnceLock::new();
    let loaded = FUNCTIONS.get_or_init(|| load().map_err(|error| error.to_string()));
    loaded.as_ref().copied().map_err(String::as_str)
}

fn found() -> Result<Functions, Failure> {
    functions().map_err(|why| Failure::Run(why.to_owned()))
}

/// The reason why the library cannot be loaded, with a remedy.
pub fn unavailable() -> Option<String> {
    let why = functions().err()?;
    let design = Design::MimallocPprof;
    Some(format!(
        "design {design} is a library of its own, and {why}: build it beside this command with \
         `cargo build --release --target-dir target --manifest-path \
         lab/peers/mimalloc-pprof/Cargo.toml`, or name it in {VARIABLE}"
    ))
}

/// The library mimalloc-pprof as an allocator to measure.
pub struct MimallocPprof(Functions);

impl Allocator for MimallocPprof {
    const DESIGN: Design = Design::MimallocPprof;
    const DRAINS: &'static [Mode] = &[Mode::Quiet];
    type Block = Memory;

    fn new(_demand: &Demand) -> Result<Self, Failure> {
        let functions = found()?;
        (functions.keep_ms)(KEEP_MS);
        Ok(MimallocPprof(functions))
    }

    #[inline]
    fn alloc<const ORDER: u32>(&self) -> Option<Memory> {
        Memory::new((self.0.alloc)(bytes::<ORDER>(), bytes::<ORDER>()))
    }

    #[inline]
    fn free<const ORDER: u32>(&self, block: Memory) {
        // SAFETY: got by `alloc`, freed once.
        unsafe { (self.0.free)(block.as_ptr()) };
    }

    /// The heaps of all threads: there is no drain of one CPU. Pages go to the system.
    fn drain(&self, _cpu: Option<CpuId>, _mode: Mode) -> Option<DrainResult> {
        let (bytes, pending) = purge(self.0);
        let mut drained = DrainResult::default();
        drained.taken_pages = bytes / PAGE_BYTES as u64;
        drained.busy_cpus = pending;
        Some(drained)
    }
}

/// Purges all heaps; returns the bytes that went to the system and the heaps that were left out.
fn purge(functions: Functions) -> (u64, u64) {
    let (mut bytes, mut pending) = (0, 0);
    // SAFETY: both are this function's.
    unsafe { (functions.purge)(&raw mut bytes, &raw mut pending) };
    (bytes, pending)
}

/// mimalloc-pprof as a program has it, with the delay that it comes with.
pub struct Held(Functions);

impl Held {
    /// # Errors
    /// When the library cannot be loaded.
    pub fn new() -> Result<Self, Failure> {
        found().map(Held)
    }
}

impl Holder for Held {
    fn alloc(&self, bytes: usize) -> Option<NonNull<u8>> {
        NonNull::new((self.0.alloc)(bytes, page_bytes()).cast())
    }

    fn free(&self, block: NonNull<u8>, _bytes: usize) {
        // SAFETY: got by `alloc`; the workload frees it once.
        unsafe { (self.0.free)(block.as_ptr().cast()) };
    }

    /// `mi_purge_all`.
    fn ask(&self) {
        purge(self.0);
    }
}
