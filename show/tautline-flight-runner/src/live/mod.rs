//! A craft that flies laps until it is told to stop, and a page that shows it: `taut flight --live`.
//!
//! `session` has the flights one after the other, `page` answers browsers. They share
//! `Shared`: the newest document and picture one way, presses of buttons the other.

mod loads;
mod page;
mod session;
mod view;

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde::Deserialize;
use serde_json::{Value, json};
use tautline_testbed::interrupt::interrupted;
use tautline_watch::web::Socket;

use crate::course::GUST_SPEED_MAX;
use crate::record::Variant;
use crate::show::{Settings, ShowError};
use loads::LEVELS;
use session::Session;

/// Settings of the page.
#[derive(Clone, Debug)]
pub struct PageSettings {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Token for seeing and using the page.
    pub token: String,
}

/// Process that a button kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Target {
    Video,
    Mapping,
    /// The flight controller, or its guest.
    Controller,
    /// The control process of the craft's network interface; its successor starts after a second.
    ControlProcess,
}

/// Press of a button, or move of a slider.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Press {
    Kill(Target),
    /// The pilot has it land; the next flight begins by itself.
    Land,
    /// A task at SCHED_FIFO 99 on every CPU that Linux has, for two seconds.
    Runaway,
    /// Level of the loads.
    Load(usize),
    /// Speed of the gusts, metres a second.
    Gusts(f64),
}

impl Press {
    /// The press of a request; the reason if there is no such one.
    fn read(bytes: &[u8]) -> Result<Press, String> {
        let press: Press = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        match press {
            Press::Load(level) if level >= LEVELS.len() => {
                Err(format!("the load has levels 0 to {}", LEVELS.len() - 1))
            }
            Press::Gusts(speed) if !(0.0..=GUST_SPEED_MAX).contains(&speed) => {
                Err(format!("gusts have 0 to {GUST_SPEED_MAX} m/s"))
            }
            press => Ok(press),
        }
    }
}

/// Belongings of page and session.
struct Shared {
    document: Mutex<Value>,
    /// Newest picture: count, then pixels; empty before the first.
    picture: Mutex<Vec<u8>>,
    presses: Mutex<Sender<Press>>,
}

impl Shared {
    fn show(&self, document: Value) {
        *self.document.lock().unwrap_or_else(PoisonError::into_inner) = document;
    }

    fn show_picture(&self, picture: Vec<u8>) {
        *self.picture.lock().unwrap_or_else(PoisonError::into_inner) = picture;
    }
}

/// Flies the first variant of the settings until a signal ends the program. `ready` is told the page's address.
///
/// # Errors
/// [`ShowError`]; then nothing is left running.
pub fn run(
    settings: &Settings,
    page: &PageSettings,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), ShowError> {
    let variant = settings.variants.first().copied();
    let variant = variant.filter(|variant| variant.is_ours()).ok_or_else(|| {
        ShowError::Io(io::Error::other(
            "only (c) and (d) have a bus that a page can watch",
        ))
    })?;
    let socket = Socket::bind(page.listen)?;
    let (tell, told) = channel();
    let shared = Arc::new(Shared {
        document: Mutex::new(json!({ "variant": variant.text() })),
        picture: Mutex::new(Vec::new()),
        presses: Mutex::new(tell),
    });
    let (settings, shown) = (settings.clone(), Arc::clone(&shared));
    let session = thread::spawn(move || Session::new(&settings, variant, &shown, told)?.run());
    let served = page::serve(socket, page, variant_page(variant), shared, ready, || {
        interrupted().is_some() || session.is_finished()
    });
    let flown = session.join();
    served?;
    flown.unwrap_or_else(|_| Err(ShowError::Io(io::Error::other("the session has panicked"))))
}

/// Facts of the page that never change.
fn variant_page(variant: Variant) -> Value {
    json!({
        "variant": variant.text(),
        "controller": if variant == Variant::Guest { "the guest" } else { "the flight controller" },
        "levels": LEVELS,
        "gusts_max": GUST_SPEED_MAX,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presses_are_read_and_checked() {
        let read = |text: &str| Press::read(text.as_bytes());
        assert_eq!(read(r#"{"kill":"video"}"#), Ok(Press::Kill(Target::Video)));
        let control = Press::Kill(Target::ControlProcess);
        assert_eq!(read(r#"{"kill":"control-process"}"#), Ok(control));
        assert_eq!(read(r#""land""#), Ok(Press::Land));
        assert_eq!(read(r#"{"load":3}"#), Ok(Press::Load(3)));
        assert_eq!(read(r#"{"gusts":2.5}"#), Ok(Press::Gusts(2.5)));
        for wrong in [
            "",
            "{}",
            r#"{"load":4}"#,
            r#"{"load":-1}"#,
            r#"{"gusts":5.1}"#,
            r#"{"gusts":-1}"#,
            r#"{"kill":"init"}"#,
            r#"{"kill":1}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
