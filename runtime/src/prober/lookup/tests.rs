//! Tests with resolvers that respond when the test requests it.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;

const PATIENT: Duration = Duration::from_secs(20);

/// One test's names, in the order in which they are looked up, and what lets each go on.
struct Played {
    begun: mpsc::Receiver<String>,
    go_on: mpsc::Sender<()>,
}

/// A resolver with its own pieces of state: it is a function, so they are static.
macro_rules! played {
    () => {{
        static BEGUN: Mutex<Option<mpsc::Sender<String>>> = Mutex::new(None);
        static GO_ON: Mutex<Option<mpsc::Receiver<()>>> = Mutex::new(None);
        static LOOKUPS: Lookups = Lookups::new(|name| {
            let begun = BEGUN.lock().expect("no test panics with it").clone();
            let _ = begun.expect("the test has begun").send(name.to_owned());
            let _ = GO_ON.lock().expect("no test panics with it").as_ref().expect("as above").recv();
            name.strip_prefix("has-").map(|ip| ip.parse().expect("an address")).into_iter().collect()
        });
        let ((say, begun), (go_on, resume)) = (mpsc::channel(), mpsc::channel());
        BEGUN.lock().expect("nobody else").replace(say);
        GO_ON.lock().expect("nobody else").replace(resume);
        (&LOOKUPS, Played { begun, go_on })
    }};
}

impl Played {
    fn next(&self) -> String {
        self.begun.recv_timeout(PATIENT).expect("a look-up")
    }

    fn go_on(&self) {
        self.go_on.send(()).expect("the resolver is static");
    }
}

fn ended(lookups: &Lookups) {
    let begun = Instant::now();
    while lookups.state().threads > 0 {
        assert!(begun.elapsed() < PATIENT, "a thread does not end");
        std::thread::yield_now();
    }
    assert!(lookups.state().names.is_empty());
}

/// Starts a lookup, and checks that it is not finished yet.
macro_rules! asked {
    ($lookups:expr, $name:expr) => {{
        let mut asked = Box::pin($lookups.lookup($name));
        assert_eq!(smol::block_on(smol::future::poll_once(&mut asked)), None);
        asked
    }};
}

#[test]
fn concurrent_lookups_of_a_name_share_one_thread_which_ends() {
    let (lookups, played) = played!();
    let (one, other) = (asked!(lookups, "has-192.0.2.1"), asked!(lookups, "has-192.0.2.1"));
    assert_eq!(played.next(), "has-192.0.2.1");
    let late = asked!(lookups, "has-192.0.2.1");
    played.go_on();
    let expected = Ok(vec![IpAddr::from([192, 0, 2, 1])]);
    for asked in [one, other, late] {
        assert_eq!(smol::block_on(asked), expected);
    }
    ended(lookups);
    assert_eq!(played.begun.try_recv().ok(), None, "it was looked up once");
    // And once more for who asks later.
    let asked = asked!(lookups, "none");
    assert_eq!(played.next(), "none");
    played.go_on();
    assert_eq!(smol::block_on(asked), Ok(Vec::new()));
    ended(lookups);
}

#[test]
fn two_names_at_once_are_looked_up_and_the_rest_in_their_order() {
    let (lookups, played) = played!();
    let names: Vec<String> = (0..NAMES).map(|number| format!("name-{number}")).collect();
    let asked: Vec<_> = names.iter().map(|name| asked!(lookups, name)).collect();
    let mut first = [played.next(), played.next()];
    first.sort();
    assert_eq!(first, ["name-0", "name-1"]);
    let taken = lookups.state().names.iter().filter(|name| name.taken).count();
    assert_eq!((taken, lookups.state().threads), (2, 2));
    assert_eq!(smol::block_on(lookups.lookup("one more")), Err("too many other names are looked up"));
    let known = asked!(lookups, "name-9");
    for name in &names[2..] {
        played.go_on();
        assert_eq!(played.next(), *name);
    }
    played.go_on();
    played.go_on();
    for asked in asked.into_iter().chain([known]) {
        assert_eq!(smol::block_on(asked), Ok(Vec::new()));
    }
    ended(lookups);
}

#[test]
fn an_abandoned_name_lookup_is_cancelled_unless_it_has_begun() {
    let (lookups, played) = played!();
    let given_up = ["silent-0", "silent-1", "forgotten"].map(|name| asked!(lookups, name));
    played.next();
    played.next();
    drop(given_up);
    // The probe comes again before the server has answered.
    let again = asked!(lookups, "silent-1");
    let wanted = asked!(lookups, "wanted");
    assert_eq!(lookups.state().names.len(), 3);
    let waiting = |name: &str| {
        let state = lookups.state();
        state.names.iter().find(|asked| asked.name == name).map(|asked| asked.waiting.len())
    };
    assert_eq!((waiting("silent-0"), waiting("silent-1")), (Some(0), Some(1)));
    played.go_on();
    assert_eq!(played.next(), "wanted");
    played.go_on();
    played.go_on();
    assert_eq!(smol::block_on(again), Ok(Vec::new()));
    assert_eq!(smol::block_on(wanted), Ok(Vec::new()));
    ended(lookups);
    assert_eq!(played.begun.try_recv().ok(), None);
}
