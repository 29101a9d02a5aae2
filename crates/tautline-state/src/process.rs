//! Processes and threads, told from later ones with the same number.

/// Start of a process or thread in clock ticks since boot: the 22nd field of `/proc/PID/stat` (proc(5)). The second
/// field may contain spaces, so counting begins after it. `None` if there is no such process.
pub fn start_ticks(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()
}
