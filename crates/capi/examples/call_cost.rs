//! Measures a call from C beside one from Rust: a page allocated and freed again and again, then
//! 2, 8 and 64 pages at a time.
//!
//! `cargo run --release -p pagedepot-c --example call_cost [PAIRS] [LIBRARY]`
//!
//! LIBRARY is the `libpagedepot.so` that `cargo xtask install` makes. Without link-time
//! optimisation C calls what it cannot look into: here by pointers that the compiler does not know.
//! With it calls by name are inlined.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::hint::black_box;

use pagedepot_c::{
    pagedepot_alloc, pagedepot_alloc_many, pagedepot_free, pagedepot_free_many, pagedepot_new,
    pagedepot_t,
};
use pagedepot_linux::raw::Pfn;
use pagedepot_linux::{Depot, Flags, Order};

const PAIRS_DEFAULT: u32 = 200_000_000;
/// The kinds take turns, so that other work on the machine meets all of them.
const WINDOWS: usize = 31;
const BYTES: usize = 64 << 20;

type New = unsafe extern "C" fn(usize, *const c_void) -> *mut pagedepot_t;
type Alloc = unsafe extern "C" fn(*const pagedepot_t, c_uint) -> *mut c_void;
type Free = unsafe extern "C" fn(*const pagedepot_t, *mut c_void, c_uint) -> c_int;

/// A depot by pointers to the C functions.
struct Calls {
    depot: *mut pagedepot_t,
    alloc: Alloc,
    free: Free,
}

impl Calls {
    fn pair(&self) {
        // SAFETY: the depot lives as long as the program; the page is freed once, and not used.
        unsafe {
            let page = (self.alloc)(self.depot, 0);
            assert!(!page.is_null());
            (self.free)(self.depot, black_box(page), 0);
        }
    }

    /// The functions of this program.
    fn linked() -> Self {
        // SAFETY: no options.
        let depot = unsafe { pagedepot_new(BYTES, std::ptr::null()) };
        assert!(!depot.is_null());
        black_box(Calls { depot, alloc: pagedepot_alloc, free: pagedepot_free })
    }

    /// The functions of a shared library.
    fn loaded(library: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let file = CString::new(library)?;
        // SAFETY: a library without constructors that could harm.
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err(format!("cannot load {file:?}").into());
        }
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: an open library.
            let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
            if symbol.is_null() { Err(format!("{file:?} has no {name:?}")) } else { Ok(symbol) }
        };
        // SAFETY: the types that the header declares.
        let (new, alloc, free) = unsafe {
            (
                std::mem::transmute::<*mut c_void, New>(symbol(c"pagedepot_new")?),
                std::mem::transmute::<*mut c_void, Alloc>(symbol(c"pagedepot_alloc")?),
                std::mem::transmute::<*mut c_void, Free>(symbol(c"pagedepot_free")?),
            )
        };
        // SAFETY: no options.
        let depot = unsafe { new(BYTES, std::ptr::null()) };
        if depot.is_null() { Err("no depot".into()) } else { Ok(Calls { depot, alloc, free }) }
    }
}

/// Pages at a time.
const BATCHES: [usize; 3] = [2, 8, 64];

/// Allocates so many pages from C, and frees them.
fn batch_in_c(calls: &Calls, count: usize) {
    let mut pages = [std::ptr::null_mut(); 64];
    // SAFETY: as of `Calls::pair`.
    unsafe {
        for page in &mut pages[..count] {
            *page = (calls.alloc)(calls.depot, 0);
            assert!(!page.is_null());
        }
        for &page in black_box(&pages[..count]) {
            (calls.free)(calls.depot, page, 0);
        }
    }
}

/// Allocates so many pages by one call from C, and frees them by another.
fn many_in_c(calls: &Calls, count: usize) {
    let mut pages = [std::ptr::null_mut(); 64];
    // SAFETY: room for `count` pages, which are freed once, and not used.
    unsafe {
        let got = pagedepot_alloc_many(calls.depot, 0, 0, pages.as_mut_ptr(), count);
        assert_eq!(got, count);
        pagedepot_free_many(calls.depot, 0, black_box(&pages).as_ptr(), count);
    }
}

/// Allocates so many pages from Rust, and frees them.
fn batch_in_rust(depot: &Depot, count: usize) {
    let (raw, mut pages) = (depot.raw(), [Pfn::new(0); 64]);
    for page in &mut pages[..count] {
        *page = raw.alloc(Order::BASE, Flags::MOVABLE).expect("it is empty");
    }
    for &page in black_box(&pages[..count]) {
        // SAFETY: allocated above, freed once, and not used.
        unsafe { raw.free(page, Order::BASE) }.expect("a page of this depot");
    }
}

/// Prints the median of each kind, in nanoseconds a page, for some pages at a time.
fn print_batches(depot: &Depot, linked: &Calls, loaded: Option<&Calls>, pairs: u32) {
    for count in BATCHES {
        let mut kinds = [const { Vec::new() }; 4];
        let times = (pairs / count as u32).max(1);
        let mut add = |kind: usize, batch: &dyn Fn()| {
            kinds[kind].push(window(times, batch) / count as f64);
        };
        for _ in 0..WINDOWS {
            add(0, &|| batch_in_rust(depot, count));
            add(1, &|| batch_in_c(linked, count));
            add(2, &|| many_in_c(linked, count));
            if let Some(loaded) = loaded {
                add(3, &|| batch_in_c(loaded, count));
            }
        }
        let names = ["Rust", "C", "C, one call", "C, in a shared library"];
        let shown: Vec<String> = (names.iter().zip(&mut kinds))
            .filter(|(_, windows)| !windows.is_empty())
            .map(|(name, windows)| {
                windows.sort_by(f64::total_cmp);
                format!("{name} {:.2}", windows[windows.len() / 2])
            })
            .collect();
        println!("{count} at a time, ns a page: {}", shown.join("; "));
    }
}

/// Nanoseconds that this thread has run: other programs do not count.
fn now_ns() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to its own value.
    let is_known = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) } == 0;
    assert!(is_known);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Nanoseconds a pair.
#[inline(never)]
fn window(pairs: u32, pair: impl Fn()) -> f64 {
    let begin = now_ns();
    (0..pairs).for_each(|_| pair());
    (now_ns() - begin) / f64::from(pairs)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let pairs = arguments.next().map_or(Ok(PAIRS_DEFAULT), |pairs| pairs.parse())?;
    let pairs = (pairs / WINDOWS as u32 / 4).max(1);
    let loaded = arguments.next().map(|library| Calls::loaded(&library)).transpose()?;
    let linked = Calls::linked();
    let depot = Depot::new(BYTES)?;
    let raw = depot.raw();
    let in_rust = || {
        let page = raw.address(raw.alloc(Order::BASE, Flags::MOVABLE).expect("it is empty"));
        let pfn = raw.pfn_of(black_box(page).as_ptr()).expect("a page of this depot");
        // SAFETY: allocated above, freed once, and not used.
        unsafe { raw.free(pfn, Order::BASE) }.expect("a page of this depot");
    };
    let by_name = || {
        // SAFETY: as of `Calls::pair`.
        unsafe {
            let page = pagedepot_alloc(linked.depot, 0);
            assert!(!page.is_null());
            pagedepot_free(linked.depot, black_box(page), 0);
        }
    };
    let mut kinds = [
        ("Rust", Vec::new()),
        ("C, called by name", vec![]),
        ("C, called", vec![]),
        ("C, called in a shared library", vec![]),
    ];
    for _ in 0..WINDOWS {
        kinds[0].1.push(window(pairs, in_rust));
        kinds[1].1.push(window(pairs, by_name));
        kinds[2].1.push(window(pairs, || linked.pair()));
        if let Some(loaded) = &loaded {
            kinds[3].1.push(window(pairs, || loaded.pair()));
        }
    }
    let mut base = None;
    for (kind, windows) in kinds.iter_mut().filter(|(_, windows)| !windows.is_empty()) {
        windows.sort_by(f64::total_cmp);
        let median = windows[windows.len() / 2];
        let base = *base.get_or_insert(median);
        println!("{kind}: {median:.2} ns a pair, {:+.2} a call", (median - base) / 2.0);
    }
    print_batches(&depot, &linked, loaded.as_ref(), pairs);
    Ok(())
}
