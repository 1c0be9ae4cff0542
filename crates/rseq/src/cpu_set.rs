//! Sets of CPUs, and the kernel's notation for them.

use core::fmt;
use core::str::FromStr;

use pagedepot::CpuId;

/// One past the highest CPU number that a set has. Kernels support 8192 CPUs at most
/// (`CONFIG_NR_CPUS`); the limit keeps a bad file, or the number in an area that the kernel has not
/// registered, from asking for half a gigabyte.
const CPUS_MAX: u32 = 1 << 20;

/// A set of CPUs. Its text is the kernel's list format: `0-3,8,10-11`. Programs that use a depot
/// find it in `pagedepot_linux::builder`, and `CpuId` in `pagedepot_linux`.
///
/// ```
/// # use pagedepot_rseq::{CpuId, CpuSet};
/// let isolated: CpuSet = "2-3,7".parse()?;
/// assert!(isolated.contains(CpuId::new(3)));
/// assert_eq!(isolated.highest(), Some(CpuId::new(7)));
/// # Ok::<(), pagedepot_rseq::CpuListError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CpuSet {
    /// Bit `n % 64` of word `n / 64`; the last word is not 0.
    words: Vec<u64>,
}

impl CpuSet {
    /// An empty set.
    pub const fn new() -> Self {
        CpuSet { words: Vec::new() }
    }

    /// Adds a CPU; `true` if the set did not contain it. Numbers from 2^20 on are no CPU's, and are
    /// left out.
    pub fn insert(&mut self, cpu: CpuId) -> bool {
        if cpu.get() >= CPUS_MAX {
            return false;
        }
        let word = cpu.index() / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let is_new = !self.contains(cpu);
        self.words[word] |= 1 << (cpu.get() % 64);
        is_new
    }

    /// Whether the set contains `cpu`.
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words.get(cpu.index() / 64).is_some_and(|word| word & 1 << (cpu.get() % 64) != 0)
    }

    /// The CPU with the highest number; `None` for an empty set.
    pub fn highest(&self) -> Option<CpuId> {
        let last = self.words.last()?;
        Some(CpuId::new(self.words.len() as u32 * 64 - 1 - last.leading_zeros()))
    }

    /// Whether the set contains no CPU.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The CPUs of the set, by ascending number.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> {
        (0..self.words.len() as u32 * 64).map(CpuId::new).filter(|&cpu| self.contains(cpu))
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = CpuSet::new();
        set.extend(cpus);
        set
    }
}

impl Extend<CpuId> for CpuSet {
    fn extend<I: IntoIterator<Item = CpuId>>(&mut self, cpus: I) {
        cpus.into_iter().for_each(|cpu| _ = self.insert(cpu));
    }
}

/// The error of a text that is no list of CPUs. Its text names the part that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuListError {
    part: String,
}

impl fmt::Display for CpuListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no CPU, no ascending range of CPUs, or not below {CPUS_MAX}: write lists as \
             0-3,8",
            self.part
        )
    }
}

impl core::error::Error for CpuListError {}

/// Parses `a`, `a-b`, or `a-b:used/group`, the first `used` of each `group` CPUs
/// (`bitmap_parselist` in the kernel's `lib/bitmap-str.c`), to first, last, `used` and `group`.
fn parse_part(part: &str) -> Option<(u32, u32, u32, u32)> {
    let (range, stride) =
        part.split_once(':').map_or((part, None), |(range, stride)| (range, Some(stride)));
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    let (used, group) = match stride {
        None => (1, 1),
        Some(stride) => {
            let (used, group) = stride.split_once('/')?;
            (used.parse().ok()?, group.parse().ok()?)
        }
    };
    (first <= last && last < CPUS_MAX && used > 0 && used <= group)
        .then_some((first, last, used, group))
}

impl FromStr for CpuSet {
    type Err = CpuListError;

    fn from_str(list: &str) -> Result<Self, CpuListError> {
        let mut set = CpuSet::new();
        for part in list.trim().split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (first, last, used, group) =
                parse_part(part).ok_or_else(|| CpuListError { part: part.to_owned() })?;
            set.extend((first..=last).filter(|cpu| (cpu - first) % group < used).map(CpuId::new));
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|next| next.get() == last.get() + 1) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last != first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

#[cfg(test)]
mod tests {
    //! 1. A set written as a list and read back is the same set.
    //! 2. `contains`, `iter`, `len` and `highest` agree with a naive model.
    //! 3. No text makes the parser panic or take gigabytes.

    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn set(numbers: &BTreeSet<u32>) -> CpuSet {
        numbers.iter().copied().map(CpuId::new).collect()
    }

    proptest! {
        #[test]
        fn agrees_with_a_model(numbers in proptest::collection::btree_set(0u32..300, 0..64)) {
            let mut cpus = set(&numbers);
            let is_new = |n| cpus.clone().insert(CpuId::new(n));
            prop_assert!((0..400).all(|n| is_new(n) != numbers.contains(&n)));
            prop_assert!(numbers.iter().all(|&n| !cpus.insert(CpuId::new(n))));
            prop_assert_eq!(cpus.iter().map(CpuId::get).collect::<BTreeSet<_>>(), numbers.clone());
            prop_assert_eq!(cpus.len(), numbers.len());
            prop_assert_eq!(cpus.is_empty(), numbers.is_empty());
            prop_assert_eq!(cpus.highest().map(CpuId::get), numbers.last().copied());
            prop_assert!((0..400).all(|n| cpus.contains(CpuId::new(n)) == numbers.contains(&n)));
            prop_assert_eq!(cpus.to_string().parse::<CpuSet>().unwrap(), cpus);
        }

        #[test]
        fn never_panics(list in "[-0-9,:/ \n]{0,24}") {
            if let Ok(cpus) = list.parse::<CpuSet>() {
                prop_assert!(cpus.highest().is_none_or(|cpu| cpu.get() < CPUS_MAX));
            }
        }
    }

    #[test]
    fn has_no_number_that_no_cpu_has() {
        let last = CPUS_MAX - 1;
        let cpus: CpuSet = [CPUS_MAX, 3, last, u32::MAX].map(CpuId::new).into_iter().collect();
        assert!(cpus.iter().map(CpuId::get).eq([3, last]));
        assert_eq!(cpus.highest(), Some(CpuId::new(last)));
        assert!(!cpus.contains(CpuId::new(u32::MAX)));
    }

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!("\n".parse(), Ok(CpuSet::new()));
        assert_eq!("0-1\n".parse(), Ok(set(&[0, 1].into())));
        assert_eq!("0,2-4,9-9".parse(), Ok(set(&[0, 2, 3, 4, 9].into())));
        assert_eq!("0-9:2/4".parse(), Ok(set(&[0, 1, 4, 5, 8, 9].into())));
        assert_eq!(set(&[0, 2, 3, 4, 64].into()).to_string(), "0,2-4,64");
    }

    #[test]
    fn refuses_what_is_no_list() {
        for bad in
            ["x", "3-1", "1-", "-1", "0-4294967295", "4294967296", "0-3:0/2", "0-3:3/2", "1 2"]
        {
            let error = bad.parse::<CpuSet>().unwrap_err();
            assert!(error.to_string().contains("write lists as"), "{bad}: {error}");
        }
    }
}
