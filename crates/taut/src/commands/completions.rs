//! `taut completions SHELL`.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::cli::{self, CommandError};

/// Arguments of `taut completions`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The shell.
    shell: Shell,
}

/// Writes the completions of a program with this grammar.
pub fn run(arguments: &Arguments, grammar: Command) -> Result<(), CommandError> {
    cli::print(&script(arguments.shell, grammar))
}

fn script(shell: Shell, grammar: Command) -> String {
    // Names in a grammar are static, and this is done once.
    let grammar: &'static Command = Box::leak(Box::new(grammar));
    let mut offered = offered(grammar);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut offered, grammar.get_name(), &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The command without subcommands that are hidden: those are for `taut` itself, and the generators offer them. A
/// subcommand cannot be taken out of a command, so it is made again with what completions need.
fn offered(command: &'static Command) -> Command {
    let mut offered = Command::new(command.get_name())
        .args(command.get_arguments().cloned())
        .groups(command.get_groups().cloned())
        .propagate_version(command.is_propagate_version_set())
        .disable_help_subcommand(command.is_disable_help_subcommand_set())
        .visible_aliases(command.get_visible_aliases());
    if let Some(about) = command.get_about() {
        offered = offered.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        offered = offered.version(version);
    }
    let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
    offered.subcommands(shown.map(self::offered))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    fn hidden<'c>(command: &'c Command, found: &mut Vec<(&'c str, String)>) {
        for one in command.get_subcommands() {
            if one.is_hide_set() {
                let about = one.get_about().expect("each is described").to_string();
                found.push((one.get_name(), about));
            }
            hidden(one, found);
        }
    }

    #[test]
    fn no_shell_offers_hidden_commands() {
        let grammar = cli::grammar();
        let mut found = Vec::new();
        hidden(&grammar, &mut found);
        let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["monitor", "completions", "man", "guard"]);
        for shell in Shell::value_variants() {
            let script = script(*shell, cli::grammar());
            // Bash's completions have no descriptions; all have the commands' names.
            for way in ["monitor", "guard"] {
                assert!(!script.contains(way), "{shell}: {way}");
            }
            for (name, about) in &found {
                let line = about.lines().next().unwrap_or_default();
                assert!(!script.contains(line), "{shell}: {name}");
            }
            for shown in ["partition", "overwrite", "--version"] {
                let shown = shown.trim_start_matches('-');
                assert!(script.contains(shown), "{shell}: {shown}");
            }
        }
    }
}
