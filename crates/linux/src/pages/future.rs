//! Requests that wait until a page is freed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use pagedepot::{AllocError, Flags, Order};

use crate::depot::handle::Depot;
use crate::pages::page::Page;
use crate::sites::table::CallSite;
use crate::system::prim::{self, AtomicU32, Ordering};
use crate::waiting::closed_cpus::ClosedCpus;
use crate::waiting::waiters::Ticket;

/// Time that a thread sleeps before it looks again when no waker will be called.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl Depot {
    /// Allocates a block of 2^order pages, and waits up to `timeout` for others to free one. At
    /// first, and when the time is over, it does what [`page`](Self::page) does: takes back what
    /// CPUs cache and calls reclaim callbacks, which may take longer than the timeout.
    ///
    /// While requests wait, no CPU caches: every allocation and every free of the depot goes to the
    /// store, so that a free wakes one of them. See [`page_async`](Self::page_async) for what that
    /// means to others. Not for signal handlers.
    ///
    /// ```
    /// use std::time::Duration;
    /// use pagedepot_linux::{AllocError, Depot, Order};
    ///
    /// let depot = Depot::new(4 << 20)?;
    /// let all = depot.page(Order::MAX)?;
    /// let wait = Duration::from_millis(5);
    /// assert_eq!(depot.page_timeout(Order::BASE, wait).unwrap_err(), AllocError::Exhausted);
    /// std::thread::spawn(move || drop(all));
    /// let page = depot.page_timeout(Order::BASE, Duration::from_secs(60))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AllocError::Exhausted`] when no block was to be had in time, and at once for a block that
    /// is larger than every zone; others as [`page`](Self::page).
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn page_timeout(&self, order: Order, timeout: Duration) -> Result<Page, AllocError> {
        let end = Instant::now().checked_add(timeout);
        let sleeper = Arc::new(Sleeper::default());
        let waker = Waker::from(sleeper.clone());
        let mut waiting = self.page_async(order);
        loop {
            let step = waiting.step(&waker);
            if let Step::Ended(result) = step {
                return result;
            }
            let left =
                end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                drop(waiting);
                return self.page(order);
            }
            match step {
                Step::Unproven => thread::sleep(LOOK_AGAIN.min(left)),
                _ => sleeper.sleep(left),
            }
        }
    }

    /// Allocates a block of 2^order pages, and waits until others have freed one. It needs no
    /// particular runtime.
    ///
    /// ```
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// use pagedepot_linux::{Depot, Order, Page};
    ///
    /// async fn receive(depot: &Depot) -> Result<Page, Box<dyn std::error::Error>> {
    ///     let mut page = depot.page_async(Order::BASE).await?;
    ///     page[0] = 7;
    ///     Ok(page)
    /// }
    /// # let depot = Depot::new(1 << 20)?;
    /// # let ready = pin!(receive(&depot)).poll(&mut Context::from_waker(Waker::noop()));
    /// # assert!(matches!(ready, Poll::Ready(Ok(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # While requests wait
    /// The caches of all CPUs are taken away when the first request begins to wait. That interrupts
    /// each CPU that runs this process once, but for those behind a lock, as isolated ones are: a
    /// page in a front would be missed. The caches are given back after the last request has gone.
    /// Frees wake one waiting request at a time, in the order in which they came; a request that
    /// does not wait may be faster. While none waits, a free costs what it costs without this.
    ///
    /// A [`Vmalloc::vfree`](crate::Vmalloc::vfree) wakes a request, too. If that finds no block in
    /// the store, it purges the address spaces, which interrupts CPUs again if anything lies there.
    ///
    /// The future must be polled when it was woken, or dropped: one that is neither keeps others
    /// from pages. It may be dropped at any moment.
    ///
    /// Do not [enable](pagedepot::CpuCaches::enable) or [restore](pagedepot::CpuCaches::restore)
    /// CPUs' caches meanwhile: a free into a cache wakes no request, until it looks again for
    /// another reason. A CPU that is retired meanwhile caches again when the last request has gone.
    /// While tasks wait, a signal handler must not free pages, and asks for some with
    /// [`Flags::atomic`] or [`Flags::no_reclaim`] alone: the waker of a task's runtime is called by
    /// the thread that frees, and by one whose request runs short and has pages brought, as by a
    /// purge or by compaction.
    ///
    /// # Where it blocks
    /// The first poll does what [`page`](Self::page) does, and may sleep where that does: while
    /// another thread runs a reclaim callback, or has pages on their way. Later ones call no
    /// callbacks, and sleep only behind another thread that purges or adds address spaces, about a
    /// second at most for each. Where the kernel has no `membarrier`, or a thread was stopped in
    /// the middle of a drain, the task is woken again and again instead of once.
    ///
    /// A poll by a callback, while its thread sets a [ceiling](crate::reclaim::Ceiling::set), takes
    /// the request out of the queue, does what the first one does, sleeps a millisecond and has the
    /// task woken. The next poll elsewhere is a first one again: no callback may lock what the task
    /// is polled under.
    ///
    /// # Errors
    /// When awaited: [`AllocError::Exhausted`] at once for a block that is larger than every zone;
    /// others than that as [`page`](Self::page).
    #[cfg_attr(feature = "allocinfo", track_caller)]
    pub fn page_async(&self, order: Order) -> PageFuture<'_> {
        PageFuture { depot: self, order, ticket: None, owes: false, site: CallSite::here() }
    }

    fn is_larger_than_zones(&self, order: Order) -> bool {
        let managed = |zone| self.zone_stats(zone).map_or(0, |stats| stats.managed_pages);
        self.zone_ids().all(|zone| managed(zone) < u64::from(order.frames()))
    }
}

/// A page that may have to be waited for. Made by [`Depot::page_async`].
#[must_use = "it allocates when it is awaited"]
pub struct PageFuture<'d> {
    depot: &'d Depot,
    order: Order,
    /// The request's place in the queue, once it waits.
    ticket: Option<Ticket>,
    /// Whether it was told and has neither been served nor passed that on.
    owes: bool,
    site: CallSite,
}

/// The result of a look.
enum Step {
    Ended(Result<Page, AllocError>),
    /// The waker will be called.
    Asleep,
    /// Others had pages in their hands, or this is a callback for a ceiling: look again.
    Unproven,
}

impl PageFuture<'_> {
    fn step(&mut self, waker: &Waker) -> Step {
        // Under the lock of a ceiling it could not pass a tell on: it looks again instead.
        let is_marking = self.depot.shared().waiters().leaves_marks();
        if is_marking {
            self.give_up();
        }
        let Some(ticket) = self.ticket else {
            match self.depot.page(self.order) {
                Ok(page) => return Step::Ended(Ok(self.noted(page))),
                Err(AllocError::Exhausted) if !self.depot.is_larger_than_zones(self.order) => {}
                Err(error) => return Step::Ended(Err(error)),
            }
            if is_marking {
                return Step::Unproven;
            }
            let shared = self.depot.shared();
            let close = |closed: &mut ClosedCpus| _ = closed.close(shared.frames());
            let open = |closed: &mut ClosedCpus| closed.open(shared.frames());
            self.ticket = shared.waiters().enter(self.order.get(), close, open);
            return match self.ticket {
                Some(_) => self.step(waker),
                None => Step::Ended(Err(AllocError::Forked)),
            };
        };
        let shared = self.depot.shared();
        self.owes |= shared.waiters().arm(ticket, waker);
        let are_closed = shared.waiters().with_closed(|closed| closed.close(shared.frames()));
        let Some(are_closed) = are_closed else { return Step::Ended(Err(AllocError::Forked)) };
        let mut looked = shared.frames().look(self.order, Flags::default());
        let mut is_purged = true;
        if matches!(&looked, Err(refusal) if refusal.error == AllocError::Exhausted) {
            // Pages that were freed into pools, or are lazy.
            let purged = shared.callbacks().shrink(shared, true);
            is_purged = purged.is_some();
            if purged.is_some_and(|pages| pages > 0) {
                looked = shared.frames().look(self.order, Flags::default());
            }
        }
        match looked {
            Ok(pfn) => {
                self.give_up();
                // SAFETY: just allocated, and no other value holds it.
                let page = unsafe { Page::from_raw(self.depot, pfn, self.order) };
                Step::Ended(Ok(self.noted(page)))
            }
            Err(refusal) if refusal.error != AllocError::Exhausted => {
                self.give_up();
                Step::Ended(Err(refusal.error))
            }
            Err(refusal) if refusal.is_proven && are_closed && is_purged => {
                if std::mem::take(&mut self.owes) {
                    shared.waiters().pass_on(ticket);
                }
                match shared.common() {
                    Some(common) if !common.await_others() => Step::Unproven,
                    _ => Step::Asleep,
                }
            }
            Err(_) => Step::Unproven,
        }
    }

    /// The page, noted for the call that made this.
    fn noted(&self, page: Page) -> Page {
        self.depot.shared().sites().note_call(page.pfn(), self.order.frames(), self.site);
        page
    }

    /// Leaves the queue.
    fn give_up(&mut self) {
        let shared = self.depot.shared();
        self.owes = false;
        if let Some(ticket) = self.ticket.take() {
            shared.waiters().leave(ticket, |closed| closed.open(shared.frames()));
        }
    }
}

impl Future for PageFuture<'_> {
    type Output = Result<Page, AllocError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.step(context.waker()) {
            Step::Ended(result) => return Poll::Ready(result),
            Step::Asleep => {}
            Step::Unproven => {
                // Each look of a callback for a ceiling fences CPUs; and it may block.
                if self.depot.shared().waiters().leaves_marks() {
                    thread::sleep(LOOK_AGAIN);
                }
                context.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }
}

impl Drop for PageFuture<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl fmt::Debug for PageFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_waiting = self.ticket.is_some();
        f.debug_struct("PageFuture")
            .field("order", &self.order)
            .field("is_waiting", &is_waiting)
            .finish()
    }
}

/// A thread that sleeps until it is woken. Unlike a parked thread, it may have destroyed the values
/// of its own, the standard library's handle of it among them.
#[derive(Default)]
struct Sleeper {
    /// 1: it was woken, and has not looked since.
    is_woken: AtomicU32,
}

impl Sleeper {
    /// Sleeps for about `limit` at most, and not if it was woken since the last sleep.
    fn sleep(&self, limit: Duration) {
        let limit_ms = limit.as_millis().try_into().unwrap_or(u32::MAX).saturating_add(1);
        prim::wait(&self.is_woken, 0, limit_ms);
        // Acquire: pairs with the Release of `wake_by_ref`. A wake that comes later stays for the
        // next sleep.
        self.is_woken.swap(0, Ordering::Acquire);
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release: what the caller has freed comes before.
        self.is_woken.store(1, Ordering::Release);
        prim::wake_all(&self.is_woken);
    }
}
