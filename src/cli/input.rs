//! Text files that flags name.

use anyhow::{Context as _, anyhow};
use std::{fmt::Display, path::Path};

/// The text of a file, without the byte order mark that some editors begin it with: it would be a part of the first key, or of a
/// prompt. Fails in one line that says what the file is named: its path, or the flag with it.
pub(super) fn text(path: &Path, named: impl Display) -> anyhow::Result<String> {
    let bytes = std::fs::read(path).with_context(|| named.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| anyhow!("{named}: expected UTF-8 text"))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_string).unwrap_or(text))
}
