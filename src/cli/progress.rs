//! What commands show of how far they are, where standard error is a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use kvas_tools::convert::ProgressFn;

/// A bar of bytes that names the tensor being written, and the function that moves it.
pub(crate) fn tensors() -> (ProgressBar, ProgressFn) {
    let bar = ProgressBar::new(0);
    let template = "{msg:40!} {bar:30} {bytes}/{total_bytes} {eta}";
    bar.set_style(ProgressStyle::with_template(template).expect("the template is well formed"));
    let shown = bar.clone();
    let progress: ProgressFn = Box::new(move |progress| {
        shown.set_length(progress.total);
        shown.set_position(progress.done);
        shown.set_message(progress.tensor.to_string());
    });
    (bar, progress)
}

/// Counts questions, texts or cases.
pub(crate) fn counter(what: &str, count: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {pos}/{len}").expect("the template is well formed");
    ProgressBar::new(count as u64).with_style(style).with_message(what.to_string())
}
