//! Help around a grammar: groups of commands and examples, those of `taut`, and the words of its earlier versions.

use clap::Command;
use clap::builder::styling::Styles;

use crate::external;

/// A heading, and the commands below it.
type Group = (&'static str, &'static [&'static str]);

/// An example: its purpose, and what to type.
type Example = (&'static str, &'static str);

/// Help of a program: what is added to its grammar.
#[derive(Clone, Copy, Debug)]
pub struct Help {
    /// Headings of `--help`, and the commands below each, in this order.
    pub groups: &'static [Group],
    /// Two examples for each command, by its words.
    pub examples: &'static [(&'static str, [Example; 2])],
}

/// Help of `taut`.
pub(crate) const HELP: Help = Help {
    groups: &GROUPS,
    examples: &EXAMPLES,
};

const GROUPS: [Group; 6] = [
    (
        "Send and receive",
        &[
            "exec", "send", "recv", "ping", "echo", "capture", "record", "replay",
        ],
    ),
    ("See", &["status", "top", "serve"]),
    ("Configure", &["init", "key", "types"]),
    ("Tasks and CPUs", &["task", "partition"]),
    ("Several processes", &["node", "bus"]),
    ("Machine", &["doctor", "smooth", "guest"]),
];

const EXAMPLES: [(&str, [Example; 2]); 36] = [
    (
        "exec",
        [
            (
                "Run a program whose waits end awake; needs no privilege",
                "taut exec -- ./controller",
            ),
            (
                "Report how late its waits and sleeps are, and change nothing",
                "taut exec --watch -- sleep 0.1",
            ),
        ],
    ),
    (
        "send",
        [
            (
                "Send a message to port 7 of the neighbour motor",
                "taut send motor 7 hello --config node.toml",
            ),
            (
                "Send what a command prints, at the highest priority",
                "date | taut send motor 7 --config node.toml --priority 7",
            ),
        ],
    ),
    (
        "recv",
        [
            (
                "Wait for one message on port 7",
                "taut recv 7 --config node.toml",
            ),
            (
                "Wait at most 5 seconds for ten messages, as lines of JSON",
                "taut recv 7 --config node.toml --count 10 --timeout 5s --json",
            ),
        ],
    ),
    (
        "ping",
        [
            (
                "Measure 1,000 round trips to a host that runs `taut echo`",
                "taut ping 10.0.0.2 --interface eth0 --count 1000 --interval 1ms",
            ),
            (
                "Try it on this host, without any privilege",
                "taut ping 127.0.0.1 --address 127.0.0.2",
            ),
        ],
    ),
    (
        "echo",
        [
            (
                "Answer on this host, without any privilege",
                "taut echo --address 127.0.0.1",
            ),
            (
                "Answer datagrams of any program on UDP port 7, for `taut lab network`",
                "taut echo --interface eth0 --udp 7",
            ),
        ],
    ),
    (
        "capture",
        [
            (
                "Write what all ports send and receive within a second into a file for Wireshark",
                "taut capture --for 1s --write ports.pcapng",
            ),
            (
                "Show ten messages of a port of a bus with their bytes",
                "taut capture --port motor.7 --count 10 --json",
            ),
        ],
    ),
    (
        "record",
        [
            (
                "Record all messages of this machine until ^C",
                "taut record run.mcap",
            ),
            (
                "Record port 7 of one interface for a minute",
                "taut record run.mcap --interface eth0 --port 7 --for 1min",
            ),
        ],
    ),
    (
        "replay",
        [
            (
                "Send a recording again, with its spacing",
                "taut replay run.mcap --to motor --config node.toml",
            ),
            (
                "Replay it in the simulator and compare what arrives",
                "taut replay run.mcap --sim",
            ),
        ],
    ),
    (
        "status",
        [
            ("Show the nodes of this user", "taut status"),
            ("Write everything as JSON", "taut status --json"),
        ],
    ),
    (
        "top",
        [
            ("Watch everything until q", "taut top"),
            (
                "Write one look at the real-time tasks as JSON",
                "taut top --kind task --once --json",
            ),
        ],
    ),
    (
        "serve",
        [
            ("Serve the page on this host", "taut serve"),
            (
                "Serve it to others, who need the token that is printed",
                "taut serve --listen 0.0.0.0:8080",
            ),
        ],
    ),
    (
        "init",
        [
            (
                "Write node.toml for a node with one neighbour, which is asked for its MAC address",
                "taut init --interface eth0 --peer motor=10.0.0.2",
            ),
            (
                "Print the file; nothing is asked",
                "taut init --interface lo --peer motor=02:00:00:00:00:02 --file -",
            ),
        ],
    ),
    (
        "key create",
        [
            ("Make a key for two nodes", "taut key create motor.key"),
            (
                "Choose the cipher",
                "taut key create arm.key --cipher chacha20-poly1305",
            ),
        ],
    ),
    (
        "key add",
        [
            (
                "Add a key that senders use in ten minutes",
                "taut key add motor.key",
            ),
            (
                "Leave an hour to bring the file to the other node",
                "taut key add motor.key --after 1h",
            ),
        ],
    ),
    (
        "types",
        [
            ("Show the types of a file", "taut types node.toml"),
            ("Write a header of C", "taut types node.toml --c"),
        ],
    ),
    (
        "task check",
        [
            (
                "Show whether every deadline holds",
                "taut task check tasks.toml",
            ),
            (
                "Write a page with the picture",
                "taut task check tasks.toml --html tasks.html",
            ),
        ],
    ),
    (
        "task run",
        [
            (
                "Run the set for a second",
                "taut task run tasks.toml --for 1s",
            ),
            ("Run it until ^C", "taut task run tasks.toml --for 0"),
        ],
    ),
    (
        "task show",
        [
            (
                "Show every task that runs on this machine",
                "taut task show",
            ),
            ("Show the run of one process", "taut task show 4711 --json"),
        ],
    ),
    (
        "task trace",
        [
            (
                "Record for a second, and draw its beginning",
                "taut task trace --for 1s",
            ),
            (
                "Write the jobs for ui.perfetto.dev",
                "taut task trace --perfetto jobs.json",
            ),
        ],
    ),
    (
        "partition create",
        [
            ("Set CPU 3 aside", "taut partition create control --cpus 3"),
            (
                "Show the changes, and make none",
                "taut partition create control --cpus 0 --dry-run",
            ),
        ],
    ),
    (
        "partition run",
        [
            (
                "Run a program in a partition that exists",
                "taut partition run control -- ./controller",
            ),
            (
                "Make a partition that lasts as long as the program",
                "taut partition run control --cpus 3 --priority 40 -- ./controller",
            ),
        ],
    ),
    (
        "partition show",
        [
            ("List the partitions of this user", "taut partition show"),
            (
                "Count for a minute what else runs on the CPUs of one",
                "taut partition show control --for 1min",
            ),
        ],
    ),
    (
        "partition remove",
        [
            ("Remove a partition", "taut partition remove control"),
            (
                "Remove one in which programs run",
                "taut partition remove control --force",
            ),
        ],
    ),
    (
        "node run",
        [
            (
                "Give ports of an interface to other processes",
                "taut node run --config node.toml",
            ),
            (
                "Detach what a predecessor left with other settings",
                "taut node run --config node.toml --replace",
            ),
        ],
    ),
    (
        "node show",
        [
            (
                "Show the neighbours that the only control process shares",
                "taut node show",
            ),
            (
                "Show those of one interface as JSON",
                "taut node show --interface eth0 --json",
            ),
        ],
    ),
    (
        "node tune",
        [
            (
                "Poll the interface in threads of its own, on CPU 2",
                "taut node tune --interface eth0 --threaded --cpu 2",
            ),
            (
                "Put everything back",
                "taut node tune --interface eth0 --undo",
            ),
        ],
    ),
    (
        "bus show",
        [
            ("Show the buses of this user", "taut bus show"),
            ("Show one bus as JSON", "taut bus show cell --json"),
        ],
    ),
    (
        "doctor",
        [
            ("Show what this machine supports", "taut doctor"),
            (
                "Put back what killed processes left",
                "taut doctor --put-back",
            ),
        ],
    ),
    (
        "smooth run",
        [
            (
                "Hold other traffic back until ^C",
                "taut smooth run --config node.toml",
            ),
            (
                "The same in the background, as a service of systemd",
                "systemd-run taut smooth run --config /etc/tautline/node.toml",
            ),
        ],
    ),
    (
        "smooth show",
        [
            ("Show grants, rates and waits", "taut smooth show"),
            ("Write them as JSON", "taut smooth show --json"),
        ],
    ),
    (
        "smooth stop",
        [
            ("End the smoother of an interface", "taut smooth stop eth0"),
            (
                "Put back what a killed one left on another interface",
                "taut smooth stop eth1",
            ),
        ],
    ),
    (
        "guest run",
        [
            (
                "Run an image, its console on standard output",
                "taut guest run echo.elf --console -",
            ),
            (
                "Run it in a partition, and again when it fails",
                "taut guest run echo.elf --partition control --restart on-failure",
            ),
        ],
    ),
    (
        "guest show",
        [
            ("List the guests of this user", "taut guest show"),
            (
                "Compare the clock of one with this machine's",
                "taut guest show echo --clock",
            ),
        ],
    ),
    (
        "guest console",
        [
            (
                "Type lines to a guest, and read its messages",
                "taut guest console echo",
            ),
            (
                "Send one line, and wait 2 seconds for the answer",
                "echo hello | taut guest console echo --timeout 2s",
            ),
        ],
    ),
    (
        "guest stop",
        [
            ("Stop a guest", "taut guest stop echo"),
            ("Report that as JSON", "taut guest stop echo --json"),
        ],
    ),
    (
        "guest restart",
        [
            ("End a guest and start it again", "taut guest restart echo"),
            (
                "Show its new process as JSON",
                "taut guest restart echo --json",
            ),
        ],
    ),
];

/// Words of earlier versions, an option that they had if the words are still there, and what to write now. The table
/// goes with version 0.2.
const FORMER: [(&str, Option<&str>, &str); 26] = [
    ("vbus list", None, "taut bus show"),
    ("vbus top", None, "taut top --kind bus"),
    ("vbus tap", None, "taut capture --port NODE.NUMBER"),
    ("vbus", None, "taut bus"),
    ("neigh", None, "taut node show"),
    ("node untune", None, "taut node tune --undo"),
    ("smooth on", None, "taut smooth run"),
    ("smooth off", None, "taut smooth stop"),
    ("smooth status", None, "taut smooth show"),
    ("key new", None, "taut key create"),
    ("task list", None, "taut task show"),
    ("task top", None, "taut top --kind task"),
    ("task trace", Some("--process"), "taut task trace PID"),
    ("partition list", None, "taut partition show"),
    ("guest list", None, "taut guest show"),
    ("guest top", None, "taut top --kind guest"),
    ("guest clock", None, "taut guest show NAME --clock"),
    ("capture", Some("--timeout"), "taut capture --for"),
    ("record", Some("--timeout"), "taut record --for"),
    (
        "partition show",
        Some("--seconds"),
        "taut partition show --for",
    ),
    ("demo", Some("--seconds"), "taut demo --for"),
    ("lab run", Some("--seconds"), "taut lab run --for"),
    ("lab run", Some("--period"), "taut lab run --interval"),
    ("lab kernels", Some("--seconds"), "taut lab kernels --for"),
    (
        "lab kernels",
        Some("--time-limit"),
        "taut lab kernels --timeout",
    ),
    ("bench vbus", None, "taut bench bus"),
];

impl Help {
    /// A grammar with these groups and examples.
    #[must_use]
    pub fn add_to(&self, grammar: Command) -> Command {
        let template = format!(
            "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}{{options}}",
            self.groups_of(&grammar)
        );
        self.add_examples(grammar.help_template(template), "")
    }

    /// Lines of all commands below their headings, and the heading of the options.
    fn groups_of(&self, grammar: &Command) -> String {
        let heading = Styles::styled().get_header().to_owned();
        let group = |(title, names): &Group| {
            let lines = names.iter().map(|name| line_of(grammar, name));
            let lines: String = lines.collect();
            format!("{heading}{title}:{heading:#}\n{lines}\n")
        };
        let groups: String = self.groups.iter().map(group).collect();
        let names = grammar.get_subcommands().map(Command::get_name);
        let others: Vec<&str> = match grammar.get_name() {
            "taut" => names.filter(|name| external::is_external(name)).collect(),
            _ => Vec::new(),
        };
        let others = match others.as_slice() {
            [] => String::new(),
            names => format!(
                "{heading}Programs of their own:{heading:#}\n  {}\n\n",
                names.join(", ")
            ),
        };
        format!("{groups}{others}{heading}Options:{heading:#}\n")
    }

    fn add_examples(&self, command: Command, before: &str) -> Command {
        command.mut_subcommands(|command| {
            let words = format!("{before}{}", command.get_name());
            let command = match self.examples_of(&words) {
                Some(text) => command.after_long_help(text),
                None => command,
            };
            self.add_examples(command, &format!("{words} "))
        })
    }

    fn examples_of(&self, words: &str) -> Option<String> {
        let (_, two) = self.examples.iter().find(|(of, _)| *of == words)?;
        let heading = Styles::styled().get_header().to_owned();
        let text = two.map(|(purpose, line)| format!("  {purpose}:\n    {line}\n"));
        Some(format!(
            "{heading}Examples:{heading:#}\n{}",
            text.concat().trim_end()
        ))
    }

    /// For tests: each visible command of the grammar stands in one group and has two examples that it parses. Returns
    /// how many commands have none below them.
    ///
    /// # Panics
    /// If one does not.
    #[must_use]
    pub fn checked(&self, grammar: &Command) -> usize {
        let mut found = leaves(grammar, "");
        let mut with_examples: Vec<&str> = self.examples.iter().map(|(words, _)| *words).collect();
        found.sort();
        with_examples.sort_unstable();
        assert_eq!(found, with_examples);
        let groups = self.groups.iter();
        let mut grouped: Vec<&str> = groups.flat_map(|(_, names)| *names).copied().collect();
        let firsts = found.iter().filter_map(|words| words.split(' ').next());
        let mut firsts: Vec<&str> = firsts.collect();
        firsts.dedup();
        grouped.sort_unstable();
        assert_eq!(firsts, grouped);
        for (words, two) in self.examples {
            for (purpose, line) in two {
                assert!(!purpose.ends_with('.'), "{purpose}");
                let own = &line[line.find("taut").unwrap_or_default()..];
                let (_, arguments) = own.split_once(' ').unwrap_or_default();
                assert!(arguments.starts_with(words), "{line}");
                let arguments = shell_words::split(arguments).unwrap_or_default();
                let name = grammar.get_name().to_owned();
                let parsed = grammar
                    .clone()
                    .try_get_matches_from(std::iter::once(name).chain(arguments));
                if let Err(error) = parsed {
                    panic!("{line}: {error}");
                }
            }
        }
        found.len()
    }
}

/// A command's line below its heading.
fn line_of(grammar: &Command, name: &str) -> String {
    let literal = Styles::styled().get_literal().to_owned();
    let command = grammar.find_subcommand(name);
    let command = command.expect("each group names commands of the grammar");
    let about = command.get_about().map(ToString::to_string);
    let actions = command.get_subcommands().filter(|one| !one.is_hide_set());
    let actions: Vec<&str> = actions.map(Command::get_name).collect();
    let actions = match actions.as_slice() {
        [] => String::new(),
        actions => format!(": {}", actions.join(", ")),
    };
    format!(
        "  {literal}{name:<10}{literal:#} {}{actions}\n",
        about.unwrap_or_default()
    )
}

/// Visible commands without further ones below them, by their words, but those of other programs.
fn leaves(command: &Command, before: &str) -> Vec<String> {
    let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
    let is_own =
        |one: &&Command| command.get_name() != "taut" || !external::is_external(one.get_name());
    let each = shown.filter(is_own).flat_map(|one| {
        let words = format!("{before}{}", one.get_name());
        match one.has_subcommands() {
            true => leaves(one, &format!("{words} ")),
            false => vec![words],
        }
    });
    each.collect()
}

/// Sentence that names the new words for those of an earlier version.
pub(crate) fn new_words(arguments: &[String]) -> Option<String> {
    let begins = |words: &str| {
        let count = words.split(' ').count();
        arguments.len() >= count && words.split(' ').eq(&arguments[..count])
    };
    let has = |option: &str| {
        let name = |word: &String| word.split('=').next() == Some(option);
        arguments.iter().any(name)
    };
    let is_meant =
        |(words, option, _): &&(&str, Option<&str>, &str)| begins(words) && option.is_none_or(has);
    let (words, option, new) = FORMER.iter().find(is_meant)?;
    let option = option.map_or_else(String::new, |option| format!(" {option}"));
    Some(format!("`taut {words}{option}` is now `{new}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/machine/help.rs` runs those that do something on one machine.
    #[test]
    fn each_command_stands_in_one_group_and_has_two_examples() {
        let leaves = HELP.checked(&crate::cli::grammar());
        assert!(leaves <= 36, "{leaves}");
    }

    #[test]
    fn the_help_has_headings_and_short_lines() {
        let help = crate::cli::grammar().render_help().to_string();
        for (title, names) in GROUPS {
            let (_, below) = help.split_once(&format!("\n{title}:\n")).expect(title);
            assert!(below.starts_with(&format!("  {}", names[0])), "{help}");
        }
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        assert!(!help.contains("completions"), "{help}");
    }

    #[test]
    fn former_words_name_new_ones_that_exist() {
        for (words, option, new) in FORMER {
            let arguments: Vec<String> =
                words.split(' ').chain(option).map(str::to_owned).collect();
            let said = new_words(&arguments).expect(words);
            assert!(said.ends_with(&format!("is now `{new}`")), "{said}");
            if external::is_external(words.split(' ').next().expect(words)) {
                continue;
            }
            let mut command = &crate::cli::grammar();
            for word in new
                .split(' ')
                .skip(1)
                .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase()))
            {
                command = command.find_subcommand(word).expect(new);
            }
            for long in new.split(' ').filter_map(|word| word.strip_prefix("--")) {
                let has = command
                    .get_arguments()
                    .any(|one| one.get_long() == Some(long));
                assert!(has, "{new}");
            }
            // The words of before mean nothing else.
            let parsed = crate::cli::grammar()
                .try_get_matches_from(["taut"].into_iter().chain(words.split(' ')).chain(option));
            assert!(parsed.is_err(), "{words}");
        }
        let now = ["capture", "--for", "1s"].map(str::to_owned);
        assert_eq!(new_words(&now), None);
        assert_eq!(new_words(&[]), None);
    }
}
