//! `taut lab` as a user runs it. What needs root, QEMU, a kernel package, cyclictest or a browser says SKIPPED where
//! that is not to be had.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tautline_lab::load::find_program;
use tautline_lab::report;
use tautline_lab::result::{LabResult, Phase, ProbeKind, Series, TimeBase};
use tautline_machine::Machine;
use tautline_machine::verdict::State;
use tautline_report::LatencyHistogram;
use tautline_testbed::sys;

use crate::common::both;

/// One lab at a time, as the lab itself demands.
fn one_lab() -> MutexGuard<'static, ()> {
    static LAB: Mutex<()> = Mutex::new(());
    LAB.lock().unwrap_or_else(PoisonError::into_inner)
}

fn taut(arguments: &[&str]) -> Output {
    Command::new(crate::PROGRAM)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path =
            std::env::temp_dir().join(format!("taut-test-lab-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // what is left of a failed test is in the way of none
    }
}

fn result(label: &str, scale: u64) -> LabResult {
    let mut histogram = LatencyHistogram::new();
    (0..20_000).for_each(|index| histogram.record((5_000 + index % 997) * scale));
    let mut result = LabResult::new(label, TimeBase::Real, Machine::default());
    let scheduling = "SCHED_FIFO 80".to_owned();
    let series = Series::new(
        ProbeKind::Nanosleep,
        Some(0),
        scheduling,
        1_000_000,
        &histogram,
    );
    let phase = Phase::new(State::Untouched, "idle", 20_000_000_000, vec![series]);
    result.phases.push(phase);
    result
}

#[test]
fn a_run_measures_every_load_and_leaves_nothing() {
    let _lab = one_lab();
    let scratch = Scratch::new("run");
    let (json, html) = (scratch.path("run.json"), scratch.path("run.html"));
    let output = taut(&[
        "lab",
        "run",
        "--for",
        "3s",
        "--load",
        "idle,combined",
        "--builtin-loads",
        "--size",
        "4M",
        "--dir",
        &scratch.path("."),
        "--json",
        &json,
        "--html",
        &html,
        "--class",
        "10s",
    ]);
    let result = LabResult::read(Path::new(&json))
        .unwrap_or_else(|error| panic!("{error}\n{}", both(&output)));
    for (state, load) in [(State::Untouched, "idle"), (State::Tuned, "combined")] {
        assert!(
            result.wakeups(Some(state), Some(load)).count() > 100,
            "{load}"
        );
    }
    let parts: Vec<&str> = result
        .phases
        .iter()
        .filter(|phase| phase.state == State::Tuned)
        .flat_map(|phase| &phase.achieved)
        .inspect(|part| assert!(part.amount > 0.0 || part.problem.is_some(), "{part:?}"))
        .map(|part| part.part.as_str())
        .collect();
    assert_eq!(
        parts,
        [
            "cpu",
            "memory",
            "disk",
            "network",
            "scheduling",
            "scheduling"
        ]
    );
    for series in result.phases.iter().flat_map(|phase| &phase.series) {
        assert_eq!(
            series.page_faults,
            0,
            "{}: the probe faulted",
            series.name()
        );
    }
    assert!(
        result.changes.iter().all(|change| change.restored),
        "{:?}",
        result.changes
    );
    // Held or not is this machine's affair; but a virtual one is never told that it held.
    let verdict = result.verdict.expect("a class was asked for");
    let status = output.status.code();
    assert_eq!(status, Some(i32::from(verdict.exit_status())));
    assert!(status != Some(0) || result.machine.is_virtual.known() == Some(&false));
    assert_eq!(
        fs::read_dir(&scratch.0).unwrap().count(),
        2,
        "the load's files are gone"
    );
    assert!(fs::read_to_string(&html).unwrap().contains("Time line"));
}

#[test]
fn a_slowed_run_is_seen_by_compare() {
    let scratch = Scratch::new("compare");
    let (fast, slow, page) = (
        scratch.path("fast.json"),
        scratch.path("slow.json"),
        scratch.path("c.html"),
    );
    result("fast", 1).write(Path::new(&fast)).unwrap();
    result("slow", 4).write(Path::new(&slow)).unwrap();
    let worse = taut(&["lab", "compare", &fast, &slow, "--html", &page]);
    assert_eq!(worse.status.code(), Some(3), "{}", both(&worse));
    assert!(both(&worse).contains("WORSE"));
    // Files of several results, in the form of today and in the older one.
    let list = fs::read_to_string(&slow).unwrap();
    fs::write(scratch.path("old.json"), format!("[{list}]")).unwrap();
    fs::write(
        scratch.path("new.json"),
        format!("{{\"kernels\": [{list}]}}"),
    )
    .unwrap();
    for several in ["old.json", "new.json"] {
        let several = scratch.path(several);
        let output = taut(&["lab", "compare", &fast, &several, "--json"]);
        assert_eq!(output.status.code(), Some(3), "{}", both(&output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["comparisons"][0]["other"], "slow");
    }
    assert!(
        fs::read_to_string(&page)
            .unwrap()
            .contains("slow: worse than fast")
    );
    assert_eq!(
        taut(&["lab", "compare", &slow, &fast]).status.code(),
        Some(0)
    );
    assert_eq!(
        taut(&["lab", "compare", &fast, &fast]).status.code(),
        Some(0)
    );
}

#[test]
fn files_that_are_no_results_are_told_apart() {
    let scratch = Scratch::new("files");
    let whole = serde_json::to_string_pretty(&result("x", 1)).unwrap();
    for (content, words) in [
        (whole[..whole.len() / 2].to_owned(), "cut off"),
        (
            whole.replace("\"version\": 1", "\"version\": 7"),
            "version 7",
        ),
        ("{\"a\": 1}".to_owned(), "neither a result"),
        (String::new(), "neither a result"),
    ] {
        let path = scratch.path("x.json");
        fs::write(&path, content).unwrap();
        let output = taut(&["lab", "report", &path, "--html", &scratch.path("x.html")]);
        assert_eq!(output.status.code(), Some(2));
        assert!(both(&output).contains(words), "{words}: {}", both(&output));
    }
    let absent = taut(&["lab", "report", &scratch.path("absent.json")]);
    assert!(both(&absent).contains("absent.json"));
}

/// Runs a command with the affinity that `isolcpus=1` gives to every shell.
fn without_cpu_1(program: &Path, arguments: &[&str]) -> Output {
    Command::new("taskset")
        .args(["-c", "0"])
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_cpu_that_is_named_overrides_the_inherited_affinity() {
    let cpus = sys::allowed_cpus().unwrap();
    if !cpus.starts_with(&[0, 1]) || find_program("taskset").is_none() {
        println!("SKIPPED: needs CPUs 0 and 1, and taskset (apt-get install util-linux)");
        return;
    }
    let _lab = one_lab();
    let lab = Path::new(crate::PROGRAM);
    let run = |rest: &[&str]| {
        let common = [
            "lab",
            "run",
            "--for",
            "1s",
            "--untouched-only",
            "--load",
            "idle",
        ];
        both(&without_cpu_1(lab, &[&common, rest].concat()))
    };
    let named = run(&["--cpus", "1"]);
    assert!(named.contains("nanosleep, CPU 1"), "{named}");
    assert!(!named.contains("not measured"), "{named}");
    let all = run(&[]);
    assert!(all.contains("nanosleep, CPU 0"), "{all}");
    assert!(all.contains("not measured: CPU 1"), "{all}");
    let scratch = Scratch::new("affinity");
    let set = scratch.path("set.toml");
    fs::write(
        &set,
        "[[task]]\nname = \"a\"\nperiod = \"10ms\"\nworst_case = \"100us\"\n",
    )
    .unwrap();
    let interrupt = [
        "lab",
        "interrupt",
        "--cpu",
        "1",
        "--count",
        "200",
        "--load",
        "idle",
        "--untouched-only",
    ];
    let task = ["task", "run", &set, "--for", "1s", "--cpu", "1"];
    let taut = lab.with_file_name("taut");
    for (program, arguments, words) in [
        (lab, &interrupt[..], "timer to task, idle, untouched"),
        (&taut, &task, "1 task on CPU 1;"),
    ] {
        let output = both(&without_cpu_1(program, arguments));
        assert!(output.contains(words), "{output}");
    }
}

const THROTTLING: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// Root on a machine whose throttling can be switched.
fn throttling_can_be_set() -> Option<String> {
    let before = fs::read_to_string(THROTTLING).ok()?;
    (sys::is_root() && before.trim() != "-1" && fs::write(THROTTLING, &before).is_ok())
        .then_some(before)
}

fn start_tuned(scratch: &Scratch) -> std::process::Child {
    let child = Command::new(crate::PROGRAM)
        .args([
            "lab",
            "run",
            "--for",
            "60s",
            "--tuned-only",
            "--load",
            "disk",
            "--builtin-loads",
            "--size",
            "4M",
        ])
        .args(["--dir", &scratch.path(".")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("throttling is off and files are written", || {
        fs::read_to_string(THROTTLING).unwrap().trim() == "-1"
            && fs::read_dir(&scratch.0).unwrap().count() > 0
    });
    child
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    // A guest boots in seconds, on a busy machine in ten times that.
    let limit = Instant::now() + Duration::from_secs(180);
    while !condition() {
        assert!(Instant::now() < limit, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_interrupt_puts_everything_back() {
    let _lab = one_lab(); // before looking: another test may have it switched off
    let Some(before) = throttling_can_be_set() else {
        println!("SKIPPED: needs root and a writable {THROTTLING}");
        return;
    };
    let scratch = Scratch::new("interrupt");
    let mut child = start_tuned(&scratch);
    sys::signal_process(child.id(), rustix::process::Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(fs::read_to_string(THROTTLING).unwrap(), before);
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
}

#[test]
fn what_a_killed_run_left_is_put_back_by_the_next() {
    let _lab = one_lab(); // before looking: another test may have it switched off
    let Some(before) = throttling_can_be_set() else {
        println!("SKIPPED: needs root and a writable {THROTTLING}");
        return;
    };
    let scratch = Scratch::new("kill");
    let mut child = start_tuned(&scratch);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read_to_string(THROTTLING).unwrap().trim(), "-1");
    let next = taut(&[
        "lab",
        "run",
        "--for",
        "1s",
        "--untouched-only",
        "--load",
        "idle",
    ]);
    assert!(
        both(&next).contains("an earlier run that was killed"),
        "{}",
        both(&next)
    );
    assert_eq!(fs::read_to_string(THROTTLING).unwrap(), before);
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
}

#[test]
fn files_of_cyclictest_are_imported() {
    let Some(cyclictest) = find_program("cyclictest").filter(|_| sys::is_root()) else {
        println!("SKIPPED: needs root and cyclictest (apt-get install rt-tests)");
        return;
    };
    let scratch = Scratch::new("cyclictest");
    let json = scratch.path("board.json");
    let histogram = scratch.path("board.hist");
    let run = Command::new(cyclictest)
        .args([
            "-q",
            "-p80",
            "-i1000",
            "-l300",
            "-h2000",
            &format!("--json={json}"),
            &format!("--histfile={histogram}"),
        ])
        .output()
        .unwrap();
    if !run.status.success() {
        println!("SKIPPED: cyclictest cannot run here: {}", both(&run));
        return;
    }
    for file in [&json, &histogram] {
        let imported = LabResult::read(Path::new(file)).unwrap();
        assert_eq!(imported.wakeups(None, None).count(), 300, "{file}");
        assert_eq!(imported.time, TimeBase::Imported);
    }
    let compared = taut(&["lab", "compare", &json, &histogram]);
    // 300 samples are enough to compare the median and nothing beyond it; it is the same run.
    assert_eq!(compared.status.code(), Some(0), "{}", both(&compared));
}

#[test]
fn interrupt_latency_stands_beside_the_papers() {
    let _lab = one_lab();
    let scratch = Scratch::new("interrupt");
    let (json, page) = (
        scratch.path("interrupt.json"),
        scratch.path("interrupt.html"),
    );
    let written = format!("--json={json}");
    let words = [
        "lab",
        "interrupt",
        "--count",
        "400",
        "--load",
        "idle,vision",
        &written,
        "--html",
        &page,
    ];
    // With the kernel's trace where it can be had, in a mount namespace of its own.
    let output = match sys::is_root() && find_program("unshare").is_some() {
        true => taut_after(
            "(mount -t tracefs tracefs /sys/kernel/tracing || true)",
            &words,
        ),
        false => taut(&words),
    };
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{shown}");
    assert!(
        shown.contains("timer to task, vision, untouched"),
        "{shown}"
    );
    assert!(
        shown.contains("paper: RTMux, interrupt to handler, idle"),
        "{shown}"
    );
    let result = &LabResult::read_many(json.as_ref()).unwrap()[0];
    for state in [State::Untouched, State::Partition] {
        let phases: Vec<&Phase> = result
            .phases
            .iter()
            .filter(|one| one.state == state)
            .collect();
        if state == State::Partition && phases.is_empty() {
            let lacks = |text: &str| result.missing.iter().any(|one| one.what.contains(text));
            assert!(lacks("in a partition"), "{:?}", result.missing);
            println!("SKIPPED: the partition: {:?}", result.missing);
            continue;
        }
        for phase in phases {
            let series = |kind: ProbeKind| phase.series.iter().find(|one| one.probe == kind);
            let Some(one) = series(ProbeKind::Nanosleep) else {
                panic!("{:?}", result.missing);
            };
            // A last one that is late ends the series; periods that it missed are not counted.
            let periods = one.summary.count + one.overruns + one.summary.max_ns / 100_000;
            assert!(periods >= 400, "{periods}");
            // Where it could be measured: one timer for each wake-up, but for those that were due already.
            for kind in [ProbeKind::TimerHandler, ProbeKind::OtherCpu] {
                let count = series(kind).map(|one| one.summary.count + one.overruns);
                assert!(count.is_none_or(|count| count > 0), "{kind:?}");
            }
        }
    }
    // Without tracefs, the table says that this one is lacking.
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("timer to handler") || shown.contains("lacking"));
    let wrong = taut(&["lab", "interrupt", "--cpu", "9999"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        String::from_utf8(wrong.stderr)
            .unwrap()
            .contains("may not use CPU 9999")
    );
}

#[test]
fn the_kernel_laboratory_gives_the_same_figures_twice() {
    if kernel_to_boot().is_none() {
        return;
    }
    let scratch = Scratch::new("kernels");
    let run = |file: &str| lab_kernels(&["--for", "200ms", "--fresh", "--json", file]);
    let (one, two) = (scratch.path("1.json"), scratch.path("2.json"));
    let first = run(&one);
    assert!(first.status.success(), "{}", both(&first));
    assert!(run(&two).status.success());
    assert_eq!(
        fs::read_to_string(&one).unwrap(),
        fs::read_to_string(&two).unwrap()
    );
    let results = LabResult::read_many(Path::new(&one)).unwrap();
    let series = &results[0].phases[0].series;
    let summary = &series[0].summary;
    assert!((199..=201).contains(&summary.count), "{summary:?}");
    // This kernel has the tracer; its thread's latency contains that of its interrupt.
    let kinds: Vec<ProbeKind> = series.iter().map(|one| one.probe).collect();
    assert_eq!(
        kinds,
        [
            ProbeKind::Nanosleep,
            ProbeKind::TimerlatInterrupt,
            ProbeKind::TimerlatThread
        ]
    );
    let [interrupt, thread] = [&series[1].summary, &series[2].summary];
    assert!(interrupt.count > 20 && interrupt.p50_ns < thread.p50_ns);
    assert_eq!(results[0].time, TimeBase::Virtual);
    assert_eq!(results[0].machine.preemption.to_string(), "rt");
}

/// Runs the kernel that these tests boot.
fn lab_kernels(rest: &[&str]) -> Output {
    let kernel = ["lab", "kernels", "--kernel", "linux-image-rt-amd64"];
    taut(&[&kernel[..], &["--load", "idle"], rest].concat())
}

/// That kernel as a file, downloaded by the first test that needs it; nothing, and why, where it is not to be had.
fn kernel_to_boot() -> Option<PathBuf> {
    static KERNEL: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let kernel = KERNEL.get_or_init(|| {
        if find_program("qemu-system-x86_64").is_none() || find_program("apt-get").is_none() {
            return Err("needs QEMU and apt (apt-get install qemu-system-x86)".to_owned());
        }
        let scratch = Scratch::new("fetch");
        let run = lab_kernels(&["--for", "50ms", "--json", &scratch.path("1.json")]);
        let said = both(&run);
        if said.contains("the archive has no kernel package") {
            return Err(format!(
                "the kernel package cannot be downloaded here: {said}"
            ));
        }
        assert!(run.status.success(), "{said}");
        Ok(cached_kernel().expect("it was downloaded"))
    });
    match kernel {
        Ok(kernel) => Some(kernel.clone()),
        Err(why) => {
            println!("SKIPPED: {why}");
            None
        }
    }
}

fn cached_kernel() -> Option<PathBuf> {
    let home = PathBuf::from(std::env::var_os("HOME")?);
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or(home.join(".cache"), PathBuf::from);
    fs::read_dir(cache.join("tautline/lab/kernels"))
        .ok()?
        .filter_map(|package| Some(package.ok()?.path()))
        // Another run may be unpacking it.
        .filter(|package| {
            package
                .extension()
                .is_none_or(|extension| extension != "part")
        })
        .filter_map(|package| fs::read_dir(package.join("boot")).ok())
        .flatten()
        .filter_map(|file| Some(file.ok()?.path()))
        .find(|path| {
            let name = path.file_name().map(|name| name.to_string_lossy());
            name.is_some_and(|name| name.starts_with("vmlinuz") && name.ends_with("-rt-amd64"))
        })
}

#[test]
fn a_guest_that_panics_shows_the_end_of_its_console() {
    let Some(kernel) = kernel_to_boot() else {
        return;
    };
    let scratch = Scratch::new("panic");
    let output = taut(&[
        "lab",
        "kernels",
        "--kernel",
        &kernel.to_string_lossy(),
        "--load",
        "idle",
        "--cache",
        &scratch.path("cache"),
        "--guest-command",
        "sh -c 'echo the last words; echo c >/proc/sysrq-trigger'",
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", both(&output));
    for words in [
        "its kernel panicked: ",
        "Kernel panic - not syncing: sysrq triggered crash",
        "last lines of its console",
        "sysrq_handle_crash",
    ] {
        assert!(both(&output).contains(words), "{words}: {}", both(&output));
    }
    let left = fs::read_dir(scratch.path("cache")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        left.iter()
            .all(|name| !name.to_string_lossy().starts_with("initramfs")),
        "{left:?}"
    );
}

#[test]
fn an_interrupted_run_of_kernels_goes_on_where_it_was() {
    let Some(kernel) = kernel_to_boot() else {
        return;
    };
    let scratch = Scratch::new("resume");
    let kernels = |cache: &str, json: &str| {
        let mut command = Command::new(crate::PROGRAM);
        command
            .args(["lab", "kernels", "--load", "idle", "--for", "50ms"])
            .args(["--parallel", "1", "--kernel"])
            .arg(&kernel)
            .arg(format!("{},preempt=full", kernel.display()))
            .args(["--cache", &scratch.path(cache)])
            .args(["--json", &scratch.path(json)])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let cached = || fs::read_dir(scratch.path("two/results")).map_or(0, Iterator::count);
    let guests = || {
        let names = fs::read_dir(scratch.path("two")).into_iter().flatten();
        names
            .filter(|entry| {
                let name = entry.as_ref().unwrap().file_name();
                name.to_string_lossy().ends_with(".console")
            })
            .count()
    };
    // Beside it, which changes nothing on virtual time.
    let whole = kernels("one", "one.json").spawn().unwrap();
    let mut interrupted = kernels("two", "two.json").spawn().unwrap();
    wait_until("the second guest runs", || cached() == 1 && guests() == 1);
    sys::signal_process(interrupted.id(), rustix::process::Signal::INT);
    assert_eq!(interrupted.wait().unwrap().code(), Some(130));
    assert_eq!((cached(), guests()), (1, 0), "one result, no guest's files");
    assert!(!Path::new(&scratch.path("two.json")).exists());

    let resumed = kernels("two", "two.json").output().unwrap();
    assert!(resumed.status.success(), "{}", both(&resumed));
    assert_eq!(both(&resumed).matches("from the cache").count(), 1);
    let whole = whole.wait_with_output().unwrap();
    assert!(whole.status.success(), "{}", both(&whole));
    assert_eq!(both(&whole).matches("from the cache").count(), 0);
    assert_eq!(
        fs::read_to_string(scratch.path("two.json")).unwrap(),
        fs::read_to_string(scratch.path("one.json")).unwrap()
    );
}

/// `taut` after `before` was done in a mount namespace of its own.
fn taut_after(before: &str, arguments: &[&str]) -> Output {
    Command::new("unshare")
        .args(["--mount", "sh", "-c"])
        .arg(format!("{before} && exec \"$0\" \"$@\""))
        .arg(crate::PROGRAM)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_full_disk_stops_the_load_and_weakens_the_verdict() {
    if !sys::is_root() || find_program("unshare").is_none() {
        println!("SKIPPED: needs root, to mount a small file system");
        return;
    }
    let _lab = one_lab();
    let scratch = Scratch::new("full");
    let directory = scratch.path(".");
    let output = taut_after(
        &format!("mount -t tmpfs -o size=3m tmpfs {directory}"),
        &[
            "lab",
            "run",
            "--for",
            "600ms",
            "--untouched-only",
            "--load",
            "disk",
            "--builtin-loads",
            "--dir",
            &directory,
        ],
    );
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    for words in [
        "(disk full: 3 MiB left, stopped)",
        "Weaker because: disk load at full strength: disk full",
    ] {
        assert!(both(&output).contains(words), "{words}: {}", both(&output));
    }
}

#[test]
fn a_missing_qemu_is_named_with_its_package() {
    let Some(qemu) = find_program("qemu-system-x86_64").filter(|_| sys::is_root()) else {
        println!("SKIPPED: needs root and QEMU, to take it away in a mount namespace");
        return;
    };
    let output = taut_after(
        &format!("mount --bind /dev/null {}", qemu.display()),
        &["lab", "kernels", "--kernel", "linux-image-rt-amd64"],
    );
    assert_eq!(output.status.code(), Some(1), "{}", both(&output));
    for words in [
        "qemu-system-x86_64 is not installed",
        "apt-get install --no-install-recommends qemu-system-x86",
    ] {
        assert!(both(&output).contains(words), "{words}: {}", both(&output));
    }
}

#[test]
fn without_privilege_it_measures_what_it_can_and_says_what_is_lacking() {
    let Some(setpriv) = find_program("setpriv").filter(|_| sys::is_root()) else {
        println!("SKIPPED: needs root and setpriv, to give the privileges away");
        return;
    };
    let _lab = one_lab();
    let output = Command::new(setpriv)
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(crate::PROGRAM)
        .args(["lab", "run", "--for", "400ms", "--load", "idle"])
        .env_remove("XDG_RUNTIME_DIR")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if both(&output).contains("setpriv: failed to execute") {
        println!("SKIPPED: another user may not run {}", crate::PROGRAM);
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    for words in [
        "lacking: real-time priority",
        "lacking: real-time throttling off",
        "nanosleep, CPU 0",
    ] {
        assert!(both(&output).contains(words), "{words}: {}", both(&output));
    }
}

#[test]
fn a_file_that_is_no_kernel_ends_with_an_error_that_names_it() {
    if find_program("qemu-system-x86_64").is_none() {
        println!("SKIPPED: needs QEMU (apt-get install qemu-system-x86)");
        return;
    }
    let scratch = Scratch::new("nokernel");
    let path = scratch.path("notakernel");
    let kernels = |arguments: &[&str]| {
        let cache = scratch.path("cache");
        let first = ["lab", "kernels", "--kernel", &path, "--cache", &cache];
        taut(&[&first, arguments].concat())
    };
    let mut image = vec![0x55; 100_000];
    fs::write(&path, &image).unwrap();
    let output = kernels(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        both(&output).contains("notakernel is not a kernel image"),
        "{}",
        both(&output)
    );
    // The mark of a kernel and nothing behind it: it does not boot.
    image[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
    image[0x202..0x208].copy_from_slice(b"HdrS\x0c\x02");
    fs::write(&path, &image).unwrap();
    let output = kernels(&["--timeout", "5s"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(both(&output).contains("notakernel: "), "{}", both(&output));
    assert!(both(&output).contains("last lines of its console"));
    for (command, status, words) in [
        (
            "taut-no-such-program -x",
            1,
            "no program 'taut-no-such-program'",
        ),
        ("echo 'one", 2, "missing closing quote"),
        (" ", 2, "no command"),
    ] {
        let output = kernels(&["--guest-command", command]);
        assert_eq!(output.status.code(), Some(status), "{}", both(&output));
        assert!(both(&output).contains(words), "{}", both(&output));
    }
    for wrong in ["virtualization", "a=b;c=d", "=on", "a=,b=c"] {
        let output = kernels(&["--machine", wrong]);
        assert_eq!(output.status.code(), Some(2), "{}", both(&output));
        let words = "expected options such as virtualization=on";
        assert!(both(&output).contains(words), "{}", both(&output));
    }
    let output = kernels(&["--guest-module", "kvm-amd"]);
    assert_eq!(output.status.code(), Some(1));
    let words = "no package of this kernel has a module 'kvm-amd'";
    assert!(both(&output).contains(words), "{}", both(&output));
    let needs = "a program beside Linux needs arm64, virtual time and two CPUs or more";
    let no_program = "notakernel cannot run beside Linux: ";
    let beside = ["--beside", &path, "--arch"];
    for (arguments, status, words) in [
        (["x86_64", "--cpus", "2"], 1, needs),
        (["arm64", "--cpus", "1"], 1, needs),
        (["arm64", "--cpus", "2"], 1, no_program),
        (
            ["arm64", "--guest-command", "true"],
            2,
            "cannot be used with",
        ),
        (["arm64", "--machine", "a=b"], 2, "cannot be used with"),
        (["arm64", "--turn", "500ns"], 2, "whole microseconds"),
        (["arm64", "--turn", "2ms"], 2, "whole microseconds"),
    ] {
        let output = kernels(&[&beside[..], &arguments].concat());
        assert_eq!(output.status.code(), Some(status), "{}", both(&output));
        assert!(both(&output).contains(words), "{}", both(&output));
    }
}

/// The page as a browser shows it: laid out, without complaints, with the right figures.
#[test]
fn a_browser_shows_the_page() {
    let Some(browser) = find_program("chromium").or_else(|| find_program("google-chrome")) else {
        println!("SKIPPED: needs a browser (apt-get install chromium)");
        return;
    };
    let scratch = Scratch::new("browser");
    let (page, picture) = (scratch.path("page.html"), scratch.path("page.png"));
    fs::write(&page, report::page("taut lab run", &[result("board", 1)])).unwrap();
    let run = |arguments: &[&str]| {
        Command::new(&browser)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--enable-logging=stderr",
            ])
            .arg(format!("--user-data-dir={}", scratch.path("profile")))
            .args(arguments)
            .arg(format!("file://{page}"))
            .output()
            .unwrap()
    };
    let shown = run(&["--dump-dom"]);
    let document = String::from_utf8_lossy(&shown.stdout);
    for words in [
        ">20000</td>",
        ", µs</th>",
        ">5.00</td>",
        ">6.00</td>",
        "nanosleep, CPU 0",
        "svg",
    ] {
        assert!(document.contains(words), "{words}");
    }
    let complaints = String::from_utf8_lossy(&shown.stderr);
    assert!(!complaints.contains("CONSOLE"), "{complaints}");
    run(&["--window-size=400,1600", &format!("--screenshot={picture}")]);
    let picture = fs::read(picture).expect("a picture was taken");
    // A blank page of this size compresses to some 6 KB.
    assert!(picture.len() > 20_000, "{} bytes", picture.len());
}

#[test]
fn several_cpus_in_one_virtual_time_need_a_newer_qemu() {
    let scratch = Scratch::new("old-qemu");
    let program = scratch.0.join("qemu-system-x86_64");
    fs::write(&program, "#!/bin/sh\necho QEMU emulator version 7.2.22\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&program, executable).unwrap();
    let output = Command::new(crate::PROGRAM)
        .args([
            "lab",
            "kernels",
            "--cpus",
            "2",
            "--kernel",
            "./vmlinuz",
            "--cache",
        ])
        .arg(&scratch.0)
        // Without the tools of the archive, which would give a newer one.
        .env("PATH", &scratch.0)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = both(&output);
    for words in ["need QEMU 8.1 or later", "apt-get"] {
        assert!(said.contains(words), "{said}");
    }
}
