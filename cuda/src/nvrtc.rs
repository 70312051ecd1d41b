//! NVRTC: CUDA C++ to machine code, at run time, from sources in memory.

use cudarc::nvrtc::{
    result::{compile_program, get_program_log},
    sys,
};
use std::{
    ffi::{CString, c_char},
    path::{Path, PathBuf},
    ptr,
    sync::OnceLock,
};

/// Where NVRTC is when the loader does not know: the usual homes of toolkits.
const HOMES: [&str; 3] = ["/usr/local/cuda/lib64", "/opt/cuda/lib64", "/usr/lib/x86_64-linux-gnu"];

/// Whether NVRTC is there. `KVAS_NVRTC` names its library where it is in an unusual place.
pub(crate) fn present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    *PRESENT.get_or_init(|| {
        // SAFETY: looks for libraries, whose initialisers do nothing of interest.
        let is_found = || unsafe { sys::is_culib_present() };
        // A library that is loaded is found by its name from then on, so that one in an unusual place is loaded first
        // and stays.
        let keep = |path: &Path| {
            // SAFETY: as above.
            unsafe { libloading::Library::new(path) }.map(std::mem::forget).is_ok()
        };
        // The compiler opens its library of built-in functions by name when it first compiles.
        let keep_with_builtins = |path: &Path| {
            let folder = path.parent().and_then(|folder| folder.read_dir().ok());
            let files = folder.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
            let is_builtins = |path: &PathBuf| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvrtc-builtins.so"))
            };
            // All of them: which one fits is known to the compiler.
            if keep(path) {
                files.filter(is_builtins).for_each(|path| {
                    keep(&path);
                });
            }
        };
        if let Some(path) = std::env::var_os("KVAS_NVRTC") {
            keep_with_builtins(Path::new(&path));
        }
        for home in HOMES {
            if is_found() {
                break;
            }
            ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
                .iter()
                .for_each(|name| keep_with_builtins(&Path::new(home).join(name)));
        }
        is_found()
    })
}

/// `(major, minor)`. Only if it is [`present`].
pub(crate) fn version() -> (u32, u32) {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two integers.
    let asked = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    asked.result().map_or((0, 0), |()| (major as u32, minor as u32))
}

/// A program, destroyed when dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once. A failure leaves nothing to be done.
        let _ = unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

/// Compiles the source `(name, text)` with headers of the same form for an architecture (`90a`) to a cubin. What the
/// compiler says if it fails.
pub(crate) fn compile(
    (name, text): (&str, &str),
    headers: &[(&str, &str)],
    options: &[String],
) -> Result<Vec<u8>, String> {
    let string = |text: &str| CString::new(text).map_err(|_| format!("{name}: a source with a zero byte"));
    let (text, file) = (string(text)?, string(name)?);
    let names = headers.iter().map(|(name, _)| string(name)).collect::<Result<Vec<_>, _>>()?;
    let texts = headers.iter().map(|(_, text)| string(text)).collect::<Result<Vec<_>, _>>()?;
    let pointers = |strings: &[CString]| strings.iter().map(|text| text.as_ptr()).collect::<Vec<*const c_char>>();
    let (names, texts) = (pointers(&names), pointers(&texts));
    let mut program = Program(ptr::null_mut());
    // SAFETY: all strings outlive the program; there are as many names as headers.
    let created = unsafe {
        let count = headers.len() as i32;
        sys::nvrtcCreateProgram(&raw mut program.0, text.as_ptr(), file.as_ptr(), count, texts.as_ptr(), names.as_ptr())
    };
    created.result().map_err(|error| format!("{name}: {error}"))?;
    // SAFETY: the program is alive.
    let compiled = unsafe { compile_program(program.0, options) };
    if let Err(error) = compiled {
        // SAFETY: the program is alive.
        let log = unsafe { get_program_log(program.0) }.unwrap_or_default();
        let log: Vec<u8> = log.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
        return Err(format!("{name}: {error}\n{}", String::from_utf8_lossy(&log)));
    }
    let mut bytes = 0;
    // SAFETY: writes one integer.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut bytes) }
        .result()
        .map_err(|error| format!("{name}: {error}"))?;
    let mut cubin = vec![0u8; bytes];
    // SAFETY: there is room for as many bytes as the program said.
    let copied = unsafe { sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()) };
    copied.result().map_err(|error| format!("{name}: {error}"))?;
    Ok(cubin)
}
