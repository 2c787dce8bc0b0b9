//! A container's input, and the clients that are attached to it.
//!
//! The container has priority: nothing here waits for a client. Each client gets its copy of the output
//! through its own pipe. Output that does not fit into a full pipe is skipped for that client alone and
//! counted, and the client gets a notice when it reads again. The log has all output. Clients of a container
//! with input cannot attach before it starts, and would miss its first output: that is kept for the first
//! client. Input is passed on in pieces that fit into the container's pipe at once, so that a container that
//! does not read delays only its clients.
//!
//! The rules for the end of input are containerd's: with `stdinOnce` it is the end
//! of the container's input, otherwise of the client's session.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize, Serializer};

use super::error::StepError;
use super::log::Stream;
use super::saved;

/// Upper bound of the clients of one container. Each copy of the output costs time.
const MAX_CLIENTS: usize = 16;

/// The number of bytes that a pipe which polls as writable accepts without blocking: PIPE_BUF.
const PIECE: usize = 4096;

/// Upper bound of the bytes of an unfinished line that a terminal shows to later clients: a prompt.
const PROMPT: usize = 256;

/// Upper bound of the output that is kept for the first client: as much as its pipe accepts at once.
const MAX_EARLY_OUTPUT: usize = 64 * 1024;

/// How many pieces are passed on before the rest of the pod has its turn.
const PIECES_AT_ONCE: usize = 16;

/// One client's ends of its pipes.
#[derive(Serialize, Deserialize)]
struct Client {
    #[serde(with = "saved")]
    stdin: Option<OwnedFd>,
    /// The outputs: stdout, stderr.
    outputs: [Option<Output>; 2],
}

/// Saved as a list of both.
#[derive(Deserialize)]
struct Output {
    #[serde(with = "saved")]
    pipe: OwnedFd,
    /// Bytes that were skipped since the client's last notice.
    skipped: u64,
}

impl Serialize for Output {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (self.pipe.as_raw_fd(), self.skipped).serialize(to)
    }
}

/// The output that a container has written before the first client attached.
#[derive(Default, Serialize, Deserialize)]
struct EarlyOutput {
    /// The kept output: stdout, stderr; both are empty if the output exceeded the limit.
    outputs: [Vec<u8>; 2],
    /// The number of bytes that are not kept.
    skipped: [u64; 2],
}

/// A container's input and its clients; see the module documentation.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Console {
    /// The writing end of the container's stdin, or the master of its terminal.
    #[serde(with = "saved")]
    stdin: Option<OwnedFd>,
    stdin_once: bool,
    tty: bool,
    /// Input that was read from a client and not yet accepted by the container.
    pending: Vec<u8>,
    /// The last line that a terminal has shown, unless it is long: without it, a client that attaches to a
    /// waiting shell would see nothing.
    #[serde(default)]
    prompt: Vec<u8>,
    /// The early output; `None` without input, and after the first client has received it.
    #[serde(default)]
    early: Option<EarlyOutput>,
    clients: Vec<Client>,
}

impl Console {
    /// The console of a container that is about to start. A terminal is set later.
    pub(super) fn new(stdin: Option<OwnedFd>, stdin_once: bool, tty: bool) -> Console {
        let early = stdin.as_ref().map(|_| EarlyOutput::default());
        Console { stdin, stdin_once, tty, early, ..Console::default() }
    }

    pub(super) fn is_tty(&self) -> bool {
        self.tty
    }

    /// Sets the master of the container's terminal, if the container reads from it.
    pub(super) fn set_stdin(&mut self, terminal: OwnedFd) {
        self.stdin = Some(terminal);
        self.early = Some(EarlyOutput::default());
    }

    /// Adds a client. `open` says which outputs have not ended.
    pub(super) fn attach(
        &mut self,
        stdin: Option<OwnedFd>,
        outputs: [Option<OwnedFd>; 2],
        open: [bool; 2],
    ) -> Result<(), StepError> {
        if self.clients.len() >= MAX_CLIENTS {
            // Remove clients that are gone, but are kept for input that the container has not accepted.
            self.clients.retain(|client| client.outputs.iter().any(Option::is_some));
        }
        if self.clients.len() >= MAX_CLIENTS {
            return Err(format!("attach: {MAX_CLIENTS} clients are attached to the container").into());
        }
        for fd in stdin.iter().chain(outputs.iter().flatten()) {
            fcntl(fd.as_raw_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
                .map_err(|error| StepError::new("attach: use the client's pipe", error.into()))?;
        }
        let mut client = Client {
            // Input for a container without stdin is rejected by closing the pipe.
            stdin: stdin.filter(|_| self.stdin.is_some()),
            outputs: outputs.map(|pipe| pipe.map(|pipe| Output { pipe, skipped: 0 })),
        };
        // Before closing ended outputs: the container may have written all its output already.
        let begins_here = self.early.take().is_some_and(|early| client.catch_up(&early));
        client.end(open);
        if !begins_here && !self.prompt.is_empty() {
            client.show(Stream::Stdout as usize, &self.prompt);
        }
        self.clients.push(client);
        Ok(())
    }

    /// Adds the descriptors to poll. An end that is not waited for is only checked for being closed.
    pub(super) fn poll<'a>(&'a self, mut add: impl FnMut(BorrowedFd<'a>, PollFlags)) {
        if let (Some(stdin), false) = (&self.stdin, self.pending.is_empty()) {
            add(stdin.as_fd(), PollFlags::POLLOUT);
        }
        for client in &self.clients {
            if let (Some(stdin), true) = (&client.stdin, self.pending.is_empty()) {
                add(stdin.as_fd(), PollFlags::POLLIN);
            }
            for output in client.outputs.iter().flatten() {
                add(output.pipe.as_fd(), PollFlags::empty());
            }
        }
    }

    /// Passes input on, and removes clients that are gone.
    pub(super) fn pump(&mut self) {
        for _ in 0..PIECES_AT_ONCE {
            if !self.flush() || !self.fetch() {
                break;
            }
        }
        for output in self.clients.iter_mut().flat_map(|client| &mut client.outputs) {
            if output.as_ref().is_some_and(|output| is_gone(output.pipe.as_fd())) {
                *output = None;
            }
        }
        self.clients.retain(Client::is_there);
    }

    /// Writes pending input to the container; `false` if it accepts no more now.
    fn flush(&mut self) -> bool {
        while let (Some(stdin), false) = (&self.stdin, self.pending.is_empty()) {
            match nix::unistd::write(stdin, &self.pending) {
                Ok(written @ 1..) => drop(self.pending.drain(..written)),
                Err(nix::Error::EINTR) => {}
                Err(nix::Error::EAGAIN) => return false,
                // No process reads the input any more.
                Ok(_) | Err(_) => self.close_stdin(),
            }
        }
        self.stdin.is_some()
    }

    /// Reads one piece of input from one client; `false` if there is none.
    fn fetch(&mut self) -> bool {
        let mut piece = [0; PIECE];
        let mut at = 0;
        while at < self.clients.len() {
            let Some(stdin) = &self.clients[at].stdin else {
                at += 1;
                continue;
            };
            match nix::unistd::read(stdin.as_raw_fd(), &mut piece) {
                Ok(length @ 1..) => {
                    self.pending.extend_from_slice(&piece[..length]);
                    return true;
                }
                Err(nix::Error::EINTR) => {}
                Err(nix::Error::EAGAIN) => at += 1,
                Ok(_) | Err(_) if self.stdin_once && !self.tty => {
                    self.clients[at].stdin = None;
                    self.close_stdin();
                    return false;
                }
                Ok(_) | Err(_) => drop(self.clients.remove(at)),
            }
        }
        false
    }

    /// Closes the container's input and that of the clients.
    fn close_stdin(&mut self) {
        self.stdin = None;
        self.pending = Vec::new();
        for client in &mut self.clients {
            client.stdin = None;
        }
    }

    /// Shows the clients the container's output, as far as their pipes have room.
    pub(super) fn show(&mut self, stream: Stream, bytes: &[u8]) {
        for client in &mut self.clients {
            client.show(stream as usize, bytes);
        }
        if self.tty {
            self.keep_prompt(bytes);
        }
        if let Some(early) = &mut self.early {
            early.keep(stream as usize, bytes);
        }
    }

    fn keep_prompt(&mut self, bytes: &[u8]) {
        let line = bytes.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        if line.len() < bytes.len() {
            self.prompt.clear();
        }
        if self.prompt.len() + line.len() <= PROMPT {
            self.prompt.extend_from_slice(line);
        } else {
            self.prompt.clear();
        }
    }

    /// Closes the clients' copies of outputs that have ended. `open` says which have not.
    pub(super) fn end(&mut self, open: [bool; 2]) {
        for client in &mut self.clients {
            client.end(open);
        }
        if self.tty && !open[Stream::Stdout as usize] {
            self.close_stdin();
        }
        self.clients.retain(Client::is_there);
    }

    /// Records that the container has ended.
    pub(super) fn close(&mut self) {
        self.end([false, false]);
        *self = Console::new(None, self.stdin_once, self.tty);
    }

    /// All descriptors that the console has.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = &OwnedFd> {
        let of_clients = self.clients.iter().flat_map(|client| {
            let outputs = client.outputs.iter().flatten().map(|output| &output.pipe);
            client.stdin.iter().chain(outputs)
        });
        self.stdin.iter().chain(of_clients)
    }
}

impl EarlyOutput {
    /// Keeps all of the output or none: the beginning of a long output does not help a late client.
    fn keep(&mut self, at: usize, bytes: &[u8]) {
        let kept: usize = self.outputs.iter().map(Vec::len).sum();
        if self.skipped == [0, 0] && kept + bytes.len() <= MAX_EARLY_OUTPUT {
            return self.outputs[at].extend_from_slice(bytes);
        }
        for (skipped, output) in self.skipped.iter_mut().zip(&mut self.outputs) {
            *skipped += std::mem::take(output).len() as u64;
        }
        self.skipped[at] += bytes.len() as u64;
    }
}

impl Client {
    /// Shows the client the early output; `false` if it only gets a notice of the skipped bytes.
    fn catch_up(&mut self, early: &EarlyOutput) -> bool {
        for at in 0..2 {
            self.show(at, &early.outputs[at]);
            if let Some(output) = &mut self.outputs[at] {
                output.skipped += early.skipped[at];
            }
            // The container may wait for this client, and write nothing until then.
            self.write_skip_notice(at);
        }
        early.skipped == [0, 0]
    }

    /// Records which outputs of the container have not ended.
    fn end(&mut self, open: [bool; 2]) {
        for at in (0..2).filter(|at| !open[*at]) {
            self.write_final_skip_notice(at);
        }
        let wanted = are_wanted(open);
        for at in (0..2).filter(|at| !wanted[*at]) {
            self.outputs[at] = None;
        }
    }

    fn is_there(&self) -> bool {
        self.stdin.is_some() || self.outputs.iter().any(Option::is_some)
    }

    fn show(&mut self, at: usize, bytes: &[u8]) {
        let Some(output) = &self.outputs[at] else { return };
        // A client that fell behind continues when half of its pipe is free, and not for every page.
        if output.skipped > 0 && !is_half_empty(output.pipe.as_fd()) {
            return self.skip(at, bytes);
        }
        if !self.write_skip_notice(at) {
            return self.skip(at, bytes);
        }
        let Some(output) = &mut self.outputs[at] else { return };
        let mut rest = bytes;
        while !rest.is_empty() {
            match nix::unistd::write(&output.pipe, rest) {
                Ok(written) => rest = &rest[written..],
                Err(nix::Error::EINTR) => {}
                Err(nix::Error::EAGAIN) => return self.skip(at, rest),
                Err(_) => {
                    self.outputs[at] = None;
                    return;
                }
            }
        }
    }

    fn skip(&mut self, at: usize, bytes: &[u8]) {
        if let Some(output) = &mut self.outputs[at] {
            output.skipped += bytes.len() as u64;
        }
    }

    /// Writes a notice of the bytes skipped of an output: to stderr, if that is a stream of its own. `false`
    /// if there is no room for the notice.
    fn write_skip_notice(&mut self, at: usize) -> bool {
        let skipped = self.outputs[at].as_ref().map_or(0, |output| output.skipped);
        if skipped == 0 {
            return true;
        }
        let notice = format!(
            "\nnodlet: {skipped} bytes of output were skipped here: they were not read in time; the log has them\n"
        );
        // Shorter than PIPE_BUF: written completely or not at all.
        if self.notices().map(|pipe| nix::unistd::write(pipe, notice.as_bytes()))
            == Some(Err(nix::Error::EAGAIN))
        {
            return false;
        }
        if let Some(output) = &mut self.outputs[at] {
            output.skipped = 0;
        }
        true
    }

    /// Like [`Client::write_skip_notice`], but enlarges the pipe if necessary, since there is no later moment.
    fn write_final_skip_notice(&mut self, at: usize) {
        if !self.write_skip_notice(at)
            && let Some(pipe) = self.notices().map(AsRawFd::as_raw_fd)
        {
            let size = fcntl(pipe, FcntlArg::F_GETPIPE_SZ).unwrap_or(0);
            let _ = fcntl(pipe, FcntlArg::F_SETPIPE_SZ(size * 2));
            self.write_skip_notice(at);
        }
    }

    /// The pipe for notices of skipped bytes.
    fn notices(&self) -> Option<&OwnedFd> {
        self.outputs.iter().rev().flatten().map(|output| &output.pipe).next()
    }
}

/// The client's outputs to keep, of those that are open: stderr is kept as long as stdout, since the notices
/// for stdout go there.
fn are_wanted([stdout, stderr]: [bool; 2]) -> [bool; 2] {
    [stdout, stderr || stdout]
}

/// Whether no process has the other end of a pipe.
fn is_gone(pipe: BorrowedFd) -> bool {
    let mut fds = [PollFd::new(pipe, PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO) == Ok(1)
}

fn is_half_empty(pipe: BorrowedFd) -> bool {
    let size = fcntl(pipe.as_raw_fd(), FcntlArg::F_GETPIPE_SZ).unwrap_or(0);
    rustix::io::ioctl_fionread(pipe).is_ok_and(|unread| unread <= size as u64 / 2)
}

#[cfg(test)]
mod tests;
