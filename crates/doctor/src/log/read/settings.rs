//! Settings that the library reports: `NCCL_ALGO set by environment to Ring`.

use super::{Reader, seen};
use crate::log::line::{self, Message};
use crate::log::model::Setting;

const SETTINGS_MAX: usize = 4096;
const VALUE_MAX: usize = 200;

impl Reader {
    /// Reads a line about a setting.
    pub(super) fn settings(&mut self, process: usize, message: &Message<'_>) -> bool {
        let text = message.text.trim();
        let split = text.split_once(" set by environment to ").or_else(|| text.split_once(" set to "));
        let Some((name, value)) = split else { return false };
        let is_name = |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_';
        if !(name.starts_with("NCCL_") || name.starts_with("RCCL_")) || !name.chars().all(is_name) {
            return false;
        }
        // Several versions end the sentence with a point.
        let value = value.trim().trim_end_matches('.');
        let key = (line::shortened(name, 80).to_owned(), line::shortened(value, VALUE_MAX).to_owned());
        let index = match self.settings.get(&key) {
            Some(index) => *index,
            None if self.log.settings.len() == SETTINGS_MAX => {
                self.leave_out("settings");
                return true;
            }
            None => {
                let (name, value) = key.clone();
                self.log.settings.push(Setting { name, value, processes: Vec::new(), seen: seen(message) });
                self.settings.insert(key, self.log.settings.len() - 1);
                self.log.settings.len() - 1
            }
        };
        let processes = &mut self.log.settings[index].processes;
        if let Err(at) = processes.binary_search(&process) {
            processes.insert(at, process);
        }
        true
    }
}
