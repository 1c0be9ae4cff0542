//! Gives the shared library its soname: programs that are linked with this version find it by that.
//! While the major version is 0, structures may grow with each minor one.

fn main() {
    let number =
        |part: &str| std::env::var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default();
    let version = match number("MAJOR") {
        zero if zero == "0" => format!("0.{}", number("MINOR")),
        major => major,
    };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpagedepot.so.{version}");
    println!("cargo::rerun-if-changed=build.rs");
}
