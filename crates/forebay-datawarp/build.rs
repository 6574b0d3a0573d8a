//! Gives the library its name for who links with it. There is no version in it: the interface is not
//! ours to change.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdatawarp.so");
}
