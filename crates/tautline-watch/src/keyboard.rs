//! Keys that end a live view, and the terminal's keyboard while one is shown. It draws nothing.

use std::io;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::process::getpgrp;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr,
};
use tautline_state::interrupt::{CleanUp, interrupted};

/// Longest wait for a key before the next look at signals. Lower: an idle view takes more of a CPU. Higher: a signal is
/// answered later.
pub(crate) const KEY_WAIT: Duration = Duration::from_millis(100);

/// Whether a key ends every live view, whatever it shows: q, or ^C where that is a key.
pub(crate) fn is_end(key: KeyEvent) -> bool {
    is_interrupt(key) || key.code == KeyCode::Char('q')
}

/// Whether a key is ^C, which ends a view although text is typed.
pub(crate) fn is_interrupt(key: KeyEvent) -> bool {
    key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c')
}

/// Next event of the terminal, if one comes within a time.
pub(crate) fn next_event(wait: Duration) -> io::Result<Option<Event>> {
    match event::poll(wait)? {
        true => event::read().map(Some),
        false => Ok(None),
    }
}

/// Key that an event presses.
pub(crate) fn pressed(event: &Event) -> Option<KeyEvent> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => Some(*key),
        _ => None,
    }
}

/// Keyboard of a view that is printed again and again: keys come one by one, and are not shown. Signals stay signals,
/// so ^C is answered while a look takes long. The terminal is as before when this is dropped, or when the process is
/// ended by a signal.
#[derive(Debug)]
pub struct Keyboard {
    before: Termios,
    /// Dropped after the terminal was put back.
    _on_signal: CleanUp,
}

impl Keyboard {
    /// Takes the keyboard of the terminal that is standard input; none where it is no terminal, or one whose foreground
    /// is another's, as after `&` in a shell: the kernel would stop this process for taking it.
    ///
    /// # Errors
    /// The terminal refuses.
    pub fn open() -> io::Result<Option<Self>> {
        if tcgetpgrp(io::stdin()).ok() != Some(getpgrp()) {
            return Ok(None);
        }
        let before = tcgetattr(io::stdin())?;
        let mut during = before.clone();
        during.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        // A read returns with the first key.
        during.special_codes[SpecialCodeIndex::VMIN] = 1;
        during.special_codes[SpecialCodeIndex::VTIME] = 0;
        let kept = before.clone();
        let keyboard = Self {
            before,
            _on_signal: CleanUp::new(move || put_back(&kept)),
        };
        tcsetattr(io::stdin(), OptionalActions::Now, &during)?;
        Ok(Some(keyboard))
    }

    /// Waits so long, or until a key or a signal ends the view; whether one did.
    ///
    /// # Errors
    /// The terminal cannot be read.
    pub fn ends_within(&self, length: Duration) -> io::Result<bool> {
        let end = Instant::now() + length;
        while interrupted().is_none() {
            let left = end.saturating_duration_since(Instant::now());
            let event = next_event(left.min(KEY_WAIT))?;
            if event.as_ref().and_then(pressed).is_some_and(is_end) {
                return Ok(true);
            }
            if event.is_none() && left.is_zero() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        put_back(&self.before);
    }
}

fn put_back(modes: &Termios) {
    // A terminal that has gone needs nothing.
    let _gone = tcsetattr(io::stdin(), OptionalActions::Now, modes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_and_interrupts_end_a_view() {
        let key = |code, modifiers| KeyEvent::new(code, modifiers);
        let letter = KeyCode::Char;
        assert!(is_end(key(letter('q'), KeyModifiers::NONE)));
        assert!(is_end(key(letter('c'), KeyModifiers::CONTROL)));
        assert!(!is_end(key(letter('c'), KeyModifiers::NONE)));
        assert!(!is_interrupt(key(letter('q'), KeyModifiers::NONE)));
        let mut released = key(letter('q'), KeyModifiers::NONE);
        released.kind = KeyEventKind::Release;
        assert_eq!(pressed(&Event::Key(released)), None);
        assert_eq!(pressed(&Event::Resize(80, 24)), None);
    }
}
