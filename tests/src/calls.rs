//! [`Calls`]: counts the system calls of nodlet, of all its processes together. Unlike times, this number
//! hardly depends on how busy the machine is.
//!
//! Programs in containers are not counted: a process counts until it executes one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use libc::{c_long, pid_t};

use crate::device::Device;
use crate::leftovers;
use crate::trace::{Call, Next, Trace, Watcher};

/// The counts so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// System calls by number.
    pub calls: BTreeMap<c_long, u64>,
    /// The total number of system calls each time that a program other than nodlet was executed: a container,
    /// or a probe in one.
    pub executed: Vec<u64>,
}

impl Counted {
    /// The total number of system calls.
    pub fn sum(&self) -> u64 {
        self.calls.values().sum()
    }
}

/// Counts system calls until it is dropped.
pub struct Calls {
    counted: Arc<Mutex<Counted>>,
    _trace: Trace,
}

impl Calls {
    /// Counts for all nodlet processes on the device, and those that they start from now on.
    pub fn count(device: &Device) -> Calls {
        let counted = Arc::default();
        let watcher = Counter { program: device.program().to_owned(), counted: Arc::clone(&counted) };
        Calls { counted, _trace: Trace::begin(&device.own_processes(), watcher) }
    }

    /// The counts so far.
    pub fn so_far(&self) -> Counted {
        lock(&self.counted).clone()
    }
}

fn lock(mutex: &Mutex<Counted>) -> MutexGuard<'_, Counted> {
    mutex.lock().expect("nobody panics with it")
}

struct Counter {
    /// The nodlet binary.
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
