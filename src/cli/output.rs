//! Files that commands write: what cannot be one is refused before the work, and what is not complete is gone after a signal.

use super::{INTERRUPTED, TERMINATED, note};
use anyhow::{Context, bail};
use kvas_gguf::{OutputFile, abandon_outputs, check_output, is_same_file, remove_abandoned};
use std::{
    io::Write,
    path::Path,
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::signal::unix::{SignalKind, signal};

/// To be called before the work that goes into the file `out`: says whether it can be written, and has signals remove
/// what is not complete. What a program that was killed has left of it is gone.
pub(crate) fn begin(out: &Path) -> anyhow::Result<()> {
    static LISTENING: Once = Once::new();
    check(out)?;
    remove_abandoned(out);
    let mut listened = Ok(());
    LISTENING.call_once(|| listened = end_on_signal());
    listened.context("cannot listen for signals")
}

/// Refuses what cannot be written as the file `out`.
pub(crate) fn check(out: &Path) -> anyhow::Result<()> {
    // Who means stdout would look for a file of that name in vain, or find it in the way later.
    if out == Path::new("-") {
        bail!("-: files are not written to stdout, expected a name (./- is a file of that one)");
    }
    Ok(check_output(out)?)
}

/// Refuses to write the file `out` over the text `read` that goes into it.
pub(crate) fn check_apart(out: &Path, read: &Path) -> anyhow::Result<()> {
    if is_same_file(read, out) {
        bail!("{}: is the text that is read, expected another file", out.display());
    }
    Ok(())
}

/// Writes a file at once: another of this name stays until this one is complete.
pub(crate) fn write(out: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut file = OutputFile::create(out)?;
    file.write_all(bytes).with_context(|| out.display().to_string())?;
    Ok(file.finish()?)
}

/// What a second Ctrl-C comes to while an answer is to be stopped, which takes a step: seconds of a long prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Second {
    /// The end of the program.
    Ends,
    /// A word that the next one ends the program: a conversation would be lost with it.
    Warns,
}

/// Hears of Ctrl-C for a command that answers: the first one during an answer is for whoever gives it to see here. Any
/// other, which finds it set, ends the program, or warns that the next one does: at first all end it, as loading a model
/// takes a while and has nothing to lose.
pub(crate) fn interruptible(second: Second) -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(true));
    let interrupts = Interrupts { stopping: interrupted.clone(), warned: AtomicBool::new(true), second };
    let handler = move || match interrupts.next() {
        Interrupt::Stops => {}
        Interrupt::Warns => note(format_args!("\n[stops when this step is done; Ctrl-C once more leaves the chat]")),
        Interrupt::Ends => abandon_outputs(|| std::process::exit(i32::from(INTERRUPTED))),
    };
    ctrlc::set_handler(handler).context("cannot listen for Ctrl-C")?;
    Ok(interrupted)
}

/// What a Ctrl-C comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interrupt {
    Stops,
    Warns,
    Ends,
}

/// What those so far have come to.
#[derive(Debug)]
struct Interrupts {
    /// Whether one was heard for the answer that is given; set where there is none.
    stopping: Arc<AtomicBool>,
    /// Whether the next one ends the program if that is set.
    warned: AtomicBool,
    second: Second,
}

impl Interrupts {
    fn next(&self) -> Interrupt {
        if !self.stopping.swap(true, Ordering::Relaxed) {
            self.warned.store(self.second == Second::Ends, Ordering::Relaxed);
            Interrupt::Stops
        } else if self.warned.swap(true, Ordering::Relaxed) {
            Interrupt::Ends
        } else {
            Interrupt::Warns
        }
    }
}

/// Waits for a signal on a thread of its own, and ends the program when one comes.
fn end_on_signal() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    drop(entered);
    let wait = move || {
        runtime.block_on(async {
            let code = tokio::select! {
                _ = interrupt.recv() => INTERRUPTED,
                _ = terminate.recv() => TERMINATED,
            };
            abandon_outputs(|| {
                std::process::exit(i32::from(code));
            });
        });
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_interrupt_warns_where_a_conversation_would_be_lost() {
        let interrupts =
            |second| Interrupts { stopping: Arc::new(AtomicBool::new(true)), warned: AtomicBool::new(true), second };
        let (chat, run) = (interrupts(Second::Warns), interrupts(Second::Ends));
        assert_eq!([chat.next(), run.next()], [Interrupt::Ends; 2], "nothing is answered yet");
        for _ in 0..2 {
            [&chat, &run].iter().for_each(|one| one.stopping.store(false, Ordering::Relaxed));
            assert_eq!([0; 3].map(|_| chat.next()), [Interrupt::Stops, Interrupt::Warns, Interrupt::Ends]);
            assert_eq!([0; 2].map(|_| run.next()), [Interrupt::Stops, Interrupt::Ends]);
        }
    }
}
