//! `kvas tokenize` and `kvas detokenize`: text to ids and back. Vocabulary-only files will do.

use super::Stdout;
use anyhow::Context;
use clap::Args;
use kvas::{
    model::bundled,
    text::{Bos, Control, Special, Tokenizer},
};
use kvas_gguf::GgufFile;
use serde_json::json;
use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
};

/// Show the tokens of a text, one id a line with its text
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas tokenize -m model.gguf \"Hello, world\"\n  kvas tokenize -m model.gguf -f prompt.txt --json\n  echo Hello | kvas tokenize -m model.gguf - --no-special"
)]
pub(crate) struct Tokenize {
    #[command(flatten)]
    vocabulary: Vocabulary,
    #[command(flatten)]
    source: Source,
    /// Add no special token and parse none
    #[arg(long)]
    no_special: bool,
    /// Print one JSON object: ids, pieces
    #[arg(long)]
    json: bool,
}

/// Where the text comes from.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Source {
    /// A file with the text; `-` reads it from stdin
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The text; `-` reads it from stdin
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    text: Option<String>,
}

/// Show the text of tokens
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kvas detokenize -m model.gguf --ids 1,15043,3186")]
pub(crate) struct Detokenize {
    #[command(flatten)]
    vocabulary: Vocabulary,
    /// Token ids, separated by commas
    #[arg(long, value_delimiter = ',', required = true, value_name = "IDS")]
    ids: Vec<u32>,
}

/// Which vocabulary.
#[derive(Debug, Args)]
struct Vocabulary {
    /// Model file (GGUF); one with a vocabulary only will do [default: the model that comes with kvas]
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Pre-tokenizer to use instead of the one the file names
    #[arg(long, value_name = "NAME")]
    override_pre: Option<String>,
}

impl Vocabulary {
    fn open(&self) -> anyhow::Result<Tokenizer> {
        let (name, file) = match &self.model {
            Some(path) => (path.display().to_string(), GgufFile::open(path)?),
            None => (bundled::NAME.into(), bundled::file()?),
        };
        Tokenizer::from_metadata(file.metadata(), self.override_pre.as_deref()).context(name)
    }
}

impl Tokenize {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let tokenizer = self.vocabulary.open()?;
        let text = self.read_text()?;
        let (special, bos) = if self.no_special { (Special::Literal, Bos::Omit) } else { (Special::Parse, Bos::Add) };
        let ids = tokenizer.encode(&text, special, bos);
        let piece =
            |id: &u32| tokenizer.piece(*id, Control::Show).map(|bytes| String::from_utf8_lossy(bytes).to_string());
        let pieces = ids.iter().map(piece).collect::<Result<Vec<_>, _>>()?;
        let mut out = std::io::BufWriter::new(Stdout);
        if self.json {
            writeln!(out, "{}", json!({"ids": ids, "pieces": pieces}))?;
        } else {
            for (id, piece) in ids.iter().zip(&pieces) {
                writeln!(out, "{id:7} {piece:?}")?;
            }
        }
        out.flush()?;
        Ok(0)
    }

    fn read_text(&self) -> anyhow::Result<String> {
        match (&self.source.file, self.source.text.as_deref()) {
            (Some(path), _) => text_of(path),
            (None, Some("-") | None) => text_of(Path::new("-")),
            (None, Some(text)) => Ok(text.into()),
        }
    }
}

/// What messages call a file of which [`text_of`] gives the text.
pub(crate) fn named(path: &Path) -> String {
    if path.as_os_str() == "-" { "stdin".to_string() } else { path.display().to_string() }
}

/// The text of a file; of stdin if it is called `-`.
pub(crate) fn text_of(path: &Path) -> anyhow::Result<String> {
    let bytes = if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    let bytes = bytes.with_context(|| named(path))?;
    String::from_utf8(bytes).with_context(|| format!("{}: expected UTF-8 text", named(path)))
}

impl Detokenize {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let tokenizer = self.vocabulary.open()?;
        super::print(format_args!("{}", tokenizer.decode(&self.ids, Control::Show)?))?;
        Ok(0)
    }
}
