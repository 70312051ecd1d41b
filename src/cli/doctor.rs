//! `kvas doctor`: what this machine can do, and what is missing.

use super::{Stdout, device::Place};
use clap::Args;
use indicatif::HumanBytes;
use kvas_cpu::Isa;
use std::io::Write;

/// Say what this machine has to compute with, and what is missing
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kvas doctor")]
pub(crate) struct Doctor {}

/// What is found, and what is not.
#[derive(Debug, Default)]
struct Report {
    found: Vec<(&'static str, String)>,
    /// What is missing, what that costs, and what to do.
    missing: Vec<String>,
}

impl Doctor {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let mut report = Report::default();
        report.found("kvas", concat!(env!("CARGO_PKG_VERSION"), " for ").to_string() + std::env::consts::ARCH);
        report.processor();
        report.memory();
        report.gpu()?;
        let mut out = std::io::BufWriter::new(Stdout);
        for (what, found) in &report.found {
            writeln!(out, "{what:17} {found}")?;
        }
        writeln!(out)?;
        if report.missing.is_empty() {
            writeln!(out, "nothing is missing")?;
        }
        for what in &report.missing {
            writeln!(out, "missing: {what}")?;
        }
        out.flush()?;
        Ok(0)
    }
}

impl Report {
    fn found(&mut self, what: &'static str, found: impl Into<String>) {
        self.found.push((what, found.into()));
    }

    fn processor(&mut self) {
        let threads = super::flags::cores();
        match kvas_cpu::Cpu::new(threads).isa() {
            Some(isa) => self.found("processor", format!("{threads} threads, {}", isa.name())),
            None => {
                self.found("processor", format!("{threads} threads"));
                let known = Isa::ALL.map(Isa::name).join(", ");
                self.missing.push(format!("an instruction set: KVAS_CPU names none this processor has, of {known}"));
            }
        }
        let without = match Isa::best() {
            Isa::Scalar => "AVX2 or NEON: everything is computed number by number, many times slower",
            Isa::Neon => "dot products of bytes (dotprod): products with weights of block formats take longer",
            Isa::Dotprod => {
                "products of matrices of bytes (i8mm): prompts and many sequences take longer; one sequence does not"
            }
            Isa::Avx2 => {
                "AVX-512 or AVX-VNNI: prompts and tokens of several sequences take longer; one sequence hardly does"
            }
            Isa::AvxVnni => "AVX-512: prompts and tokens of several sequences take longer; one sequence hardly does",
            Isa::Avx512 => "AMX: prompts and many sequences take longer; one sequence hardly does",
            Isa::I8mm | Isa::Amx => return,
        };
        self.missing.push(without.into());
    }

    fn memory(&mut self) {
        let free = kvas_cpu::available_memory();
        self.found("memory free", free.map_or("unknown".into(), |bytes| HumanBytes(bytes).to_string()));
        let Ok(pages) = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled") else { return };
        let chosen = pages.split(['[', ']']).nth(1).unwrap_or("unknown");
        self.found("huge pages", chosen);
        if chosen == "never" {
            let to_do = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root";
            self.missing.push(format!("huge pages: long contexts take longer; {to_do}"));
        }
    }

    fn gpu(&mut self) -> anyhow::Result<()> {
        let (compiler, built_in) = (kvas_cuda::compiler_version(), kvas_cuda::embedded_architectures());
        let gpu = Place::gpu();
        match &gpu {
            Ok(device) => {
                let (major, minor) = device.capability();
                let (free, total) = device.memory()?;
                self.found("GPU", format!("{}, compute capability {major}.{minor}", device.name()));
                self.found("GPU memory free", format!("{} of {}", HumanBytes(free), HumanBytes(total)));
            }
            Err(error) => {
                self.found("GPU", "none");
                self.missing.push(format!("a GPU: {error}; everything runs on the processor"));
            }
        }
        let words = |(major, minor)| format!("NVRTC {major}.{minor}");
        self.found("kernel compiler", compiler.map_or("none: NVRTC (libnvrtc.so) was not found".into(), words));
        self.found("kernels built in", if built_in.is_empty() { "none".into() } else { built_in.join(", ") });
        if gpu.is_ok() && compiler.is_none() && built_in.is_empty() {
            let to_do = "install it, name it in KVAS_NVRTC, or build kvas with KVAS_KERNELS";
            self.missing.push(format!("NVRTC: the GPU cannot be used; {to_do}"));
        }
        Ok(())
    }
}
