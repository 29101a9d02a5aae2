//! Files that are read, and mistakes in them.

use super::*;

fn error(text: &str) -> String {
    parse(text, "f.toml").unwrap_err().message
}

const TASK: &str = "[[task]]\nname = \"a\"\nperiod = \"1ms\"\nworst_case = \"100us\"\n";

#[test]
fn reads_every_key() {
    let text = "schedule = \"fixed\"\nmodes = [\"ground\", \"flight\"]\n\
         [machine]\nrelease_jitter = \"20us\"\nblocking = \"5us\"\noverhead = \"1.5us\"\n\
         [[receive]]\nname = \"eth0\"\nrate = 10000\nburst = 4\nworst_case = \"2us\"\npriority = 50\n\
         [[task]]\nname = \"a\"\nperiod = \"1ms\"\nphase = \"100us\"\ndeadline = \"800us\"\n\
         worst_case = \"100us\"\nbudget = \"120us\"\npriority = 90\ncritical_section = \"3us\"\n\
         release_jitter = \"1us\"\nmodes = [\"flight\"]\naccept = \"why not\"\n\
         [[task]]\nname = \"b\"\nperiod = \"2ms\"\nport = \"command\"\nworst_case = \"100us\"\npriority = 80\n";
    let set = parse(text, "f.toml").unwrap().set;
    let a = &set.tasks()[0];
    assert_eq!(a.phase(), Duration::from_micros(100));
    assert_eq!(a.deadline, Duration::from_micros(800));
    assert_eq!(a.budget, Some(Duration::from_micros(120)));
    assert_eq!(a.accept.as_deref(), Some("why not"));
    assert_eq!(set.priority(1), Some(80));
    assert_eq!(set.machine().overhead, Duration::from_nanos(1_500));
    assert_eq!(set.receive()[0].burst, 4);
    assert_eq!(set.mode_names().collect::<Vec<_>>(), ["ground", "flight"]);
    assert_eq!(set.members("ground").collect::<Vec<_>>(), [1]);
}

#[test]
fn mistakes_have_file_line_key_and_remedy() {
    let with = |line: &str| error(&format!("{TASK}{line}\n"));
    let period = |value: &str| {
        error(&format!(
            "[[task]]\nname = \"a\"\nperiod = {value}\nworst_case = \"1us\"\n"
        ))
    };
    assert_eq!(
        period("\"0us\""),
        "f.toml:3:10: task `a`, `period`: 0ns is out of range (10µs to 3600s)"
    );
    assert_eq!(
        period("1000"),
        "f.toml:3:10: expected a time with its unit, such as \"1ms\" or \"250us\", not the number `1000`"
    );
    assert_eq!(
        period("\"soon\""),
        "f.toml:3:10: expected a time with its unit, such as \"1ms\" or \"250us\", not the text \"soon\""
    );
    assert!(period("\"400 years\"").contains("expected a time"));
    assert!(period("\"2h\"").contains("out of range"));
    assert_eq!(
        with("deadline = \"2ms\""),
        "f.toml:5:12: task `a`, `deadline`: 2ms is out of range (1ns to 1ms)"
    );
    assert_eq!(
        with("budget = \"50us\""),
        "f.toml:5:10: task `a`, `budget`: 50µs is out of range (100µs to 1ms)"
    );
    assert_eq!(
        with("priority = 5"),
        "f.toml:5:12: task `a`, `priority`: has no effect unless priorities are declared"
    );
    for priority in ["0", "99"] {
        assert_eq!(
            error(&format!(
                "schedule = \"fixed\"\n{TASK}priority = {priority}\n"
            )),
            format!("f.toml:6:12: task `a`, `priority`: {priority} is out of range (1 to 98)")
        );
    }
    for priority in ["-1", "1000", "9223372036854775807"] {
        let message = with(&format!("priority = {priority}"));
        assert_eq!(
            message,
            format!("f.toml:5:12: {priority} is out of range (1 to 98)")
        );
    }
    assert_eq!(
        error(&format!("schedule = \"fixed\"\n{TASK}")),
        "f.toml:2:1: task `a`, `priority`: declared priorities, and this task has none"
    );
    assert_eq!(
        with("modes = [\"flight\"]"),
        "f.toml:5:9: task `a`, `modes`: no mode is called `flight`"
    );
    assert_eq!(
        with("port = \"p\"\nphase = \"1us\""),
        "f.toml:6:9: task `a`, `phase`: a task that messages activate has no phase"
    );
    assert_eq!(
        error(&format!("{TASK}{TASK}")),
        "f.toml:6:8: task `a`, `name`: this name is taken already"
    );
    assert_eq!(
        error(&format!("minor_frame = \"1ms\"\n{TASK}")),
        "f.toml:1:15: `minor_frame`: has no effect without a table"
    );
    let missing = error("[[task]]\nname = \"a\"\nperiod = \"1ms\"\n");
    assert_eq!(missing, "f.toml:1:1: the key `worst_case` is missing");
    assert!(with("wcet = \"1us\"").contains("there is no key `wcet`; expected `name`, "));
    assert_eq!(
        error("schedule = \"edf\"\n"),
        "f.toml:1:12: `edf` is unknown; expected `rate-monotonic`, `deadline-monotonic`, `fixed`, \
         `earliest-deadline` or `table`"
    );
    assert_eq!(error(""), "f.toml:1:1: `task`: at least one is needed");
    assert!(error("task = [").starts_with("f.toml:1:"));
}

#[test]
fn a_partition_is_read_and_checked() {
    let with = |lines: &str| parse(&format!("[partition]\n{lines}\n{TASK}"), "f.toml");
    let partition = |lines: &str| with(lines).unwrap().partition.unwrap();
    let whole = partition("name = \"control\"\ncpus = \"1,3\"");
    assert_eq!(whole.name, "control");
    assert_eq!(whole.cpus.to_string(), "1,3");
    assert!(parse(TASK, "f.toml").unwrap().partition.is_none());
    let wrong = |lines: &str| with(lines).unwrap_err().message;
    assert_eq!(
        wrong("name = \"a\"\ncpus = \"1-\""),
        "f.toml:3:8: invalid list of CPUs `1-`; expected e.g. 1 or 0-2,5"
    );
    let name = wrong("name = \"../a\"\ncpus = \"1\"");
    assert!(
        name.starts_with("f.toml:2:8: invalid partition name `../a`"),
        "{name}"
    );
    assert!(wrong("name = \"a\"\ncpus = \"\"").contains("invalid list of CPUs"));
    assert!(wrong("cpus = \"1\"").contains("the key `name` is missing"));
    assert!(wrong("name = \"a\"\ncpu = \"1\"").contains("there is no key `cpu`; is `cpus` meant?"));
}

#[test]
fn guests_of_tasks_are_declared_with_what_they_need() {
    let with = |top: &str, rest: &str| parse(&format!("{top}{TASK}{rest}"), "f.toml");
    let modes = "modes = [\"run\", \"safe\"]\nsafe_mode = \"safe\"\n";
    let guest = |is_grave| TaskGuest {
        task: 0,
        name: "firmware".to_owned(),
        is_grave,
    };
    let file = with("", "guest = \"firmware\"").unwrap();
    assert_eq!(file.guests, [guest(false)]);
    let grave = "guest = \"firmware\"\non_guest_end = \"safe-mode\"";
    assert_eq!(with(modes, grave).unwrap().guests, [guest(true)]);
    assert_eq!(with("", "").unwrap().guests, []);
    let wrong = |top: &str, rest: &str| with(top, rest).unwrap_err().message;
    assert_eq!(
        wrong("", grave),
        "f.toml:6:16: `on_guest_end`: the set has no safe mode"
    );
    assert_eq!(
        wrong("", "on_guest_end = \"record\""),
        "f.toml:5:16: task `a`, `on_guest_end`: has no effect without a guest"
    );
    for name in ["", ".x", "a/b", &"x".repeat(32)] {
        let expected = "f.toml:5:9: task `a`, `guest`: not a valid name of a guest";
        assert_eq!(wrong("", &format!("guest = \"{name}\"")), expected);
    }
}

#[test]
fn overruns_are_declared_with_what_they_need() {
    let with = |top: &str, rest: &str| parse(&format!("{top}{TASK}{rest}"), "f.toml");
    let policy = |top: &str, rest: &str| with(top, rest).unwrap().set.tasks()[0].overrun;
    let catch_up = |jobs_max| OverrunPolicy::CatchUp { jobs_max };
    assert_eq!(policy("", ""), OverrunPolicy::Skip);
    assert_eq!(policy("", "overrun = \"stop\""), OverrunPolicy::Stop);
    assert_eq!(policy("", "overrun = \"catch-up\""), catch_up(1));
    assert_eq!(
        policy("", "overrun = \"catch-up\"\ncatch_up_max = 4"),
        catch_up(4)
    );
    let modes = "modes = [\"run\", \"safe\"]\nsafe_mode = \"safe\"\n";
    let file = with(modes, "overrun = \"safe-mode\"").unwrap();
    assert_eq!(file.set.safe_mode(), Some("safe"));
    let wrong = |top: &str, rest: &str| with(top, rest).unwrap_err().message;
    assert_eq!(
        wrong("", "overrun = \"safe-mode\""),
        "f.toml:5:11: `overrun`: the set has no safe mode"
    );
    assert_eq!(
        wrong(modes, ""),
        "f.toml:2:13: `safe_mode`: has no effect, because no task goes to it"
    );
    assert_eq!(
        wrong(
            &modes.replace("= \"safe\"", "= \"sofa\""),
            "overrun = \"safe-mode\""
        ),
        "f.toml:2:13: `safe_mode`: no mode is called `sofa`"
    );
    assert_eq!(
        wrong("", "catch_up_max = 4"),
        "f.toml:5:16: task `a`, `catch_up_max`: has no effect unless the task catches up"
    );
    assert_eq!(
        wrong("", "overrun = \"catch-up\"\ncatch_up_max = 0"),
        "f.toml:5:11: task `a`, `overrun`: at least one is needed"
    );
}

#[test]
fn programs_are_words_and_nothing_else() {
    let with = |rest: &str| parse(&format!("{TASK}{rest}"), "f.toml");
    let program = |rest: &str| with(rest).unwrap().programs.remove(0);
    assert_eq!(program(""), None);
    let found = program("exec = \"./camera  --rate 50\"\nsafe_exec = \"./off\"").unwrap();
    assert_eq!(found.words, ["./camera", "--rate", "50"]);
    assert_eq!(found.safe_words.unwrap(), ["./off"]);
    let wrong = |rest: &str| with(rest).unwrap_err().message;
    assert_eq!(
        wrong("exec = \" \""),
        "f.toml:5:8: task `a`, `exec`: no program is named"
    );
    assert_eq!(
        wrong("safe_exec = \"./off\""),
        "f.toml:5:13: task `a`, `safe_exec`: has no effect without a program"
    );
}

#[test]
fn a_table_of_years_is_refused_in_a_sentence() {
    let periods = ["99991us", "99989us", "99971us"];
    let tasks = periods.iter().enumerate().map(|(index, period)| {
        format!("[[task]]\nname = \"t{index}\"\nperiod = \"{period}\"\nworst_case = \"1us\"\n")
    });
    let tasks: String = tasks.collect();
    parse(&tasks, "f.toml").expect("priorities need no hyperperiod");
    let table = format!("schedule = \"table\"\n{tasks}");
    let wrong = parse(&table, "f.toml").unwrap_err();
    assert_eq!(
        wrong.message,
        "f.toml:4:10: task `t0`, `period`: the hyperperiod, the least common multiple of the periods, is longer \
         than 60s"
    );
    assert_eq!(
        wrong.remedy,
        "choose periods that divide each other, such as 1, 2, 5 and 10 ms"
    );
}

#[test]
fn tables_are_read_and_checked() {
    let table = |rest: &str| parse(&format!("schedule = \"table\"\n{rest}"), "f.toml");
    let window = "[[window]]\ntask = \"a\"\noffset = \"0us\"\nduration = \"200us\"\n";
    let set = table(&format!("{TASK}{window}")).unwrap();
    assert_eq!(set.set.plan().windows.len(), 1);
    let wrong = |rest: &str| table(rest).unwrap_err().message;
    assert_eq!(
        wrong(&format!(
            "{TASK}[[window]]\ntask = \"b\"\noffset = \"0us\"\nduration = \"1us\"\n"
        )),
        "f.toml:7:8: `task`: no task is called `b`"
    );
    assert_eq!(
        wrong(&format!("{TASK}{window}{window}")),
        "f.toml:12:10: `offset`: the window before lasts until 200µs"
    );
    assert_eq!(
        wrong(&format!("minor_frame = \"300us\"\n{TASK}")),
        "f.toml:2:15: `minor_frame`: does not divide the hyperperiod, which is 1ms"
    );
    assert!(wrong(&format!("{TASK}port = \"p\"\n")).contains("a table has fixed windows"));
}

#[test]
fn hostile_files_are_refused_quickly() {
    let many: String = (0..10_000)
        .map(|index| {
            format!("[[task]]\nname = \"t{index}\"\nperiod = \"1ms\"\nworst_case = \"1us\"\n")
        })
        .collect();
    assert!(error(&many).contains("10000 are too many (at most 64)"));
    assert!(error(&TASK.replace("\"a\"", "\"\\u001b[2J\"")).contains("not a name"));
    assert!(error(&"[".repeat(100_000)).starts_with("f.toml:"));
    let jobs = format!(
        "schedule = \"table\"\n{TASK}[[task]]\nname = \"b\"\nperiod = \"1h\"\nworst_case = \"1us\"\n"
    );
    assert!(error(&jobs).contains("hyperperiod"), "{}", error(&jobs));
}
