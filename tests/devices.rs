//! Commands that name devices: what is there, what is not, and what parts.

use crate::{
    commands::{fails, kvas, succeeds, text},
    golden::{converted_file, fixture},
};
use kvas_gguf::Quant;
use std::process::Command;

#[test]
fn a_machine_without_a_gpu_says_so_in_one_line() {
    let out = succeeds(&["doctor"]);
    for line in ["processor", "memory free", "GPU", "kernel compiler", "kernels built in"] {
        assert!(out.contains(line), "{out}");
    }
    let missing = || out.lines().filter_map(|line| line.strip_prefix("missing: "));
    assert!(missing().next().is_some() != out.ends_with("\nnothing is missing\n"), "{out}");
    // What is missing, what that costs or what to do about it.
    assert!(missing().all(|line| line.contains(": ")), "{out}");
    assert_eq!(missing().any(|line| line.starts_with("a GPU: ")), !kvas_cuda::has_device(), "{out}");
    if kvas_cuda::has_device() {
        return eprintln!("skipped: there is a CUDA device");
    }
    let file = converted_file(&fixture("llama"), Quant::F32);
    let path = text(&file);
    for command in
        [&["bench", "-m", &path][..], &["plan", "-m", &path], &["run", "-m", &path, "-p", "a"], &["selftest"]]
    {
        let error = fails(&[command, &["--device", "cuda"]].concat());
        assert!(error.contains("--device cuda"), "{error}");
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_name_that_no_instruction_set_has_is_said() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvas"));
    let output =
        command.args(["run", "--device", "cpu", "-p", "a", "-n", "1"]).env("KVAS_CPU", "sse9").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    let expected = "KVAS_CPU=sse9: expected one of scalar, neon, dotprod, i8mm, avx2, avxvnni, avx512, amx\n";
    assert!(error.ends_with(expected) && error.lines().count() == 1, "{error}");
}

#[test]
fn kernels_are_built_or_the_compiler_is_missed() {
    let error = fails(&["kernels", "build", "--arch", "75", "-o", "unused"]);
    assert!(error.contains("--arch 75"), "{error}");
    let temporary = crate::temporary::folder();
    let out = temporary.path().join("kernels");
    let output = kvas(&["kernels", "build", "--arch", "90a", "-o", &text(&out)]);
    if kvas_cuda::compiler_version().is_some() {
        assert!(output.status.success() && std::fs::read(&out).unwrap().starts_with(b"KVASKERN"));
        std::fs::remove_file(out).unwrap();
    } else {
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && error.contains("NVRTC"), "{error}");
    }
}

#[test]
fn devices_are_compared_op_by_op() {
    let file = converted_file(&fixture("qwen35"), Quant::F32);
    let path = text(&file);
    let out = succeeds(&["diff", "-m", &path, "--device", "cpu", "--all"]);
    assert!(out.starts_with("cpu against reference") && out.contains("gated delta"), "{out}");
    let out = kvas(&["diff", "-m", &path, "--device", "cpu", "--bound", "0"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!((out.status.code(), text.lines().count()), (Some(1), 3), "{text}");
    for (flags, expected) in [
        (&["--bound", "nan"][..], "--bound NaN, expected 0 or more"),
        (&["--ids", "1,2,3", "-c", "2"], "--ids: 3 tokens, expected at most the context of 2"),
        (&["-b", "1"], "without --ids: 16 tokens, expected at most the 1 of --batch-size"),
    ] {
        let error = fails(&[&["diff", "-m", &path, "--device", "cpu"], flags].concat());
        assert_eq!(error, format!("error: {expected}"));
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_device_tests_itself() {
    let error = fails(&["selftest", "--device", "cpu", "norm 3x33", "nosuchthing"]);
    assert!(error.starts_with("error: nosuchthing: no case has it in its name"), "{error}");
    let out = succeeds(&["selftest", "--device", "cpu", "norm 3x33", "route 4 of 12"]);
    assert!(out.starts_with("cpu (") && out.contains("norm 3x33"), "{out}");
    assert!(out.contains("26 of 26 passed"), "{out}");
}
