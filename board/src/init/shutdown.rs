//! Turns the board off: ends the pods, then all processes, and unmounts the file systems in a child.

use std::time::Duration;

use nix::sys::reboot::RebootMode;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::process::{halt, has_no_child, start};
use super::services::{self, Service};
use super::{Init, crash, machine};
use crate::boot::console::say;

/// How long pods may take to end before the board goes down. `nodlet down` ends each pod within its own grace
/// period; but the board must not wait for ever for a pod that no signal ends.
const PODS_END_WITHIN: Duration = Duration::from_secs(600);

/// How long other processes may take to end after SIGTERM.
const PROCESSES_END_WITHIN: Duration = Duration::from_secs(5);

/// How long file systems may take to be written and unmounted when the board goes down.
const UNMOUNTED_WITHIN: Duration = Duration::from_secs(120);

impl Init {
    /// Ends the pods, then all processes, and turns the board off. The watchdog stays armed, and resets a
    /// board that hangs while it goes down.
    pub(super) fn go_down(&mut self, mode: RebootMode) -> ! {
        say(format_args!("ending the pods"));
        self.services.iter_mut().for_each(Service::leave);
        self.helper = start(services::end_pods);
        self.wait_for(PODS_END_WITHIN, |init| init.helper.is_none());
        // The signals go to all processes but process 1.
        for (signal, within) in
            [(Signal::SIGTERM, PROCESSES_END_WITHIN), (Signal::SIGKILL, PROCESSES_END_WITHIN)]
        {
            let _ = kill(Pid::from_raw(-1), signal);
            self.wait_for(within, |_| has_no_child());
        }
        self.helper = start(unmount);
        self.wait_for(UNMOUNTED_WITHIN, |init| init.helper.is_none());
        say(format_args!("{}", if mode == RebootMode::RB_AUTOBOOT { "rebooting" } else { "powering off" }));
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.feed();
        }
        // Do not disarm the watchdog while something may still hang: it resets the board then.
        if mode == RebootMode::RB_POWER_OFF
            && self.helper.is_none()
            && let Some(watchdog) = self.watchdog.take()
        {
            watchdog.disarm();
        }
        halt(mode)
    }
}

/// Writes and unmounts all file systems. Runs in a child, because it can wait for a disk.
fn unmount() -> u8 {
    // A user reboots a board whose agent hangs: the watchdog did not reset it.
    crash::clear_hang();
    machine::unmount();
    nix::unistd::sync();
    0
}
