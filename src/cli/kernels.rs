//! `kvas kernels`: machine code for GPUs, compiled ahead of time.

use super::{note, output};
use anyhow::{anyhow, ensure};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Compile GPU kernels ahead of time
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kvas kernels build -o kernels.bin")]
pub(crate) struct Kernels {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Build(Build),
}

/// Compile all kernels with NVRTC; no GPU is needed. A build of kvas with KVAS_KERNELS=FILE carries them, and then needs
/// no NVRTC where it runs
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas kernels build -o kernels.bin\n  kvas kernels build --arch 89,90a -o kernels.bin\n  kvas kernels build --check"
)]
struct Build {
    /// Architectures to compile for
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = kvas_cuda::ARCHITECTURES)]
    arch: Vec<String>,
    /// Output file
    #[arg(short, long, value_name = "FILE", required_unless_present = "check")]
    output: Option<PathBuf>,
    /// Only see that all kernels compile, six times as fast: nothing is written
    #[arg(long, conflicts_with = "output")]
    check: bool,
    /// Say more on stderr
    #[arg(short, long)]
    verbose: bool,
}

impl Kernels {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let Command::Build(build) = self.command;
        let is_known = |arch: &str| arch.trim_end_matches('a').parse::<u32>().is_ok_and(|number| number >= 80);
        if let Some(arch) = build.arch.iter().find(|arch| !is_known(arch)) {
            let known = kvas_cuda::ARCHITECTURES.join(", ");
            return Err(anyhow!("--arch {arch}, expected architectures from 80 on, as in {known}"));
        }
        ensure!(!build.arch.is_empty(), "--arch names no architecture, expected one or more");
        let mut said = |line: &str| {
            if build.verbose {
                note(format_args!("{line}"));
            }
        };
        let archs = build.arch.join(", ");
        let Some(output) = build.output else {
            kvas_cuda::check_kernels(&build.arch, &mut said).map_err(|error| anyhow!(error))?;
            note(format_args!("all kernels compile for {archs}"));
            return Ok(0);
        };
        output::begin(&output)?;
        let image = kvas_cuda::build_image(&build.arch, &mut said).map_err(|error| anyhow!(error))?;
        output::write(&output, &image)?;
        note(format_args!("{}: {archs}, {} bytes", output.display(), image.len()));
        Ok(0)
    }
}
