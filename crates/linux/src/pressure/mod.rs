//! Staying below the limit of a container; reacting when the system, or the container, runs short
//! of memory; and giving back what rests.
//!
//! A [`Monitor`] has the [ceilings](crate::reclaim::Ceiling) of depots follow the limit of the
//! program's memory cgroup. It looks at what the kernel says about pressure, and takes pages back
//! in steps of growing force. It has one thread, which never runs on an isolated CPU; a program
//! with a loop of its own calls [`Watcher::look`] instead.
//!
//! ```no_run
//! use pagedepot_linux::Depot;
//! use pagedepot_linux::pressure::Monitor;
//!
//! let depot = Depot::new(1 << 30)?;
//! let monitor = Monitor::builder(&depot)
//!     .on_pressure(0, |wanted_bytes| {
//!         // Free what is cheapest to make again, and return how many bytes that were.
//!         wanted_bytes.min(0)
//!     })
//!     .start()?;
//! // ... the program runs ...
//! println!("{} bytes given back", monitor.counts().given_back_bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What protects, and what helps
//! A program in a memory cgroup is killed as soon as it exceeds the limit and the kernel finds
//! nothing to drop. Memory is allocated faster than any monitor can look, so looking alone does not
//! protect it.
//!
//! | | protects | helps |
//! |---|---|---|
//! | **the ceiling**: no request gets a page above it | a depot larger than the limit, however fast it fills | |
//! | its margin ([`margin_percent`](Policy::margin_percent), a fifth of the limit) | what the rest of the program takes between two looks | |
//! | [`Builder::on_pressure`] | | requests at the ceiling succeed: one wakes the monitor's thread, which calls back, and waits for a second at most |
//! | [`Depot::on_pressure`](crate::Depot::on_pressure) | | the same in the thread of the request, without waking another |
//! | levels and steps, below | | memory that the depot does not use goes back before the program's other parts need it |
//! | giving back at rest | | other programs of the machine |
//!
//! The ceiling is set before [`start`](Builder::start) returns, and again at each look. It is the
//! limit of the tightest cgroup, of the program's own and those above it, less the margin, less
//! what is in use beside the depots. Several depots share it by their sizes. Several monitors of a
//! depot have a ceiling each, of which the lowest is in force. A
//! [ceiling](crate::Builder::ceiling) that the program set is never exceeded. Where there is no
//! limit, there is no ceiling ([`ceiling_bytes`](MonitorCounts::ceiling_bytes) is 0). A limit that
//! cannot be read for a while, as by a program with too many files open, is taken to stay.
//!
//! A ceiling does not protect
//! * a depot with [`grow_to`](crate::Builder::grow_to), a [pinned](crate::Builder::pinned) one, and
//!   one over a store without ranges: these have none
//!   ([`unprotected`](MonitorCounts::unprotected) counts them);
//! * one of huge pages from the system's pool ([`hugetlb`](crate::Builder::hugetlb)), which a limit
//!   does not count: it has none either, unless `cgroup2` is mounted with
//!   `memory_hugetlb_accounting`;
//! * a program whose heap grows by more than the margin between two looks: give a larger margin, or
//!   a smaller [`look_ms`](Policy::look_ms);
//! * from other programs in the same cgroup, or one above, that do so.
//!
//! # What it looks at
//! | source | what counts |
//! |---|---|
//! | `/proc/pressure/memory`, `memory.pressure` of a cgroup | the share of time in which some thread waited for memory (`some avg10`) |
//! | cgroup v2: `memory.current`, less `inactive_file` of `memory.stat` | beside the lower of `memory.high` and `memory.max` |
//! | cgroup v1: `memory.usage_in_bytes`, less `total_inactive_file` | beside `memory.limit_in_bytes` |
//! | cgroup v2: `memory.events`; v1: `memory.failcnt` | what was added since the last look |
//!
//! For the ceiling, `active_file` is taken off, too: the kernel drops page cache before it kills.
//!
//! A cgroup's ancestors count too: the fullest decides. [`Sources::find`] finds all of them. The
//! kernel wakes the monitor by triggers on `memory.pressure`, by changes of `memory.events`, and by
//! thresholds in `cgroup.event_control` (v1); where it refuses, the monitor looks every
//! [`look_ms`](Policy::look_ms).
//!
//! # Levels and steps
//! Each [`Level`] takes the steps of those below it, too, in this order:
//!
//! | step | from | what |
//! |---|---|---|
//! | [`QuietDrain`](Step::QuietDrain) | `Low` | shelves of all CPUs; interrupts none |
//! | [`HandoverDrain`](Step::HandoverDrain) | `Medium` | fronts, handed over by their owners; CPUs that do not answer are fenced, isolated ones never |
//! | [`Purge`](Step::Purge) | `Medium` | lazy areas and pools of address spaces |
//! | [`Callbacks`](Step::Callbacks) | `Critical` | those of [`on_pressure`](Builder::on_pressure), lowest priority first, until enough was freed |
//! | [`GiveBackWhole`](Step::GiveBackWhole) | `Low` | whole free pageblocks (512 pages), many by one system call where the kernel can |
//! | [`Trim`](Step::Trim) | `Medium` | [`Depot::trim`](crate::Depot::trim): whole pageblocks first, then single pages |
//! | [`KernelReclaim`](Step::KernelReclaim) | `Critical` | `memory.reclaim` of cgroup v2, if the policy asks for it |
//!
//! A level rises as soon as a reading says so, and falls by one when readings were clearly below it
//! for a while ([`hysteresis_percent`](Policy::hysteresis_percent), [`calm_ms`](Policy::calm_ms)).
//! While it lasts the steps are repeated, ever more rarely while they yield nothing.
//!
//! # Without pressure
//! Memory that a program has not used for [`idle_ms`](Policy::idle_ms) is given back. A depot that
//! neither allocated nor freed past its CPUs' fronts gives back all that is free. A depot in use
//! gives back as much as was free all the while, whole pageblocks first, then parts of others.
//! Either keeps as much as refaulted within the last minute
//! ([`refault_window_ms`](Policy::refault_window_ms)): memory that was given back and was then
//! needed again. The caches of CPUs decay at each look, and no CPU is asked for its fronts.
//!
//! Memory that was given back stays away until it is used: the kernel makes no huge pages there.
//! A depot of huge pages ([`Builder::thp`](crate::Builder::thp)) gives back and keeps whole ones.
//!
//! # Isolated CPUs
//! The thread keeps off them, drains do not fence them, and a handover does not wake their threads.
//! Giving memory back makes the kernel flush the TLB of every CPU that runs a thread of this
//! process at that moment: on x86-64 by an interrupt, on AArch64 by an instruction that interrupts
//! none. So below [`Level::Critical`] memory is given back in small pieces, each just after the
//! threads on isolated CPUs have fallen asleep. A thread that never sleeps keeps all, and so does a
//! system that does not tell where threads run ([`postponed`](MonitorCounts::postponed) counts). A
//! ceiling that must sink gives memory back all the same: the program would be killed.

mod counts;
mod error;
mod follower;
mod force;
mod judge;
mod monitor;
mod needs;
mod policy;
mod reading;
mod sources;
mod step;
mod triggers;
mod watcher;

pub use counts::{MonitorCounts, StepCounts};
pub use error::MonitorError;
pub use monitor::{Builder, Monitor};
pub use policy::{Level, Policy, PolicyError};
pub use reading::Reading;
pub use sources::Sources;
pub use step::Step;
pub use watcher::{Look, Watcher};
