//! Numbers of clients that workloads are measured with.

/// Numbers of clients to measure with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Clients {
    /// The workload's usual numbers; for touch and pft those of mmtests: see [`auto`].
    #[default]
    Auto,
    /// The given numbers, ascending.
    These(Vec<usize>),
}

impl Clients {
    /// Parses `auto` or `1,2,4`.
    ///
    /// # Errors
    /// Says what may be given.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Clients::Auto);
        }
        let numbers = text.split(',').map(|number| number.parse().ok().filter(|&n| n > 0));
        let mut these: Vec<usize> = numbers
            .collect::<Option<_>>()
            .ok_or("give auto, or numbers of at least 1, separated by commas".to_owned())?;
        these.sort_unstable();
        these.dedup();
        Ok(Clients::These(these))
    }
}

/// mmtests' pft has no more, whatever the machine: its `pft-bench` says so itself, which is why the
/// rcu thread's tables end at 128 on a machine with 256 CPUs.
pub const CLIENTS_MAX: usize = 128;

/// The numbers of clients that mmtests measured with when the threads' tables were made: 1 up to
/// the number of CPUs or [`CLIENTS_MAX`], in steps that grow (`threads_large_stride_begin` in its
/// `rewrite-shellpack`, as of 2022).
pub fn auto(cpus: usize) -> Vec<usize> {
    let last = cpus.min(CLIENTS_MAX);
    let steps = |from: usize, step: usize, to: usize| (from..=to).step_by(step);
    let mut clients: Vec<usize> = match last {
        0 => return Vec::new(),
        33.. => steps(1, 3, 8).chain(steps(12, 9, 32)).chain(steps(48, 31, last)).collect(),
        9.. => steps(1, 2, 8).chain(steps(12, 6, last)).collect(),
        _ => steps(1, 2, last).collect(),
    };
    if clients.last() != Some(&last) {
        clients.push(last);
    }
    clients
}

/// 1, 2, 4 ... and all CPUs: the points of a curve of speed-up.
pub fn doubling(cpus: usize) -> Vec<usize> {
    let smaller = |n: usize| Some(n).filter(|&n| n < cpus);
    std::iter::successors(smaller(1), |n| smaller(2 * n)).chain([cpus]).collect()
}

/// The note for a list that ends before the CPUs do.
pub fn cap(cpus: usize) -> Option<String> {
    (cpus > CLIENTS_MAX).then(|| {
        format!(
            "clients end at {CLIENTS_MAX} of {cpus} CPUs, as in mmtests, whose pft has no more; \
             for all CPUs give `compare --clients` a list that ends in {cpus}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_those_of_mmtests() {
        assert!(auto(0).is_empty());
        assert_eq!(auto(1), [1]);
        assert_eq!(auto(2), [1, 2]);
        assert_eq!(auto(8), [1, 3, 5, 7, 8]);
        assert_eq!(auto(9), [1, 3, 5, 7, 9]);
        assert_eq!(auto(33), [1, 4, 7, 12, 21, 30, 33]);
        assert_eq!(auto(128), auto(256));
        assert_eq!((cap(128), cap(256).is_some()), (None, true));
    }

    #[test]
    fn doubling_ends_with_all() {
        let counts = [1, 2, 3, 16, 20].map(doubling);
        let expected: [&[usize]; 5] =
            [&[1], &[1, 2], &[1, 2, 3], &[1, 2, 4, 8, 16], &[1, 2, 4, 8, 16, 20]];
        assert_eq!(counts.each_ref().map(Vec::as_slice), expected);
    }

    #[test]
    fn lists_are_sorted_and_zero_is_none() {
        assert_eq!(Clients::parse("auto"), Ok(Clients::Auto));
        assert_eq!(Clients::parse("4,1,4"), Ok(Clients::These(vec![1, 4])));
        for bad in ["", "0", "1,0", "1,,2", "-1", "all"] {
            assert!(Clients::parse(bad).is_err(), "{bad}");
        }
    }
}
