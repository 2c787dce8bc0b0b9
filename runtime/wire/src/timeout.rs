//! Limits the time of asynchronous work.

use std::time::Duration;

use smol::Timer;

/// The output of `work`, or `None` if it takes longer than `limit`: then it is dropped.
pub async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let late = async {
        Timer::after(limit).await;
        None
    };
    smol::future::or(async { Some(work.await) }, late).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_takes_too_long_is_dropped() {
        let limit = Duration::from_millis(1);
        assert_eq!(smol::block_on(within(limit, std::future::pending::<()>())), None);
        assert_eq!(smol::block_on(within(Duration::ZERO, async { 1 })), Some(1));
    }
}
