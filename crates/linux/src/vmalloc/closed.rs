//! Programs that must not compile: without `unsafe` they would reach memory that is not theirs.
//! Beside each stands the same program with `unsafe`, which compiles. So nothing but `unsafe` is
//! missing.

/// With a mapper and a host over different depots, an address space would map pages that other code
/// holds. The same holds for a mapper that breaks its contract.
/// ```no_run
/// use std::mem::MaybeUninit;
/// use pagedepot_vmap::{Vmap, VmapConfig};
/// use pagedepot_linux::vmalloc::{DepotHost, LinuxMapper, Options};
/// use pagedepot_linux::{Depot, MemoryKind};
/// let depot = || Depot::builder(16 << 20).memory(MemoryKind::Memfd).build().unwrap();
/// let (mapper, host) = (LinuxMapper::new(&depot(), 1 << 24, None), DepotHost::new(&depot()));
/// let mapper = mapper.unwrap();
/// let mut metadata = vec![MaybeUninit::uninit(); 1 << 20];
/// // SAFETY: none; this is what must not be done.
/// let vmap = unsafe { Vmap::new(&VmapConfig::new(1, 100), &mut metadata, mapper, host) }.unwrap();
/// vmap.vmalloc(1, Options::DEFAULT).unwrap();
/// ```
/// ```compile_fail,E0133
/// use std::mem::MaybeUninit;
/// use pagedepot_vmap::{Vmap, VmapConfig};
/// use pagedepot_linux::vmalloc::{DepotHost, LinuxMapper, Options};
/// use pagedepot_linux::{Depot, MemoryKind};
/// let depot = || Depot::builder(16 << 20).memory(MemoryKind::Memfd).build().unwrap();
/// let (mapper, host) = (LinuxMapper::new(&depot(), 1 << 24, None), DepotHost::new(&depot()));
/// let mapper = mapper.unwrap();
/// let mut metadata = vec![MaybeUninit::uninit(); 1 << 20];
/// let vmap = Vmap::new(&VmapConfig::new(1, 100), &mut metadata, mapper, host).unwrap();
/// vmap.vmalloc(1, Options::DEFAULT).unwrap();
/// ```
pub struct AddressSpaceIsUnsafeToMakeByHand;

/// This would hand out a page again that the program holds.
/// ```no_run
/// use pagedepot_vmap::Host;
/// use pagedepot_linux::{Order, Page, vmalloc::DepotHost};
/// fn free(host: &DepotHost, held: &Page) {
///     // SAFETY: none; this is what must not be done.
///     let _ = unsafe { host.free_blocks(&[(held.pfn(), Order::BASE)]) };
/// }
/// ```
/// ```compile_fail,E0133
/// use pagedepot_vmap::Host;
/// use pagedepot_linux::{Order, Page, vmalloc::DepotHost};
/// fn free(host: &DepotHost, held: &Page) {
///     let _ = host.free_blocks(&[(held.pfn(), Order::BASE)]);
/// }
/// ```
pub struct PagesAreUnsafeToFreeByHost;
