//! The agent's one storage thread, which reads and writes flash, so that the loop never waits for it. A slow SD card
//! delays only the caller of a job and the jobs after it in the queue.
//!
//! Jobs run in the order of their requests. A job whose duration depends on containers runs in parts, between which
//! other jobs run. A job has no access to the state of the loop: it gets values and returns a value.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use nodlet_core::time::Instant;
use smol::lock::Semaphore;

/// The value of a job, of the type that its caller expects. Boxed, so that all jobs are of one type:
/// a channel for each type of value would be several kilobytes of code.
type Value = Box<dyn Any + Send>;

/// Length of the queue at which the API rejects changes (429).
const JOBS: usize = 256;

/// Log reads in the queue at once. A write waits for at most this many of them; further log readers wait for
/// a place in the queue.
const READS: usize = 4;

/// Time of one part of a job after which the agent is not healthy. A slow card needs seconds for a sync.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// Work that may wait for flash.
struct Job {
    /// Does a part of the work, and returns the value after the last part.
    part: Box<dyn FnMut() -> Option<Value> + Send>,
    done: Sender<Value>,
}

/// A handle to the thread; the thread ends when the last one is dropped.
///
/// The queue accepts any job: a loop that waited for room in the queue would wait for the card. Each source of
/// jobs has a bound instead. The core has `WRITES_AT_ONCE` and `STARTS_AT_ONCE` ([`nodlet_core::facts`]); a pod
/// that starts or ends has one job at a time; there is one scan of the manifest directories; log readers have
/// [`READS`]; and the API rejects changes when the queue has [`JOBS`].
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    jobs: mpsc::Sender<Job>,
    /// Length of the queue, with the job that runs.
    waiting: Arc<AtomicUsize>,
    /// When the part that runs began.
    begun: Arc<Mutex<Option<Instant>>>,
    /// The [`READS`] places for log reads in the queue.
    reads: Arc<Semaphore>,
}

impl Storage {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub(crate) fn start() -> std::io::Result<Storage> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let begun = Arc::new(Mutex::new(None));
        std::thread::Builder::new().name("storage".into()).stack_size(256 * 1024).spawn({
            let (waiting, begun) = (waiting.clone(), begun.clone());
            move || work(&queue, &waiting, &begun)
        })?;
        Ok(Storage { jobs, waiting, begun, reads: Arc::new(Semaphore::new(READS)) })
    }

    /// Runs `job` on the thread, even if the caller does not wait for its value.
    pub(crate) fn run<T, J>(&self, job: J) -> impl Future<Output = T> + use<T, J>
    where
        T: Send + 'static,
        J: FnOnce() -> T + Send + 'static,
    {
        let mut job = Some(job);
        self.run_in_parts(move || job.take().map(|job| job()))
    }

    /// Runs a log read on the thread; waits first while [`READS`] of them are in the queue.
    pub(crate) async fn read<T, J>(&self, job: J) -> T
    where
        T: Send + 'static,
        J: FnOnce() -> T + Send + 'static,
    {
        // The job owns its place: a client that disconnects does not remove the job from the queue.
        let place = self.reads.acquire_arc().await;
        let read = self.run(move || {
            let value = job();
            drop(place);
            value
        });
        read.await
    }

    /// Calls `part` on the thread repeatedly until it returns a value. Other jobs run between two calls. The job runs
    /// to its end even if the caller does not wait for its value.
    pub(crate) fn run_in_parts<T, P>(&self, mut part: P) -> impl Future<Output = T> + use<T, P>
    where
        T: Send + 'static,
        P: FnMut() -> Option<T> + Send + 'static,
    {
        let value = self.queue(Box::new(move || part().map(|value| Box::new(value) as Value)));
        async move {
            let value = value.recv().await.expect("a job answers: a panic ends the whole process");
            *value.downcast().expect("a value is of the type that its job gives")
        }
    }

    /// Whether the queue is so long that the API rejects changes.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= JOBS
    }

    /// Whether one part of a job has run for so long at `now` that the thread hangs.
    pub(crate) fn hangs(&self, now: Instant) -> bool {
        let begun = *self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.is_some_and(|begun| now > begun + HANGS_AFTER)
    }

    fn queue(&self, part: Box<dyn FnMut() -> Option<Value> + Send>) -> Receiver<Value> {
        let (done, value) = async_channel::bounded(1);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let queued = self.jobs.send(Job { part, done });
        queued.expect("the storage thread lives as long as its handles");
        value
    }
}

/// Runs jobs until all handles are dropped and the queue is empty.
fn work(queue: &mpsc::Receiver<Job>, waiting: &AtomicUsize, part_begun: &Mutex<Option<Instant>>) {
    let note = |begun| *part_begun.lock().unwrap_or_else(PoisonError::into_inner) = begun;
    let mut begun: VecDeque<Job> = VecDeque::new();
    loop {
        let new = if begun.is_empty() { queue.recv().ok() } else { queue.try_recv().ok() };
        if new.is_none() && begun.is_empty() {
            return;
        }
        for mut job in new.into_iter().chain(begun.pop_front()).collect::<Vec<_>>() {
            note(Some(nodlet_host::clock::instant()));
            let value = (job.part)();
            note(None);
            match value {
                Some(value) => {
                    waiting.fetch_sub(1, Ordering::Relaxed);
                    // The asker may have lost interest; the work was still wanted.
                    let _ = job.done.try_send(value);
                }
                None => begun.push_back(job),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn started() -> Storage {
        Storage::start().expect("the kernel has a thread")
    }

    /// A thread whose first job ends when this sender is used.
    fn blocked() -> (Storage, mpsc::Sender<()>) {
        let (storage, (go, wait)) = (started(), mpsc::channel::<()>());
        drop(storage.run(move || wait.recv()));
        (storage, go)
    }

    #[test]
    fn other_jobs_run_in_order_between_the_parts_of_a_long_job() {
        // Nothing is done before all is asked for.
        let (storage, go) = blocked();
        let done = Arc::new(Mutex::new(Vec::new()));
        let note = |what: &'static str| {
            let done = done.clone();
            move || done.lock().expect("no panic").push(what)
        };
        let mut parts = 0;
        let part = note("part");
        let long = storage.run_in_parts(move || {
            parts += 1;
            part();
            (parts == 4).then_some(parts)
        });
        for short in ["a", "b", "c"] {
            drop(storage.run(note(short)));
        }
        go.send(()).expect("it waits");
        assert_eq!(smol::block_on(long), 4);
        let done = done.lock().expect("no panic").clone();
        let shorts: Vec<_> = done.iter().copied().filter(|what| *what != "part").collect();
        assert_eq!(shorts, ["a", "b", "c"]);
        let place = |what: &str| done.iter().position(|one| *one == what);
        let last = done.iter().rposition(|one| *one == "part");
        assert!(place("part") < place("b") && place("b") < last, "{done:?}");
    }

    #[test]
    fn a_write_waits_for_no_more_log_reads_than_have_a_place() {
        let (storage, go) = blocked();
        let done = Arc::new(Mutex::new(Vec::new()));
        let note = |what: &'static str| {
            let done = done.clone();
            move || done.lock().expect("no panic").push(what)
        };
        let executor = smol::LocalExecutor::new();
        let reads: Vec<_> = (0..3 * READS).map(|_| executor.spawn(storage.read(note("read")))).collect();
        while executor.try_tick() {}
        // One that hangs up keeps its place until its job is done.
        let mut reads = reads.into_iter();
        drop(reads.next());
        while executor.try_tick() {}
        let write = storage.run(note("write"));
        go.send(()).expect("it waits");
        smol::block_on(executor.run(async {
            write.await;
            for read in reads {
                read.await;
            }
        }));
        let done = done.lock().expect("no panic").clone();
        assert_eq!(done.iter().position(|what| *what == "write"), Some(READS), "{done:?}");
        assert_eq!(done.len(), 3 * READS + 1, "{done:?}");
        assert!(!storage.is_full());
    }

    #[test]
    fn changes_are_rejected_while_as_many_jobs_wait_as_may() {
        let (storage, go) = blocked();
        let jobs: Vec<_> = (1..JOBS).map(|number| storage.run(move || number)).collect();
        assert!(storage.is_full());
        go.send(()).expect("the job waits");
        let done: Vec<usize> = jobs.into_iter().map(smol::block_on).collect();
        assert_eq!(done.last(), Some(&(JOBS - 1)));
        assert!(!storage.is_full());
    }

    #[test]
    fn a_thread_whose_job_does_not_end_hangs_and_an_idle_one_does_not() {
        let storage = started();
        let later = || nodlet_host::clock::instant() + HANGS_AFTER + HANGS_AFTER;
        assert!(!storage.hangs(later()));
        let (running, runs) = mpsc::channel::<()>();
        let (go, wait) = mpsc::channel::<()>();
        let blocked = storage.run(move || running.send(()).is_ok() && wait.recv().is_ok());
        runs.recv().expect("the job runs");
        assert!(!storage.hangs(nodlet_host::clock::instant()), "it has just begun");
        assert!(storage.hangs(later()));
        go.send(()).expect("the job waits");
        assert!(smol::block_on(blocked));
        // The end of a job is noted before its value is sent.
        assert!(!storage.hangs(later()));
    }

    #[test]
    fn a_storage_job_is_completed_after_its_caller_is_dropped() {
        let storage = started();
        let (done, end) = mpsc::channel();
        let mut parts = 0;
        drop(storage.run_in_parts(move || {
            parts += 1;
            (parts == 3).then(|| done.send(parts))
        }));
        drop(storage);
        assert_eq!(end.recv(), Ok(3));
    }
}
