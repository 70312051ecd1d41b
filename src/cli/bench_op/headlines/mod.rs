//! `kvas bench-op headlines`: every published claim that kvas is built on, next to what this machine measures.

mod claims;
mod figures;
mod runs;
mod write;

use crate::cli::{output, print};
use anyhow::{bail, ensure};
use clap::Args;
use figures::{Figures, Records};
use runs::{RUNS, Size};
use std::{
    path::{Path, PathBuf},
    time::Instant,
};

/// Run every benchmark that this machine can, and write a document with plots: claim by claim what was published, what
/// was predicted, what was measured, and what that says. Figures of GPUs come from records
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas bench-op headlines\n  kvas bench-op headlines --quick -o BENCHMARKS.md\n  kvas bench-op headlines --record benches/record/h200"
)]
pub(super) struct Headlines {
    /// The document; plots are put beside it
    #[arg(short, long, value_name = "FILE", default_value = "docs/BENCHMARKS.md")]
    output: PathBuf,
    /// Sizes that take seconds and mean nothing, to try the command
    #[arg(long)]
    quick: bool,
    /// A folder with records of a GPU, as benches/gpu/run prints them; the last of several figures counts [default:
    /// benches/record/h200, if it is there]
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,
}

/// Records that come with the sources.
const RECORDS: &str = "benches/record/h200";

impl Headlines {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        let folder = self.output.parent().map(PathBuf::from).unwrap_or_default();
        ensure!(
            folder.as_os_str().is_empty() || folder.is_dir(),
            "-o {}, expected a file in a folder that exists",
            self.output.display()
        );
        output::begin(&self.output)?;
        let records = Records::given(self.record.as_deref(), Path::new(RECORDS))?;
        let size = if self.quick { Size::Quick } else { Size::Full };
        let work = runs::Work::new(size)?;
        let mut figures = Figures::new(records);
        let mut failures = Vec::new();
        for run in RUNS {
            let begun = Instant::now();
            match work.lines(run) {
                Ok(lines) => figures.add(run.name, lines, begun.elapsed().as_secs_f64()),
                // Minutes of others are not lost with it.
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
        let document = write::document(&figures, size);
        output::write(&self.output, document.as_bytes())?;
        for (name, svg) in write::plots(&figures) {
            let path = folder.join(name);
            output::write(&path, svg.as_bytes())?;
        }
        let [met, missed] = write::counts(&figures);
        print(format_args!(
            "{}: {met} of {} claims measured here came out as predicted",
            self.output.display(),
            met + missed
        ))?;
        match &failures[..] {
            [] => Ok(0),
            [first, ..] => bail!("{} of {} benchmarks failed: {first}", failures.len(), RUNS.len()),
        }
    }
}
