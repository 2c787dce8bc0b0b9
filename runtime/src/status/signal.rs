//! Signals as the API spells them.

/// `SIGTERM`, `SIGRTMIN+3`: the names that `stopSignal` takes. A number that has none is told as it is.
pub(super) fn name(signal: i32) -> String {
    const FIRST: i32 = 34;
    const LAST: i32 = 64;
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) => match signal {
            FIRST => "SIGRTMIN".to_owned(),
            LAST => "SIGRTMAX".to_owned(),
            35..=49 => format!("SIGRTMIN+{}", signal - FIRST),
            50..LAST => format!("SIGRTMAX-{}", LAST - signal),
            other => other.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn signals_have_the_names_that_a_pod_may_give_them() {
        for (signal, name) in [
            (15, "SIGTERM"),
            (9, "SIGKILL"),
            (10, "SIGUSR1"),
            (34, "SIGRTMIN"),
            (37, "SIGRTMIN+3"),
            (49, "SIGRTMIN+15"),
            (50, "SIGRTMAX-14"),
            (64, "SIGRTMAX"),
        ] {
            assert_eq!(super::name(signal), name);
        }
    }
}
