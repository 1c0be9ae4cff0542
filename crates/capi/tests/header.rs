//! The committed header says what the crate exports, and the libraries export no more.

use std::path::Path;

const HEADER: &str = "include/pagedepot.h";

fn generated() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let sources =
        ["handle", "blocks", "reclaim", "monitor", "space", "shared", "publish", "sites", "error"];
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(root.join("src").join(source).with_extension("rs"));
    }
    let mut header = Vec::new();
    builder.generate().expect("the crate is what cbindgen can read").write(&mut header);
    let header = String::from_utf8(header).expect("UTF-8");
    // Rust's sections on safety are C's ordinary conditions.
    header.replace("// # Safety\n", "// Conditions:\n").replace("`", "")
}

/// Compares the header with the crate; after a change of the interface run `PAGEDEPOT_BLESS=1 cargo
/// test -p pagedepot-c --test header`.
#[test]
fn the_header_is_what_the_crate_declares() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(HEADER);
    let generated = generated();
    if std::env::var_os("PAGEDEPOT_BLESS").is_some() {
        std::fs::write(&path, &generated).expect("written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "{HEADER} is older than the crate: PAGEDEPOT_BLESS=1 cargo test -p pagedepot-c --test \
         header"
    );
}
