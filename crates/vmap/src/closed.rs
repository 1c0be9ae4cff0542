//! Programs that must not compile, because without `unsafe` they would reach memory that does not
//! belong to them. Beside each stands the same program with `unsafe`, which compiles: so only that
//! word is missing.

/// The implementor of a host promises that the frames it hands out are free.
/// ```
/// use pagedepot_vmap::Host;
/// use pagedepot::{AllocError, CpuId, Flags, FreeManyError, Order, Pfn};
/// struct Evil(Pfn);
/// // SAFETY: none; this is what a host must not do.
/// unsafe impl Host for Evil {
///     fn cpu(&self) -> Option<CpuId> { None }
///     fn alloc_block(&self, _: Order, _: Flags) -> Result<Pfn, AllocError> { Ok(self.0) }
///     fn alloc_frames(&self, _: Flags, _: &mut [Pfn]) -> Result<usize, AllocError> { Ok(1) }
///     unsafe fn free_blocks(&self, _: &[(Pfn, Order)]) -> Result<(), FreeManyError> { Ok(()) }
/// }
/// ```
/// ```compile_fail,E0200
/// use pagedepot_vmap::Host;
/// use pagedepot::{AllocError, CpuId, Flags, FreeManyError, Order, Pfn};
/// struct Evil(Pfn);
/// impl Host for Evil {
///     fn cpu(&self) -> Option<CpuId> { None }
///     fn alloc_block(&self, _: Order, _: Flags) -> Result<Pfn, AllocError> { Ok(self.0) }
///     fn alloc_frames(&self, _: Flags, _: &mut [Pfn]) -> Result<usize, AllocError> { Ok(1) }
///     unsafe fn free_blocks(&self, _: &[(Pfn, Order)]) -> Result<(), FreeManyError> { Ok(()) }
/// }
/// ```
pub struct HostIsUnsafeToImplement;

/// A caller that combines a mapper and a host promises that they mean the same frames.
/// ```
/// use pagedepot_vmap::{Host, Mapper, Vmap, VmapConfig};
/// fn bring<M: Mapper, H: Host>(mapper: M, host: H) {
///     let config = VmapConfig::new(1, 100);
///     // SAFETY: none; a function like this must be unsafe itself.
///     let _ = unsafe { Vmap::new(&config, &mut [], mapper, host) };
/// }
/// ```
/// ```compile_fail,E0133
/// use pagedepot_vmap::{Host, Mapper, Vmap, VmapConfig};
/// fn bring<M: Mapper, H: Host>(mapper: M, host: H) {
///     let config = VmapConfig::new(1, 100);
///     let _ = Vmap::new(&config, &mut [], mapper, host);
/// }
/// ```
pub struct VmapIsUnsafeToMake;

/// A caller that frees or splits a host's block promises to hold it.
/// ```
/// use pagedepot_vmap::Host;
/// use pagedepot::{Order, Pfn};
/// fn free(host: &impl Host, frame: Pfn) {
///     // SAFETY: none; a function like this must be unsafe itself.
///     unsafe {
///         let _ = host.split_block(frame, Order::MAX);
///         let _ = host.free_blocks(&[(frame, Order::BASE)]);
///     }
/// }
/// ```
/// ```compile_fail,E0133
/// use pagedepot_vmap::Host;
/// use pagedepot::{Order, Pfn};
/// fn free(host: &impl Host, frame: Pfn) {
///     let _ = host.free_blocks(&[(frame, Order::BASE)]);
/// }
/// ```
/// ```compile_fail,E0133
/// use pagedepot_vmap::Host;
/// use pagedepot::{Order, Pfn};
/// fn split(host: &impl Host, frame: Pfn) {
///     let _ = host.split_block(frame, Order::MAX);
/// }
/// ```
pub struct BlocksAreUnsafeToFree;
