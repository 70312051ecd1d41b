//! The bar that tools show while they write a file.

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
