//! Signal names as in STOPSIGNAL.

/// The first real-time signal as images count them, which is glibc's. musl reserves one more for itself, so
/// its `SIGRTMIN` is not the number that the image's author meant.
const SIGRTMIN: i32 = 34;

/// The last real-time signal.
const SIGRTMAX: i32 = 64;

/// The number of the signal with this name or number, with or without `SIG`; `None` if it does not exist.
pub fn signal_of(named: &str) -> Option<i32> {
    if let Ok(number) = named.parse() {
        return (1..=SIGRTMAX).contains(&number).then_some(number);
    }
    let name = named.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    if let Some(offset) = name.strip_prefix("RTMIN") {
        return real_time(SIGRTMIN, offset, '+');
    }
    if let Some(offset) = name.strip_prefix("RTMAX") {
        return real_time(SIGRTMAX, offset, '-');
    }
    // Old names, which nix does not define.
    let name = match name {
        "IOT" => "ABRT",
        "CLD" => "CHLD",
        "POLL" => "IO",
        name => name,
    };
    format!("SIG{name}").parse::<nix::sys::signal::Signal>().ok().map(|signal| signal as i32)
}

/// The real-time signal at an offset from `end`: `+3`, `-14` or empty.
fn real_time(end: i32, offset: &str, sign: char) -> Option<i32> {
    let offset: i32 = match offset.strip_prefix(sign) {
        Some(digits) => digits.parse::<u8>().ok()?.into(),
        None => offset.is_empty().then_some(0)?,
    };
    let number = if sign == '-' { end - offset } else { end + offset };
    (SIGRTMIN..=SIGRTMAX).contains(&number).then_some(number)
}
