//! The log of the agent on the console.

use std::io::Write;

use crate::output::escaped;

/// A logger that writes lines to standard error, which is the console or the journal.
pub(super) struct Console;

impl log::Log for Console {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            // Images and manifests supply some of this text: newlines are escaped so that a record stays one
            // line.
            let text = record.args().to_string().replace('\n', "\\n");
            // In one write, so that no other process writes in between.
            let line = format!("{:<5} {}\n", record.level(), escaped(&text));
            // A missing console must not end the agent.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}
