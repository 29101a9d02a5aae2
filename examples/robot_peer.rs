//! A robot as many have it: sends its state over UDP each millisecond, and takes the command only if it comes within
//! 300 µs. It needs no Tautline; the loop on the other side is `robot_loop`, in Rust, C++ or Python.
//!
//! It looks for each command for 300 µs, so that its own wake-up is in no figure. Arguments: address of the loop, and
//! how many states to send. Prints how many commands were late.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use tautline::Cycle;
use tautline::cycle::CycleOptions;

const PERIOD: Duration = Duration::from_millis(1);
const COMMAND_LIMIT: Duration = Duration::from_micros(300);
/// States at the start that are not counted: the loop finds its rhythm.
const FIRST_STATES: u64 = 500;
const STATE_BYTES: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:7000".to_owned());
    let states: u64 = arguments.next().unwrap_or("10000".to_owned()).parse()?;

    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(address)?;
    socket.set_nonblocking(true)?;
    let options = CycleOptions::new(PERIOD).with_fifo_priority(80);
    let mut cycle = Cycle::start(&options)?;
    let mut answered = Vec::with_capacity(states as usize);
    let mut state = [0; STATE_BYTES];
    for number in 0..FIRST_STATES + states {
        cycle.wait();
        state[..8].copy_from_slice(&number.to_le_bytes());
        let sent_at = Instant::now();
        // Refused while no loop runs.
        let _ = socket.send(&state);
        let taken = await_command(&socket, number, sent_at);
        if number >= FIRST_STATES {
            answered.push(taken);
        }
    }
    socket.send(&[])?; // the end

    let mut in_time: Vec<Duration> = answered.iter().flatten().copied().collect();
    in_time.sort_unstable();
    let late = answered.len() - in_time.len();
    let quantile = |part: usize| {
        let index = in_time.len() * part / 1_000;
        in_time
            .get(index)
            .map_or(0.0, |taken| taken.as_secs_f64() * 1e6)
    };
    println!(
        "{late} of {states} commands late or lost; the others p50 {:.1} p99 {:.1} p99.9 {:.1} µs",
        quantile(500),
        quantile(990),
        quantile(999)
    );
    Ok(())
}

/// Time until the command for a state came, if it did within the limit.
fn await_command(socket: &UdpSocket, number: u64, sent_at: Instant) -> Option<Duration> {
    let mut command = [0; STATE_BYTES];
    while sent_at.elapsed() < COMMAND_LIMIT {
        // Nothing yet, or the command for an earlier state.
        if socket.recv(&mut command).is_ok() && command[..8] == number.to_le_bytes() {
            return Some(sent_at.elapsed());
        }
    }
    None
}
