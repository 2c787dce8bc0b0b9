//! Signal names as the API spells them.

/// The signals from 1 on, without `SIG`; the numbers are those of every architecture that nodlet runs on.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// The first and the last real-time signal.
const REAL_TIME: (i32, i32) = (34, 64);

/// The name of a signal as `stopSignal` spells it (`SIGTERM`, `SIGRTMIN+3`), or its number if it has no name.
pub fn name(signal: i32) -> String {
    let (first, last) = REAL_TIME;
    let usual = usize::try_from(signal).ok().and_then(|number| NAMES.get(number.checked_sub(1)?));
    match (usual, signal) {
        (Some(name), _) => format!("SIG{name}"),
        (None, signal) if signal == first => "SIGRTMIN".to_owned(),
        (None, signal) if signal == last => "SIGRTMAX".to_owned(),
        (None, 35..=49) => format!("SIGRTMIN+{}", signal - first),
        (None, 50..64) => format!("SIGRTMAX-{}", last - signal),
        (None, other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn signals_have_the_names_that_a_pod_may_give_them() {
        for (signal, name) in [
            (1, "SIGHUP"),
            (15, "SIGTERM"),
            (29, "SIGIO"),
            (31, "SIGSYS"),
            (0, "0"),
            (32, "32"),
            (65, "65"),
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
