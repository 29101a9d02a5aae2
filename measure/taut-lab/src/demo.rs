//! `taut-lab demo`: see [`tautline_bench::demo`].

use std::path::PathBuf;

use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use taut::say;
use tautline_machine::Machine;
use tautline_report::plot::latency_text;
use tautline_testbed::hosts::{Hosts, HostsOptions, may_create};

use taut::cli::{self, CommandError};
use taut::commands::output::JsonArguments;
use taut::units;
use tautline_bench::demo::{self, DemoError, Progress, Way, report};
use tautline_bench::load::Pace;

/// Arguments of `taut-lab demo`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Time that the loop runs, such as 2min.
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = whole_seconds)]
    seconds: u32,
    /// Directory for report.html and report.json; made if it is missing.
    #[arg(long, value_name = "DIR", default_value = "taut-demo")]
    out: PathBuf,
    /// Run over loopback on the link that needs no privilege, as a user without privilege would.
    #[arg(long)]
    unprivileged: bool,
    /// Let the TCP stream take all bandwidth, not only that of gigabit Ethernet.
    #[arg(long)]
    unpaced: bool,
    #[command(flatten)]
    json: JsonArguments,
}

/// Runs the demo.
pub(crate) fn run(arguments: Arguments) -> Result<(), CommandError> {
    // Before anything is measured, so that nothing is measured in vain.
    cli::make_directory(&arguments.out)?;
    let hosts = if arguments.unprivileged || !may_create() {
        let why = match arguments.unprivileged {
            true => "asked for",
            false => "no privilege to make hosts",
        };
        say!("taut: {why}: two addresses of loopback stand in for two hosts, and link udp for xdp");
        if !arguments.unprivileged {
            let program = std::env::args().next();
            say!(
                "  what to do: run it as root for two hosts (sudo {} demo)",
                program.as_deref().unwrap_or("taut")
            );
        }
        None
    } else {
        Some(
            Hosts::create(&HostsOptions {
                cable_count: demo::CABLES,
                ..HostsOptions::default()
            })
            .map_err(|error| explain(error.into()))?,
        )
    };
    let pace = if arguments.unpaced {
        Pace::Full
    } else {
        Pace::Gigabit
    };
    let display = Display::new();
    let outcome = demo::run(hosts.as_ref(), arguments.seconds, pace, &mut |progress| {
        display.show(progress);
    });
    display.clear();
    drop(hosts);
    let outcome = outcome.map_err(explain)?;
    let machine = Machine::read();
    let json = report::json(&outcome, &machine);
    let page = arguments.out.join("report.html");
    let text = || {
        let table = report::text(&outcome, &machine);
        format!("{table}report: {}\n", page.display())
    };
    cli::all([
        arguments.json.print(|| json.clone(), text),
        cli::write_file(&page, &report::html(&outcome, &machine)),
        cli::write_file(&arguments.out.join("report.json"), &format!("{json:#}\n")),
    ])
}

/// Turns of the loop are counted in whole seconds.
fn whole_seconds(text: &str) -> Result<u32, String> {
    /// Longest run. Nobody watches longer, and the recorded times would take more memory than the machine has.
    const SECONDS_MAX: u64 = 3_600;
    match units::time(text)? {
        time if time.subsec_nanos() == 0 && (1..=SECONDS_MAX).contains(&time.as_secs()) => {
            Ok(time.as_secs() as u32)
        }
        _ => Err("expected whole seconds, 1s to 1h".to_owned()),
    }
}

fn explain(error: DemoError) -> CommandError {
    let what = error.to_string();
    match error {
        DemoError::Interrupted(signal) => CommandError::interrupted(signal),
        DemoError::Hosts(error) => CommandError::failed(what, error.remedy()),
        DemoError::Path(error) => CommandError::failed(what, error.remedy()),
        DemoError::SomebodyElse(error) => CommandError::failed(what, error.remedy()),
        _ => CommandError::failed(
            what,
            "try again; `taut doctor` shows what this machine can do",
        ),
    }
}

/// A line for the run and one for each way, on standard error if that is a terminal.
struct Display {
    all: MultiProgress,
    run: ProgressBar,
    ways: [ProgressBar; 4],
}

impl Display {
    fn new() -> Display {
        let style =
            |template| ProgressStyle::with_template(template).expect("the template is a constant");
        let all = MultiProgress::new();
        let run = all.add(ProgressBar::new(0).with_style(style("{bar:40} {msg}")));
        let ways = Way::ALL.map(|_| all.add(ProgressBar::new(0).with_style(style("  {msg}"))));
        Display { all, run, ways }
    }

    fn show(&self, progress: &Progress) {
        self.run.set_length(progress.total.as_millis() as u64);
        self.run.set_position(progress.elapsed.as_millis() as u64);
        let left = progress.total.saturating_sub(progress.elapsed);
        self.run.set_message(format!("{} s left", left.as_secs()));
        for (way, (bar, (cycles, missed, summary))) in
            Way::ALL.iter().zip(self.ways.iter().zip(&progress.so_far))
        {
            let sign = if progress.current == Some(*way) {
                '▶'
            } else {
                ' '
            };
            let figures = if *cycles == 0 {
                "–".to_owned()
            } else {
                format!(
                    "p50 {:>8}  p99 {:>8}  p99.9 {:>8}  max {:>8}  missed {missed} of {cycles}",
                    latency_text(summary.p50_ns),
                    latency_text(summary.p99_ns),
                    latency_text(summary.p999_ns),
                    latency_text(summary.max_ns),
                )
            };
            bar.set_message(format!("{sign} {:<24}{figures}", way.text()));
        }
    }

    fn clear(&self) {
        self.ways.iter().for_each(ProgressBar::finish_and_clear);
        self.run.finish_and_clear();
        // A terminal that has gone away needs no clearing.
        let _gone = self.all.clear();
    }
}
