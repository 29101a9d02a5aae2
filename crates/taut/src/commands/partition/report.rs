//! Partitions as tables and JSON.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tautline_report::table;
use tautline_state::journal::Change;
use tautline_state::process::Stat;
use tautline_state::text;
use tautline_tasks::partition::{
    ActivePartition, Activity, Form, Partition, PartitionConfig, Plan, Runner, Stays,
};

/// Characters of a name of a thread or process that are shown: the kernel keeps 15, its own threads have more.
const NAME_CHARS_MAX: usize = 32;

/// Rows of each kind that are shown. Lower: rare guests are not seen. Higher: the list fills the screen.
const ROWS_MAX: usize = 20;

pub(super) fn plan_text(config: &PartitionConfig, plan: &Plan) -> String {
    let mut text = format!(
        "`{}` would set CPUs {} aside: {}\n",
        config.name,
        config.cpus,
        plan.form.text()
    );
    text += &changes_text(&plan.changes);
    text + &stays_text(&plan.stays)
}

pub(super) fn plan_json(config: &PartitionConfig, plan: &Plan) -> Value {
    changes_json(config, plan.form, &plan.changes, &plan.stays)
}

pub(super) fn made_text(config: &PartitionConfig, partition: &Partition) -> String {
    let mut text = format!(
        "`{}` has CPUs {}: {}; {} settings changed\n",
        config.name,
        partition.cpus(),
        partition.form().text(),
        partition.changes().len()
    );
    text += &stays_text(partition.stays());
    text
}

pub(super) fn made_json(config: &PartitionConfig, partition: &Partition) -> Value {
    changes_json(
        config,
        partition.form(),
        partition.changes(),
        partition.stays(),
    )
}

fn changes_json(
    config: &PartitionConfig,
    form: Form,
    changes: &[Change],
    stays: &[Stays],
) -> Value {
    let changes = changes
        .iter()
        .map(|one| json!({ "setting": one.what, "before": one.before, "after": one.after }));
    json!({
        "name": config.name,
        "cpus": config.cpus,
        "form": form.text(),
        "keeps_others_away": form.keeps_others_away(),
        "changes": Value::from_iter(changes),
        "stays": stays,
    })
}

fn changes_text(changes: &[Change]) -> String {
    if changes.is_empty() {
        return "no setting needs to be changed\n".to_owned();
    }
    let rows = changes
        .iter()
        .map(|one| vec![one.what.clone(), one.before.clone(), one.after.clone()]);
    table::figures(&["setting", "before", "after"], rows)
}

fn stays_text(stays: &[Stays]) -> String {
    let rows = stays
        .iter()
        .map(|one| vec!["stays:".to_owned(), one.what.clone(), one.reason.clone()]);
    table::words(rows)
}

pub(super) fn list_text(found: &[ActivePartition]) -> String {
    if found.is_empty() {
        return "no partitions\n".to_owned();
    }
    let rows = found.iter().map(|one| {
        vec![
            one.name.clone(),
            one.cpus.to_string(),
            one.processes().len().to_string(),
            one.owner
                .map_or_else(|| "-".to_owned(), |owner| owner.to_string()),
            form(one).to_owned(),
        ]
    });
    let table = table::figures(&["partition", "CPUs", "processes", "owner", "form"], rows);
    let unreadable = found.iter().filter_map(|one| one.unreadable.as_ref());
    let unreadable: String = unreadable.map(|error| format!("{error}\n")).collect();
    let outside = found.iter().map(|one| outside_text(&one.outside()));
    table + &unreadable + &outside.collect::<String>()
}

/// Programs of a partition that may run beside its CPUs.
fn outside_text(outside: &[Stays]) -> String {
    let row = |one: &Stays| vec!["outside:".to_owned(), one.what.clone(), one.reason.clone()];
    table::words(outside.iter().map(row))
}

fn form(found: &ActivePartition) -> &'static str {
    match (found.form, &found.unreadable) {
        (Some(form), _) => form.text(),
        (None, None) => "is being made",
        (None, Some(_)) => "not known",
    }
}

pub(super) fn found_json(found: &ActivePartition) -> Value {
    let settings = found.settings.iter();
    let settings = settings
        .map(|(setting, before)| json!({ "setting": setting.to_string(), "before": before }));
    let made = found.made.duration_since(UNIX_EPOCH);
    json!({
        "name": found.name,
        "cpus": found.cpus,
        "form": found.form.map(Form::text),
        "keeps_others_away": found.form.is_some_and(Form::keeps_others_away),
        "owner": found.owner,
        "made_unix_s": made.map_or(0, |since| since.as_secs()),
        "processes": found.processes(),
        "settings": Value::from_iter(settings),
        "stays": found.stays,
        "outside": found.outside(),
        "unreadable": found.unreadable.as_ref().map(ToString::to_string),
    })
}

/// A partition with the counts of a time.
pub(super) struct View<'a> {
    found: &'a ActivePartition,
    time: Duration,
    processes: Vec<u32>,
    interrupts: Vec<(String, u64)>,
    soft_interrupts: Vec<(String, u64)>,
    runners: Vec<Runner>,
}

impl<'a> View<'a> {
    pub(super) fn new(
        found: &'a ActivePartition,
        then: &Activity,
        time: Option<Duration>,
    ) -> View<'a> {
        let now = Activity::now(&found.cpus);
        let processes = found.processes();
        let since = || {
            SystemTime::now()
                .duration_since(found.made)
                .unwrap_or_default()
        };
        View {
            time: time.unwrap_or_else(since),
            interrupts: now.interrupts_since(then),
            soft_interrupts: now.soft_interrupts_since(then),
            runners: now.runners_since(then, &found.cpus, &processes),
            processes,
            found,
        }
    }

    pub(super) fn text(&self) -> String {
        let found = self.found;
        let mut text = format!(
            "`{}` has CPUs {}: {}\n",
            found.name,
            found.cpus,
            form(found)
        );
        let programs = self.processes.iter().map(|number| {
            let name = Stat::of(*number).map_or_else(String::new, |stat| stat.name);
            format!("{number} {}", text::plain(&name, NAME_CHARS_MAX))
        });
        let programs: Vec<String> = programs.collect();
        let programs = match programs.is_empty() {
            true => "none".to_owned(),
            false => programs.join(", "),
        };
        let _ = writeln!(text, "processes: {programs}");
        let _ = writeln!(text, "on its CPUs in {:.1} s:", self.time.as_secs_f64());
        text += &table::figures(&["others that ran there", "times", "kind"], self.rows());
        text += &stays_text(&found.stays);
        text += &outside_text(&found.outside());
        text
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let counted = |counts: &[(String, u64)], kind: &str| -> Vec<Vec<String>> {
            let rows = counts
                .iter()
                .map(|(name, count)| vec![name.clone(), count.to_string(), kind.to_owned()]);
            shortened(rows.collect(), kind)
        };
        let threads = self.runners.iter().map(|one| {
            let name = text::plain(&one.name, NAME_CHARS_MAX);
            vec![
                format!("{name} ({})", one.thread),
                one.runs.to_string(),
                kind(one).to_owned(),
            ]
        });
        let mut rows = shortened(threads.collect(), "thread");
        rows.extend(counted(&self.interrupts, "interrupt"));
        rows.extend(counted(&self.soft_interrupts, "soft interrupt"));
        rows
    }

    pub(super) fn json(&self) -> Value {
        let counts = |counts: &[(String, u64)]| {
            let one = |(name, count): &(String, u64)| json!({ "name": name, "count": count });
            counts.iter().map(one).collect::<Value>()
        };
        let mut json = found_json(self.found);
        json["seconds"] = self.time.as_secs_f64().into();
        json["interrupts"] = counts(&self.interrupts);
        json["soft_interrupts"] = counts(&self.soft_interrupts);
        json["threads"] = json!(self.runners);
        json
    }
}

fn kind(runner: &Runner) -> &'static str {
    match (runner.is_kernel, runner.is_bound) {
        (true, true) => "bound thread of the kernel",
        (true, false) => "thread of the kernel",
        (false, _) => "foreign task",
    }
}

/// The first rows, and one that counts the others.
fn shortened(mut rows: Vec<Vec<String>>, kind: &str) -> Vec<Vec<String>> {
    if rows.len() > ROWS_MAX {
        let more = rows.split_off(ROWS_MAX);
        rows.push(vec![
            format!("{} more", more.len()),
            String::new(),
            kind.to_owned(),
        ]);
    }
    rows
}
