//! Numbers in arguments, read with errors that say what may be given.

use std::num::NonZeroU32;

use pagedepot::Order;

/// Most samples of a figure: the command keeps all of them in memory.
pub const RUNS_MAX: u32 = 100_000;

/// A number of at least 1.
///
/// # Errors
/// For anything else.
pub fn positive(text: &str) -> Result<NonZeroU32, String> {
    let number = whole::<{ u32::MAX }>(text)?;
    Ok(NonZeroU32::new(number).expect("at least 1"))
}

/// A number from 1 to `MAX`.
///
/// # Errors
/// For anything else.
pub fn whole<const MAX: u32>(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX).contains(number));
    number.ok_or_else(|| format!("give a whole number of at least 1, and at most {MAX}"))
}

/// An order of blocks.
///
/// # Errors
/// For what is none.
pub fn order(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|&number| Order::new(number).is_some());
    number.ok_or_else(|| format!("give an order from 0 to {}", Order::MAX))
}

/// Memory in MiB: whole blocks of the largest order, of 4 MiB.
///
/// # Errors
/// For anything else.
pub fn mebibytes(text: &str) -> Result<u32, String> {
    const RANGE: std::ops::RangeInclusive<u32> = 16..=1 << 20;
    let number = text.parse().ok().filter(|mib: &u32| RANGE.contains(mib) && mib.is_multiple_of(4));
    number.ok_or_else(|| {
        format!("give MiB, a multiple of 4 from {} to {}", RANGE.start(), RANGE.end())
    })
}

/// A share in percent, from 1 to 99.
///
/// # Errors
/// For anything else.
pub fn percent(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|percent| (1..=99).contains(percent));
    number.ok_or_else(|| "give a whole number of percent from 1 to 99".to_owned())
}

/// A seed for random numbers: 0 to 2^64 - 1.
///
/// # Errors
/// For anything else.
pub fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("give a whole number of at least 0, and at most {}", u64::MAX))
}
