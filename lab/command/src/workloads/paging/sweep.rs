//! Cold caches for all contenders alike.

use std::fs;
use std::hint::black_box;

/// The largest cache of CPU 0, as the kernel tells it: `32768K`.
const SIZE: &str = "/sys/devices/system/cpu/cpu0/cache/index3/size";
/// Assumed where the kernel does not tell.
const DEFAULT_BYTES: usize = 32 << 20;
const MAX_BYTES: usize = 1 << 30;
const LINE_BYTES: usize = 64;

/// Memory of twice the size of the last-level cache, which no contender has anything in.
pub struct Sweep(Vec<u8>);

impl Sweep {
    /// Twice the size of the last-level cache, touched, so that it is memory.
    pub fn new() -> Self {
        let cache_bytes = fs::read_to_string(SIZE).ok().and_then(|size| bytes(&size));
        Sweep(vec![1; (2 * cache_bytes.unwrap_or(DEFAULT_BYTES)).min(MAX_BYTES)])
    }

    /// Reads all of it, which evicts everything else from the caches.
    pub fn run(&self) {
        let sum: u64 = self.0.iter().step_by(LINE_BYTES).map(|&byte| u64::from(byte)).sum();
        black_box(sum);
    }
}

/// `32768K` or `8M` as bytes.
fn bytes(size: &str) -> Option<usize> {
    let size = size.trim();
    let (number, shift) = match size.strip_suffix('K') {
        Some(number) => (number, 10),
        None => (size.strip_suffix('M')?, 20),
    };
    number.parse::<usize>().ok()?.checked_mul(1 << shift).filter(|&bytes| bytes <= MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_kernel_writes_them() {
        assert_eq!(bytes("32768K\n"), Some(32 << 20));
        assert_eq!(bytes("8M"), Some(8 << 20));
        for odd in ["", "K", "12", "-1K", "99999999999999999999K", "4096M"] {
            assert_eq!(bytes(odd), None, "{odd}");
        }
    }
}
