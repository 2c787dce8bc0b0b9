//! [`Calls`]: how many system calls nodlet makes, all its processes together. No
//! machine is so busy that the number changes much, which can be said of no time.
//!
//! What runs in a container is not nodlet: a process counts until it executes that.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use libc::{c_long, pid_t};

use crate::device::Device;
use crate::leftovers;
use crate::trace::{Call, Next, Trace, Watcher};

/// What was counted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// System calls, by their number.
    pub calls: BTreeMap<c_long, u64>,
    /// How many it were each time that something was executed which is not nodlet: a
    /// container, a probe in it.
    pub executed: Vec<u64>,
}

impl Counted {
    /// All system calls.
    pub fn sum(&self) -> u64 {
        self.calls.values().sum()
    }
}

/// Counts for as long as it lives.
pub struct Calls {
    counted: Arc<Mutex<Counted>>,
    _trace: Trace,
}

impl Calls {
    /// Of all nodlet's processes on the device, and those that they start from now on.
    pub fn count(device: &Device) -> Calls {
        let counted = Arc::default();
        let watcher = Counter { program: device.program().to_owned(), counted: Arc::clone(&counted) };
        Calls { counted, _trace: Trace::begin(&device.own_processes(), watcher) }
    }

    /// What was counted so far.
    pub fn so_far(&self) -> Counted {
        lock(&self.counted).clone()
    }
}

fn lock(mutex: &Mutex<Counted>) -> MutexGuard<'_, Counted> {
    mutex.lock().expect("nobody panics with it")
}

struct Counter {
    /// nodlet.
    program: PathBuf,
    counted: Arc<Mutex<Counted>>,
}

impl Watcher for Counter {
    fn born(&mut self, _: pid_t, _: pid_t) {}

    fn executed(&mut self, pid: pid_t) -> bool {
        let ours = leftovers::runs(pid.cast_unsigned(), &self.program);
        if !ours {
            let mut counted = lock(&self.counted);
            let so_far = counted.sum();
            counted.executed.push(so_far);
        }
        ours
    }

    fn stops_at_calls(&self, _: pid_t) -> bool {
        true
    }

    fn called(&mut self, _: pid_t, call: &Call) -> Next {
        if call.begins() {
            *lock(&self.counted).calls.entry(call.number()).or_default() += 1;
        }
        Next::Goes
    }

    fn ended(&mut self, _: pid_t) {}
}
