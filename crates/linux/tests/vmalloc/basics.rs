//! Buffers, raw calls, options.

use std::io::Write;

use crate::common::skip::skip;
use crate::common::{mib, page_bytes};
use pagedepot_linux::VmallocBuf;
use pagedepot_linux::builder::default_page_size;
use pagedepot_linux::vmalloc::{
    AreaState, Kind, Options, PurgeDepth, StaleData, VfreeError, VirtAddr, Vmalloc,
    VmallocBuildError, VmapError,
};
use pagedepot_linux::{Depot, Flags, MemoryKind, Order, PageSize, Pfn};

use crate::{all_back, common, depot};

#[test]
fn buffers_are_zeroed_and_as_large_as_asked() {
    let space = Vmalloc::new(&depot(64 * mib())).unwrap();
    for round in 0..4 {
        for pages in [1, 2, 16, 100, 300, 1025] {
            let mut buf = space.buf(pages * page_bytes() - 1).unwrap();
            assert_eq!((buf.len(), buf.addr() % page_bytes()), (pages * page_bytes(), 0));
            assert!(buf.iter().all(|&byte| byte == 0), "round {round}");
            buf.fill(0xa5);
        }
    }
    assert!(space.stats().pool_hits > 0);
    all_back(space);
}

/// The first byte that the second user of a size finds.
fn second_user_finds(stale: StaleData, options: Options) -> u8 {
    // Areas stay with the CPU that freed them: on another CPU the second user would get a cold one.
    common::pin(common::usable_cpus()[0]);
    let space = Vmalloc::builder(&depot(64 * mib())).stale(stale).build().unwrap();
    let mut first = space.buf(3 * page_bytes()).unwrap();
    first.fill(0xa5);
    let addr = first.addr();
    drop(first);
    let second = space.buf_with(3 * page_bytes(), options).unwrap();
    assert_eq!(second.addr(), addr, "it is not warm");
    let found = second[page_bytes() + 17];
    assert!(second.iter().all(|&byte| byte == found));
    drop(second);
    all_back(space);
    found
}

#[test]
fn stale_data_is_zeroed_poisoned_or_kept() {
    assert_eq!(second_user_finds(StaleData::Zero, Options::DEFAULT), 0);
    assert_eq!(second_user_finds(StaleData::Poison(0x6b), Options::DEFAULT), 0x6b);
    assert_eq!(second_user_finds(StaleData::Keep, Options::DEFAULT), 0xa5);
    assert_eq!(second_user_finds(StaleData::Keep, Options::DEFAULT.zeroed()), 0);
}

#[test]
fn buffers_grow_in_place_or_move_and_keep_their_contents() {
    let space = Vmalloc::new(&depot(64 * mib())).unwrap();
    let mut buf = space.buf(page_bytes()).unwrap();
    buf.fill(1);
    let before = buf.addr();
    buf.grow(10 * page_bytes()).unwrap();
    assert_eq!((buf.addr(), buf.pages()), (before, 10), "nothing is in its way");
    let wall = space.buf(page_bytes()).unwrap();
    buf[9 * page_bytes()..].fill(2);
    buf.grow(200 * page_bytes()).unwrap();
    assert_ne!(buf.addr(), before);
    assert_eq!(
        (buf[0], buf[page_bytes()], buf[9 * page_bytes()], buf[200 * page_bytes() - 1]),
        (1, 0, 2, 0)
    );
    buf.grow(page_bytes()).unwrap();
    assert_eq!(buf.pages(), 200, "grow does not shrink");
    buf.resize(2 * page_bytes() + 1).unwrap();
    assert_eq!((buf.pages(), buf[0], buf[2 * page_bytes()]), (3, 1, 0));
    assert_eq!(buf.resize(0), Ok(()));
    assert!(buf.is_empty() && buf.resize(page_bytes()).is_ok());
    assert_eq!(buf.resize(1 << 45), Err(VmapError::BadSize));
    drop((buf, wall));
    all_back(space);
}

/// Whether the kernel would write to an address for this process.
fn may_write(addr: usize) -> bool {
    let zero = std::fs::File::open("/dev/zero").unwrap();
    let iov = libc::iovec { iov_base: std::ptr::without_provenance_mut(addr), iov_len: 1 };
    use std::os::fd::AsRawFd;
    // SAFETY: writes a zero to an address of an area that this test holds, or fails.
    unsafe { libc::readv(zero.as_raw_fd(), &iov, 1) == 1 }
}

#[test]
fn guards_and_protection_are_the_kernels() {
    let space = Vmalloc::new(&depot(64 * mib())).unwrap();
    let buf = space.buf_with(2 * page_bytes(), Options::DEFAULT.guard_pages(3)).unwrap();
    assert!(may_write(buf.addr()) && may_write(buf.addr() + 2 * page_bytes() - 1));
    assert!((2..5).all(|page| !may_write(buf.addr() + page * page_bytes())));
    let read_only = Options::DEFAULT.protection(pagedepot_linux::vmalloc::Protection::READ);
    let page = space.vmalloc(1, read_only).unwrap();
    // SAFETY: just allocated, readable.
    assert_eq!(unsafe { page.read() }, 0);
    assert!(!may_write(page.addr().get()));
    // SAFETY: used no more.
    unsafe { space.vfree(page) }.unwrap();
    let buf2 = space.buf_with(page_bytes(), read_only).unwrap();
    assert!(may_write(buf2.addr()), "buffers can always be written");
    drop((buf, buf2));
    all_back(space);
}

#[test]
fn raw_calls_find_second_frees_and_wrong_ones() {
    let space = Vmalloc::new(&depot(64 * mib())).unwrap();
    let start = space.vmalloc(4, Options::DEFAULT.align(64 << 10)).unwrap();
    assert_eq!(start.addr().get() % (64 << 10), 0);
    // SAFETY: `start` is used no more after the first `vfree`; the others are refused.
    unsafe {
        assert_eq!(space.vfree(start.add(page_bytes())), Err(VfreeError::NotAllocated));
        assert_eq!(space.vunmap(start), Err(VfreeError::WrongKind(Kind::Vmalloc)));
        space.vfree_atomic(start).unwrap();
        assert_eq!(space.vfree(start), Err(VfreeError::NotAllocated));
        let outside = std::ptr::NonNull::from(&0u8);
        assert_eq!(space.vfree(outside), Err(VfreeError::OutOfRange));
    }
    assert_eq!(space.vmalloc(0, Options::DEFAULT), Err(VmapError::BadSize));
    assert_eq!(space.vmalloc(1, Options::DEFAULT.align(3)), Err(VmapError::BadAlign));
    all_back(space);
}

#[test]
fn frames_can_be_mapped_twice() {
    let depot = depot(64 * mib());
    let space = Vmalloc::builder(&depot).build().unwrap();
    let mut frames: Vec<Pfn> =
        (0..4).map(|_| depot.raw().alloc(Order::BASE, Flags::default()).unwrap()).collect();
    frames.extend_from_within(..);
    let ring = space.vmap(&frames, Options::DEFAULT).unwrap();
    // SAFETY: the frames are held, and mapped twice in a row.
    unsafe {
        ring.add(4 * page_bytes() - 2).cast::<[u8; 4]>().write(*b"ring");
        assert_eq!(&ring.cast::<[u8; 2]>().read(), b"ng");
        assert_eq!(&depot.raw().address(frames[0]).cast::<[u8; 2]>().read(), b"ng");
    }
    assert_eq!(space.pfn_of(ring.as_ptr()), Some(frames[0]));
    let short = space.vm_map_ram(&frames[..4], Options::DEFAULT).unwrap();
    // SAFETY: as above; unmapped once.
    unsafe {
        assert_eq!(&short.cast::<[u8; 2]>().read(), b"ng");
        space.vm_unmap_ram(short, 4).unwrap();
        assert!(space.vm_unmap_ram(short, 4).is_err());
    }
    assert!(space.vmap(&[Pfn::new(1 << 20)], Options::DEFAULT).is_err(), "no such frame");
    // SAFETY: not used any more; freed after nothing is mapped.
    unsafe {
        space.vunmap(ring).unwrap();
        space.purge(PurgeDepth::Lazy);
        frames[..4].iter().for_each(|&frame| depot.raw().free(frame, Order::BASE).unwrap());
    }
    drop(depot);
    all_back(space);
}

#[test]
fn reading_and_listing() {
    let space = Vmalloc::new(&depot(64 * mib())).unwrap();
    let mut buf = space.buf(2 * page_bytes()).unwrap();
    buf.fill(7);
    let mut seen = vec![1; 4 * page_bytes()];
    // From the last byte of the first page, over the guard, to where nothing is mapped.
    let at = buf.as_ptr().wrapping_add(page_bytes() - 1);
    assert_eq!(space.read_at(at, &mut seen), page_bytes() + 1);
    assert!(
        seen[..page_bytes() + 1].iter().all(|&byte| byte == 7)
            && seen[page_bytes() + 1..].iter().all(|&byte| byte == 0)
    );
    for (from, length) in [(3, 5), (1, 31), (4, 0), (8, 24)] {
        let mut small = [0; 40];
        let at = buf.as_ptr().wrapping_add(from);
        assert_eq!(space.read_at(at, &mut small[..length]), length);
        assert!(small[..length].iter().all(|&byte| byte == 7) && small[length] == 0);
    }
    let listing = space.vmallocinfo().to_string();
    let bytes = 3 * page_bytes();
    let line = format!("{:#018x}-{:#018x} {bytes:>8} ", buf.addr(), buf.addr() + bytes);
    assert!(listing.contains(&line), "{listing}");
    assert!(
        listing.contains("basics.rs:") && listing.contains("pages=2 vmalloc N0=2"),
        "{listing}"
    );
    let info = space.find(buf.as_ptr().wrapping_add(2 * page_bytes())).unwrap();
    assert_eq!((info.span.pages, info.guard_pages, info.state), (3, 1, AreaState::Busy));
    drop(buf);
    assert!(space.areas().all(|area| area.state == AreaState::Pooled));
    all_back(space);
}

#[test]
fn dropping_a_space_returns_what_was_not_freed() {
    let depot = depot(64 * mib());
    for _ in 0..20 {
        // More spaces, one after the other, than the depot has places for callbacks.
        let space = Vmalloc::new(&depot).unwrap();
        let _ = space.vmalloc(100, Options::DEFAULT).unwrap();
        let _ = space.buf(7 * page_bytes()).unwrap().into_raw();
        drop(space.buf(page_bytes()).unwrap());
    }
    common::all_back(&std::sync::Arc::into_inner(depot).unwrap());
}

#[test]
fn a_helper_purges() {
    let (wake, wakes) = std::sync::mpsc::sync_channel(1);
    let wake = move || {
        let _ = wake.try_send(());
    };
    let space =
        Vmalloc::builder(&depot(64 * mib())).warm_bytes(0).lazy_bytes(mib()).on_purge_wanted(wake);
    let space = space.build().unwrap();
    std::thread::scope(|scope| {
        let space = &space;
        let helper = scope.spawn(move || {
            wakes.recv().unwrap();
            space.purge(PurgeDepth::Decay).frames
        });
        while !helper.is_finished() {
            drop(space.buf(16 * page_bytes()).unwrap());
        }
        assert!(helper.join().unwrap() > 0 || space.stats().counts.purges > 0);
    });
    all_back(space);
}

#[test]
fn larger_base_pages() {
    let larger = match default_page_size() {
        PageSize::Kib4 => PageSize::Kib16,
        PageSize::Kib16 => PageSize::Kib64,
        PageSize::Kib64 => return skip("no pages are larger than the system's"),
    };
    let depot =
        Depot::builder(64 * mib()).memory(MemoryKind::Memfd).page_size(larger).build().unwrap();
    let space = Vmalloc::new(&depot).unwrap();
    let mut buf = space.buf(5 * page_bytes()).unwrap();
    assert_eq!((buf.len(), buf.pages()), (8 * page_bytes(), 2));
    buf.fill(1);
    assert!(!may_write(buf.addr() + 8 * page_bytes()));
    drop(buf);
    all_back(space);
}

/// Areas in one page table of the kernel's count it once, and a purge of all gives it back.
#[test]
fn a_page_table_is_counted_once() {
    let page = rustix::param::page_size();
    let space = Vmalloc::builder(&depot(mib())).bytes(1).build().unwrap();
    let (start, bytes) = space.range();
    assert_eq!(bytes, page / 8 * page, "a table has entries of eight bytes");
    let (start, middle) = (VirtAddr::new(start.addr().get()), bytes / 2);
    let windows = [(0, middle), (middle, bytes)].map(|(from, to)| (start.add(from), start.add(to)));
    let bufs = windows
        .map(|(from, to)| space.buf_with(page_bytes(), Options::DEFAULT.window(from, to)).unwrap());
    assert_eq!(space.page_table_bytes(), page as u64);
    drop(bufs);
    assert_eq!((space.shrink().tables, space.page_table_bytes()), (1, 0));
}

#[test]
fn bad_options_are_refused_with_advice() {
    let anonymous = Depot::new(mib()).unwrap();
    let error = Vmalloc::new(&anonymous).err().unwrap();
    assert_eq!(error, VmallocBuildError::NoFile);
    assert!(error.to_string().contains("MemoryKind::Memfd"));
    let depot = depot(mib());
    let refuse = |builder: pagedepot_linux::vmalloc::VmallocBuilder, advice: &str| {
        let error = builder.build().err().unwrap().to_string();
        assert!(error.contains(advice), "{error}");
    };
    refuse(Vmalloc::builder(&depot).bytes(0), "from 1 byte");
    refuse(Vmalloc::builder(&depot).bytes(usize::MAX), "2^32 pages");
    refuse(Vmalloc::builder(&depot).areas_max(1), "areas_max is 1");
    refuse(Vmalloc::builder(&depot).nodes(0), "cpus");
    refuse(Vmalloc::builder(&depot).mappings_max(3), "allow at least");
    (0..6).for_each(|_| depot.on_pressure(|_| 0).unwrap());
    let last = Vmalloc::new(&depot).unwrap();
    drop(last);
    let crowded = crate::depot(mib());
    while crowded.on_pressure(|_| 0).is_ok() {}
    refuse(Vmalloc::builder(&crowded), "shrinker(false)");
    drop(Vmalloc::builder(&crowded).shrinker(false).build().unwrap());
}

#[test]
fn a_space_can_be_shared() {
    fn shared<T: Send + Sync>() {}
    shared::<Vmalloc>();
    shared::<VmallocBuf>();
}

/// Changes the access of the program's own loads and stores to a page.
fn protect(page: *const u8, access: libc::c_int) {
    // SAFETY: the caller accesses the page only as it has allowed here.
    assert_eq!(unsafe { libc::mprotect(page.cast_mut().cast(), page_bytes(), access) }, 0);
}

/// A load by the program would be a data race beside the holder's plain stores, so `read_at` uses
/// none: it works where a load would fault.
#[test]
fn reading_makes_no_loads() {
    let depot = depot(16 * mib());
    let space = Vmalloc::new(&depot).unwrap();
    let mut page = depot.page(Order::BASE).unwrap();
    page.fill(7);
    let at = space.vmap(&[page.pfn()], Options::DEFAULT).unwrap();
    [page.as_ptr(), at.as_ptr()].iter().for_each(|&page| protect(page, libc::PROT_NONE));
    let mut seen = vec![1; page_bytes() + 100];
    assert_eq!(space.read_at(at.as_ptr().wrapping_add(50), &mut seen), page_bytes() - 50);
    protect(page.as_ptr(), libc::PROT_READ | libc::PROT_WRITE);
    assert!(
        seen[..page_bytes() - 50].iter().all(|&byte| byte == 7)
            && seen[page_bytes() - 50..].iter().all(|&byte| byte == 0)
    );
    // SAFETY: used no more.
    unsafe { space.vunmap(at) }.unwrap();
    space.purge(PurgeDepth::Lazy);
    drop(page);
    drop(depot);
    all_back(space);
}

#[test]
fn a_reserved_buffer_never_moves() {
    let space = Vmalloc::builder(&depot(64 * mib())).mappings_max(1000).build().unwrap();
    let mut buf = space.reserve(256 * mib()).unwrap();
    let (start, mappings) = (buf.addr(), space.mappings());
    assert_eq!((buf.len(), buf.capacity()), (0, 256 * mib()));
    let other = space.buf(mib()).unwrap();
    for mebibytes in 1..=40 {
        buf.grow(mebibytes * mib()).unwrap();
        assert!(buf[(mebibytes - 1) * mib()..].iter().all(|&byte| byte == 0));
        buf[(mebibytes - 1) * mib()..].fill(mebibytes as u8);
    }
    assert!((0..40).all(|mebibyte| buf[mebibyte * mib()] == mebibyte as u8 + 1));
    // A mapping for each run of frames, and for what lies behind.
    assert!(space.mappings() <= mappings + 60, "{} of {mappings}", space.mappings());
    let error = buf.grow(100 * mib()).unwrap_err();
    assert!(matches!(error, VmapError::Frames(_)), "{error:?}");
    assert_eq!((buf.len(), buf[40 * mib() - 1]), (40 * mib(), 40));
    buf.resize(mib() / 2).unwrap();
    buf.resize(0).unwrap();
    assert_eq!((buf.addr(), buf.len(), buf.capacity()), (start, 0, 256 * mib()));
    buf.grow(3 * mib()).unwrap();
    assert!(buf.iter().all(|&byte| byte == 0));
    let mut writer = buf.writer(0);
    (0..20_000).for_each(|line| writeln!(writer, "line {line}, and more of it").unwrap());
    assert_eq!(buf.addr(), start);
    let (raw, pages) = buf.into_raw().unwrap();
    // SAFETY: just given up.
    let buf = unsafe { VmallocBuf::from_raw(space.clone(), raw, pages) };
    assert_eq!((buf.addr(), buf.capacity()), (start, 256 * mib()));
    drop(buf);
    // SAFETY: empty buffers with addresses have a raw form, too.
    let (raw, pages) = space.reserve(page_bytes()).unwrap().into_raw().unwrap();
    // SAFETY: just given up.
    drop(unsafe { VmallocBuf::from_raw(space.clone(), raw, pages) });
    assert_eq!(space.reserve(0).unwrap_err(), VmapError::BadSize);
    drop(other);
    all_back(space);
}

#[test]
fn a_writer_fills_a_depot_that_has_no_room_for_twice_the_buffer() {
    let depot = depot(16 * mib());
    let page = depot.page(Order::BASE).unwrap();
    let space = Vmalloc::builder(&depot).build().unwrap();
    for mut buf in [space.reserve(16 * mib()).unwrap(), space.empty()] {
        let mut writer = buf.writer(0);
        (0..15).for_each(|byte| writer.write_all(&vec![byte; mib()]).unwrap());
        assert!(writer.write_all(&vec![15; mib()]).is_err());
        assert_eq!(writer.position(), 15 * mib());
        assert!((0..15).all(|byte| buf[(byte + 1) * mib() - 1] == byte as u8));
    }
    drop(page);
    drop(depot);
    all_back(space);
}

/// Writes of a page each, where twice the buffer is more than the depot has.
#[test]
fn a_writer_does_not_try_in_vain_with_each_write() {
    let depot = depot(16 * mib());
    let held = depot.page(Order::BASE).unwrap();
    let space = Vmalloc::builder(&depot).build().unwrap();
    let mut buf = space.empty();
    let mut writer = buf.writer(0);
    let page = vec![7; page_bytes()];
    (0..15 * 256).for_each(|_| writer.write_all(&page).unwrap());
    assert_eq!(space.stats().counts.failures, 0);
    drop((buf, held));
    drop(depot);
    all_back(space);
}

#[test]
fn a_writer_moves_no_buffer_within_reserved_addresses() {
    let space = Vmalloc::builder(&depot(64 * mib())).build().unwrap();
    let mut buf = space.reserve(12 * mib()).unwrap();
    let other = space.buf(mib()).unwrap();
    let start = buf.addr();
    let mut writer = buf.writer(0);
    (0..12).for_each(|byte| writer.write_all(&vec![byte; mib()]).unwrap());
    assert_eq!((buf.addr(), buf.len()), (start, 12 * mib()));
    buf.writer(12 * mib()).write_all(&[12]).unwrap();
    assert!((0..=12).all(|byte| buf[byte * mib()] == byte as u8));
    drop((buf, other));
    all_back(space);
}
