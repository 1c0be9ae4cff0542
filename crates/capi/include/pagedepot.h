/* pagedepot: a page allocator in which what a CPU caches can be taken back without interrupting it.
 *
 * Errors: a function that returns a pointer returns NULL, one that returns int returns -1; errno
 * says why. After one that sets something up, pagedepot_last_error() says what to do about it.
 * All functions may be called from any number of threads; pagedepot_delete() from one, as the last.
 *
 * Signal handlers allocate with PAGEDEPOT_ATOMIC or PAGEDEPOT_NO_RECLAIM, and free while no request
 * waits (pagedepot_alloc_wait()). pagedepot_vmalloc() with these flags is for them, too, and
 * pagedepot_vfree() may wait for a second there. Other calls that change something take locks or
 * memory of the heap: handlers do not make them.
 *
 * Functions that the library calls (reclaim, give_up, give) may free, and allocate with
 * PAGEDEPOT_NO_RECLAIM. None deletes a depot or a space. reclaim runs in calls that allocate, with
 * the locks that the program holds there; what it makes of ceilings, trims and pins may fail with
 * EDEADLK.
 *
 * A forked child can read its parent's blocks. Calls that would change the parent's depot fail with
 * EPERM or do nothing; the child makes or adopts a depot of its own. A child of vfork() calls
 * nothing of this library before it executes a program. Nor does a child return from a signal
 * handler that forked it above a call that zeroes or moves pages of shared memory (PAGEDEPOT_MEMFD,
 * segments, spaces): it may write to one of them after its parent.
 *
 * Threads go on pointing to code of the library that they ran last. An object that builds a depot
 * stays loaded. One that has the static library, and uses a depot that another object built, is
 * linked with -z nodelete: dlclose() would unmap that code, and the kernel end the process.
 *
 * A thread that may be cancelled (pthread_cancel()) disables that around calls: to be cancelled in
 * one ends the process.
 *
 * Generated from crates/capi/src: see its README. Link with -lpagedepot. */

#ifndef PAGEDEPOT_H
#define PAGEDEPOT_H

#include <stddef.h>
#include <stdint.h>
/* What pagedepot_new() takes when nothing is set. */
#define PAGEDEPOT_OPTIONS_INIT { sizeof(pagedepot_options_t), 0, 0, 0, 0, 0, NULL }
/* What pagedepot_monitor_start() takes when nothing is set. */
#define PAGEDEPOT_MONITOR_INIT { sizeof(pagedepot_monitor_options_t), 0, 0, 0, 0, NULL }
/* What pagedepot_create() and others take when nothing is set. */
#define PAGEDEPOT_SHARED_INIT { sizeof(pagedepot_shared_options_t), 0, 0, 0, 0 }

// Pages come from a memory file, which devices and other processes can map; else they are private.
#define PAGEDEPOT_MEMFD (1 << 0)

// Pages come from the administrator's pool of huge pages (vm.nr_hugepages).
#define PAGEDEPOT_HUGETLB (1 << 1)

// Asks the system for transparent huge pages.
#define PAGEDEPOT_THP (1 << 2)

// A zone per NUMA node, bound to it.
#define PAGEDEPOT_NUMA (1 << 3)

// Every page is made present by pagedepot_new().
#define PAGEDEPOT_POPULATE (1 << 4)

// A lock per CPU instead of restartable sequences. Drains then take all that a CPU caches without
// interrupting it.
#define PAGEDEPOT_PER_CPU_LOCKS (1 << 5)

// No CPU caches pages.
#define PAGEDEPOT_NO_CACHES (1 << 6)

// Every double free and wrong order is found and refused, for a byte per page and some time.
#define PAGEDEPOT_CHECKED (1 << 7)

// The depot is never trimmed, because a device keeps its pages.
#define PAGEDEPOT_PINNED (1 << 8)

// A double free that is found late is printed, and the program goes on; else it aborts. It aborts
// all the same when a page that was freed twice would be handed out while it holds metadata.
#define PAGEDEPOT_MISUSE_PRINTS (1 << 9)

// The page is zeroed.
#define PAGEDEPOT_ZEROED (1 << 0)

// The request may use the last pages, and waits for nothing: for signal handlers.
#define PAGEDEPOT_ATOMIC (1 << 1)

// The request fails rather than wait, or call callbacks.
#define PAGEDEPOT_NO_RECLAIM (1 << 2)

// The page stays where it is for long: it is kept away from those that come and go.
#define PAGEDEPOT_UNMOVABLE (1 << 3)

// A drain that interrupts no CPU: what lies on shelves.
#define PAGEDEPOT_QUIET 0

// A drain that takes everything. Each CPU that runs a thread of this process, is not isolated and
// caches more than lies on shelves is interrupted once.
#define PAGEDEPOT_FULL 1

// A drain that interrupts no CPU, and asks each for what only its owner can take: the next thread
// there that allocates or frees hands it over.
#define PAGEDEPOT_HANDOVER 2

// The reason why no more went back: as much was given back as was asked for.
#define PAGEDEPOT_GIVE_BACK_ENOUGH 0

// All memory went back that was free: see held_bytes, cached_bytes and pinned_bytes.
#define PAGEDEPOT_GIVE_BACK_NOTHING_FREE 1

// The time was up.
#define PAGEDEPOT_GIVE_BACK_DEADLINE 2

// A request of the program ran short of pages meanwhile: what is free is needed.
#define PAGEDEPOT_GIVE_BACK_LOW_MEMORY 3

// Another thread is giving memory back.
#define PAGEDEPOT_GIVE_BACK_BUSY 4

// A thread of the program ran on an isolated CPU all the time, and would have been interrupted.
#define PAGEDEPOT_GIVE_BACK_ISOLATED 5

// A thread that watches the pressure on memory, and takes back what a depot does not use.
typedef struct pagedepot_monitor_t pagedepot_monitor_t;

// Statistics that other programs of the same user can read.
typedef struct pagedepot_published_t pagedepot_published_t;

// A range of addresses over a depot with PAGEDEPOT_MEMFD.
typedef struct pagedepot_space_t pagedepot_space_t;

// A depot: an allocator and its memory.
typedef struct pagedepot_t pagedepot_t;

// Options of a depot. Begin with PAGEDEPOT_OPTIONS_INIT, so that what you leave out has its
// default in later versions, too.
typedef struct {
    // sizeof(pagedepot_options_t): which fields there are.
    size_t size;
    // PAGEDEPOT_MEMFD and others, or-ed.
    unsigned int flags;
    // CPUs from 0 on that cache pages. 0: every CPU that may come online.
    unsigned int cpus;
    // Bytes that pagedepot_grow() can reach. 0: the depot does not grow.
    size_t grow_to;
    // Bytes that the depot hands out and keeps resident at most: see pagedepot_set_ceiling(). 0:
    // all of it.
    size_t ceiling;
    // Bytes of a page: 4096, 16384 or 65536, a multiple of the system's. 0: the smallest of them.
    size_t page_bytes;
    // CPUs that drains do not interrupt, as a list such as "2-3,8". NULL: those that the kernel
    // was told to keep quiet (nohz_full, isolcpus); "": none.
    const char *isolated_cpus;
} pagedepot_options_t;

// A block and its order.
typedef struct {
    // Address of the block's first byte.
    void *block;
    // 2^order pages.
    unsigned int order;
} pagedepot_block_t;

// The result of a drain, in pages unless it says otherwise.
typedef struct {
    // Returned to the store.
    uint64_t taken_pages;
    // Cached again by the time it ended.
    uint64_t left_pages;
    // Pages in other callers' hands.
    uint64_t in_flight_pages;
    // Pages in fronts that the drain did not take, at most.
    uint64_t unreachable_pages;
    // CPUs that were fenced. A fence interrupts the CPU only if a thread of this process runs
    // there at that moment. CPUs with locks, as all are with PAGEDEPOT_PER_CPU_LOCKS, need none
    // and count as none.
    uint64_t fences;
    // CPUs that another drain was at, or that could not be fenced.
    uint64_t busy_cpus;
    // CPUs left alone because they are isolated.
    uint64_t isolated_cpus;
    // CPUs that were asked and have not handed over yet.
    uint64_t pending_cpus;
    // Pages in fronts of those CPUs, at most: on their way.
    uint64_t pending_pages;
} pagedepot_drained_t;

// The result of a trim.
typedef struct {
    // Bytes that were present and are no more.
    uint64_t bytes;
    // System calls that it took.
    uint64_t calls;
    // 1 when the trim ended early, and bytes may be 0 though much is free: another thread was
    // trimming, or a request had run out of pages less than 20 ms before and needs what is free.
    // Try again later.
    int cut_short;
} pagedepot_trimmed_t;

// The result of pagedepot_give_back().
typedef struct {
    // Bytes that were present and are no more. The last run of free pages goes back whole, so
    // there may be up to a pageblock (512 pages) more than asked for.
    uint64_t bytes;
    // Pageblocks that went back whole.
    uint64_t whole_pageblocks;
    // System calls that it took.
    uint64_t calls;
    // The reason why no more went back: PAGEDEPOT_GIVE_BACK_ENOUGH or another.
    int end;
    // Bytes that are allocated, with PAGEDEPOT_GIVE_BACK_NOTHING_FREE.
    uint64_t held_bytes;
    // Bytes that CPUs still cache, with PAGEDEPOT_GIVE_BACK_NOTHING_FREE.
    uint64_t cached_bytes;
    // Bytes that are free and pinned, with PAGEDEPOT_GIVE_BACK_NOTHING_FREE.
    uint64_t pinned_bytes;
} pagedepot_given_back_t;

// Frees pages that the program can do without, and returns how many.
typedef uint64_t (*pagedepot_reclaim_t)(void *context, uint64_t wanted_pages, int is_last_resort);

// Numbers of pages by place, and counts of requests by how they were served.
typedef struct {
    // Pages of the depot.
    uint64_t managed_pages;
    // Free in the store.
    uint64_t free_pages;
    // Cached by CPUs.
    uint64_t cached_pages;
    // Allocations and frees that a CPU's front served alone.
    uint64_t hits;
    // Magazines filled from the store.
    uint64_t refills;
    // Magazines emptied into the store.
    uint64_t spills;
    // Pages taken back by drains.
    uint64_t drained_pages;
    // Requests that failed.
    uint64_t failures;
    // Bytes of metadata.
    uint64_t metadata_bytes;
} pagedepot_stats_t;

// Frees what the program can do without, wanted_bytes if it can, and returns how many bytes.
typedef uint64_t (*pagedepot_give_up_t)(void *context, uint64_t wanted_bytes);

// A function that the monitor calls, on its thread, when memory is about to run out.
typedef struct {
    // The lowest comes first: what is cheapest to make again.
    int priority;
    // The function.
    pagedepot_give_up_t give_up;
    // Passed to it.
    void *context;
} pagedepot_callback_t;

// Options of a monitor. Begin with PAGEDEPOT_MONITOR_INIT, so that what you leave out has its
// default in later versions, too.
typedef struct {
    // sizeof(pagedepot_monitor_options_t): which fields there are.
    size_t size;
    // Milliseconds between two looks while the kernel does not wake the monitor. 0: 1000.
    unsigned int look_ms;
    // Milliseconds after which free memory that was not used is given back without any pressure.
    // 0: 3000; -1: never.
    int idle_ms;
    // The share of a container's limit that the depot's ceiling leaves to the rest of the program,
    // in percent. 0: 20; -1: no ceiling follows the limit.
    int margin_percent;
    // Number of callbacks.
    unsigned int callbacks_count;
    // Functions to call when memory is about to run out. NULL where there are none.
    const pagedepot_callback_t *callbacks;
} pagedepot_monitor_options_t;

// Counts of a monitor since it began.
typedef struct {
    // Shortage of memory now: 0 there is enough, 1 low, 2 medium, 3 critical.
    int level;
    // Depots that cannot have a ceiling, although the container has a limit.
    unsigned int unprotected;
    // Times that it looked.
    uint64_t looks;
    // Rounds in which it took something back, because memory was short.
    uint64_t rounds;
    // Rounds because nothing was allocated or freed for a while.
    uint64_t idle_rounds;
    // Bytes that were given back to the system.
    uint64_t given_back_bytes;
    // Bytes that the depot may have below the limit of the container; 0: it follows none.
    uint64_t ceiling_bytes;
} pagedepot_monitor_counts_t;

// Options of a process in a segment. Begin with PAGEDEPOT_SHARED_INIT.
typedef struct {
    // sizeof(pagedepot_shared_options_t): which fields there are.
    size_t size;
    // Bytes to which a new segment can grow. 0: the bytes it begins with.
    size_t grow_to;
    // The most bytes that this process may hold and cache, rounded down to pages, but a page at
    // least. 0: all. pagedepot_set_ceiling() changes it.
    size_t ceiling;
    // The heir of this process: see pagedepot_inherit(). 0: none.
    uint64_t heir;
    // The fate of blocks that dead processes have left, when this process joins: as in
    // pagedepot_recover(). 2 opens a segment in which such processes are in all slots.
    uint64_t orphans;
} pagedepot_shared_options_t;

// A page on its way to another process: a message that the program carries by whatever it has.
typedef struct {
    // The message, which has no meaning for the program.
    uint64_t words[2];
} pagedepot_sent_t;

// Frees what the program can do without, for another process.
typedef void (*pagedepot_give_t)(void *context);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library, such as "0.1.0".
const char *pagedepot_version(void);

// Makes a depot of so many bytes, rounded up to pages. Call it before the program has many
// threads: the first one registers the process with membarrier(2), which takes milliseconds later.
//
// options: NULL for the defaults; else as many bytes are read as its size says.
//
// Returns NULL with errno (EINVAL, ENOMEM, ...) and a text in pagedepot_last_error().
//
// Conditions:
// options is NULL, or points to as many bytes as its field size says; isolated_cpus is NULL
// or a string.
pagedepot_t *pagedepot_new(size_t bytes, const pagedepot_options_t *options);

// Unmaps a depot with all its memory, pages that were never freed included. NULL: nothing. Leaves
// the segment of a depot that processes share: pages that this process never freed are free. Waits
// for a function of pagedepot_on_shortage() that runs, which is not called any more afterwards.
//
// In a forked child it only frees the handle: the memory is the parent's.
//
// Conditions:
// handle is of pagedepot_new(), pagedepot_create(), pagedepot_open() or pagedepot_adopt(), and
// was not deleted before. No thread is in a call of it, uses a
// page of it, or will do either. Callbacks of pagedepot_on_pressure() have returned. Spaces over
// it were deleted, and monitors stopped.
void pagedepot_delete(pagedepot_t *depot);

// Adds memory; see grow_to in the options. Whole multiples of 2^18 pages: of a GiB, where a page
// has 4 KiB; to a segment that processes share, whole pages. Returns 0, or -1 with errno: ENOMEM
// beyond grow_to, and nothing is added, unless several callers at once ask for the last of it:
// then a part may be.
//
// Conditions:
// handle is NULL or a live depot.
int pagedepot_grow(const pagedepot_t *handle, size_t bytes);

// Bytes per page of order 0. 0: the handle is NULL.
//
// Conditions:
// handle is NULL or a live depot.
size_t pagedepot_page_size(const pagedepot_t *handle);

// Bytes of memory, free or not. Those of a segment that can grow may lie anywhere in it. 0: the
// handle is NULL.
//
// Conditions:
// handle is NULL or a live depot.
size_t pagedepot_bytes(const pagedepot_t *handle);

// Returns the address at which the memory begins: registrations with devices need it. NULL: the
// handle is NULL.
//
// Conditions:
// handle is NULL or a live depot.
void *pagedepot_base(const pagedepot_t *handle);

// The file that the pages lie in, for mmap(2) and devices: a page's place in it is its distance
// from pagedepot_base(). The depot closes it. Returns -1 with errno: ENOTSUP without
// PAGEDEPOT_MEMFD, and for a depot that processes share: pagedepot_shared_fd() has its file.
//
// Conditions:
// handle is NULL or a live depot, which outlives what is made of the file. Through the file, and
// mappings of it, the program touches only pages that it holds, and punches holes only into those;
// it neither allocates in the file, nor seals it, nor changes its length.
int pagedepot_fd(const pagedepot_t *handle);

// 1 when the address is in a page of the depot, else 0.
//
// Conditions:
// handle is NULL or a live depot.
int pagedepot_contains(const pagedepot_t *handle, const void *address);

// Allocates 2^order pages (order 0 to 10), aligned to their size. Returns NULL with errno: ENOMEM
// (no pages), EINVAL (no such order), EPERM (the depot is a parent process's).
//
// Conditions:
// handle is NULL or a live depot.
void *pagedepot_alloc(const pagedepot_t *handle, unsigned int order);

// Allocates a block as pagedepot_alloc() does, with PAGEDEPOT_ZEROED and others, or-ed.
//
// Conditions:
// handle is NULL or a live depot.
void *pagedepot_alloc_flags(const pagedepot_t *handle, unsigned int order, unsigned int flags);

// Allocates a block as pagedepot_alloc() does, and waits up to timeout_ms milliseconds until
// others have freed one. While requests wait no CPU caches, so that every free wakes one. Not for
// signal handlers. While requests wait these must not free either, and request with
// PAGEDEPOT_ATOMIC or PAGEDEPOT_NO_RECLAIM alone. Returns NULL with errno: ENOMEM when there was
// none in time, and at once for a block that no zone can ever have.
//
// Conditions:
// handle is NULL or a live depot.
void *pagedepot_alloc_wait(const pagedepot_t *handle, unsigned int order, unsigned int timeout_ms);

// Frees a block that pagedepot_alloc() gave for the same order. Any thread may. NULL: nothing.
// Returns 0, or -1 with errno: EINVAL when it can be no block of this order of this depot.
//
// Conditions:
// handle is NULL or a live depot. The block is the caller's, is freed once, and is not used any
// more.
int pagedepot_free(const pagedepot_t *handle, void *block, unsigned int order);

// Allocates up to count blocks into blocks[]. Returns how many, from the front; fewer than count
// with errno.
//
// Conditions:
// handle is NULL or a live depot; blocks has room for count pointers.
size_t pagedepot_alloc_many(const pagedepot_t *handle,
                            unsigned int order,
                            unsigned int flags,
                            void **blocks,
                            size_t count);

// Frees count blocks of one order. NULL: nothing. Bad ones are skipped, all others are freed.
// Returns how many were bad; with errno if there were any.
//
// Conditions:
// Each block must be one that pagedepot_free() takes; blocks has count pointers.
size_t pagedepot_free_many(const pagedepot_t *handle,
                           unsigned int order,
                           void *const *blocks,
                           size_t count);

// Frees count blocks of any orders. NULL: nothing. Bad ones are skipped, all others are freed.
// Returns how many were bad; with errno if there were any.
//
// Conditions:
// Each block must be one that pagedepot_free() takes; blocks has count of them.
size_t pagedepot_free_mixed(const pagedepot_t *handle,
                            const pagedepot_block_t *blocks,
                            size_t count);

// Allocates any number of contiguous pages up to 2^18, aligned to align_pages (a power of two; 0
// or 1: to a page), but in memory to no more than 1 GiB. Free them by
// pagedepot_free_contiguous(). Returns NULL with errno.
//
// Conditions:
// handle is NULL or a live depot.
void *pagedepot_alloc_contiguous(const pagedepot_t *handle,
                                 uint32_t pages,
                                 uint32_t align_pages,
                                 unsigned int flags);

// Frees contiguous pages, all or some of those that one call gave. NULL: nothing. Returns 0, or -1
// with errno.
//
// Conditions:
// Each page must be one that pagedepot_free() takes.
int pagedepot_free_contiguous(const pagedepot_t *handle, void *start, uint32_t pages);

// Makes blocks of order to of one block of order from: each is then freed by itself. Returns 0, or
// -1 with errno.
//
// Conditions:
// handle is NULL or a live depot; the block is the caller's.
int pagedepot_split(const pagedepot_t *handle, void *block, unsigned int from, unsigned int to);

// The order of the smallest block that holds so many bytes, in pages of the size that depots have
// on this system: 4 KiB, or the system's page size where that is larger. Returns -1 with errno
// EINVAL: none does.
int pagedepot_order_for(size_t bytes);

// Takes pages that CPUs cache back to the store: mode PAGEDEPOT_QUIET, PAGEDEPOT_FULL or
// PAGEDEPOT_HANDOVER. result may be NULL. Returns 0, or -1 with errno.
//
// What CPUs hand over later is brought to the store by the next drain, by requests that run short,
// and by pagedepot_drain_handover().
//
// Conditions:
// handle is NULL or a live depot; result is NULL or can be written.
int pagedepot_drain(const pagedepot_t *handle, int mode, pagedepot_drained_t *result);

// Drains as PAGEDEPOT_HANDOVER, and waits up to limit_ms milliseconds until each CPU has handed
// over. CPUs that have not after fence_after_ms milliseconds are interrupted, unless they are
// isolated; -1: never. result may be NULL.
//
// Returns 1 when all have handed over, 0 when some are still to come (pending_cpus), or -1 with
// errno.
//
// Conditions:
// handle is NULL or a live depot; result is NULL or can be written.
int pagedepot_drain_handover(const pagedepot_t *handle,
                             int fence_after_ms,
                             unsigned int limit_ms,
                             pagedepot_drained_t *result);

// Hands over what this thread's CPU keeps, if a drain has asked for it: for threads that are about
// to sleep, or to compute for long. Returns 1 when it has, 0 when nothing was asked, or -1 with
// errno.
//
// Conditions:
// handle is NULL or a live depot.
int pagedepot_hand_over(const pagedepot_t *handle);

// Gives the memory of free pages back to the system. result may be NULL. Returns 0, or -1 with
// errno: EBUSY when the depot is pinned.
//
// Conditions:
// handle is NULL or a live depot; result is NULL or can be written.
int pagedepot_trim(const pagedepot_t *handle, pagedepot_trimmed_t *result);

// Gives at least so many bytes of free memory back to the system, if there are as many, within
// limit_ms milliseconds: for a program that is told by a number what to give up. Whole pageblocks
// go first, then parts of others; then CPUs are asked for what they cache. Isolated CPUs are not
// interrupted: memory goes back while no thread of the program runs there. result may be NULL; it
// says how much went back, and why not more. Returns 0, or -1 with errno: EBUSY when the depot is
// pinned.
//
// Conditions:
// handle is NULL or a live depot; result is NULL or can be written.
int pagedepot_give_back(const pagedepot_t *handle,
                        uint64_t bytes,
                        unsigned int limit_ms,
                        pagedepot_given_back_t *result);

// Sets how many bytes the depot hands out and keeps resident at most, rounded down to whole
// pageblocks (512 pages). A lower ceiling takes pages back as a request does that runs short: it
// drains, and calls callbacks. Returns 0, or -1 with errno: EINVAL below one pageblock, ENOMEM
// when too much is held, then the ceiling is as low as it could be made; EBUSY when the depot is
// pinned, ENOTSUP when it can grow.
//
// In a depot that processes share, it is the most that this process holds and caches, rounded down
// to pages, as ceiling of its options; what others may have does not change. After ENOMEM it is in
// force: this process gets no page until it holds less. EINVAL below one page.
//
// Conditions:
// handle is NULL or a live depot. Not called by signal handlers, nor by callbacks.
int pagedepot_set_ceiling(const pagedepot_t *handle, size_t bytes);

// The ceiling in force: all bytes that the depot can have, unless one was set. 0: the handle is
// NULL.
//
// Conditions:
// handle is NULL or a live depot.
size_t pagedepot_ceiling(const pagedepot_t *handle);

// Keeps trims away from pages that a device maps (io_uring, VFIO, RDMA), until as many calls of
// pagedepot_unpin() with the same range. Returns 0, or -1 with errno: EINVAL when no page of the
// depot begins at start (a buffer that begins inside a page lies on one page more), or pages is
// more than there are.
//
// Conditions:
// handle is NULL or a live depot.
int pagedepot_pin(const pagedepot_t *handle, const void *start, uint32_t pages);

// See pagedepot_pin(). Returns 0, or -1 with errno: EINVAL when no page of the depot begins at
// start, or some of the pages are not pinned.
//
// Conditions:
// handle is NULL or a live depot.
int pagedepot_unpin(const pagedepot_t *handle, const void *start, uint32_t pages);

// Gives the memory of a block back to the system and keeps the block: its contents are zeroes from
// now on, and the next access brings memory again. Returns the bytes that were present, or -1 with
// errno: EBUSY when pages of it are pinned, EINVAL when it can be no block of this order of this
// depot, another when the system refuses.
//
// Conditions:
// handle is NULL or a live depot; the block is the caller's, of this order, and no thread uses
// it meanwhile.
int64_t pagedepot_discard(const pagedepot_t *handle, void *block, unsigned int order);

// Calls reclaim(context, ...) when pages run short, from the thread that asks for one: it frees
// what the program can do without and returns the number of pages. At most 7 can be registered,
// and one less for each of: a segment, a space that there ever was, a monitor that has set a
// ceiling. They go with the depot. Returns 0, or -1 with errno: ENOSPC for one too many.
//
// Conditions:
// handle is NULL or a live depot. reclaim may be called from any thread that allocates from
// the depot or sets its ceiling, and from those of the library, with context, until the depot is
// deleted; it neither unwinds nor jumps out.
int pagedepot_on_pressure(const pagedepot_t *handle, pagedepot_reclaim_t reclaim, void *context);

// Counts pages by place: sums over all zones, not read at one moment. Returns 0, or -1 with errno.
//
// Conditions:
// handle is NULL or a live depot; result is NULL or can be written.
int pagedepot_stats(const pagedepot_t *handle, pagedepot_stats_t *result);

// Checks the depot's metadata while no other thread is in a call of it. Returns the number of
// pages that callers hold, or -1 with errno EIO and a text that names the fault.
//
// Conditions:
// handle is NULL or a live depot.
int64_t pagedepot_validate(const pagedepot_t *handle);

// Starts a monitor of a depot: a thread that handles no signals and keeps off isolated CPUs. It
// has the depot's ceiling follow the limit of the program's memory cgroup, looks at the pressure
// that the kernel reports, and takes pages back in steps of growing force. options: NULL for the
// defaults. Returns NULL with errno and a text in pagedepot_last_error(): EDEADLK in a reclaim
// function that is called while its thread sets a ceiling.
//
// Conditions:
// handle is NULL or a live depot. options is NULL, or points to as many bytes as its field
// size says; callbacks has callbacks_count of them. They may be called from another thread
// until pagedepot_monitor_stop() returns, or for longer, as said there; none unwinds or jumps out.
pagedepot_monitor_t *pagedepot_monitor_start(const pagedepot_t *handle,
                                             const pagedepot_monitor_options_t *options);

// Ends a monitor, and waits for its thread, unless that calls this: then it ends when the function
// of the program that it is in returns. NULL: nothing. A forked child only frees the handle.
//
// A reclaim function that calls this while its thread sets a ceiling, of whatever depot, does not
// wait, either. The monitor's functions may then still run and be called: their contexts must stay
// valid until the program ends.
//
// Conditions:
// monitor is of pagedepot_monitor_start() and was not stopped before.
void pagedepot_monitor_stop(pagedepot_monitor_t *monitor);

// Reads the counts of a monitor. Returns 0, or -1 with errno.
//
// Conditions:
// monitor is NULL or runs; result can be written.
int pagedepot_monitor_counts(const pagedepot_monitor_t *monitor,
                             pagedepot_monitor_counts_t *result);

// Reserves so many bytes of addresses over a depot with PAGEDEPOT_MEMFD; 0: eight times the
// depot's, at least a GiB. An area that is freed stays mapped for the next request of its size, or
// is unmapped later: see pagedepot_purge(). Returns NULL with errno and a text in
// pagedepot_last_error().
//
// Conditions:
// handle is NULL or a live depot, which is deleted after the space.
pagedepot_space_t *pagedepot_space_new(const pagedepot_t *handle, size_t bytes);

// Unmaps a space; the pages of areas that were never freed go back to the depot. NULL: nothing.
//
// Conditions:
// space is of pagedepot_space_new() and was not deleted before. No thread is in a call of it,
// uses an area of it, or will do either.
void pagedepot_space_delete(pagedepot_space_t *space);

// Allocates bytes at contiguous addresses, rounded up to pages; a guard page follows. flags:
// PAGEDEPOT_ZEROED and others, or-ed. Returns NULL with errno: ENOMEM (no pages, addresses or
// mappings), EAGAIN (with PAGEDEPOT_ATOMIC or PAGEDEPOT_NO_RECLAIM: it would have to wait),
// EINVAL, EPERM (the depot is a parent process's).
//
// Conditions:
// space is NULL or a live space.
void *pagedepot_vmalloc(const pagedepot_space_t *space, size_t bytes, unsigned int flags);

// Frees what pagedepot_vmalloc() or pagedepot_vrealloc() returned. Any thread may. NULL: nothing.
// Returns 0, or -1 with errno: EINVAL when no such area begins there.
//
// Conditions:
// space is NULL or a live space; no thread uses the area any more.
int pagedepot_vfree(const pagedepot_space_t *space, void *area);

// Changes the size of an area of pagedepot_vmalloc(). Contents up to the smaller size are kept,
// and pages are mapped elsewhere, not copied, where it has to move. Sizes are rounded up to pages:
// with PAGEDEPOT_ZEROED pages behind the old ones are zero, and the rest of the last old page is
// as it was. Returns the new address, or NULL with errno, as pagedepot_vmalloc(); then the area is
// as it was.
//
// Conditions:
// space is NULL or a live space; no thread uses the area meanwhile, nor the old address
// afterwards.
void *pagedepot_vrealloc(const pagedepot_space_t *space,
                         void *area,
                         size_t bytes,
                         unsigned int flags);

// Maps count pages of the depot, named by the addresses of their first bytes, once more: one
// behind the other. They may be in any order, and repeat. Returns NULL with errno.
//
// Conditions:
// space is NULL or a live space; pages has count pointers. The caller holds the pages until
// pagedepot_vunmap().
void *pagedepot_vmap(const pagedepot_space_t *space, const void *const *pages, size_t count);

// Takes back the addresses that pagedepot_vmap() gave. They are unmapped later: until a
// pagedepot_purge() a stray access still reaches the pages. Returns 0, or -1 with errno.
//
// Conditions:
// The memory must be of this space, and is not used any more, as for pagedepot_vfree().
int pagedepot_vunmap(const pagedepot_space_t *space, void *area);

// Unmaps what was freed, that kept for the next requests included. Returns the number of pages
// that went back to the depot, or -1 with errno.
//
// Conditions:
// space is NULL or a live space.
int64_t pagedepot_purge(const pagedepot_space_t *space);

// Makes a segment of so many bytes in a new file, which stays when all processes have left. In
// /dev/shm it is named shared memory. path NULL: a memory file, which lives as long as a process
// has it open; others get pagedepot_shared_fd() over a socket or by fork. Other processes open or
// adopt it. All calls of a depot work on it; pagedepot_delete() leaves it.
//
// Returns NULL with errno and a text in pagedepot_last_error().
//
// Conditions:
// path is NULL or a string; options is NULL, or points to as many bytes as its size says.
pagedepot_t *pagedepot_create(const char *path,
                              size_t bytes,
                              const pagedepot_shared_options_t *options);

// Opens the segment in a file, and takes back what processes had that have died. Returns NULL with
// errno and a text.
//
// Conditions:
// path is a string; options is NULL, or points to as many bytes as its size says.
pagedepot_t *pagedepot_open(const char *path, const pagedepot_shared_options_t *options);

// Opens the segment behind a descriptor, which came over a socket or was inherited, and stays the
// caller's. Returns NULL with errno and a text.
//
// Conditions:
// options is NULL, or points to as many bytes as its size says.
pagedepot_t *pagedepot_adopt(int fd, const pagedepot_shared_options_t *options);

// The file of the segment, to send to another process. The depot closes it. Returns -1 with errno:
// ENOTSUP when processes do not share the depot.
//
// Conditions:
// handle is NULL or a live depot.
int pagedepot_shared_fd(const pagedepot_t *handle);

// Sends a block with its contents to the process that claims it, which may be the sender itself.
// Returns 0, or -1 with errno: the block is the caller's still.
//
// Conditions:
// handle is NULL or a live depot; the block is the caller's, of this order, and no thread uses
// it any more. sent can be written.
int pagedepot_send(const pagedepot_t *handle,
                   void *block,
                   unsigned int order,
                   pagedepot_sent_t *sent);

// Sends count blocks of one order like pagedepot_send(), 64 at a time, which costs less than
// single calls. Returns how many were sent, from the front; errno is set if some were not, which
// are the caller's still.
//
// Conditions:
// handle is NULL or a live depot; blocks has count blocks of the caller's, of this order,
// each one once, and no thread uses them any more. sent has room for count messages.
size_t pagedepot_send_many(const pagedepot_t *handle,
                           void *const *blocks,
                           unsigned int order,
                           pagedepot_sent_t *sent,
                           size_t count);

// Claims a block that a process has sent. order: NULL, or where its order goes. Returns its
// address, or NULL with errno: ENOENT (another process has claimed it, or it went back), EINVAL
// (no message of this segment), ENOMEM (the ceiling), EPERM (a forked child is no member).
//
// Conditions:
// handle is NULL or a live depot; order is NULL or can be written.
void *pagedepot_claim(const pagedepot_t *handle, pagedepot_sent_t sent, unsigned int *order);

// Claims count blocks that processes have sent, like pagedepot_claim(), 64 at a time, which costs
// less than single calls. Puts their addresses into blocks, NULL for each that it did not get, and
// their orders into orders, if that is not NULL. Returns how many it got; errno is that of the
// last one that it did not get.
//
// Conditions:
// handle is NULL or a live depot; sent has count messages, blocks room for as many, and
// orders too, or it is NULL.
size_t pagedepot_claim_many(const pagedepot_t *handle,
                            const pagedepot_sent_t *sent,
                            void **blocks,
                            unsigned int *orders,
                            size_t count);

// Takes back the pages of processes that have died, and with orphans not 0 also those that such a
// process had sent and that were not claimed. With orphans 2 also those that it has left to an
// heir. Requests that run short do so by themselves, without orphans. Returns the number of pages;
// 0 with errno for a handle that is none.
//
// Conditions:
// handle is NULL or a live depot.
uint64_t pagedepot_recover(const pagedepot_t *handle, int orphans);

// Takes up to count pages, with their contents, of processes that have died and had named this
// heir in their options; free each by pagedepot_free() with order 0. Returns how many it took: 0
// when there are none, or none that the ceiling allows, and with errno for a handle that is none.
//
// Conditions:
// handle is NULL or a live depot; pages has room for count pointers.
size_t pagedepot_inherit(const pagedepot_t *handle, uint64_t heir, void **pages, size_t count);

// Calls give(context) when another process of the segment runs short of pages, in place of the
// function before: it frees pages that this process can do without, by pagedepot_free(). The other
// process waits 50 ms for it at most. This call waits for a function before that runs. Returns 0,
// or -1 with errno.
//
// Conditions:
// handle is NULL or a live depot. give may be called from a thread of the library, with
// context, until the depot is deleted, which it does not do itself; it neither unwinds nor jumps
// out. The thread that deletes the depot, or calls this again, holds no lock that it takes.
int pagedepot_on_shortage(const pagedepot_t *handle, pagedepot_give_t give, void *context);

// Publishes a depot's statistics in a file that only this user can open, for pagedepot top: in
// directory, or where that is NULL in shared memory, where pagedepot top finds it by itself. A
// thread sleeps until a reader opens the file. Returns NULL with errno and a text in
// pagedepot_last_error().
//
// Conditions:
// handle is NULL or a live depot; directory is NULL or a string.
pagedepot_published_t *pagedepot_publish(const pagedepot_t *handle, const char *directory);

// The path of the file, for pagedepot top FILE. NULL: the pointer is NULL.
//
// Conditions:
// published is NULL or of pagedepot_publish(), and not withdrawn.
const char *pagedepot_published_path(const pagedepot_published_t *published);

// Removes the file and ends the thread. NULL: nothing. A forked child only frees the handle.
//
// Conditions:
// published is of pagedepot_publish() and was not withdrawn before.
void pagedepot_withdraw(pagedepot_published_t *published);

// Notes that a line of a program allocated a block, for pagedepot_allocinfo(); returns the block.
// Programs define PAGEDEPOT_CALL_SITES before they include this header, and call it by the macros
// at its end. It allocates memory for a line that is new: not for signal handlers. Without call
// sites in the library (cargo xtask install --prefix DIR --call-sites) it does nothing.
//
// Conditions:
// handle is NULL or a live depot; block is NULL or what a function of it has just allocated
// for this thread; file is a string.
void *pagedepot_note(const pagedepot_t *handle, void *block, const char *file, unsigned int line);

// Notes the line that allocated count blocks, as pagedepot_note() does; returns count.
//
// Conditions:
// Requires what pagedepot_note() requires; blocks has count pointers.
size_t pagedepot_note_many(const pagedepot_t *handle,
                           void *const *blocks,
                           size_t count,
                           const char *file,
                           unsigned int line);

// Writes which lines hold how many bytes of a depot, as the kernel's /proc/allocinfo, the most
// bytes first. At most size bytes are written, with a zero at the end. Returns how many bytes the
// whole text has without the zero, as snprintf() does; 0 with errno, and nothing is written:
// ENOTSUP (no call sites in this library: cargo xtask install --prefix DIR --call-sites), EINVAL
// (handle is NULL).
//
// Conditions:
// handle is NULL or a live depot; text has room for size bytes.
size_t pagedepot_allocinfo(const pagedepot_t *handle, char *text, size_t size);

// Describes this thread's last failure to make, open, grow, trim, pin or validate a depot, to give
// back or discard its memory, to wait for a handover, to set its ceiling, to have it call a
// function, or to make a space, a monitor or published statistics of it, and says what to do about
// it. The text is valid until the thread's next such failure. NULL: no such call has failed, or
// the thread is ending: functions of atexit(3) and destructors of C++ find errno alone.
//
// Calls that allocate and free set errno alone.
const char *pagedepot_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PAGEDEPOT_H */

/* A program that defines PAGEDEPOT_CALL_SITES has its lines in pagedepot_allocinfo(). Of the
 * macros' arguments, depot and blocks are evaluated twice. */
#ifdef PAGEDEPOT_CALL_SITES
#define pagedepot_alloc(depot, order) \
    pagedepot_note((depot), pagedepot_alloc((depot), (order)), __FILE__, __LINE__)
#define pagedepot_alloc_flags(depot, order, flags) \
    pagedepot_note((depot), pagedepot_alloc_flags((depot), (order), (flags)), __FILE__, __LINE__)
#define pagedepot_alloc_wait(depot, order, ms) \
    pagedepot_note((depot), pagedepot_alloc_wait((depot), (order), (ms)), __FILE__, __LINE__)
#define pagedepot_alloc_contiguous(depot, pages, align, flags) \
    pagedepot_note((depot), pagedepot_alloc_contiguous((depot), (pages), (align), (flags)), \
                   __FILE__, __LINE__)
#define pagedepot_alloc_many(depot, order, flags, blocks, count) \
    pagedepot_note_many((depot), (blocks), \
                        pagedepot_alloc_many((depot), (order), (flags), (blocks), (count)), \
                        __FILE__, __LINE__)
#endif
