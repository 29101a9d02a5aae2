//! The two threads of a benchmark: one asks, one answers, each on a CPU of its own. What they pass to each other
//! here is which slice to serve next; that is outside of what is measured, and the answering thread sleeps meanwhile,
//! so that another program may be measured on the same CPUs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use serde::Serialize;
use tautline_testbed::child;
use thiserror::Error;

/// Where the threads run, and under which policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// CPU of the asking thread; nothing leaves it to the scheduler.
    pub client_cpu: Option<usize>,
    /// CPU of the answering thread.
    pub server_cpu: Option<usize>,
    /// Priority of both threads under SCHED_FIFO; nothing leaves the policy as it is.
    pub fifo_priority: Option<u8>,
}

/// A thread could not be placed or scheduled as asked.
#[derive(Debug, Error)]
#[error("cannot {operation}: {source}")]
pub struct PlacementError {
    /// Operation that failed.
    pub operation: String,
    /// Cause.
    pub source: std::io::Error,
}

impl Placement {
    /// Chooses a CPU for each side out of those allowed to this process: 1 asks, 0 answers, where
    /// both are there. Returns what the user should know about the choice, if anything.
    pub fn choose_cpus(&mut self, allowed: &[usize]) -> Option<String> {
        match allowed {
            [] | [_] => Some(
                "only one CPU is allowed to this process: both sides share it, and the figures show the scheduler rather than the paths".to_owned(),
            ),
            [first, second, ..] => {
                let server = self.server_cpu.unwrap_or(if self.client_cpu == Some(*first) { *second } else { *first });
                let client = self.client_cpu.unwrap_or(if server == *second { *first } else { *second });
                (self.server_cpu, self.client_cpu) = (Some(server), Some(client));
                (server == client).then(|| {
                    format!("both sides were put on CPU {server}: the figures show the scheduler rather than the paths")
                })
            }
        }
    }

    /// For the line above a table.
    pub fn text(&self) -> String {
        let cpu = |cpu: Option<usize>| cpu.map_or("any".to_owned(), |cpu| cpu.to_string());
        let policy = self
            .fifo_priority
            .map_or("no real-time policy".to_owned(), |priority| {
                format!("SCHED_FIFO {priority}")
            });
        format!(
            "asking on CPU {}, answering on CPU {}, {policy}",
            cpu(self.client_cpu),
            cpu(self.server_cpu)
        )
    }

    /// Puts the calling thread on a CPU, and under SCHED_FIFO.
    ///
    /// # Errors
    /// The kernel refuses one of them.
    pub fn place(cpu: Option<usize>, fifo_priority: Option<u8>) -> Result<(), PlacementError> {
        if let Some(cpu) = cpu {
            child::pin(cpu).map_err(|source| PlacementError {
                operation: format!("keep a thread on CPU {cpu}"),
                source,
            })?;
        }
        if let Some(priority) = fifo_priority {
            child::schedule_fifo(priority).map_err(|source| PlacementError {
                operation: format!("use SCHED_FIFO with priority {priority}"),
                source,
            })?;
        }
        Ok(())
    }
}

/// The answering thread has ended; its own result says why.
#[derive(Debug)]
pub struct ServerGone;

/// Runs both sides on threads of their own, which take their placement with them when they end. `serve` is called
/// with each slice that `ask` begins, and returns when that is done or when its flag is set.
pub fn run<Slice, Failure, Answer>(
    placement: &Placement,
    mut serve: impl FnMut(Slice, &AtomicBool) -> Result<(), Failure> + Send,
    ask: impl FnOnce(&Handover<Slice>) -> Result<Answer, Failure> + Send,
) -> Result<Answer, Failure>
where
    Slice: Copy + Send,
    Failure: From<PlacementError> + Send,
    Answer: Send,
{
    let handover = &Handover::default();
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            let _disconnect = Disconnect(handover);
            Placement::place(placement.server_cpu, placement.fifo_priority)?;
            handover.serve(&mut serve)
        });
        let client = scope.spawn(move || {
            let _stop_request = StopRequest(handover);
            Placement::place(placement.client_cpu, placement.fifo_priority)?;
            ask(handover)
        });
        let result = joined(client.join());
        // If the server failed, the client only knows that it is gone.
        joined(server.join())?;
        result
    })
}

pub(super) fn joined<T>(result: thread::Result<T>) -> T {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// How the asking thread tells the answering one what to serve.
pub struct Handover<Slice> {
    request: Mutex<Request<Slice>>,
    changed: Condvar,
    /// Ends the slice that is being served.
    stop: AtomicBool,
    /// Last slice that the server began to serve. Released by the server, acquired by the client.
    accepted: AtomicU64,
    /// Last slice that the server ended. Released by the server, acquired by the client.
    finished: AtomicU64,
    /// Set when the server's thread ends, in whatever way.
    gone: AtomicBool,
}

struct Request<Slice> {
    /// Number of the slice to serve, from 1.
    number: u64,
    slice: Option<Slice>,
    quit: bool,
}

impl<Slice> Default for Handover<Slice> {
    fn default() -> Handover<Slice> {
        Handover {
            request: Mutex::new(Request {
                number: 0,
                slice: None,
                quit: false,
            }),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            accepted: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            gone: AtomicBool::new(false),
        }
    }
}

impl<Slice> Handover<Slice> {
    fn request(&self) -> MutexGuard<'_, Request<Slice>> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Slice: Copy> Handover<Slice> {
    fn serve<Failure>(
        &self,
        serve: &mut impl FnMut(Slice, &AtomicBool) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut last = 0;
        while let Some((number, slice)) = self.next(last) {
            last = number;
            self.accepted.store(number, Ordering::Release);
            serve(slice, &self.stop)?;
            self.finished.store(number, Ordering::Release);
        }
        Ok(())
    }

    fn next(&self, last: u64) -> Option<(u64, Slice)> {
        let mut request = self.request();
        loop {
            match request.slice {
                _ if request.quit => return None,
                Some(slice) if request.number != last => return Some((request.number, slice)),
                _ => {
                    request = self
                        .changed
                        .wait(request)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Asks for a slice to be served, and returns when the server has begun.
    pub fn begin(&self, slice: Slice) -> Result<(), ServerGone> {
        self.stop.store(false, Ordering::Relaxed);
        let number = {
            let mut request = self.request();
            request.number += 1;
            request.slice = Some(slice);
            request.number
        };
        self.changed.notify_one();
        self.wait(&self.accepted, number)
    }

    /// Tells the server to end the slice, and returns when it has.
    pub fn end(&self) -> Result<(), ServerGone> {
        self.end_while(|| {
            thread::yield_now();
            Ok(())
        })
    }

    /// As [`end`](Self::end), doing something again and again until the server has ended: a server that sends may need
    /// the room that only this side makes.
    pub fn end_while<Failure: From<ServerGone>>(
        &self,
        mut meanwhile: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let number = self.request().number;
        self.stop.store(true, Ordering::Relaxed);
        while !self.is_reached(&self.finished, number)? {
            meanwhile()?;
        }
        Ok(())
    }

    /// Whether the server's thread has ended.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    fn wait(&self, counter: &AtomicU64, number: u64) -> Result<(), ServerGone> {
        while !self.is_reached(counter, number)? {
            thread::yield_now();
        }
        Ok(())
    }

    fn is_reached(&self, counter: &AtomicU64, number: u64) -> Result<bool, ServerGone> {
        if counter.load(Ordering::Acquire) == number {
            return Ok(true);
        }
        if self.is_gone() {
            return Err(ServerGone);
        }
        Ok(false)
    }
}

/// Tells the client that the server's thread ends.
struct Disconnect<'a, Slice>(&'a Handover<Slice>);

impl<Slice> Drop for Disconnect<'_, Slice> {
    fn drop(&mut self) {
        self.0.gone.store(true, Ordering::Release);
    }
}

/// Tells the server to end when the client does.
struct StopRequest<'a, Slice>(&'a Handover<Slice>);

impl<Slice> Drop for StopRequest<'_, Slice> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
        self.0.request().quit = true;
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    enum Failure {
        Placement,
        Serving(u32),
        Gone,
    }

    impl From<PlacementError> for Failure {
        fn from(_: PlacementError) -> Failure {
            Failure::Placement
        }
    }

    impl From<ServerGone> for Failure {
        fn from(_: ServerGone) -> Failure {
            Failure::Gone
        }
    }

    #[test]
    fn slices_are_served_in_turn_and_both_threads_end() {
        let mut served = Vec::new();
        let serve = |slice: u32, stop: &AtomicBool| -> Result<(), Failure> {
            while !stop.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            served.push(slice);
            Ok(())
        };
        let ask = |handover: &Handover<u32>| -> Result<u32, Failure> {
            for slice in [7, 7, 9] {
                handover.begin(slice)?;
                handover.end()?;
            }
            Ok(3)
        };
        assert_eq!(run(&Placement::default(), serve, ask), Ok(3));
        assert_eq!(served, [7, 7, 9]);
    }

    #[test]
    fn the_servers_failure_is_the_one_that_is_reported() {
        let serve = |slice, _: &AtomicBool| Err(Failure::Serving(slice));
        let ask = |handover: &Handover<u32>| -> Result<(), Failure> {
            handover.begin(5)?;
            handover.end()?;
            unreachable!("the server has ended");
        };
        let result = run(&Placement::default(), serve, ask);
        assert_eq!(result, Err(Failure::Serving(5)));
    }

    #[test]
    fn a_cpu_that_there_is_not_is_an_error_of_either_side() {
        for (client_cpu, server_cpu) in [(Some(100_000), None), (None, Some(100_000))] {
            let placement = Placement {
                client_cpu,
                server_cpu,
                fifo_priority: None,
            };
            let ask = |handover: &Handover<u32>| -> Result<(), Failure> {
                handover.begin(1)?;
                handover.end()?;
                Ok(())
            };
            let result = run(&placement, |_, _| Ok(()), ask);
            assert_eq!(result, Err(Failure::Placement));
        }
    }

    #[test]
    fn cpus_are_chosen_apart() {
        let choose = |allowed: &[usize], client_cpu, server_cpu| {
            let mut placement = Placement {
                client_cpu,
                server_cpu,
                fifo_priority: None,
            };
            let remark = placement.choose_cpus(allowed);
            (placement.client_cpu, placement.server_cpu, remark.is_some())
        };
        assert_eq!(choose(&[0, 1, 2], None, None), (Some(1), Some(0), false));
        assert_eq!(choose(&[4, 6], None, None), (Some(6), Some(4), false));
        assert_eq!(choose(&[0, 1], Some(0), None), (Some(0), Some(1), false));
        assert_eq!(choose(&[0, 1], None, Some(1)), (Some(0), Some(1), false));
        assert_eq!(choose(&[0, 1], Some(1), Some(1)), (Some(1), Some(1), true));
        assert_eq!(choose(&[3], None, None), (None, None, true));
    }
}
