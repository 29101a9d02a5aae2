//! The part of the verifier's log that an error shows.

/// Variable of the environment: `all` shows the whole log.
const WHOLE_LOG: &str = "TAUTLINE_VERIFIER_LOG";

/// Lines that are shown: the instruction, its line of source, the reason. Fewer: the reason stands alone. More: they
/// push the remedy off the screen.
const LINES: usize = 4;

/// The last lines that say something, or the whole log where the environment asks for it.
pub(super) fn to_show(log: &str) -> String {
    match std::env::var_os(WHOLE_LOG) {
        Some(value) if value == "all" => log.to_owned(),
        _ => last_lines(log),
    }
}

fn last_lines(log: &str) -> String {
    let lines: Vec<_> = log
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !is_statistics(line))
        .collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

fn is_statistics(line: &str) -> bool {
    ["verification time ", "stack depth ", "processed "]
        .iter()
        .any(|begin| line.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_shown_and_not_the_statistics() {
        let mut log = "0: (b7) r0 = 2\n".repeat(2_600);
        log += "; load_bytes\n9: (85) call bpf_xdp_load_bytes#189\n\nR3 min value is outside\nverification time 9 usec\n\
                stack depth 8\nprocessed 46449 insns (limit 1000000)\n";
        let shown = last_lines(&log);
        assert_eq!(shown.lines().count(), LINES);
        assert!(shown.ends_with("\nR3 min value is outside"), "{shown}");
    }

    #[test]
    fn a_short_log_is_shown_as_it_is() {
        assert_eq!(last_lines(""), "");
        assert_eq!(last_lines("unknown func#189\n"), "unknown func#189");
    }
}
