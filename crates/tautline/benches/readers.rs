//! Publishing one value of 64 KiB for 0, 1, 4 and 16 readers of one memory, in turns. `cargo bench -p tautline --bench
//! readers`. One thread publishes; another one has all the readers, which look for the value and copy it.

use std::hint;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tautline::config::BusConfig;
use tautline::port::SamplingOptions;
use tautline::{Destination, Node, NodeConfig, PortNumber, Priority, SamplingPort, bus_neighbour};

const READERS: [u16; 4] = [0, 1, 4, 16];
const BYTES: usize = 65_536;
const ROUNDS: usize = 20;
/// Values in a round; the first few fill caches and are not counted.
const VALUES: usize = 120;
const UNCOUNTED: usize = 20;

/// A port that publishes.
struct Cell {
    camera: SamplingPort,
    to: Destination,
    /// Values that are published.
    published: u64,
    /// Open as long as their ports.
    _nodes: Vec<Node>,
}

/// State of both threads.
struct Shared {
    /// The cell whose readers look; beyond the last one, none do any more.
    active: AtomicUsize,
    /// Values of that cell that all its readers have taken, by the number in them.
    taken: AtomicU64,
}

impl Cell {
    fn open(readers: u16) -> (Cell, Vec<SamplingPort>) {
        let bus = format!("taut-readers-{}-{readers}", std::process::id());
        let open = |name: &str| {
            let config = BusConfig::new(&bus, name.parse().expect("a name"));
            let camera = bus_neighbour("camera".parse().expect("a name"));
            let config = NodeConfig::vbus(config);
            let config = match name {
                "camera" => config,
                _ => config.with_neighbour(camera).expect("one neighbour"),
            };
            Node::open(config).expect("a bus")
        };
        let number = |number: u16| PortNumber::try_from(number).expect("a port number");
        let options = SamplingOptions {
            value_bytes_max: BYTES,
            ..SamplingOptions::default()
        };
        let port = |node: &Node, own: u16| {
            node.sampling(number(own))
                .options(&options)
                .open()
                .expect("open")
        };
        let mut nodes = vec![open("camera")];
        let mut camera = port(&nodes[0], 5);
        let to = camera.readers().expect("a bus");
        let mut screens = Vec::new();
        for reader in 0..readers {
            let node = open(&format!("screen-{reader}"));
            let mut screen = port(&node, 6);
            screen.follow("camera", number(5)).expect("it is there");
            screens.push(screen);
            nodes.push(node);
        }
        let cell = Cell {
            camera,
            to,
            published: 0,
            _nodes: nodes,
        };
        (cell, screens)
    }

    /// Publishes the next value, and waits until all have it; the time of the `send`.
    fn publish(&mut self, value: &mut [u8], shared: &Shared) -> Duration {
        self.published += 1;
        value[..8].copy_from_slice(&self.published.to_ne_bytes());
        let start = Instant::now();
        let sent = self.camera.send(self.to, Priority::NORMAL, value);
        let took = start.elapsed();
        sent.expect("it has a place");
        let until = start + Duration::from_secs(10);
        while shared.taken.load(Ordering::Acquire) < self.published {
            assert!(Instant::now() < until, "a reader gets nothing");
            hint::spin_loop();
        }
        took
    }
}

/// Takes the values of the cell that is active, until none is.
fn read(mut cells: Vec<Vec<SamplingPort>>, shared: &Shared) {
    let mut buffer = vec![0; BYTES];
    loop {
        let active = shared.active.load(Ordering::Acquire);
        let Some(screens) = cells.get_mut(active) else {
            return;
        };
        let mut least = u64::MAX;
        for screen in screens {
            let sample = screen.read_into(&mut buffer).expect("open");
            let number = || u64::from_ne_bytes(buffer[..8].try_into().expect("eight bytes"));
            least = least.min(sample.map_or(0, |_| number()));
        }
        // Another cell may have become active meanwhile: then this is of no use, and of no harm.
        if shared.active.load(Ordering::Acquire) == active {
            shared.taken.store(least, Ordering::Release);
        }
    }
}

fn main() {
    let (mut cells, screens): (Vec<_>, Vec<_>) = READERS.map(Cell::open).into_iter().unzip();
    let shared = Shared {
        active: AtomicUsize::new(0),
        taken: AtomicU64::new(0),
    };
    let mut times: [Vec<u64>; READERS.len()] = Default::default();
    thread::scope(|scope| {
        scope.spawn(|| read(screens, &shared));
        let mut value = vec![7; BYTES];
        for _ in 0..ROUNDS {
            for (index, cell) in cells.iter_mut().enumerate() {
                // Those of the cell before are no values of this one.
                shared.taken.store(0, Ordering::Relaxed);
                shared.active.store(index, Ordering::Release);
                for count in 0..VALUES {
                    let took = cell.publish(&mut value, &shared);
                    if count >= UNCOUNTED {
                        times[index].push(took.as_nanos() as u64);
                    }
                }
            }
        }
        shared.active.store(usize::MAX, Ordering::Release);
    });
    let percentiles = times.map(|mut times| {
        times.sort_unstable();
        [times[times.len() / 2], times[times.len() * 99 / 100]]
    });
    let [p50_of_one, _] = percentiles[1];
    println!("one value of {BYTES} bytes, ns: readers, p50, p99, p50 of that for one reader");
    for (readers, [p50, p99]) in READERS.iter().zip(percentiles) {
        println!(
            "{readers:>8} {p50:>8} {p99:>8} {:>8.2}",
            p50 as f64 / p50_of_one as f64
        );
    }
}
