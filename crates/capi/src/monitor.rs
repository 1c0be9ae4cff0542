//! Reacting when the system, or the program's container, runs short of memory.

use std::ffi::{c_int, c_uint, c_void};
use std::{ptr, slice};

use pagedepot_linux::pressure::{Level, Monitor, Policy};

use crate::error::{set_errno, tell, tell_text};
use crate::handle::{depot_or_text, pagedepot_t};

/// A thread that watches the pressure on memory, and takes back what a depot does not use.
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct pagedepot_monitor_t {
    monitor: Monitor,
}

/// Frees what the program can do without, wanted_bytes if it can, and returns how many bytes.
#[allow(non_camel_case_types, reason = "its name in C")]
pub type pagedepot_give_up_t =
    Option<unsafe extern "C" fn(context: *mut c_void, wanted_bytes: u64) -> u64>;

/// A function that the monitor calls, on its thread, when memory is about to run out.
#[allow(non_camel_case_types, reason = "its name in C")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pagedepot_callback_t {
    /// The lowest comes first: what is cheapest to make again.
    pub priority: c_int,
    /// The function.
    pub give_up: pagedepot_give_up_t,
    /// Passed to it.
    pub context: *mut c_void,
}

/// Options of a monitor. Begin with PAGEDEPOT_MONITOR_INIT, so that what you leave out has its
/// default in later versions, too.
#[allow(non_camel_case_types, reason = "its name in C")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pagedepot_monitor_options_t {
    /// sizeof(pagedepot_monitor_options_t): which fields there are.
    pub size: usize,
    /// Milliseconds between two looks while the kernel does not wake the monitor. 0: 1000.
    pub look_ms: c_uint,
    /// Milliseconds after which free memory that was not used is given back without any pressure.
    /// 0: 3000; -1: never.
    pub idle_ms: c_int,
    /// The share of a container's limit that the depot's ceiling leaves to the rest of the program,
    /// in percent. 0: 20; -1: no ceiling follows the limit.
    pub margin_percent: c_int,
    /// Number of callbacks.
    pub callbacks_count: c_uint,
    /// Functions to call when memory is about to run out. NULL where there are none.
    pub callbacks: *const pagedepot_callback_t,
}

impl Default for pagedepot_monitor_options_t {
    fn default() -> Self {
        pagedepot_monitor_options_t {
            size: size_of::<Self>(),
            look_ms: 0,
            idle_ms: 0,
            margin_percent: 0,
            callbacks_count: 0,
            callbacks: ptr::null(),
        }
    }
}

impl pagedepot_monitor_options_t {
    fn policy(&self) -> Result<Policy, &'static str> {
        let mut policy = Policy::default();
        if self.look_ms > 0 {
            policy.look_ms = self.look_ms;
        }
        policy.idle_ms = match self.idle_ms {
            0 => policy.idle_ms,
            -1 => 0,
            ms => u32::try_from(ms).map_err(|_| "idle_ms is -1 (never), 0 or milliseconds")?,
        };
        policy.margin_percent = match self.margin_percent {
            0 => policy.margin_percent,
            -1 => None,
            percent => Some(
                u32::try_from(percent).map_err(|_| "margin_percent is -1 (none), 0 or a share")?,
            ),
        };
        Ok(policy)
    }

    /// # Safety
    /// `callbacks` is NULL or has as many as `callbacks_count` says.
    unsafe fn callbacks(&self) -> Result<&[pagedepot_callback_t], &'static str> {
        if self.callbacks_count == 0 {
            return Ok(&[]);
        }
        if self.callbacks.is_null() {
            return Err("callbacks is NULL, and callbacks_count is not 0");
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { slice::from_raw_parts(self.callbacks, self.callbacks_count as usize) })
    }
}

/// Counts of a monitor since it began.
#[allow(non_camel_case_types, reason = "its name in C")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct pagedepot_monitor_counts_t {
    /// Shortage of memory now: 0 there is enough, 1 low, 2 medium, 3 critical.
    pub level: c_int,
    /// Depots that cannot have a ceiling, although the container has a limit.
    pub unprotected: c_uint,
    /// Times that it looked.
    pub looks: u64,
    /// Rounds in which it took something back, because memory was short.
    pub rounds: u64,
    /// Rounds because nothing was allocated or freed for a while.
    pub idle_rounds: u64,
    /// Bytes that were given back to the system.
    pub given_back_bytes: u64,
    /// Bytes that the depot may have below the limit of the container; 0: it follows none.
    pub ceiling_bytes: u64,
}

/// Starts a monitor of a depot: a thread that handles no signals and keeps off isolated CPUs. It
/// has the depot's ceiling follow the limit of the program's memory cgroup, looks at the pressure
/// that the kernel reports, and takes pages back in steps of growing force. options: NULL for the
/// defaults. Returns NULL with errno and a text in pagedepot_last_error(): EDEADLK in a reclaim
/// function that is called while its thread sets a ceiling.
///
/// # Safety
/// `handle` is NULL or a live depot. `options` is NULL, or points to as many bytes as its field
/// `size` says; `callbacks` has `callbacks_count` of them. They may be called from another thread
/// until pagedepot_monitor_stop() returns, or for longer, as said there; none unwinds or jumps out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_monitor_start(
    handle: *const pagedepot_t,
    options: *const pagedepot_monitor_options_t,
) -> *mut pagedepot_monitor_t {
    /// The caller's own; by its promise another thread may have it.
    struct Context(*mut c_void);
    // SAFETY: as said.
    unsafe impl Send for Context {}

    let Some(depot) = depot_or_text(handle) else { return ptr::null_mut() };
    let invalid = |text| {
        tell_text(libc::EINVAL, text);
        ptr::null_mut()
    };
    // SAFETY: by the caller's promise.
    let options: pagedepot_monitor_options_t = match unsafe { crate::handle::sized(options) } {
        Ok(options) => options,
        Err(text) => return invalid(text),
    };
    let policy = match options.policy() {
        Ok(policy) => policy,
        Err(text) => return invalid(text),
    };
    let mut builder = Monitor::builder(depot).policy(policy);
    // SAFETY: by the caller's promise.
    let callbacks = match unsafe { options.callbacks() } {
        Ok(callbacks) => callbacks,
        Err(text) => return invalid(text),
    };
    for callback in callbacks {
        let Some(give_up) = callback.give_up else {
            return invalid("there is no function to call: give_up is NULL");
        };
        let context = Context(callback.context);
        builder = builder.on_pressure(callback.priority, move |wanted_bytes| {
            let context = &context;
            // SAFETY: by the caller's promise.
            unsafe { give_up(context.0, wanted_bytes) }
        });
    }
    match builder.start() {
        Ok(monitor) => Box::into_raw(Box::new(pagedepot_monitor_t { monitor })),
        Err(error) => {
            tell(&error);
            ptr::null_mut()
        }
    }
}

/// Ends a monitor, and waits for its thread, unless that calls this: then it ends when the function
/// of the program that it is in returns. NULL: nothing. A forked child only frees the handle.
///
/// A reclaim function that calls this while its thread sets a ceiling, of whatever depot, does not
/// wait, either. The monitor's functions may then still run and be called: their contexts must stay
/// valid until the program ends.
///
/// # Safety
/// `monitor` is of pagedepot_monitor_start() and was not stopped before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_monitor_stop(monitor: *mut pagedepot_monitor_t) {
    if !monitor.is_null() {
        // SAFETY: by the caller's promise the only pointer to it.
        drop(unsafe { Box::from_raw(monitor) });
    }
}

/// Reads the counts of a monitor. Returns 0, or -1 with errno.
///
/// # Safety
/// `monitor` is NULL or runs; `result` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagedepot_monitor_counts(
    monitor: *const pagedepot_monitor_t,
    result: *mut pagedepot_monitor_counts_t,
) -> c_int {
    // SAFETY: by the caller's promise.
    let (Some(monitor), Some(result)) = (unsafe { monitor.as_ref() }, unsafe { result.as_mut() })
    else {
        set_errno(libc::EINVAL);
        return -1;
    };
    let counts = monitor.monitor.counts();
    *result = pagedepot_monitor_counts_t {
        level: match counts.level {
            Level::None => 0,
            Level::Low => 1,
            Level::Medium => 2,
            Level::Critical => 3,
        },
        unprotected: counts.unprotected as c_uint,
        looks: counts.looks,
        rounds: counts.rounds.iter().sum(),
        idle_rounds: counts.idle_rounds,
        given_back_bytes: counts.given_back_bytes,
        ceiling_bytes: counts.ceiling_bytes,
    };
    0
}
