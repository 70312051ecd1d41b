//! Embeds kernels compiled ahead of time: the file that `KVAS_KERNELS` names, as `kvas kernels build` writes it.

use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo::rerun-if-env-changed=KVAS_KERNELS");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("kernels.bin");
    let image = match env::var_os("KVAS_KERNELS") {
        Some(path) => {
            println!("cargo::rerun-if-changed={}", path.display());
            let image = fs::read(&path).unwrap_or_else(|error| panic!("KVAS_KERNELS={}: {error}", path.display()));
            let what = "no kernels of this version, expected what `kvas kernels build` writes";
            assert!(image.starts_with(b"KVASKERN2"), "KVAS_KERNELS={}: {what}", path.display());
            image
        }
        None => Vec::new(),
    };
    fs::write(&out, image).unwrap_or_else(|error| panic!("{}: {error}", out.display()));
}
