//! Kernels from source to machine code: embedded in the binary, from the cache on disk, or compiled now.

use crate::{
    device::failed,
    image::{Image, embedded},
    nvrtc,
};
use kvas_backend::DeviceError;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// One source file; its kernels are compiled and loaded together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit {
    /// File name under `kernels/`, without `.cu`.
    pub(crate) name: &'static str,
    source: &'static str,
}

macro_rules! units {
    ($($name:literal)*) => {
        &[$(Unit { name: $name, source: include_str!(concat!("../kernels/", $name, ".cu")) }),*]
    };
}

macro_rules! headers {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../kernels/", $name)))),*]
    };
}

/// Every file of kernels.
pub(crate) const UNITS: &[Unit] = units!(
    "attention"
    "attention_bounded_bf16"
    "attention_bounded_f16"
    "attention_bounded_fp8"
    "attention_bounded_q8_0"
    "attention_decode_bf16"
    "attention_decode_f16"
    "attention_decode_fp8"
    "attention_decode_q8_0"
    "attention_latent_bf16"
    "attention_latent_f16"
    "attention_latent_fp8"
    "attention_latent_q8_0"
    "attention_prefill_bf16"
    "attention_prefill_f16"
    "attention_prefill_fp8"
    "attention_prefill_q8_0"
    "conv"
    "delta_f16"
    "delta_f32"
    "delta_per_channel_f16"
    "delta_per_channel_f32"
    "mamba1"
    "mamba2_f16"
    "mamba2_f32"
    "norm"
    "pack"
    "pages"
    "peak"
    "product_bf16"
    "product_f16"
    "product_f32"
    "product_iq4_nl"
    "product_iq4_xs"
    "product_mxfp4"
    "product_q2_k"
    "product_q3_k"
    "product_q4_0"
    "product_q4_1"
    "product_q4_k"
    "product_q5_0"
    "product_q5_1"
    "product_q5_k"
    "product_q6_k"
    "product_q8_0"
    "read_memory"
    "route"
    "rows"
    "segments"
    "slake"
    "slake_absorb"
    "slake_evict"
    "slake_window"
    "slots"
    "stage"
    "stage_wide"
    "tables"
    "top_k"
);

/// Every header, by the name it is included under.
const HEADERS: &[(&str, &str)] = headers!(
    "common/attention.cuh"
    "common/attention_bytes.cuh"
    "common/attention_bytes_products.cuh"
    "common/attention_decode.cuh"
    "common/attention_latent.cuh"
    "common/attention_latent_narrow.cuh"
    "common/attention_latent_wide.cuh"
    "common/attention_part.cuh"
    "common/attention_prefill.cuh"
    "common/attention_together.cuh"
    "common/attention_wide.cuh"
    "common/cluster.cuh"
    "common/conv.cuh"
    "common/copy.cuh"
    "common/hopper.cuh"
    "common/memory.cuh"
    "common/mma.cuh"
    "common/norm.cuh"
    "common/order.cuh"
    "common/pages.cuh"
    "common/recurrence.cuh"
    "common/recurrence_channels.cuh"
    "common/recurrence_chunks.cuh"
    "common/recurrence_few.cuh"
    "common/recurrence_prepare.cuh"
    "common/recurrence_prompt.cuh"
    "common/recurrence_row.cuh"
    "common/recurrence_rows.cuh"
    "common/recurrence_several.cuh"
    "common/recurrence_state.cuh"
    "common/recurrence_tile.cuh"
    "common/rotation.cuh"
    "common/slake.cuh"
    "common/step.cuh"
    "common/tiles.cuh"
    "common/types.cuh"
    "common/warp.cuh"
    "quant/at.cuh"
    "quant/clustered.cuh"
    "quant/codes.cuh"
    "quant/feed.cuh"
    "quant/formats.cuh"
    "quant/job.cuh"
    "quant/narrow.cuh"
    "quant/ring.cuh"
    "quant/product.cuh"
    "quant/row.cuh"
    "quant/some.cuh"
    "quant/stored.cuh"
    "quant/sums.cuh"
    "quant/wide.cuh"
    "quant/wide_end.cuh"
);

/// A unit by its name.
pub(crate) fn unit(name: &str) -> Unit {
    *UNITS.iter().find(|unit| unit.name == name).unwrap_or_else(|| panic!("kernels/{name}.cu is not in UNITS"))
}

/// The architectures kernels are compiled for ahead of time.
pub const ARCHITECTURES: [&str; 6] = ["80", "86", "89", "90a", "100a", "120a"];

/// The architecture to compile for on a GPU of this compute capability: with the instructions of its own from 9.0 on.
pub(crate) fn architecture((major, minor): (u32, u32)) -> String {
    format!("{major}{minor}{}", if major >= 9 { "a" } else { "" })
}

/// Whether code for `built` runs on a GPU that asks for `wanted`: what has instructions of its own runs nowhere else,
/// all others on the same or a later one of their generation.
pub(crate) fn runs_on(built: &str, wanted: &str) -> bool {
    let generation = |arch: &str| arch.parse::<u32>().ok().map(|number| (number / 10, number % 10));
    match (generation(built), generation(wanted)) {
        (Some(built), Some(wanted)) => built.0 == wanted.0 && built.1 <= wanted.1,
        (None, _) | (_, None) => built == wanted,
    }
}

fn options(arch: &str) -> Vec<String> {
    vec![format!("--gpu-architecture=sm_{arch}"), "--std=c++17".into()]
}

impl Unit {
    /// What its machine code depends on, besides the architecture and the compiler.
    pub(crate) fn source_hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut add = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        add(self.source);
        HEADERS.iter().for_each(|(name, text)| {
            add(name);
            add(text);
        });
        options("").iter().for_each(|option| add(option));
        hasher.finalize().to_hex()[..32].to_string()
    }

    /// Compiles it for an architecture (`90a`).
    pub(crate) fn compile(&self, arch: &str) -> Result<Vec<u8>, String> {
        self.compile_with(&options(arch))
    }

    fn compile_with(&self, options: &[String]) -> Result<Vec<u8>, String> {
        nvrtc::compile((&format!("{}.cu", self.name), self.source), HEADERS, options)
    }

    /// Its machine code for an architecture: embedded, cached, or compiled now and then cached.
    pub(crate) fn machine_code(&self, arch: &str) -> Result<Vec<u8>, DeviceError> {
        if let Some(code) = embedded().and_then(|image: Image<'_>| image.find(self, arch)) {
            return Ok(code);
        }
        if !nvrtc::present() {
            return Err(failed(format!(
                "the kernels for sm_{arch} are not in this binary, and there is no NVRTC (libnvrtc.so) to compile them; \
                 install the CUDA toolkit's NVRTC or name it in KVAS_NVRTC"
            )));
        }
        let cached = cache_file(self, arch);
        if let Some(code) = cached.as_deref().and_then(|path| fs::read(path).ok()).filter(|code| !code.is_empty()) {
            return Ok(code);
        }
        let code = self.compile(arch).map_err(|log| failed(first_error(&log)))?;
        if let Some(path) = cached {
            keep(&path, &code);
        }
        Ok(code)
    }

    /// Forgets what the cache has: it could not be loaded.
    pub(crate) fn forget(&self, arch: &str) {
        if let Some(path) = cache_file(self, arch) {
            // Another process may have been first.
            let _ = fs::remove_file(path);
        }
    }
}

/// The line of a compiler's log that says what is wrong.
fn first_error(log: &str) -> String {
    let mut lines = log.lines();
    let first = lines.next().unwrap_or("the compiler failed");
    let error = lines.find(|line| line.contains("error"));
    format!("compiling {first}{}", error.map_or(String::new(), |line| format!(": {}", line.trim())))
}

/// Where machine code is kept: the user's cache directory.
fn cache_file(unit: &Unit, arch: &str) -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let root = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
    let (major, minor) = nvrtc::version();
    let file = format!("{}-sm_{arch}-nvrtc{major}.{minor}-{}.cubin", unit.name, unit.source_hash());
    Some(root.join("kvas").join("kernels").join(file))
}

/// Writes a file at once or not at all: two processes may do so. That it cannot be written costs time, nothing else.
fn keep(path: &Path, code: &[u8]) {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    if folder.and_then(|()| fs::write(&part, code)).and_then(|()| fs::rename(&part, path)).is_err() {
        let _ = fs::remove_file(part);
    }
}

/// Compiles all kernels for some architectures into one image, that a build with `KVAS_KERNELS` embeds. `said` hears of
/// every file.
///
/// # Errors
/// There is no NVRTC, or what the compiler says.
pub fn build_image(archs: &[String], said: &mut dyn FnMut(&str)) -> Result<Vec<u8>, String> {
    let mut image = crate::image::Builder::default();
    compile_for(archs, options, &mut |unit, arch, code| {
        said(&format!("sm_{arch} {}: {} bytes", unit.name, code.len()));
        image.add(unit, arch, code);
    })?;
    Ok(image.finish())
}

/// Compiles all kernels as [`build_image`] does, six times as fast and into machine code that nobody should run: to see that they
/// compile.
///
/// # Errors
/// As [`build_image`].
pub fn check_kernels(archs: &[String], said: &mut dyn FnMut(&str)) -> Result<(), String> {
    let options = |arch: &str| {
        // Compilers before do not know it.
        let quickly = (nvrtc::version() >= (13, 0)).then(|| "--Ofast-compile=max".to_string());
        options(arch).into_iter().chain(quickly).collect()
    };
    compile_for(archs, options, &mut |unit, arch, _| said(&format!("sm_{arch} {}", unit.name)))
}

/// Compiles every unit for some architectures; `take` gets what comes out.
fn compile_for(
    archs: &[String],
    options: impl Fn(&str) -> Vec<String>,
    take: &mut dyn FnMut(&Unit, &str, &[u8]),
) -> Result<(), String> {
    if !nvrtc::present() {
        return Err("there is no NVRTC (libnvrtc.so) on this machine; KVAS_NVRTC names its library".into());
    }
    for arch in archs {
        for (unit, code) in UNITS.iter().zip(compile_all(&options(arch))) {
            take(unit, arch, &code?);
        }
    }
    Ok(())
}

/// Every unit, on all cores.
fn compile_all(options: &[String]) -> Vec<Result<Vec<u8>, String>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let compiled = Mutex::new(vec![Err("a thread ended too early".to_string()); UNITS.len()]);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((at, unit)) = Some(next.fetch_add(1, Relaxed)).and_then(|at| Some((at, UNITS.get(at)?)))
                {
                    let code = unit.compile_with(options);
                    compiled.lock().unwrap_or_else(PoisonError::into_inner)[at] = code;
                }
            });
        }
    });
    compiled.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The version of NVRTC on this machine, `None` if it has none.
pub fn compiler_version() -> Option<(u32, u32)> {
    nvrtc::present().then(nvrtc::version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_runs_on_later_gpus_of_its_generation() {
        assert_eq!([architecture((8, 6)), architecture((9, 0)), architecture((12, 0))], ["86", "90a", "120a"]);
        assert!(runs_on("80", "86") && runs_on("90a", "90a") && runs_on("89", "89"));
        assert!(!runs_on("89", "86") && !runs_on("80", "90a") && !runs_on("90a", "100a") && !runs_on("100", "120"));
    }

    /// `cuda/check` compiles them for all the others.
    #[test]
    fn kernels_compile() {
        if !nvrtc::present() {
            return eprintln!("skipped: no NVRTC (KVAS_NVRTC names its library)");
        }
        check_kernels(&["90a".to_string()], &mut |_| {}).unwrap();
    }

    #[test]
    fn errors_are_one_line() {
        let log = "norm.cu: NVRTC_ERROR_COMPILATION\nnorm.cu(3): warning: x\nnorm.cu(7): error: expected a \";\"\n";
        let expected = "compiling norm.cu: NVRTC_ERROR_COMPILATION: norm.cu(7): error: expected a \";\"";
        assert_eq!(first_error(log), expected);
    }
}
