//! The live view in a terminal. Looks are taken by a thread of its own, so keys are answered while a machine of many
//! ports is looked at.

mod app;
mod detail;
mod draw;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::{DefaultTerminal, try_init, try_restore};
use tautline_report::table;
use tautline_state::interrupt;

use self::app::{App, Reaction};
use crate::column::ALL;
use crate::keyboard::{KEY_WAIT, next_event, pressed};
use crate::look::{Look, Wishes};
use crate::row::Row;

/// Shows the live view until a key or a signal ends it.
///
/// # Errors
/// The terminal cannot be used, or the nodes cannot be listed.
pub fn run(interval: Duration, wishes: Wishes) -> io::Result<()> {
    let looker = Looker::start(interval, wishes)?;
    let app = App::new(looker.first()?, wishes);
    let mut terminal = try_init()?;
    let ended = show(&mut terminal, app, &looker);
    let restored = try_restore();
    ended.and(restored)
}

fn show(terminal: &mut DefaultTerminal, mut app: App, looker: &Looker) -> io::Result<()> {
    let mut is_stale = true;
    while interrupt::interrupted().is_none() {
        while let Some(look) = looker.next()? {
            app.take(look);
            is_stale = true;
        }
        if is_stale {
            terminal.draw(|frame| draw::draw(frame, &mut app))?;
            is_stale = false;
        }
        let Some(event) = next_event(KEY_WAIT)? else {
            continue;
        };
        is_stale = true;
        if pressed(&event).is_some_and(|key| app.press(key) == Reaction::End) {
            return Ok(());
        }
        looker.latency.store(app.wants_latency(), Relaxed);
    }
    Ok(())
}

/// The thread that looks.
struct Looker {
    looks: Receiver<io::Result<Look>>,
    latency: Arc<AtomicBool>,
}

impl Looker {
    fn start(interval: Duration, wishes: Wishes) -> io::Result<Self> {
        // One look may wait to be taken: a view that is held up gets the next, not old ones.
        let (sender, looks) = sync_channel(1);
        let latency = Arc::new(AtomicBool::new(wishes.latency));
        let wanted = Arc::clone(&latency);
        // It ends with the receiver, at its next look.
        thread::Builder::new()
            .name("taut-look".to_owned())
            .spawn(move || look_again(&sender, &wanted, wishes, interval))?;
        Ok(Self { looks, latency })
    }

    /// The first look; waits for it.
    fn first(&self) -> io::Result<Look> {
        self.looks.recv().map_err(|_| io::ErrorKind::BrokenPipe)?
    }

    /// The next look, if it is there.
    fn next(&self) -> io::Result<Option<Look>> {
        match self.looks.try_recv() {
            Ok(look) => look.map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

fn look_again(
    sender: &SyncSender<io::Result<Look>>,
    latency: &AtomicBool,
    wishes: Wishes,
    interval: Duration,
) {
    loop {
        let due = Instant::now() + interval;
        let wishes = Wishes {
            latency: latency.load(Relaxed),
            ..wishes
        };
        if sender.send(Look::take(wishes)).is_err() {
            return;
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Lines as a table for a file or a pipe, with all columns.
#[must_use]
pub fn text(rows: &[Row], silent: &[String]) -> String {
    let mut text = if rows.is_empty() {
        "nothing to see: no node, task, partition, smoother, bus or guest, or none for this user\n"
            .to_owned()
    } else {
        let header: Vec<&str> = ALL.iter().map(|column| column.title()).collect();
        let cells = |row: &Row| ALL.iter().map(|column| column.cell(row, true)).collect();
        table::figures(&header, rows.iter().map(cells))
    };
    for name in silent {
        text += &format!("{name} does not answer: it may be stopped\n");
    }
    text
}
