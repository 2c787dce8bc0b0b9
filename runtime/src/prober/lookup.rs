//! Looks names up. The C library's resolver blocks for as long as a name server is silent, so it
//! is called on threads: two at most, which take name after name and end when none is left. A name
//! is looked up once for all who wait for it, and not at all when nobody does any more.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_channel::Sender;

/// Threads at once.
const THREADS: usize = 2;

/// Names at once, those included that are being looked up.
const NAMES: usize = 256;

/// What the resolver takes on its stack is some ten KiB.
const STACK: usize = 256 * 1024;

/// The addresses of a name, none if it has none; the error is told behind the name.
pub(super) async fn lookup(name: &str) -> Result<Vec<IpAddr>, &'static str> {
    static LOOKUPS: Lookups = Lookups::new(resolve);
    LOOKUPS.lookup(name).await
}

fn resolve(name: &str) -> Vec<IpAddr> {
    let found = (name, 0).to_socket_addrs();
    found.map(|found| found.map(|address: SocketAddr| address.ip()).collect()).unwrap_or_default()
}

/// What is to be looked up, and by what.
struct Lookups {
    resolve: fn(&str) -> Vec<IpAddr>,
    state: Mutex<State>,
}

struct State {
    threads: usize,
    /// In the order in which they were asked for.
    names: Vec<Name>,
}

struct Name {
    name: String,
    /// A thread is at it.
    taken: bool,
    /// Closed are those of who waits no longer.
    waiting: Vec<Sender<Vec<IpAddr>>>,
}

impl Lookups {
    const fn new(resolve: fn(&str) -> Vec<IpAddr>) -> Self {
        Lookups { resolve, state: Mutex::new(State { threads: 0, names: Vec::new() }) }
    }

    async fn lookup(&'static self, name: &str) -> Result<Vec<IpAddr>, &'static str> {
        let (found, answer) = async_channel::bounded(1);
        self.ask(name, found)?;
        answer.recv().await.map_err(|_| "no thread can be had")
    }

    fn ask(&'static self, name: &str, found: Sender<Vec<IpAddr>>) -> Result<(), &'static str> {
        let mut state = self.state();
        state.forget_who_is_gone();
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
                // Nobody would ever come to it; their senders go, and who waits is told.
                Err(_) if state.threads == 0 => state.names.clear(),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// A thread's life.
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
    /// A name that is being looked up stays: who asks for it next need not begin again.
    fn forget_who_is_gone(&mut self) {
        self.names.retain_mut(|name| {
            name.waiting.retain(|found| !found.is_closed());
            name.taken || !name.waiting.is_empty()
        });
    }

    fn take(&mut self) -> Option<String> {
        self.forget_who_is_gone();
        let name = self.names.iter_mut().find(|name| !name.taken)?;
        name.taken = true;
        Some(name.name.clone())
    }

    fn answer(&mut self, name: &str, found: &[IpAddr]) {
        if let Some(at) = self.names.iter().position(|asked| asked.name == name) {
            for waiting in self.names.remove(at).waiting {
                // It has room for the one answer; or nobody waits.
                let _ = waiting.try_send(found.to_vec());
            }
        }
    }
}

#[cfg(test)]
mod tests;
