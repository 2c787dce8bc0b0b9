//! `nodlet connect`: the board's end of a connection of `--board`, which joins standard input and output to
//! the agent's socket.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::process::ExitCode;

use lexopt::Parser;

use crate::arguments::Context;
use crate::client::Client;
use crate::client::remote;
use crate::error::VerbError;
use crate::verb::{Outcome, Verb};

/// The verb that is the board's end of a connection.
pub(crate) const VERB: Verb = Verb { name: remote::CONNECT, summary: "", run: connect };

/// The most bytes of a connection that are copied at once.
const PIECE: usize = 32 * 1024;

fn connect(mut context: Context, mut parser: Parser) -> Outcome {
    context.no_arguments(&mut parser)?;
    // Ignore `NODLET_BOARD`: this connection ends here.
    let stream = Client::local(&context.root).connect()?;
    let mut to_agent = stream.try_clone()?;
    std::thread::spawn(move || {
        let _ = file(io::stdin().as_fd()).and_then(|mut stdin| pass_on(&mut stdin, &mut to_agent));
        let _ = to_agent.shutdown(Shutdown::Write);
    });
    let mut stream = stream;
    // When the agent has sent everything, further input is useless.
    match file(io::stdout().as_fd()).and_then(|mut stdout| pass_on(&mut stream, &mut stdout)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // The agent had sent everything, and did not read the rest of standard input.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(ExitCode::SUCCESS),
        Err(error) => Err(VerbError::disconnected(format!("the connection was lost: {error}"))),
    }
}

/// Standard input or output, unbuffered.
fn file(standard: std::os::fd::BorrowedFd<'_>) -> io::Result<File> {
    Ok(File::from(standard.try_clone_to_owned()?))
}

/// Copies until the end. Not by `io::copy`, which calls splice for a pipe: that locks the pipe while it waits for the
/// socket, so that a reader gets an answer only with the next one, and it raises SIGPIPE if the agent has closed.
fn pass_on(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(read) => to.write_all(&piece[..read])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
