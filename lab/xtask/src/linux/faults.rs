//! The lines of Linux's log that say that the kernel is at fault.

/// Words of the kernel's log that a sound kernel does not say.
const FAULTS: [&str; 9] = [
    "WARNING:",
    "BUG:",
    "Oops",
    "Kernel panic",
    "Bad page state",
    "general protection",
    "pagedepot panicked",
    "INFO: task",
    "keeps its lists",
];

/// Whether a line of the console tells of a fault of the kernel.
pub fn is_fault(line: &str) -> bool {
    FAULTS.iter().any(|fault| line.contains(fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_the_kernel_are_heard() {
        assert!(is_fault("[    1.0] WARNING: CPU: 0 PID: 1 at mm/page_alloc.c:3 f+0x1/0x2"));
        assert!(is_fault("[    1.0] Kernel panic - not syncing: pagedepot panicked"));
        assert!(!is_fault("[    1.0] Out of memory: Killed process 3 (init)"));
    }
}
