//! Gives the shared library its soname: programs that are linked with this version find it by that.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpagedepot.so.{major}");
    println!("cargo::rerun-if-changed=build.rs");
}
