//! Faults that a craft is to survive: when they were, and what the records of world and soft half say about them.

use crate::cable::RemoteRecord;
use crate::course::{GPS_SILENT, REMOTE_SILENT, SONAR_SILENT};
use crate::record::{Fault, SoftRecord, WorldRecord};
use crate::soft::SoftPart;

/// Moments at which the video process is killed, seconds from the world's start: before the loads and beside them. It
/// lives while the door is needed.
pub(crate) const VIDEO_KILLED_AT: [f64; 2] = [2.6, 10.35];

/// Time after the start of a control process's successor in which frames are counted, seconds.
const CONTROL_LOOK: f64 = 1.0;

/// Alarms that are part of a fault's course.
pub(crate) const TOLD: [&str; 3] = ["remote control silent", "sonar silent", "GPS silent"];

/// All faults that began before the flight's end, by time.
pub(crate) fn faults(
    world: &WorldRecord,
    soft: &SoftRecord,
    remote: Option<&RemoteRecord>,
) -> Vec<Fault> {
    let ends = [world.crash.map(|(at, ..)| at), world.landed_at];
    let end = ends.into_iter().flatten().fold(f64::MAX, f64::min);
    let silent = |name: &str, alarm: &str, (from, until): (f64, f64), more: &str| Fault {
        name: name.to_owned(),
        from,
        until,
        outcome: match world.alarms.iter().find(|(_, one)| one == alarm) {
            Some((at, _)) => format!("noticed after {:.1} s{more}", at - from),
            None => "not noticed".to_owned(),
        },
    };
    let mut faults = vec![
        silent(
            "remote control lost",
            "remote control silent",
            REMOTE_SILENT,
            ", waited",
        ),
        silent(
            "sonar silent",
            "sonar silent",
            SONAR_SILENT,
            ", flew on by the barometer",
        ),
        Fault {
            outcome: through_the_door(world),
            ..silent("no GPS at the wall", "GPS silent", GPS_SILENT, "")
        },
    ];
    faults.extend((0..VIDEO_KILLED_AT.len()).filter_map(|kill| video_killed(soft, kill)));
    faults.extend(soft.disk_full.map(disk_full));
    faults.extend(remote.and_then(control_killed));
    faults.retain(|fault| fault.from < end);
    for fault in &mut faults {
        fault.until = fault.until.min(end);
    }
    faults.sort_by(|one, other| one.from.total_cmp(&other.from));
    faults
}

fn through_the_door(world: &WorldRecord) -> String {
    match (world.passage, world.has_hit_wall) {
        (_, true) => "hit the wall".to_owned(),
        (Some((at, off)), _) => {
            let (off, side) = (off.abs(), if off < 0.0 { "right" } else { "left" });
            format!("through the door at {at:.1} s, {off:.2} m {side} of its middle")
        }
        (None, _) => "did not reach the door".to_owned(),
    }
}

/// A kill of the video process; `None` if the flight ended before.
fn video_killed(soft: &SoftRecord, kill: usize) -> Option<Fault> {
    let from = VIDEO_KILLED_AT[kill];
    let next = VIDEO_KILLED_AT.get(kill + 1).copied().unwrap_or(f64::MAX);
    let mut restarts = soft.restarts.iter();
    let again_at = restarts
        .find(|one| one.which == SoftPart::Video && (from..next).contains(&one.at))
        .and_then(|one| one.again_at);
    (soft.killed > kill).then(|| Fault {
        name: "video process killed".to_owned(),
        from,
        until: again_at.unwrap_or(f64::MAX),
        outcome: match again_at {
            Some(at) => format!("started again, worked after {:.1} s", at - from),
            None => "had not ended when the flight ended".to_owned(),
        },
    })
}

fn disk_full((at, messages): (f64, u64)) -> Fault {
    Fault {
        name: "recorder's disk full".to_owned(),
        from: at,
        until: at,
        outcome: format!("{messages} messages are whole, the others are in a second file"),
    }
}

/// The control process of the craft's interface: its ports live on without it.
fn control_killed(remote: &RemoteRecord) -> Option<Fault> {
    let (from, until) = remote.control_killed?;
    let counts = remote.counts(from, until + CONTROL_LOOK);
    Some(Fault {
        name: "control process killed".to_owned(),
        from,
        until,
        outcome: format!(
            "{} of {} frames of the remote control lost until {CONTROL_LOOK} s after its successor began",
            counts.lost, counts.sent
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Restart;

    #[test]
    fn faults_are_told_by_time_and_those_after_the_end_are_not() {
        let mut world = WorldRecord {
            alarms: vec![(3.9, "remote control silent".to_owned())],
            passage: Some((9.8, -0.12)),
            ..WorldRecord::default()
        };
        let soft = SoftRecord {
            restarts: vec![Restart {
                which: SoftPart::Video,
                at: 2.7,
                again_at: Some(2.8),
            }],
            killed: 2,
            disk_full: Some((4.5, 1_000)),
            ..SoftRecord::default()
        };
        let told = |world: &WorldRecord| -> Vec<(String, String)> {
            let all = faults(world, &soft, None).into_iter();
            all.map(|one| (one.name, one.outcome)).collect()
        };
        let all = told(&world);
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "video process killed",
                "remote control lost",
                "sonar silent",
                "recorder's disk full",
                "no GPS at the wall",
                "video process killed"
            ]
        );
        assert!(all[0].1.contains("worked after 0.2 s"), "{}", all[0].1);
        assert_eq!(all[1].1, "noticed after 0.5 s, waited");
        assert_eq!(all[2].1, "not noticed");
        assert!(all[4].1.contains("0.12 m right"), "{}", all[4].1);
        assert!(all[5].1.contains("had not ended"), "{}", all[5].1);
        let remote = RemoteRecord {
            link: "xdp".to_owned(),
            is_smoothed: true,
            // One of those between 2 and 4 s never came, one was late.
            frames: vec![
                (1.9, None),
                (2.1, Some(1_000)),
                (2.5, None),
                (3.9, Some(21_000_000)),
                (4.1, None),
            ],
            stream_bytes: 0,
            control_killed: Some((2.0, 3.0)),
        };
        let counts = remote.counts(2.0, 4.0);
        assert_eq!((counts.sent, counts.lost, counts.late), (3, 1, 1));
        let with_remote = faults(&world, &soft, Some(&remote));
        let killed = with_remote
            .iter()
            .find(|one| one.name.starts_with("control"));
        assert!(killed.unwrap().outcome.starts_with("1 of 3 frames"));
        world.crash = Some((5.0, 3.0, 10.0));
        assert_eq!(told(&world).len(), 4);
        assert!(
            faults(&world, &soft, None)
                .iter()
                .all(|one| one.until <= 5.0)
        );
    }
}
