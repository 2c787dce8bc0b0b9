//! Looks up host names. The C library's resolver blocks while a name server does not respond, so it is called
//! on at most two threads. They look up one name after the other and end when none is left. A name is looked
//! up once for all probes that wait for it, and not at all when no probe waits any more.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_channel::Sender;

/// Maximum number of threads at a time.
const THREADS: usize = 2;

/// Maximum number of names at a time, including those that are being looked up.
const NAMES: usize = 256;

/// Stack size of a thread. The resolver uses some ten KiB.
const STACK: usize = 256 * 1024;

/// Returns the addresses of a name; empty if the lookup fails. A message prints the error after the name.
pub(crate) async fn lookup(name: &str) -> Result<Vec<IpAddr>, &'static str> {
    static LOOKUPS: Lookups = Lookups::new(resolve);
    LOOKUPS.lookup(name).await
}

fn resolve(name: &str) -> Vec<IpAddr> {
    let found = (name, 0).to_socket_addrs();
    found.map(|found| found.map(|address: SocketAddr| address.ip()).collect()).unwrap_or_default()
}

/// Pending lookups, and the function that resolves a name.
struct Lookups {
    resolve: fn(&str) -> Vec<IpAddr>,
    state: Mutex<State>,
}

struct State {
    threads: usize,
    /// Names in the order of their requests.
    names: Vec<Name>,
}

struct Name {
    name: String,
    /// A thread is looking up this name.
    taken: bool,
    /// Senders to the probes that wait; closed if the probe has ended.
    waiting: Vec<Sender<Vec<IpAddr>>>,
}

impl Lookups {
    const fn new(resolve: fn(&str) -> Vec<IpAddr>) -> Self {
        Lookups { resolve, state: Mutex::new(State { threads: 0, names: Vec::new() }) }
    }

    async fn lookup(&'static self, name: &str) -> Result<Vec<IpAddr>, &'static str> {
        let (found, answer) = async_channel::bounded(1);
        self.ask(name, found)?;
        answer.recv().await.map_err(|_| "no thread available")
    }

    fn ask(&'static self, name: &str, found: Sender<Vec<IpAddr>>) -> Result<(), &'static str> {
        let mut state = self.state();
        state.forget_abandoned();
        let is_full = state.names.len() >= NAMES;
        match state.names.iter_mut().find(|asked| asked.name == name) {
            Some(asked) => {
                asked.waiting.push(found);
                return Ok(());
            }
            None if is_full => return Err("too many other names are looked up"),
            None => state.names.push(Name { name: name.to_owned(), taken: false, waiting: vec![found] }),
        }
        if state.threads < THREADS {
            let thread = std::thread::Builder::new().name("lookup".into()).stack_size(STACK);
            match thread.spawn(|| self.work()) {
                Ok(_) => state.threads += 1,
                // Without a thread, no lookup would ever run. Dropping the senders reports that to the probes.
                Err(_) if state.threads == 0 => state.names.clear(),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Runs on a thread: resolves names until none is left.
    fn work(&self) {
        let mut state = self.state();
        while let Some(name) = state.take() {
            drop(state);
            let found = (self.resolve)(&name);
            state = self.state();
            state.answer(&name, &found);
        }
        state.threads -= 1;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Removes names that no probe waits for. A name that is being looked up stays, so that the next probe for it
    /// does not start again.
    fn forget_abandoned(&mut self) {
        self.names.retain_mut(|name| {
            name.waiting.retain(|found| !found.is_closed());
            name.taken || !name.waiting.is_empty()
        });
    }

    fn take(&mut self) -> Option<String> {
        self.forget_abandoned();
        let name = self.names.iter_mut().find(|name| !name.taken)?;
        name.taken = true;
        Some(name.name.clone())
    }

    fn answer(&mut self, name: &str, found: &[IpAddr]) {
        if let Some(at) = self.names.iter().position(|asked| asked.name == name) {
            for waiting in self.names.remove(at).waiting {
                // The channel has space for the one result, or is closed.
                let _ = waiting.try_send(found.to_vec());
            }
        }
    }
}

#[cfg(test)]
mod tests;
