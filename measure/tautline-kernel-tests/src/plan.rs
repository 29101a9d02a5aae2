//! Plan of a guest: the programs that it runs, a cell of the table for each, in five parts.

use tautline_lab::kernels::cards::Driver;

use tautline_lab::kernels::Arch;

use crate::kernels::{Kernel, drivers};
use crate::orders::Step;
use crate::programs::GUEST_IMAGES;

/// Seconds after which a cell is given up. Lower: an emulated machine on a busy host is failed unjustly. Higher:
/// whoever waits for one that hangs waits for longer.
const CELL_SECONDS_MAX: u64 = 3600;

/// How much longer than on a real machine the tests wait for what must come.
const SLOWNESS: &str = "10";

/// Times that the test of guests kills or restarts one at random. Lower: fewer moments are met. Higher: it takes
/// longer; that of `make guest-kills` is 10,000, on this machine.
const GUEST_KILLS: &str = "20";

/// A part of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// Every BPF program is loaded, with every setting that changes it.
    Load,
    /// The conformance suite and the twin test over virtual cables.
    Veth,
    /// The same over two network cards of each driver.
    Cards,
    /// `taut demo`: a control loop with TCP beside.
    Demo,
    /// Guests on KVM of arm64, in a machine that emulates a hypervisor's processor.
    Guests,
}

impl Part {
    /// All of them.
    pub(crate) const ALL: [Part; 5] = [
        Part::Load,
        Part::Veth,
        Part::Cards,
        Part::Demo,
        Part::Guests,
    ];
}

/// Mode of XDP programs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Native,
    Generic,
}

/// A step of a guest, with its place in the table.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) driver: &'static str,
    pub(crate) mode: &'static str,
    pub(crate) what: &'static str,
    pub(crate) step: Step,
    /// Whether it runs tests, whose lines are counted, or a command, whose exit status counts.
    pub(crate) counts_tests: bool,
}

/// The cells of a kernel. Drivers that QEMU lacks are left out by `has_driver`.
pub(crate) fn cells(
    kernel: &Kernel,
    parts: &[Part],
    has_driver: &dyn Fn(&Driver) -> bool,
) -> Vec<Cell> {
    if kernel.too_old {
        return without_xdp();
    }
    let mut cells = Vec::new();
    if parts.contains(&Part::Load) {
        cells.push(test(
            "",
            "",
            "every program loads",
            &["machine", "bpf_load::"],
        ));
    }
    if parts.contains(&Part::Veth) {
        let (driver, mode) = ("veth", "all");
        cells.push(test(
            driver,
            mode,
            "conformance",
            &["machine", "conformance::"],
        ));
        cells.push(test(driver, mode, "twin", &["machine", "demux_twin::"]));
        cells.push(test(driver, mode, "link xsk", &["machine", "link_xsk::"]));
    }
    if parts.contains(&Part::Cards) {
        for driver in drivers().filter(|driver| has_driver(driver)) {
            let zero_copy = kernel.zero_copy.contains(&driver.name);
            if driver.native {
                cells.extend(on_cards(driver, Mode::Native, zero_copy));
            }
            cells.extend(on_cards(driver, Mode::Generic, zero_copy));
        }
    }
    if parts.contains(&Part::Demo) {
        cells.push(Cell {
            counts_tests: false,
            ..test(
                "veth",
                "native",
                "demo",
                &["taut-lab", "demo", "--for", "5s"],
            )
        });
    }
    // Debian's PREEMPT_RT kernels for arm64 have no KVM, at least that of 6.1.
    let may_have_kvm = kernel.job.arch == Arch::Arm64 && !kernel.name().starts_with("rt-");
    if parts.contains(&Part::Guests) && may_have_kvm {
        cells.extend(guests());
    }
    cells
}

/// One program, interrupted by its timer; then the tests of guests, with images that the host has built.
fn guests() -> [Cell; 2] {
    let image = format!("{GUEST_IMAGES}/latency.elf");
    let words = ["taut", "guest", "run", &image, "--console", "-"];
    // Without the one that makes hosts, for which the guest has no programs.
    let on_kvm = ["guest", "kvm", "--skip", "on_the_wire", "--test-threads=1"];
    let mut tests = test("KVM", "", "tests of guests", &on_kvm);
    tests.step.environment.extend(
        [
            ("TAUTLINE_GUEST_IMAGES", GUEST_IMAGES),
            ("TAUTLINE_TAUT", "/usr/bin/taut"),
            ("TAUTLINE_GUEST_KILLS", GUEST_KILLS),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    [test("KVM", "", "a guest", &words), tests]
}

/// Link `xdp` says which kernel has what it needs, and a node takes `packet`.
fn without_xdp() -> Vec<Cell> {
    let both = ["--skip", "xdp_to_", "--skip", "xsk_to_"];
    let conformance = ["machine", "conformance::packet::", "conformance::udp::"];
    let suites = [&conformance[..], &both[..]].concat();
    vec![
        test(
            "veth",
            "",
            "xdp refused, packet taken",
            &["machine", "old_kernel::"],
        ),
        test("veth", "", "conformance of packet and udp", &suites),
    ]
}

/// The suites of one mode. Those of two links at once run over virtual cables: on a card each test begins with seconds
/// of waiting for its link.
fn on_cards(driver: &Driver, mode: Mode, zero_copy: bool) -> Vec<Cell> {
    let (name, suites, twin_mode) = match mode {
        Mode::Native if zero_copy => ("native, zero-copy", ["xdp", "xsk"], "native"),
        Mode::Native => ("native", ["xdp", "xsk"], "native"),
        Mode::Generic => ("generic", ["xdp_generic", "xsk_generic"], "generic"),
    };
    let [xdp, xsk] = suites.map(|suite| format!("conformance::{suite}::"));
    let conformance = ["machine", &xdp, &xsk];
    let twin_tests = [
        "kernel_and_process_deliver_alike",
        "the_kernel_polices_by_the_same_clock",
    ];
    let [alike, policing] = twin_tests.map(|test| format!("demux_twin::{test}_{twin_mode}"));
    let mut cells = vec![
        test(driver.name, name, "conformance", &conformance),
        test(driver.name, name, "twin", &["machine", &alike, &policing]),
    ];
    if mode == Mode::Native && zero_copy {
        cells.push(test(
            driver.name,
            name,
            "link xsk",
            &["machine", "link_xsk::"],
        ));
        // Without the tests that need programs which are not in the guest.
        let fragments = [
            "machine",
            "udp_fragments::xsk::",
            "--skip",
            "python",
            "--skip",
            "socat",
        ];
        cells.push(test(driver.name, name, "fragments on xsk", &fragments));
    }
    for cell in &mut cells {
        cell.step.driver = Some(driver.name.to_owned());
        // There is one cable.
        cell.step.command.push("--test-threads=1".to_owned());
        if zero_copy {
            let demanded = ("TAUTLINE_TEST_ZERO_COPY".to_owned(), "1".to_owned());
            cell.step.environment.push(demanded);
        }
    }
    cells
}

fn test(driver: &'static str, mode: &'static str, what: &'static str, words: &[&str]) -> Cell {
    let mut command: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    command[0] = format!("/usr/bin/{}", words[0]);
    let counts_tests = !words[0].starts_with("taut");
    if counts_tests {
        command.push("--show-output".to_owned());
    }
    Cell {
        driver,
        mode,
        what,
        step: Step {
            command,
            environment: vec![("TAUTLINE_TEST_SLOWNESS".to_owned(), SLOWNESS.to_owned())],
            driver: None,
            seconds_max: CELL_SECONDS_MAX,
        },
        counts_tests,
    }
}
