//! What was measured, here and by records, and how figures are found in it.

use anyhow::Context;
use serde_json::Value;
use std::{collections::BTreeMap, path::Path};

/// Lines of the records of a GPU, words apart by one blank.
#[derive(Debug, Default)]
pub(super) struct Records {
    lines: Vec<String>,
}

impl Records {
    /// Those of a folder that was named, else of the usual one, which nobody has outside the repository.
    pub(super) fn given(named: Option<&Path>, usual: &Path) -> anyhow::Result<Self> {
        match named {
            Some(folder) => Self::of(folder),
            None if usual.is_dir() => Self::of(usual),
            None => Ok(Self::default()),
        }
    }

    /// All text files of a folder, in the order of their names.
    fn of(folder: &Path) -> anyhow::Result<Self> {
        let what = || format!("--record {}", folder.display());
        let entries = std::fs::read_dir(folder).with_context(what)?;
        let mut files =
            entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>().with_context(what)?;
        files.retain(|path| path.extension().is_some_and(|ending| ending == "txt"));
        files.sort();
        let mut lines = Vec::new();
        for file in files {
            let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            lines.extend(text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
        Ok(Self { lines })
    }

    /// The number before a unit in the last line that begins so.
    fn number(&self, begin: &str, unit: &str) -> Option<f64> {
        let rest = self.lines.iter().rev().find_map(|line| line.strip_prefix(begin))?;
        let words: Vec<&str> = rest.split(' ').collect();
        let at = words.iter().position(|word| *word == unit)?;
        words.get(at.checked_sub(1)?)?.parse().ok()
    }
}

/// Everything that claims are looked up in.
#[derive(Debug)]
pub(super) struct Figures {
    /// What was printed, and the seconds it took.
    runs: BTreeMap<&'static str, (Vec<Value>, f64)>,
    records: Records,
}

impl Figures {
    pub(super) fn new(records: Records) -> Self {
        Self { runs: BTreeMap::new(), records }
    }

    pub(super) fn add(&mut self, run: &'static str, lines: Vec<Value>, seconds: f64) {
        self.runs.insert(run, (lines, seconds));
    }

    pub(super) fn seconds(&self, run: &str) -> Option<f64> {
        self.runs.get(run).map(|(_, seconds)| *seconds)
    }

    pub(super) fn lines(&self, run: &str) -> &[Value] {
        self.runs.get(run).map_or(&[], |(lines, _)| lines)
    }

    /// A figure of a GPU: the number before a unit in the last line of the records that begins so.
    pub(super) fn recorded(&self, begin: &str, unit: &str) -> Option<f64> {
        self.records.number(begin, unit)
    }

    /// The lines of a run whose test has all of these words in it.
    pub(super) fn with<'a>(&'a self, run: &str, words: &'a [&'a str]) -> impl Iterator<Item = &'a Value> {
        let of = |line: &&Value| {
            let test = line["test"].as_str().unwrap_or_default().split(' ').collect::<Vec<_>>();
            words.iter().all(|word| test.contains(word))
        };
        self.lines(run).iter().filter(of)
    }

    /// A field of the first such line.
    pub(super) fn number(&self, run: &str, words: &[&str], field: &str) -> Option<f64> {
        self.with(run, words).find_map(|line| line[field].as_f64())
    }

    /// A field over the numbers behind a mark, as in `m=8`.
    pub(super) fn curve(&self, run: &str, words: &[&str], (mark, field): (&str, &str)) -> Vec<(f64, f64)> {
        let point = |line: &Value| {
            let behind = |word: &str| word.strip_prefix(mark)?.parse::<f64>().ok();
            Some((line["test"].as_str()?.split(' ').find_map(behind)?, line[field].as_f64()?))
        };
        let mut points: Vec<(f64, f64)> = self.with(run, words).filter_map(point).collect();
        points.retain(|(x, _)| *x > 0.0);
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        points
    }

    /// Where a curve is lowest.
    pub(super) fn lowest(&self, run: &str, words: &[&str], of: (&str, &str)) -> Option<f64> {
        self.curve(run, words, of).into_iter().min_by(|one, other| one.1.total_cmp(&other.1)).map(|(x, _)| x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_folder_that_was_named_has_to_be_there() {
        let (nowhere, root) = (Path::new("/nowhere"), Path::new(env!("CARGO_MANIFEST_DIR")));
        assert!(Records::given(Some(nowhere), root).is_err());
        assert!(Records::given(None, nowhere).unwrap().lines.is_empty());
        assert!(!Records::given(None, &root.join("benches/record/h200")).unwrap().lines.is_empty());
    }

    #[test]
    fn figures_are_found_by_words_and_the_last_record_counts() {
        let lines = ["Delta 128 16 f32: 85.4 us 3729 GB/s 87.3 % 1.65 x", "Delta 128 16 f32: 70.0 us 1.99 x"];
        let records = Records { lines: lines.map(String::from).to_vec() };
        assert_eq!(records.number("Delta 128 16 f32:", "x"), Some(1.99));
        assert_eq!((records.number("Delta 128", "%"), records.number("Mamba2", "x")), (None, None));
        let mut figures = Figures::new(records);
        let line = |m: &str, ms: f64| json!({ "test": format!("gdn f32 m={m}"), "ms_median": ms });
        figures.add(
            "delta",
            vec![json!({ "op": "lin_ar" }), line("0", 9.0), line("16", 5.0), line("8 auto", 4.0)],
            1.0,
        );
        assert_eq!(figures.number("delta", &["f32", "auto"], "ms_median"), Some(4.0));
        assert_eq!(figures.number("delta", &["f16"], "ms_median"), None);
        assert_eq!(figures.curve("delta", &[], ("m=", "ms_median")), [(8.0, 4.0), (16.0, 5.0)]);
        assert_eq!(figures.lowest("delta", &["f32"], ("m=", "ms_median")), Some(8.0));
    }
}
