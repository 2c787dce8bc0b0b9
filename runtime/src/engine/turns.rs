//! Large requests of supervisors: they are built one after another. A pod can have hundreds of containers with 2 MiB of
//! words and variables each, and the memory between agent and supervisor is no pod's.

use std::sync::Arc;

use smol::lock::{Semaphore, SemaphoreGuardArc};

/// Bytes up to which a request waits for no other: less than the process needs that it starts.
const SMALL: usize = 64 << 10;

/// Large requests that may exist at once.
const AT_ONCE: usize = 2;

/// Bounds the large requests that supervisors have not carried out yet.
pub(super) struct Turns(Arc<Semaphore>);

/// A large request exists until this is dropped.
#[derive(Debug)]
pub(super) struct Turn(#[expect(dead_code, reason = "for its Drop")] SemaphoreGuardArc);

impl Default for Turns {
    fn default() -> Self {
        Turns(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl Turns {
    /// Builds a request. One whose `size` is large does not stay in memory while it waits for its turn.
    ///
    /// # Errors
    /// Those of `build`.
    pub(super) async fn take<T, E>(
        &self,
        build: impl Fn() -> Result<T, E>,
        size: impl Fn(&T) -> usize,
    ) -> Result<(T, Option<Turn>), E> {
        let request = build()?;
        if size(&request) <= SMALL {
            return Ok((request, None));
        }
        drop(request);
        let turn = self.0.acquire_arc().await;
        Ok((build()?, Some(Turn(turn))))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use smol::future::poll_once;

    use super::*;

    #[test]
    fn large_requests_wait_without_memory_and_small_ones_do_not_wait() {
        let turns = Turns::default();
        let exist = &Cell::new(0);
        struct Request<'a>(usize, &'a Cell<usize>);
        impl Drop for Request<'_> {
            fn drop(&mut self) {
                self.1.update(|exist| exist - 1);
            }
        }
        let take = |size: usize| {
            let build = move || {
                exist.update(|exist| exist + 1);
                Ok::<_, ()>(Request(size, exist))
            };
            turns.take(build, |request| request.0)
        };
        smol::block_on(async {
            let mut first: Vec<_> = Vec::new();
            for _ in 0..AT_ONCE {
                first.push(poll_once(take(SMALL + 1)).await);
            }
            assert!(first.iter().all(Option::is_some));
            let mut next = Box::pin(take(SMALL + 1));
            assert!(poll_once(&mut next).await.is_none());
            assert_eq!(exist.get(), AT_ONCE, "the next one is not kept");
            assert!(
                poll_once(take(SMALL)).await.is_some_and(|made| made.is_ok_and(|(_, turn)| turn.is_none()))
            );
            first.pop();
            assert!(poll_once(&mut next).await.is_some());
        });
    }
}
