//! Large uploads: threads read pieces of a mapped file into pinned memory while the GPU copies earlier pieces.

use crate::device::{Device, Event, Pinned, Ptr};
use kvas_backend::DeviceError;
use std::sync::Arc;

/// Bytes of a piece.
const PIECE: usize = 16 << 20;
/// Pieces under way at once.
const PIECES: usize = 4;
/// Bytes below which a thread is not worth starting.
const SHARE: usize = 1 << 20;

/// Pinned pieces, used in turn.
pub(crate) struct Uploader {
    device: Arc<Device>,
    pieces: Vec<(Pinned, Event)>,
    next: usize,
    threads: usize,
}

impl Uploader {
    /// Takes the pinned memory; it goes with the value.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, DeviceError> {
        let piece = |_| Ok((Pinned::new(device, PIECE)?, device.event()?));
        let pieces = (0..PIECES).map(piece).collect::<Result<_, DeviceError>>()?;
        // A core for the thread that waits and one for the rest of the system.
        let threads = std::thread::available_parallelism().map_or(1, usize::from).saturating_sub(2).clamp(1, 16);
        Ok(Self { device: device.clone(), pieces, next: 0, threads })
    }

    /// Overwrites device memory by `bytes`, which have been read when this returns.
    pub(crate) fn send(&mut self, to: Ptr, bytes: &[u8]) -> Result<(), DeviceError> {
        for (number, from) in bytes.chunks(PIECE).enumerate() {
            let (pinned, done) = &mut self.pieces[self.next];
            self.device.wait(done)?;
            read(from, &mut pinned[..from.len()], self.threads);
            self.device.upload_pinned(to.at(number * PIECE), pinned, 0..from.len())?;
            self.device.record(done)?;
            self.next = (self.next + 1) % self.pieces.len();
        }
        Ok(())
    }
}

/// Copies with several threads: each one waits for the disk on its own.
fn read(from: &[u8], to: &mut [u8], threads: usize) {
    let share = from.len().div_ceil(threads).max(SHARE);
    if share >= from.len() {
        return to.copy_from_slice(from);
    }
    std::thread::scope(|scope| {
        for (from, to) in from.chunks(share).zip(to.chunks_mut(share)) {
            scope.spawn(move || to.copy_from_slice(from));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_read_everything() {
        for len in [0, 1, SHARE - 1, SHARE + 1, 3 * SHARE + 5] {
            let from: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            for threads in [1, 2, 7] {
                let mut to = vec![0; len];
                read(&from, &mut to, threads);
                assert!(from == to, "{len} bytes, {threads} threads");
            }
        }
    }
}
