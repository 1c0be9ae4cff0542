//! The lines of Linux's log that say that the kernel is at fault.

/// Words of the kernel's log that a sound kernel does not say.
const FAULTS: [&str; 16] = [
    "WARNING:",
    "BUG:",
    // Of BUG(), with and without the file's name; then the trap by which it is raised.
    "kernel BUG at",
    "Kernel BUG at",
    "invalid opcode",
    "Oops",
    "Kernel panic",
    "Bad page state",
    "general protection",
    // No program of a machine touches what it has not mapped.
    "segfault at",
    "pagedepot panicked",
    "INFO: task",
    // Of lockdep, which then checks no more.
    "register non-static key",
    // Of RCU: by the CPU itself, or by another one.
    "detected stall",
    "detected expedited stall",
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
        assert!(is_fault("[    1.0] kernel BUG at mm/page_alloc.c:1!"));
        assert!(is_fault("[    1.0] Kernel BUG at f+0x1/0x2 [verbose debug info unavailable]"));
        assert!(is_fault("[    1.0] invalid opcode: 0000 [#1] SMP"));
        assert!(is_fault("[    1.0] init[7]: segfault at 8 ip 401000 sp 7ffc0 error 4"));
        assert!(is_fault("[    1.0] Kernel panic - not syncing: pagedepot panicked"));
        assert!(is_fault("[  310.0] rcu: INFO: rcu_sched self-detected stall on CPU"));
        assert!(is_fault("[  310.0] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:"));
        assert!(is_fault("[  310.0] rcu: INFO: rcu_sched detected expedited stalls on CPUs"));
        assert!(is_fault("[    1.0] INFO: trying to register non-static key."));
        assert!(is_fault("[    1.0] [ BUG: Invalid wait context ]"));
        assert!(!is_fault("[    1.0] Out of memory: Killed process 3 (init)"));
    }
}
