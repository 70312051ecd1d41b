//! Persistent threads, and the disjoint parts of mutable data their tasks work on. A thread has its share of the tasks of a job, and
//! those of others that nobody has begun when it is done: on a machine that has other work, too, nobody waits for a thread that is not
//! running, or for all that one has to do which runs half of the time.

use crate::states::ByType;
use std::{
    any::Any,
    cell::UnsafeCell,
    marker::PhantomData,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

/// Looks at the job counter this often before a thread goes to sleep: about 0.1 ms, longer than the gap between two
/// ops, shorter than anyone would notice as heat.
const SPINS: usize = 4000;

/// A job of the pool: called on every thread that comes in time, with its number.
type Job<'a> = dyn Fn(usize) + Sync + 'a;

/// What others see of a thread, in a cache line of its own.
#[repr(align(64))]
struct Seat {
    /// The job that the thread may still take part in; [`NONE`] if it does, or is too late.
    open: AtomicUsize,
    /// Tasks of its share that somebody has begun, or more.
    begun: AtomicUsize,
    /// Whether it sleeps or is about to.
    parked: AtomicBool,
}

/// No job has this number.
const NONE: usize = 0;

struct Shared {
    /// The number of the current job, from 1 on.
    epoch: AtomicUsize,
    /// Valid while `left > 0`.
    job: UnsafeCell<Option<*const Job<'static>>>,
    /// Workers that may still take part in the current job, or do.
    left: AtomicUsize,
    /// By thread.
    seats: Box<[Seat]>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only field that is not Sync by itself; it is written by the owner of the pool alone, before
// seats are open, and read by who has taken one and not yet lowered `left`.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` points at a `Sync` closure, which may be called from any thread.
unsafe impl Send for Shared {}

impl Shared {
    /// Whether the seat of a thread was open for job `epoch`; nobody else gets it.
    fn takes_seat(&self, epoch: usize, thread: usize) -> bool {
        self.seats[thread].open.compare_exchange(epoch, NONE, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Which one of the `count` tasks in the share of a thread is the first that nobody has begun.
    fn begin(&self, share: usize, count: usize) -> Option<usize> {
        let begun = &self.seats[share].begun;
        // Who only looks takes the line from nobody.
        let is_any = begun.load(Ordering::Relaxed) < count;
        is_any.then(|| begun.fetch_add(1, Ordering::Relaxed)).filter(|turn| *turn < count)
    }
}

/// Where tasks run: a dispatch costs about a microsecond, which small work does not pay back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the calling thread.
    Here,
    /// On all threads.
    Everywhere,
}

impl Place {
    /// All threads if about `work` multiply-adds or moved elements are worth it.
    pub(crate) fn of(work: usize) -> Self {
        if work < 16 * 1024 { Place::Here } else { Place::Everywhere }
    }
}

/// Threads that do the tasks of a job at the same time. The caller is thread 0.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads - 1` threads.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let workers = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(NONE),
            job: UnsafeCell::new(None),
            left: AtomicUsize::new(0),
            seats: (0..=workers)
                .map(|_| Seat {
                    open: AtomicUsize::new(NONE),
                    begun: AtomicUsize::new(0),
                    parked: AtomicBool::new(false),
                })
                .collect(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut pool = Self { shared: shared.clone(), workers: Vec::with_capacity(workers) };
        for worker in 0..workers {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("kvas-cpu-{}", worker + 1));
            pool.workers.push(thread.spawn(move || work(&shared, worker + 1))?);
        }
        Ok(pool)
    }

    /// Threads, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(task, part, scratch)` for every task of `0..tasks`; task `i` is in the share of thread `i % threads`, which
    /// begins with the first of them. Each call gets its own part of `parts` and its thread's element of `scratch`. Panics of tasks
    /// reach the caller.
    pub(crate) fn each<P: Parts, T: Send>(
        &mut self,
        (place, tasks): (Place, usize),
        parts: P,
        scratch: &mut [T],
        f: impl Fn(usize, P::Part, &mut T) + Sync,
    ) {
        let threads = if place == Place::Here || tasks <= 1 { 1 } else { self.threads() };
        assert!(scratch.len() >= threads, "a scratch element per thread");
        assert!(tasks <= parts.count(), "{tasks} tasks over {} parts", parts.count());
        if threads == 1 {
            for task in 0..tasks {
                // SAFETY: `task < tasks <= parts.count()`, and this thread alone counts through them, once.
                f(task, unsafe { parts.part(task) }, &mut scratch[0]);
            }
            return;
        }
        let scratch = Scattered { data: scratch.as_mut_ptr() };
        let (scratch, parts) = (&scratch, &parts);
        let shared = &*self.shared;
        let job = |thread: usize| {
            // SAFETY: `thread < scratch.len()`, and no two calls of a job have the same thread number.
            let scratch = unsafe { &mut *scratch.data.add(thread) };
            for share in (thread..threads).chain(0..thread) {
                let count = (tasks + threads - 1 - share) / threads;
                while let Some(turn) = shared.begin(share, count) {
                    let task = share + turn * threads;
                    // SAFETY: `task < tasks <= parts.count()`, and no turn of a share is given out twice: turns begin anew only while
                    // nobody takes part in a job.
                    let part = unsafe { parts.part(task) };
                    f(task, part, scratch);
                }
            }
        };
        self.broadcast(&job);
    }

    /// As [`Pool::each`] for tasks that need no scratch.
    pub(crate) fn share<P: Parts>(&mut self, tasks: (Place, usize), parts: P, f: impl Fn(usize, P::Part) + Sync) {
        let mut nothing = vec![(); self.threads()]; // allocates nothing
        self.each(tasks, parts, &mut nothing, |task, part, ()| f(task, part));
    }

    /// Calls `job` here and on every worker that comes before that is over, and returns when all calls have.
    fn broadcast(&self, job: &Job<'_>) {
        let shared = &*self.shared;
        let job_for_workers = std::ptr::from_ref(job);
        // SAFETY: only the lifetime is erased; this function does not return, nor unwind, before `left` is 0,
        // and a worker uses the job only before it lowers `left`.
        let erased = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job_for_workers) };
        // SAFETY: `left` is 0 and no seat is open, so no worker reads `job`; the caller has the pool to itself.
        unsafe { *shared.job.get() = Some(erased) };
        shared.left.store(self.workers.len(), Ordering::Relaxed);
        let epoch = shared.epoch.load(Ordering::Relaxed) + 1;
        shared.seats.iter().for_each(|seat| seat.begun.store(0, Ordering::Relaxed));
        let seats = &shared.seats[1..];
        seats.iter().for_each(|seat| seat.open.store(epoch, Ordering::Release));
        // Sequentially consistent with `parked`: either the worker sees the new epoch or we see it parked.
        shared.epoch.store(epoch, Ordering::SeqCst);
        for (worker, seat) in self.workers.iter().zip(seats) {
            if seat.parked.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        // Whoever comes now comes too late.
        let late = (1..=seats.len()).filter(|thread| shared.takes_seat(epoch, *thread)).count();
        shared.left.fetch_sub(late, Ordering::Relaxed);
        let mut spins = 0;
        while shared.left.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let theirs = shared.panic.lock().expect("nobody panics with this lock").take();
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            worker.join().expect("workers catch their panics");
        }
    }
}

fn work(shared: &Shared, thread: usize) {
    let mut seen = NONE;
    loop {
        seen = next_epoch(shared, thread, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        if !shared.takes_seat(seen, thread) {
            continue;
        }
        // SAFETY: the seat was open, so the owner has set `job` before, and keeps it as it is, and alive, until `left` is 0.
        let job = unsafe { &*(*shared.job.get()).expect("a job comes before its seats") };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(thread))) {
            shared.panic.lock().expect("nobody panics with this lock").get_or_insert(panic);
        }
        shared.left.fetch_sub(1, Ordering::Release);
    }
}

/// Spins, then sleeps, until the epoch is not `seen`.
fn next_epoch(shared: &Shared, thread: usize, seen: usize) -> usize {
    for _ in 0..SPINS {
        let epoch = shared.epoch.load(Ordering::Acquire);
        if epoch != seen {
            return epoch;
        }
        std::hint::spin_loop();
    }
    let parked = &shared.seats[thread].parked;
    parked.store(true, Ordering::SeqCst);
    loop {
        let epoch = shared.epoch.load(Ordering::SeqCst);
        if epoch != seen {
            parked.store(false, Ordering::SeqCst);
            return epoch;
        }
        std::thread::park();
    }
}

/// A pointer that crosses threads; each thread touches its own elements.
struct Scattered<T> {
    data: *mut T,
}

// SAFETY: used for one element per thread at a time, and the elements are Send.
unsafe impl<T: Send> Sync for Scattered<T> {}

/// Parts of which each share has neighbouring ones: of `threads` shares, `each` or less.
pub(crate) struct Neighbours<P> {
    pub(crate) parts: P,
    pub(crate) threads: usize,
    pub(crate) each: usize,
}

// SAFETY: tasks below `threads * each` have different numbers of parts of the one inside; what has none gets nothing.
unsafe impl<P: Parts> Parts for Neighbours<P> {
    type Part = Option<P::Part>;

    fn count(&self) -> usize {
        self.threads * self.each
    }

    unsafe fn part(&self, task: usize) -> Self::Part {
        let part = task % self.threads * self.each + task / self.threads;
        // SAFETY: it is below the count, and no other task has this number.
        (part < self.parts.count()).then(|| unsafe { self.parts.part(part) })
    }
}

/// Mutable data that falls into disjoint parts, one per task.
///
/// # Safety
/// `part(i)` and `part(j)` share no memory for `i != j` below `count()`.
pub(crate) unsafe trait Parts: Sync {
    /// What a task gets.
    type Part;

    /// How many parts there are.
    fn count(&self) -> usize;

    /// Part number `task`.
    ///
    /// # Safety
    /// `task < count()`, and no `task` is asked for twice in the life of `self`.
    unsafe fn part(&self, task: usize) -> Self::Part;
}

// SAFETY: no memory at all.
unsafe impl Parts for () {
    type Part = ();

    fn count(&self) -> usize {
        usize::MAX
    }

    unsafe fn part(&self, _: usize) {}
}

// SAFETY: the parts of the one inside, or no memory at all.
unsafe impl<P: Parts> Parts for Option<P> {
    type Part = Option<P::Part>;

    fn count(&self) -> usize {
        self.as_ref().map_or(usize::MAX, Parts::count)
    }

    unsafe fn part(&self, task: usize) -> Self::Part {
        // SAFETY: passed on from the caller.
        self.as_ref().map(|parts| unsafe { parts.part(task) })
    }
}

// SAFETY: the parts of the one inside.
unsafe impl<F: Parts, H: Parts> Parts for ByType<F, H> {
    type Part = ByType<F::Part, H::Part>;

    fn count(&self) -> usize {
        match self {
            ByType::F32(parts) => parts.count(),
            ByType::F16(parts) => parts.count(),
        }
    }

    unsafe fn part(&self, task: usize) -> Self::Part {
        match self {
            // SAFETY: passed on from the caller.
            ByType::F32(parts) => ByType::F32(unsafe { parts.part(task) }),
            // SAFETY: passed on from the caller.
            ByType::F16(parts) => ByType::F16(unsafe { parts.part(task) }),
        }
    }
}

macro_rules! tuple_parts {
    ($($name:ident $at:tt),*) => {
        // SAFETY: the parts of each member are disjoint, and the members are disjoint mutable borrows.
        unsafe impl<$($name: Parts),*> Parts for ($($name,)*) {
            type Part = ($($name::Part,)*);

            fn count(&self) -> usize {
                usize::MAX$(.min(self.$at.count()))*
            }

            unsafe fn part(&self, task: usize) -> Self::Part {
                // SAFETY: passed on from the caller.
                unsafe { ($(self.$at.part(task),)*) }
            }
        }
    };
}
tuple_parts!(A 0, B 1);
tuple_parts!(A 0, B 1, C 2);
tuple_parts!(A 0, B 1, C 2, D 3);

/// A matrix cut into a grid of tiles: task `i` gets tile row `i / across`, tile column `i % across`.
pub(crate) struct Tiles<'a, T> {
    data: *mut T,
    rows: usize,
    columns: usize,
    /// Elements from one row to the next.
    stride: usize,
    tile: [usize; 2],
    /// Tiles beside each other.
    across: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: handing out tiles hands out `&mut` to disjoint elements, which is fine across threads for Send elements.
unsafe impl<T: Send> Sync for Tiles<'_, T> {}

impl<'a, T> Tiles<'a, T> {
    /// Cuts the matrix `data` of `columns` columns into tiles of `tile` rows and columns, less at the edges.
    pub(crate) fn new(data: &'a mut [T], columns: usize, tile: [usize; 2]) -> Self {
        Self::within((data, columns), 0..columns, tile)
    }

    /// Cuts some columns of the matrix `data` of `stride` columns as if they were all of it.
    pub(crate) fn within((data, stride): (&'a mut [T], usize), part: Range<usize>, tile: [usize; 2]) -> Self {
        assert!(tile[0] > 0 && tile[1] > 0 && !part.is_empty(), "tiles are not empty");
        assert!(data.len().is_multiple_of(stride), "whole rows");
        assert!(part.end <= stride, "columns of the matrix");
        let (rows, first) = (data.len() / stride, part.start.min(data.len()));
        let (data, columns) = (data[first..].as_mut_ptr(), part.len());
        Self { data, rows, columns, stride, tile, across: columns.div_ceil(tile[1]), life: PhantomData }
    }

    /// Consecutive chunks of `len` elements.
    pub(crate) fn chunks(data: &'a mut [T], len: usize) -> Self {
        Self::new(data, len, [1, len])
    }

    /// Chunks of `len` elements, the last one shorter.
    pub(crate) fn chunks_and_rest(data: &'a mut [T], len: usize) -> Self {
        let columns = data.len().max(1);
        Self::new(data, columns, [1, len])
    }
}

// SAFETY: tiles of a grid share no element, and its columns lie within the rows of the matrix.
unsafe impl<'a, T: Send> Parts for Tiles<'a, T> {
    type Part = Tile<'a, T>;

    fn count(&self) -> usize {
        self.rows.div_ceil(self.tile[0]) * self.across
    }

    unsafe fn part(&self, task: usize) -> Tile<'a, T> {
        let first = [task / self.across * self.tile[0], task % self.across * self.tile[1]];
        let size = [(self.rows - first[0]).min(self.tile[0]), (self.columns - first[1]).min(self.tile[1])];
        Tile { data: self.data, stride: self.stride, first, size, life: PhantomData }
    }
}

/// Consecutive runs of elements of any lengths.
pub(crate) struct Runs<'a, T> {
    data: *mut T,
    /// Where each begins, and where the last ends, in pieces.
    bounds: &'a [u32],
    /// Elements of a piece.
    piece: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: handing out runs hands out `&mut` to disjoint elements, which is fine across threads for Send elements.
unsafe impl<T: Send> Sync for Runs<'_, T> {}

impl<'a, T> Runs<'a, T> {
    /// Cuts `data` where `bounds` say, in pieces of so many elements.
    pub(crate) fn new(data: &'a mut [T], bounds: &'a [u32], piece: usize) -> Self {
        assert!(bounds.is_sorted(), "runs follow each other");
        assert!(bounds.last().is_some_and(|end| *end as usize * piece <= data.len()), "runs of what is there");
        Self { data: data.as_mut_ptr(), bounds, piece, life: PhantomData }
    }
}

// SAFETY: bounds are sorted and within the data, so runs share no element.
unsafe impl<'a, T: Send> Parts for Runs<'a, T> {
    type Part = &'a mut [T];

    fn count(&self) -> usize {
        self.bounds.len() - 1
    }

    unsafe fn part(&self, task: usize) -> &'a mut [T] {
        let [first, end] = [self.bounds[task], self.bounds[task + 1]].map(|bound| bound as usize * self.piece);
        // SAFETY: the run lies in the data, and no other task has its elements.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(first), end - first) }
    }
}

/// One tile of a matrix, exclusively.
pub(crate) struct Tile<'a, T> {
    data: *mut T,
    stride: usize,
    first: [usize; 2],
    size: [usize; 2],
    life: PhantomData<&'a mut [T]>,
}

impl<T> Tile<'_, T> {
    /// Row and column of its first element among those that were cut.
    pub(crate) fn first(&self) -> [usize; 2] {
        self.first
    }

    /// Rows and columns.
    pub(crate) fn size(&self) -> [usize; 2] {
        self.size
    }

    /// Row `row` of the tile.
    pub(crate) fn row(&self, row: usize) -> &[T] {
        assert!(row < self.size[0], "row {row} of a tile of {}", self.size[0]);
        let at = (self.first[0] + row) * self.stride + self.first[1];
        // SAFETY: the tile lies in the matrix, this row lies in the tile, and the tile has these elements to itself.
        unsafe { std::slice::from_raw_parts(self.data.add(at), self.size[1]) }
    }

    /// Row `row` of the tile.
    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.size[0], "row {row} of a tile of {}", self.size[0]);
        let at = (self.first[0] + row) * self.stride + self.first[1];
        // SAFETY: the tile lies in the matrix, this row lies in the tile, and the tile has these elements to itself.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(at), self.size[1]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_a_matrix_once_whatever_the_threads() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads).unwrap();
            let mut scratch = vec![0u32; threads];
            for (tile, tasks) in [([2, 3], 16), ([7, 10], 1), ([1, 10], 7), ([3, 4], 9)] {
                let mut data = vec![0u32; 70];
                pool.each(
                    (Place::Everywhere, tasks),
                    Tiles::new(&mut data, 10, tile),
                    &mut scratch,
                    |task, mut t, _| {
                        for row in 0..t.size()[0] {
                            t.row_mut(row).iter_mut().for_each(|x| *x += 1 + task as u32);
                        }
                    },
                );
                let across = 10usize.div_ceil(tile[1]);
                for (i, x) in data.iter().enumerate() {
                    assert_eq!(*x as usize, 1 + i / 10 / tile[0] * across + i % 10 / tile[1]);
                }
            }
        }
    }

    #[test]
    fn every_task_of_many_short_jobs_is_done_once() {
        let mut pool = Pool::new(4).unwrap();
        let (mut counts, mut scratch) = (vec![0usize; 9], vec![0usize; 4]);
        for round in 0..2000 {
            let parts = Neighbours { parts: Tiles::chunks(&mut counts, 1), threads: 4, each: 3 };
            pool.each((Place::Everywhere, 12), parts, &mut scratch, |_, part, done| {
                *done += 1;
                part.into_iter().for_each(|mut part| part.row_mut(0)[0] += 1);
            });
            if round % 500 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(5)); // long enough to park
            }
        }
        assert_eq!((counts, scratch.iter().sum::<usize>()), (vec![2000; 9], 12 * 2000));
    }

    /// Workers sleep before every job: the caller is through with its share before they wake.
    #[test]
    fn what_a_thread_has_not_begun_is_done_by_another() {
        let mut pool = Pool::new(3).unwrap();
        let (caller, here) = (std::thread::current().id(), AtomicUsize::new(0));
        let mut done = [false; 3];
        for _ in 0..200 {
            pool.each((Place::Everywhere, 3), Tiles::chunks(&mut done, 1), &mut [(); 3], |task, mut part, ()| {
                part.row_mut(0)[0] = true;
                if task > 0 && std::thread::current().id() == caller {
                    here.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert_eq!(std::mem::take(&mut done), [true; 3]);
            std::thread::sleep(std::time::Duration::from_millis(1)); // long enough to park
        }
        assert!(here.load(Ordering::Relaxed) > 0);
    }

    #[test]
    fn a_panic_of_any_thread_reaches_the_caller_and_the_pool_survives() {
        let mut pool = Pool::new(3).unwrap();
        for bad in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.each((Place::Everywhere, 3), (), &mut [(); 3], |task, (), _| assert_ne!(task, bad));
            }));
            assert!(result.is_err());
            pool.each((Place::Everywhere, 3), (), &mut [(); 3], |_, (), _| {});
        }
    }

    #[test]
    #[should_panic(expected = "tasks over")]
    fn more_tasks_than_parts_are_refused() {
        let mut data = vec![0; 4];
        Pool::new(1).unwrap().each((Place::Here, 3), Tiles::chunks(&mut data, 2), &mut [()], |_, _, _| {});
    }
}
