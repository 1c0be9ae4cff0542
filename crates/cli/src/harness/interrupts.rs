//! Interrupts that one CPU sends another, as `/proc/interrupts` counts them.

use std::fs;

use pagedepot::CpuId;

const PATH: &str = "/proc/interrupts";

/// The end of the line that counts function calls: what `membarrier` arrives as, and TLB shootdowns
/// where they are interrupts, so that their line counts them a second time. The labels in front are
/// x86's alone.
pub const FUNCTION_CALLS: &str = "Function call interrupts";
/// The end of x86's line of TLB shootdowns.
pub const SHOOTDOWNS: &str = "TLB shootdowns";
/// The note of a run in which the kernel counts no interrupts.
pub const NOT_COUNTED: &str = "interrupts: left out, because /proc/interrupts has no line of \
     function calls";
/// Interrupts from other CPUs.
const LINES: [&str; 2] = [FUNCTION_CALLS, "Rescheduling interrupts"];

/// Interrupts that other CPUs sent to `cpu` since boot; `None` where the kernel does not tell.
pub fn sent_to(cpu: CpuId) -> Option<u64> {
    count(&fs::read_to_string(PATH).ok()?, cpu)
}

fn count(text: &str, cpu: CpuId) -> Option<u64> {
    let mut lines = text.lines();
    let name = format!("CPU{cpu}");
    // Only online CPUs have a column.
    let column = lines.next()?.split_whitespace().position(|heading| heading == name)?;
    let counts: Vec<u64> = lines.filter_map(|line| field(line, column)).collect();
    (!counts.is_empty()).then(|| counts.iter().sum())
}

fn field(line: &str, column: usize) -> Option<u64> {
    let is_wanted = LINES.iter().any(|name| line.trim_end().ends_with(name));
    // Behind the label.
    is_wanted.then(|| line.split_whitespace().nth(1 + column)?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "           CPU0       CPU2       
 24:          1          9  IO-APIC   5-edge      ACPI:Ged
LOC:     121619     104858   Local timer interrupts
RES:         25         56   Rescheduling interrupts
CAL:       1000       2000   Function call interrupts
TLB:         70         80   TLB shootdowns
ERR:          0
";

    #[test]
    fn calls_and_reschedules_of_a_cpu_are_counted_by_its_column() {
        assert_eq!(count(TEXT, CpuId::new(0)), Some(1025));
        assert_eq!(count(TEXT, CpuId::new(2)), Some(2056));
        let aarch64 = TEXT.replace("RES:", "IPI0:").replace("CAL:", "IPI1:");
        assert_eq!(count(&aarch64, CpuId::new(2)), Some(2056));
    }

    #[test]
    fn cpus_and_lines_that_are_not_there_are_none() {
        assert_eq!(count(TEXT, CpuId::new(1)), None);
        assert_eq!(count("", CpuId::new(0)), None);
        assert_eq!(count("   CPU0\nLOC:  4  Local timer interrupts\n", CpuId::new(0)), None);
    }
}
