//! Gives the library its soname, for programs that link with it. The name has no version: the interface
//! is Cray's, and not forebay's to change.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdatawarp.so");
}
