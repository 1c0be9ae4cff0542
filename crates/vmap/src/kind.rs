//! Kinds of areas.

/// The request that allocated an area, which decides the method that frees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Address space with nothing mapped.
    Address = 0,
    /// The caller's frames are mapped in it.
    Vmap = 1,
    /// Frames that the area owns are mapped in it.
    Vmalloc = 2,
    /// A short-lived mapping of the caller's frames.
    Ram = 3,
    /// Addresses that the mapper has lost. No request gets them again, and nothing frees them.
    Lost = 4,
}

impl Kind {
    pub(crate) const fn from_bits(bits: u64) -> Self {
        match bits {
            0 => Kind::Address,
            1 => Kind::Vmap,
            2 => Kind::Vmalloc,
            3 => Kind::Ram,
            _ => Kind::Lost,
        }
    }

    /// Name of the method that frees such an area.
    pub const fn freed_by(self) -> &'static str {
        match self {
            Kind::Address => "free",
            Kind::Vmap => "vunmap",
            Kind::Vmalloc => "vfree",
            Kind::Ram => "vm_unmap_ram",
            Kind::Lost => "nothing: its addresses are lost",
        }
    }

    /// Name of the kind in a listing, as in `/proc/vmallocinfo`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Address => "area",
            Kind::Vmap => "vmap",
            Kind::Vmalloc => "vmalloc",
            Kind::Ram => "vm_map_ram",
            Kind::Lost => "lost",
        }
    }
}
