//! Names of blocks: a frame number or an address.

/// A frame number or an address.
pub trait Block: Copy + Send {
    /// The block as a number, in a register.
    fn bits(self) -> usize;

    /// The block with these bits, which [`bits`](Block::bits) gave.
    fn from_bits(bits: usize) -> Self;

    /// Implements [`observe`]; numbers of 32 bits have a shorter way.
    #[inline(always)]
    fn observe(self) {
        observe_usize(self.bits());
    }
}

impl Block for pagedepot::Pfn {
    fn bits(self) -> usize {
        self.index()
    }

    fn from_bits(bits: usize) -> Self {
        pagedepot::Pfn::new(bits as u32)
    }

    #[inline(always)]
    fn observe(self) {
        observe_u32(self.get());
    }
}

impl Block for u32 {
    fn bits(self) -> usize {
        self as usize
    }

    fn from_bits(bits: usize) -> Self {
        bits as u32
    }

    #[inline(always)]
    fn observe(self) {
        observe_u32(self);
    }
}

impl Block for usize {
    fn bits(self) -> usize {
        self
    }

    fn from_bits(bits: usize) -> Self {
        bits
    }
}

/// Lets the compiler think that `block` is used, so that no pair of operations cancels out.
///
/// `black_box` would do, but sends the value through memory: on our test machine that adds 0.4 ns
/// to pairs that take 1.4, the same for all, and so makes every ratio look better than it is.
#[inline(always)]
pub fn observe(block: impl Block) {
    block.observe();
}

/// Observes a number of 32 bits, in a register. To extend it to 64 bits first is an instruction of
/// the pair, which adds a thirtieth to one that is bound by its instructions.
#[inline(always)]
fn observe_u32(number: u32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: no instructions. Not `nomem`: memory may be looked at, too.
    unsafe {
        std::arch::asm!("/* {0:e} */", in(reg) number, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(number);
}

/// Observes a number of 64 bits, in a register.
#[inline(always)]
fn observe_usize(number: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: no instructions. Not `nomem`: memory may be looked at, too.
    unsafe {
        std::arch::asm!("/* {0} */", in(reg) number, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(number);
}
