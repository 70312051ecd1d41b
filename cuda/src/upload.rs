//! Large uploads: threads read pieces of a mapped file into pinned memory while the GPU copies earlier pieces, and whoever asks
//! for them goes on meanwhile.

use crate::device::{Device, Event, Lent, Pinned, Ptr, failed};
use kvas_backend::{Bytes, DeviceError};
use std::{
    collections::VecDeque,
    ops::{DerefMut, Range},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
};

/// Bytes of a piece: many, so that every thread has one, and few, since pinning memory takes longer than reading into it.
const PIECE: usize = 2 << 20;
/// Most pieces that are read at once, and as many that the GPU copies meanwhile.
const AT_ONCE: usize = 12;

/// What is to be done once something has been copied.
pub(crate) type Then = Box<dyn FnOnce(&Device) -> Result<(), DeviceError>>;

/// Pinned pieces, used in turn. Everything is in the order in which it was asked for.
pub(crate) struct Uploader {
    device: Arc<Device>,
    readers: Readers<Pinned>,
    /// What is being read, the oldest first.
    reading: VecDeque<PieceRead>,
    /// Pieces that the GPU copies, the oldest first.
    copied: VecDeque<Lent>,
    /// Events of the pieces that are being read: any will do.
    events: Vec<Event>,
    asked: usize,
}

/// A piece that is being read.
struct PieceRead {
    to: Ptr,
    len: usize,
    then: Option<Then>,
}

impl Uploader {
    /// Starts the threads. Pinned memory is taken when it is needed, while they read, and goes with the value.
    pub(crate) fn new(device: &Arc<Device>) -> Self {
        // A core for the thread that asks and one for the rest of the system.
        let threads = std::thread::available_parallelism().map_or(1, usize::from).saturating_sub(2).clamp(1, AT_ONCE);
        let (reading, copied, events) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Self { device: device.clone(), readers: Readers::new(threads), reading, copied, events, asked: 0 }
    }

    /// A piece that nobody needs.
    fn free_piece(&mut self) -> Result<(Pinned, Event), DeviceError> {
        while self.reading.len() >= AT_ONCE {
            self.copy_oldest()?;
        }
        if self.copied.len() >= AT_ONCE
            && let Some(lent) = self.copied.pop_front()
        {
            return lent.back();
        }
        Ok((Pinned::new(&self.device, PIECE)?, self.device.event()?))
    }

    /// Overwrites device memory by a part of `bytes`, some time before [`Uploader::finish`] returns, and does what is to be done
    /// `then`.
    pub(crate) fn send(
        &mut self,
        to: Ptr,
        bytes: &Bytes,
        part: Range<usize>,
        mut then: Option<Then>,
    ) -> Result<(), DeviceError> {
        for first in part.clone().step_by(PIECE) {
            let range = first..part.end.min(first + PIECE);
            let (piece, event) = self.free_piece()?;
            self.events.push(event);
            let (to, len, is_last) = (to.at(first - part.start), range.len(), range.end == part.end);
            self.readers.read(self.asked, piece, bytes.clone(), range)?;
            self.reading.push_back(PieceRead { to, len, then: if is_last { then.take() } else { None } });
            self.asked += 1;
        }
        Ok(())
    }

    /// Pieces that were asked for so far.
    pub(crate) fn asked(&self) -> usize {
        self.asked
    }

    /// Those of them that have been read: their bytes are needed no more.
    pub(crate) fn read(&self) -> usize {
        self.asked - self.reading.len()
    }

    /// Has everything read that was asked for, and asks the GPU to copy it.
    pub(crate) fn finish(&mut self) -> Result<(), DeviceError> {
        while !self.reading.is_empty() {
            self.copy_oldest()?;
        }
        Ok(())
    }

    fn copy_oldest(&mut self) -> Result<(), DeviceError> {
        let number = self.read();
        let (Some(PieceRead { to, len, then }), Some(event)) = (self.reading.pop_front(), self.events.pop()) else {
            return Ok(());
        };
        let piece = self.readers.piece(number)?;
        self.copied.push_back(self.device.upload_pinned(to, (piece, event), 0..len)?);
        then.map_or(Ok(()), |then| then(&self.device))
    }
}

/// Threads that copy parts of bytes into pieces: each one waits for the disk on its own.
struct Readers<P> {
    /// None: the threads are to end.
    jobs: Option<Sender<Job<P>>>,
    done: Receiver<(usize, std::io::Result<P>)>,
    /// What is done, but not what is waited for.
    early: Vec<(usize, std::io::Result<P>)>,
    threads: Vec<JoinHandle<()>>,
}

struct Job<P> {
    number: usize,
    piece: P,
    bytes: Bytes,
    part: Range<usize>,
}

impl<P: DerefMut<Target = [u8]> + Send + 'static> Readers<P> {
    fn new(threads: usize) -> Self {
        let ((jobs, taken), (finished, done)) = (channel::<Job<P>>(), channel());
        let taken = Arc::new(Mutex::new(taken));
        let start = |_| {
            let (taken, finished) = (taken.clone(), finished.clone());
            let thread = std::thread::Builder::new().spawn(move || {
                let next = || taken.lock().ok()?.recv().ok();
                while let Some(Job { number, mut piece, bytes, part }) = next() {
                    let room = piece.get_mut(..part.len()).ok_or(std::io::ErrorKind::InvalidInput.into());
                    let copied = room.and_then(|to| bytes.copy_to(part, to));
                    // Nobody listens any more if something has failed.
                    let _ = finished.send((number, copied.map(|()| piece)));
                }
            });
            // Fewer are slower; of none, who waits for a piece is told that they have stopped.
            thread.ok()
        };
        let threads = (0..threads).filter_map(start).collect();
        Self { jobs: Some(jobs), done, early: Vec::new(), threads }
    }

    /// Has a part of `bytes` copied into a piece.
    fn read(&self, number: usize, piece: P, bytes: Bytes, part: Range<usize>) -> Result<(), DeviceError> {
        let job = Job { number, piece, bytes, part };
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(stopped)
    }

    /// Waits for the piece of a number.
    fn piece(&mut self, number: usize) -> Result<P, DeviceError> {
        let unread = |error| failed(format!("reading weights: {error}"));
        if let Some(at) = self.early.iter().position(|(early, _)| *early == number) {
            return self.early.swap_remove(at).1.map_err(unread);
        }
        loop {
            let (done, piece) = self.done.recv().map_err(|_| stopped())?;
            if done == number {
                return piece.map_err(unread);
            }
            self.early.push((done, piece));
        }
    }
}

impl<P> Drop for Readers<P> {
    fn drop(&mut self) {
        // The threads end, and leave pieces to whoever drops this: one that is pinned is given back there.
        self.jobs = None;
        self.threads.drain(..).for_each(|thread| {
            let _ = thread.join();
        });
    }
}

fn stopped() -> DeviceError {
    failed("a thread that reads weights has stopped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_copy_every_part_in_whatever_order_they_are_asked() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        let shared = Bytes::new(bytes.clone());
        for threads in [1, 2, 7] {
            let mut readers = Readers::new(threads);
            let parts: Vec<Range<usize>> = (0..40).map(|at| at * 1000..at * 1000 + 17 * at).collect();
            for (number, part) in parts.iter().enumerate() {
                readers.read(number, vec![0; 1000], shared.clone(), part.clone()).unwrap();
            }
            for (number, part) in parts.iter().enumerate().rev() {
                let piece = readers.piece(number).unwrap();
                assert!(piece[..part.len()] == bytes[part.clone()], "part {number}, {threads} threads");
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_not_a_wait() {
        let mut readers = Readers::new(2);
        // There is less room in the piece than in the part.
        for (number, room) in [1, 2].into_iter().enumerate() {
            readers.read(number, vec![0; room], Bytes::new(vec![7; 2]), 0..2).unwrap();
        }
        assert_eq!(readers.piece(1).unwrap(), [7, 7]);
        let error = readers.piece(0).unwrap_err().to_string();
        assert!(error.contains("reading weights: "), "{error}");
    }
}
