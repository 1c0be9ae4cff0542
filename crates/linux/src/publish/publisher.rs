//! Publishes statistics: a thread that sleeps until a reader opens the file.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

use crate::depot::handle::{Depot, WeakDepot};
use crate::giving_back::ceiling;
use crate::system::first_panic::FirstPanic;
use crate::system::fork_mark::ForkMark;
use crate::system::threads;
use crate::vmalloc::Vmalloc;

use super::board;
use super::error::PublishError;
use super::files::{self, FileError, Parts};
use super::header::{MESSAGE_BYTES_MAX, ProgramId, Request};
use super::process;
use super::snapshot::{DrainAnswer, Snapshot};

/// Least time between two snapshots, whatever readers do.
const PAUSE: Duration = Duration::from_millis(20);

/// Options of publishing a depot. See [`publish`](super) for an example.
#[derive(Debug)]
#[must_use = "nothing is published before `start`"]
pub struct Publisher {
    depot: Depot,
    spaces: Vec<Vmalloc>,
    directory: Option<PathBuf>,
    may_drain: bool,
}

impl Publisher {
    /// Statistics of this depot.
    pub fn new(depot: &Depot) -> Self {
        Publisher { depot: depot.clone(), spaces: Vec::new(), directory: None, may_drain: true }
    }

    /// Also those of an address space. What is published owns a handle of it.
    pub fn space(mut self, space: &Vmalloc) -> Self {
        self.spaces.push(space.clone());
        self
    }

    /// Puts the file into this directory, and not into shared memory of the user's. Readers have to
    /// be told.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Whether readers may ask for drains. They may, unless this says otherwise: they run as the
    /// same user.
    pub fn may_drain(mut self, may: bool) -> Self {
        self.may_drain = may;
        self
    }

    /// Makes the file, writes the first snapshot, and starts the thread.
    ///
    /// # Errors
    /// [`PublishError`].
    pub fn start(self) -> Result<Publication, PublishError> {
        self.depot.shared().check_parent().map_err(|_| PublishError::Forked)?;
        let (path, file) = self.create()?;
        self.start_in(FileGuard(path), file)
    }

    fn create(&self) -> Result<(PathBuf, File), PublishError> {
        let directories = match &self.directory {
            Some(directory) => vec![directory.clone()],
            None => files::directories(),
        };
        let mut refused = None;
        for directory in directories {
            match files::create_in(&directory) {
                Ok(created) => return Ok(created),
                Err((path, error)) => refused = Some(PublishError::File { path, error }),
            }
        }
        Err(refused.expect("at least one directory was tried"))
    }

    fn start_in(self, guard: FileGuard, file: File) -> Result<Publication, PublishError> {
        let path = guard.0.clone();
        let pid = std::process::id();
        let began = process::began(pid).unwrap_or(0);
        let failed = |error| match error {
            FileError::Io(error) => PublishError::File { path: path.clone(), error },
            FileError::Defect(defect) => {
                PublishError::File { path: path.clone(), error: io::Error::other(defect) }
            }
        };
        // After the file was opened here: this process's own opening is no reader's. Before a
        // reader can open it: the thread is told of each.
        let watch = watch(&path).map_err(|errno| PublishError::Watch(errno.into()))?;
        Parts(&file).set_fixed(ProgramId { pid, began }).map_err(failed)?;
        let Publisher { depot, spaces, may_drain, .. } = self;
        let mut source =
            Source { file, depot: depot.downgrade(), spaces, may_drain, drained: None };
        source.publish(&depot).map_err(failed)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|errno| PublishError::Thread(errno.into()))?);
        let stopped = stop.clone();
        let serve = move || {
            let _guard = guard;
            source.serve(&watch, &stopped);
        };
        let thread = threads::spawn("pagedepot-stats", serve).map_err(PublishError::Thread)?;
        let parent = ForkMark::of_process();
        Ok(Publication { path, parent, stop, thread: Some(thread) })
    }
}

/// Published statistics. When it is dropped, the thread ends and the file is removed: before the
/// drop returns, except in a callback that runs on that thread, or while the calling thread sets a
/// [ceiling](crate::reclaim::Ceiling::set). A forked child's copy does neither.
#[derive(Debug)]
pub struct Publication {
    path: PathBuf,
    parent: ForkMark<'static>,
    /// An event that the thread ends by. Not the end of a pipe, which is open as long as a forked
    /// child has it, too.
    stop: Arc<OwnedFd>,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl Publication {
    /// The file, for `pagedepot top FILE`.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Publication {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.parent.check().is_err() {
            // The thread is the parent's.
            std::mem::forget(thread);
            return;
        }
        let is_told = rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).is_ok();
        // A callback may own this: then the thread is here and has dropped the last handle of the
        // depot, or may run a waker that waits for a ceiling which this thread sets.
        if is_told && !threads::is_current(&thread) && !ceiling::is_being_set_here() {
            let _ = thread.join();
        }
    }
}

/// A file that is removed when this value is dropped, also by a panic: the thread may drop the last
/// handle of the depot, and the program's callbacks with it.
struct FileGuard(PathBuf);

impl Drop for FileGuard {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Told when a reader opens the file, or has written a request.
fn watch(path: &Path) -> Result<OwnedFd, Errno> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&watch, path, WatchFlags::OPEN | WatchFlags::CLOSE_WRITE)?;
    Ok(watch)
}

/// The state of the thread that publishes.
struct Source {
    file: File,
    depot: WeakDepot,
    spaces: Vec<Vmalloc>,
    may_drain: bool,
    drained: Option<DrainAnswer>,
}

impl Source {
    /// Answers readers until `stopped` happens, or the depot's handles have gone. A drain that
    /// reports misuse may panic, and so may a waker: it answers the next look all the same.
    fn serve(&mut self, watch: &OwnedFd, stopped: &OwnedFd) {
        while wait(watch, stopped) {
            discard(watch);
            let Some(depot) = self.depot.upgrade() else { return };
            let mut panics = FirstPanic::default();
            panics.catch(|| self.answer(&depot));
            // A file system that is full, or a file that was truncated: the next look may work.
            let _ = panics.catch(|| self.publish(&depot));
            drop(depot);
            let pause = Timespec { tv_sec: 0, tv_nsec: PAUSE.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(stopped, PollFlags::IN)], Some(&pause));
        }
    }

    /// Does what a reader asks for, once.
    fn answer(&mut self, depot: &Depot) {
        let parts = Parts(&self.file);
        let (Ok(bytes), Ok(answered)) = (parts.request(), parts.answered()) else { return };
        let Some((number, request)) = Request::decode(&bytes) else { return };
        if number == answered {
            return;
        }
        // First, in case that the drain panics.
        let failed = DrainAnswer { request: number, has_failed: true, ..DrainAnswer::default() };
        self.drained = Some(failed);
        let _ = parts.set_answered(number);
        let drained = self.may_drain.then(|| depot.drain(request.scope(), request.mode));
        self.drained = Some(DrainAnswer::of(number, drained));
    }

    fn publish(&self, depot: &Depot) -> Result<(), FileError> {
        board::publish(&Parts(&self.file), || {
            let snapshot = Snapshot { drained: self.drained, ..Snapshot::of(depot, &self.spaces) };
            let message = serde_json::to_vec(&snapshot).map_err(io::Error::from)?;
            if message.len() as u64 > MESSAGE_BYTES_MAX {
                return Err(io::Error::from(io::ErrorKind::FileTooLarge).into());
            }
            Ok(message)
        })
    }
}

/// Sleeps until something happens to the file (`true`), or the thread has to end.
fn wait(watch: &OwnedFd, stopped: &OwnedFd) -> bool {
    loop {
        let mut fds = [PollFd::new(watch, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(Errno::INTR) => {}
            Err(_) => {
                // The system refuses to poll for more descriptors than the process may open by now
                // (`RLIMIT_NOFILE`).
                thread::sleep(PAUSE);
                if rustix::io::read(stopped, &mut [0; 8]).is_ok() {
                    return false;
                }
                if discard(watch) {
                    return true;
                }
            }
            Ok(_) if !fds[1].revents().is_empty() => return false,
            Ok(_) => return true,
        }
    }
}

/// Forgets the events that have come: one snapshot answers all of them. Returns whether any had.
fn discard(watch: &OwnedFd) -> bool {
    let mut events = [0; 4096];
    let mut has_events = || matches!(rustix::io::read(watch, &mut events), Ok(1..));
    let any = has_events();
    while has_events() {}
    any
}
