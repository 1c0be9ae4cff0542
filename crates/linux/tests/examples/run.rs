//! Every example runs, and says what it did.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::files::example;
use crate::skip::skip;

/// Programs, a test each, and the arguments that make them short.
macro_rules! programs {
    ($($name:ident $arguments:expr;)*) => {
        const PROGRAMS: &[&str] = &[$(stringify!($name),)*];
        $(
            #[test]
            fn $name() {
                run(stringify!($name), &$arguments);
            }
        )*
    };
}

programs! {
    batches ["10000"];
    buffer_pool [];
    call_sites ["1000"];
    growable_column [];
    grown_again ["32", "64", "2"];
    guest_memory ["24", "32"];
    healing_pool [];
    killed_peer ["2000"];
    large_frames ["1000"];
    monitored [];
    packet_path ["500"];
    packet_ring [];
    quiet_drain ["20"];
    watched ["1000"];
    write_back [];
}

fn run(name: &str, arguments: &[&str]) {
    let output = Command::new(example(name)).args(arguments).output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && !out.is_empty(), "{name}: {}\n{out}\n{err}", output.status);
    if let Some(why) = out.lines().find(|line| line.starts_with("skipped")) {
        skip(format_args!("{name}: {why}"));
    }
}

/// A new example is added above. `shared_object` is loaded by the tests of `unload`.
#[test]
fn no_example_is_missing() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let name = |entry: std::fs::DirEntry| entry.path().file_stem()?.to_str().map(str::to_owned);
    let there: BTreeSet<String> =
        std::fs::read_dir(folder).unwrap().filter_map(|entry| name(entry.unwrap())).collect();
    let run = PROGRAMS.iter().copied().chain(["shared_object"]).map(str::to_owned);
    assert_eq!(there, run.collect());
}
