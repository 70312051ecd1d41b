//! `kvas completions` and `kvas man`: what shells and `man` want to know of the commands, from the same text as `--help`.

use super::{Cli, Stdout};
use anyhow::{Context, ensure};
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::{io::Write, path::PathBuf};

/// Print what a shell needs to complete commands, flags and their values
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas completions bash > ~/.local/share/bash-completion/completions/kvas\n  kvas completions zsh > ~/.zfunc/_kvas\n  kvas completions fish > ~/.config/fish/completions/kvas.fish"
)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "kvas", &mut script);
        Stdout.write_all(&script)?;
        Stdout.flush()?;
        Ok(0)
    }
}

/// Write manual pages, one for every command
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kvas man ~/.local/share/man/man1\n  kvas man man1 && man man1/kvas-serve.1")]
pub(crate) struct Man {
    /// Folder for the pages; made if it is not there
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl Man {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        ensure!(
            !self.folder.exists() || self.folder.is_dir(),
            "{}: is a file, expected a folder",
            self.folder.display()
        );
        std::fs::create_dir_all(&self.folder).with_context(|| self.folder.display().to_string())?;
        clap_mangen::generate_to(Cli::command(), &self.folder).with_context(|| self.folder.display().to_string())?;
        Ok(0)
    }
}
