//! Texts that are taken for traces by mistake, known by their first line.

/// Names the usual mistake that a text which begins with this line is, if it is one.
pub fn kind(first: &str) -> Option<&'static str> {
    let first = first.trim();
    let starts = |beginning: &str| first.starts_with(beginning);
    Some(if starts("Page allocated via order") || first.contains(" times, ") && is_sorted(first) {
        "the table of page_owner, which tells who holds each page now: it has no frees, so there \
         is nothing to replay"
    } else if starts("Node ") && first.contains(" zone ") {
        "/proc/zoneinfo or /proc/buddyinfo, which tell the state of a machine: give it beside a \
         trace, with --zoneinfo FILE"
    } else if starts("Page block order:") {
        "/proc/pagetypeinfo, which tells the state of a machine: put it beside a trace, as \
         NAME.pagetypeinfo.before.txt"
    } else if starts("MemTotal:") {
        "/proc/meminfo"
    } else if starts("slabinfo - version") {
        "/proc/slabinfo"
    } else if starts("nr_free_pages ") {
        "/proc/vmstat"
    } else if is_range(first) && first.contains('+') {
        "/proc/vmallocinfo, which lists the areas that there are: it has no frees"
    } else if is_range(first) {
        "/proc/PID/maps"
    } else if starts("{") && first.contains("\"schema\"") {
        "a result file: `pagedepot-lab compare` and `pagedepot-lab report` read it"
    } else {
        return None;
    })
}

/// Whether a line is a heading of page_owner_sort: `12 times, 34 pages...`.
fn is_sorted(line: &str) -> bool {
    line.split_whitespace().next().is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a line begins with a range of addresses.
fn is_range(line: &str) -> bool {
    let Some((start, rest)) = line.split_once('-') else { return false };
    let end = rest.split_whitespace().next().unwrap_or_default();
    [start, end].iter().all(|address| {
        let digits = address.strip_prefix("0x").unwrap_or(address);
        (8..=16).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit())
    })
}
