//! Warnings, and the lines that say how their result was passed on.

use super::{Reader, seen};
use crate::log::line::{self, Message};
use crate::log::model::Warning;

const WARNINGS_MAX: usize = 20_000;
const CONTEXT_MAX: usize = 8;

impl Reader {
    /// Keeps a warning.
    pub(super) fn warning(&mut self, process: usize, message: &Message<'_>) {
        // A missing library for InfiniBand was a warning until 2.21.
        if message.text.contains("Failed to open libibverbs") {
            self.log.processes[process].no_nics.get_or_insert(seen(message));
            return;
        }
        if self.log.warnings.len() == WARNINGS_MAX {
            self.leave_out("warnings");
            return;
        }
        self.log.warnings.push(Warning {
            process,
            device: message.device,
            place: line::shortened(message.place, 80).to_owned(),
            text: line::kept(message.text),
            seen: seen(message),
            context: Vec::new(),
        });
        self.warned.insert((process, message.tid), self.log.warnings.len() - 1);
    }

    /// `transport/shm.cc:114 -> 2`: a function returned an error to its caller.
    pub(super) fn result(&mut self, process: usize, message: &Message<'_>) -> bool {
        let text = message.text.trim();
        let Some((place, result)) = text.split_once(" -> ") else { return false };
        let is_place = place.rsplit_once(':').is_some_and(|(file, line)| {
            line.parse::<u32>().is_ok() && !file.contains(' ') && file.contains('.')
        });
        let is_result = result.split_whitespace().next().is_some_and(|word| word.parse::<u32>().is_ok());
        if !is_place || !is_result {
            return false;
        }
        if let Some(warning) = self.warned.get(&(process, message.tid)) {
            let context = &mut self.log.warnings[*warning].context;
            if context.len() < CONTEXT_MAX {
                context.push(seen(message));
            }
        }
        true
    }
}
