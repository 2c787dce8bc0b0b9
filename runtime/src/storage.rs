//! The agent's one storage thread: whatever may wait for flash is done here, so
//! that the loop never does. An SD card that takes a second for an fsync delays
//! what asked for it and nothing else.
//!
//! Work is done in the order in which it was asked for. It must not touch what
//! belongs to the loop: a job gets values and gives a value back.

use std::sync::mpsc;

/// Jobs that may wait. A loop that is further ahead of the card than this waits itself; the core
/// asks for less at once ([`crate::node::WRITES_AT_ONCE`], [`crate::node::STARTS_AT_ONCE`]).
const JOBS: usize = 256;

type Job = Box<dyn FnOnce() + Send>;

/// A handle to the thread; the thread ends when the last one is dropped.
#[derive(Clone)]
pub struct Storage {
    jobs: mpsc::SyncSender<Job>,
}

impl Storage {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the kernel refuses another thread.
    pub fn start() -> std::io::Result<Storage> {
        let (jobs, queue) = mpsc::sync_channel::<Job>(JOBS);
        std::thread::Builder::new().name("storage".into()).stack_size(256 * 1024).spawn(move || {
            while let Ok(job) = queue.recv() {
                job();
            }
        })?;
        Ok(Storage { jobs })
    }

    /// Does `job` on the thread. It is done even if nobody waits for its value.
    pub fn run<T, J>(&self, job: J) -> impl Future<Output = T> + use<T, J>
    where
        T: Send + 'static,
        J: FnOnce() -> T + Send + 'static,
    {
        let (done, value) = async_channel::bounded(1);
        let queued = self.jobs.send(Box::new(move || {
            // The asker may have lost interest; the work was still wanted.
            let _ = done.try_send(job());
        }));
        async move {
            queued.expect("the storage thread lives as long as its handles");
            value.recv().await.expect("a job answers: a panic ends the whole process")
        }
    }
}
