//! Links the kernel by the script of its processor, without a C runtime.

use std::env::var;

fn main() {
    let here = var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let arch = var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let script = format!("{here}/src/arch/{arch}/kernel.ld");
    let arguments: &[&str] = match arch.as_str() {
        // The host's target links by the C compiler, those without a system by the linker itself.
        "x86_64" => &["-nostartfiles", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none"],
        _ => &["-static", "--no-pie"],
    };
    for argument in arguments {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rustc-link-arg-bins=-T{script}");
    println!("cargo:rerun-if-changed={script}");
}
