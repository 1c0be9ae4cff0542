//! Accesses whose sequential consistency an argument needs. Reads the sources:
//! 1. Each protocol of `sync/total.rs` has as many changes, looks and fences as the table says,
//!    file by file: an access with a weaker ordering is missing.
//! 2. Nothing else in the libraries names that ordering, but for fences, which are in the table.
//! 3. `sync/total.rs` declares each protocol's accesses as sequentially consistent. That this is
//!    needed, models show (`loom_tests`): with a weaker declaration their fences are gone.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Numbers of changes, looks and fences by crate, file and protocol. `FENCES` are fences in
/// production, too.
const ACCESSES: &[(&str, &str, [usize; 3])] = &[
    ("core/src/cpus/sequence.rs", "ASKS", [1, 0, 0]),
    ("core/src/front/gate.rs", "ASKS", [1, 1, 0]),
    ("core/src/front/gate.rs", "SHELVES", [2, 0, 1]),
    ("core/src/pcp/asks.rs", "ASKS", [3, 4, 2]),
    ("core/src/pcp/spill.rs", "SHELVES", [0, 1, 1]),
    ("core/src/store/entire.rs", "HINTS", [1, 2, 1]),
    ("core/src/store/hints.rs", "HINTS", [6, 3, 2]),
    ("core/src/store/refresh.rs", "HINTS", [5, 12, 5]),
    ("core/src/store/section.rs", "HINTS", [1, 0, 1]),
    ("core/src/sync/in_flight.rs", "MOVES", [2, 1, 0]),
    ("core/src/sync/stack.rs", "SHELVES", [2, 1, 0]),
    ("core/src/zone/counts.rs", "MOVES", [1, 1, 0]),
    ("core/src/zone/delta.rs", "DRIFT_MARK", [3, 2, 2]),
    ("core/src/zone/state.rs", "DRIFT_MARK", [3, 4, 1]),
    ("../lab/designs/src/owners.rs", "FENCES", [0, 0, 3]),
    ("../lab/designs/src/rcu/drain.rs", "FENCES", [0, 0, 1]),
    ("linux/src/publish/board.rs", "FENCES", [0, 0, 2]),
    ("linux/src/shared/owners.rs", "FENCES", [0, 0, 4]),
    ("linux/src/waiting/waiters.rs", "FENCES", [0, 0, 3]),
];

const PROTOCOLS: [&str; 5] = ["HINTS", "SHELVES", "ASKS", "DRIFT_MARK", "MOVES"];

/// The code of a file, without comments and without its tests.
fn code(text: &str) -> String {
    let code: Vec<&str> =
        text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code)).collect();
    let code = code.join("\n");
    code.split_once("#[cfg(all(test").map_or(code.as_str(), |(code, _)| code).to_owned()
}

/// Calls `with` for each source file below `directory` that is no test: its path there, and its
/// code.
fn for_each_source(directory: &Path, root: &Path, with: &mut impl FnMut(&str, &str)) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        if name.contains("tests") {
            continue;
        }
        if path.is_dir() {
            for_each_source(&path, root, with);
        } else if name.ends_with(".rs") {
            with(&name, &code(&fs::read_to_string(&path).unwrap()));
        }
    }
}

/// All accesses of the libraries, as in [`ACCESSES`].
fn accesses() -> BTreeMap<(String, String), [usize; 3]> {
    let mut all = BTreeMap::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for library in
        ["core", "contiguity", "vmap", "rseq", "linux", "capi", "designs", "../lab/designs"]
    {
        for_each_source(&crates.join(library).join("src"), &crates, &mut |file, code| {
            for protocol in PROTOCOLS {
                let of = |method| code.matches(&format!("{protocol}.{method}()")).count();
                let counts = ["change", "look", "fence"].map(of);
                if counts != [0; 3] {
                    all.insert((file.to_owned(), protocol.to_owned()), counts);
                }
            }
            // The declarations; and atomics that have one ordering, whatever is asked for.
            if ["core/src/sync/total.rs", "core/src/sync/prim.rs"].contains(&file) {
                return;
            }
            let fences = code.matches("fence(Ordering::SeqCst)").count();
            if fences > 0 {
                all.insert((file.to_owned(), "FENCES".to_owned()), [0, 0, fences]);
            }
            let others = code.matches("SeqCst").count() - fences;
            assert_eq!(others, 0, "{file} names SeqCst: name a protocol of sync/total.rs");
        });
    }
    all
}

#[test]
fn the_accesses_in_a_total_order_are_those_listed() {
    let found = accesses();
    let listed: BTreeMap<_, _> = ACCESSES
        .iter()
        .map(|&(file, protocol, counts)| ((file.to_owned(), protocol.to_owned()), counts))
        .collect();
    for (key, counts) in &found {
        assert_eq!(
            Some(counts),
            listed.get(key),
            "{key:?}: changes, looks, fences; update ACCESSES"
        );
    }
    assert_eq!(found.len(), listed.len(), "ACCESSES has files without accesses");
}

#[test]
fn each_protocol_declares_the_total_order() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sync/total.rs");
    let code: String =
        code(&fs::read_to_string(file).unwrap()).split_whitespace().collect::<Vec<_>>().concat();
    let total = "fntotal(unordered:Mutant)->Self{\
                 Dekker{change:Ordering::SeqCst,look:Ordering::SeqCst,unordered}}";
    assert!(code.contains(total), "accesses are not sequentially consistent");
    for protocol in PROTOCOLS {
        let declared = format!("pubconst{protocol}:Dekker=Dekker::total(");
        assert!(code.contains(&declared), "{protocol} is weaker than its argument needs");
    }
    assert_eq!(code.matches(":Dekker=").count(), PROTOCOLS.len(), "add it to PROTOCOLS");
}
