//! Random bytes of a kernel whose entropy pool is empty, and of one whose pool is ready.

use std::io;

use nodlet_fuzz::entropy::{WOULD_HAVE_BLOCKED, with_an_empty_pool};

#[test]
fn the_empty_pool_of_tests_fails_blocking_calls() {
    with_an_empty_pool(|| {
        let error =
            super::getrandom(&mut [0; 16], rustix::rand::GetRandomFlags::empty()).expect_err("an empty pool");
        assert_eq!(error.raw_os_error(), Some(WOULD_HAVE_BLOCKED));
    });
}

#[test]
fn secret_bytes_are_unavailable_while_the_pool_is_empty() {
    with_an_empty_pool(|| {
        for _ in 0..3 {
            let error = super::secret(&mut [0; 32]).expect_err("an empty pool");
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        }
    });
}

#[test]
fn unique_bytes_are_available_while_the_pool_is_empty() {
    with_an_empty_pool(|| {
        let (mut one, mut other) = ([0; 16], [0; 16]);
        super::unique(&mut one).expect("bytes");
        super::unique(&mut other).expect("bytes");
        assert_ne!(one, [0; 16]);
        assert_ne!(one, other);
    });
}

#[test]
fn bytes_differ_once_the_pool_is_ready() {
    let (mut one, mut other) = ([0; 256], [0; 256]);
    super::secret(&mut one).expect("bytes");
    super::secret(&mut other).expect("bytes");
    assert_ne!(one, [0; 256]);
    assert_ne!(one, other);
}
