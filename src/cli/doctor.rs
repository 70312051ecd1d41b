//! `kvas doctor`: what this machine can do.

use super::device::Place;
use clap::Args;
use indicatif::HumanBytes;

/// Say what this machine has to compute with, and what is missing
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kvas doctor")]
pub(crate) struct Doctor {}

impl Doctor {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let isa = kvas_cpu::Cpu::new(threads).isa().map_or("KVAS_CPU names none it has", kvas_cpu::Isa::name);
        line("processor", &format!("{threads} threads, {isa}"));
        let memory = kvas_cpu::available_memory().map_or("unknown".into(), |bytes| HumanBytes(bytes).to_string());
        line("memory free", &memory);
        let compiler = kvas_cuda::compiler_version();
        let embedded = kvas_cuda::embedded_architectures();
        match Place::gpu() {
            Ok(device) => {
                let (major, minor) = device.capability();
                let (free, total) = device.memory()?;
                line("GPU", &format!("{}, compute capability {major}.{minor}", device.name()));
                line("GPU memory free", &format!("{} of {}", HumanBytes(free), HumanBytes(total)));
            }
            Err(error) => line("GPU", &error),
        }
        let words = |(major, minor)| format!("NVRTC {major}.{minor}");
        line("kernel compiler", &compiler.map_or("none: NVRTC (libnvrtc.so) was not found".into(), words));
        let kernels = if embedded.is_empty() { "none".into() } else { embedded.join(", ") };
        line("kernels built in", &kernels);
        Ok(0)
    }
}

fn line(what: &str, found: &str) {
    println!("{what:17} {found}");
}
