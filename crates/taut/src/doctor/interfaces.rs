//! Interfaces: their drivers, XDP modes, and the programs attached to them.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::Line;
use tautline_state::netdev::Netdev;

/// Drivers with native XDP, as sysfs or `ip` names them, for kernels that do not say it themselves
/// (before 6.3). A driver that is not here is called unknown, not generic. `docs/reference/hardware.md` says how
/// this was found.
const NATIVE_DRIVERS: &[&str] = &[
    "atlantic",
    "bnxt_en",
    "cpsw",
    "ena",
    "fsl_dpaa2_eth",
    "fsl_enetc",
    "hv_netvsc",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "ixgbevf",
    "mana",
    "mlx4_core",
    "mlx5_core",
    "mtk_soc_eth",
    "mvneta",
    "mvpp2",
    "nfp",
    "qede",
    "rvu_nicpf",
    "sfc",
    "tun",
    "veth",
    "virtio_net",
];

/// One to three lines for each interface but loopback.
pub(super) fn lines() -> Vec<Line> {
    const AREA: &str = "Interfaces";
    let output = Command::new("ip")
        .args(["-details", "-json", "link", "show"])
        .output();
    let interfaces = match output.map(|output| {
        // A name may be any bytes, and JSON is UTF-8.
        serde_json::from_str(&String::from_utf8_lossy(&output.stdout))
    }) {
        Ok(Ok(json)) => interfaces(&json),
        _ => {
            return vec![Line::limited(
                AREA,
                "interfaces",
                "cannot be listed: `ip` does not run or knows no JSON",
                "apt-get install iproute2",
            )];
        }
    };
    let mut netdev = Netdev::open().ok();
    interfaces
        .iter()
        .filter(|interface| interface.name != "lo")
        .flat_map(|interface| {
            let attached = (!interface.attached.is_empty()).then(|| {
                Line::limited(
                    AREA,
                    &interface.name,
                    format!(
                        "XDP program attached now: {}",
                        interface.attached.join("; ")
                    ),
                    "Tautline will not replace it: stop its owner, or use another interface",
                )
            });
            let mode = mode_line(AREA, interface, netdev.as_mut());
            [Some(mode), attached, switch_line(AREA, &interface.name)]
        })
        .flatten()
        .collect()
}

/// One interface as `ip` shows it.
struct Interface {
    name: String,
    index: u32,
    driver: Option<String>,
    attached: Vec<String>,
}

fn interfaces(json: &serde_json::Value) -> Vec<Interface> {
    json.as_array()
        .into_iter()
        .flatten()
        .filter_map(|link| {
            let name = link["ifname"].as_str()?.to_owned();
            Some(Interface {
                index: u32::try_from(link["ifindex"].as_u64()?).ok()?,
                driver: driver(&name)
                    .or_else(|| Some(link["linkinfo"]["info_kind"].as_str()?.to_owned())),
                attached: attached(&link["xdp"]),
                name,
            })
        })
        .collect()
}

/// The driver that sysfs names; virtual interfaces have none there.
fn driver(interface: &str) -> Option<String> {
    // A name with a slash would lead elsewhere; the kernel allows none.
    let link = fs::read_link(
        Path::new("/sys/class/net")
            .join(interface)
            .join("device/driver"),
    )
    .ok()?;
    Some(link.file_name()?.to_str()?.to_owned())
}

fn attached(xdp: &serde_json::Value) -> Vec<String> {
    let one = |entry: &serde_json::Value| {
        let program = &entry["prog"];
        let mode = match entry["mode"].as_u64() {
            Some(1) => "native",
            Some(2) => "generic",
            Some(3) => "offloaded",
            _ => "mode unknown",
        };
        Some(format!(
            "id {}, name {}, {mode}",
            program["id"].as_u64()?,
            program["name"]
                .as_str()
                .filter(|name| !name.is_empty())
                .unwrap_or("none"),
        ))
    };
    match xdp["attached"].as_array() {
        Some(several) => several.iter().filter_map(one).collect(),
        None => one(xdp).into_iter().collect(),
    }
}

fn mode_line(area: &'static str, interface: &Interface, netdev: Option<&mut Netdev>) -> Line {
    const GENERIC: &str = "works at other hooks, slower; docs/reference/hardware.md lists the drivers with native XDP";
    let driver = interface.driver.as_deref().unwrap_or("driver unknown");
    match netdev.and_then(|netdev| netdev.xdp_features(interface.index).ok()) {
        Some(features) if features.native() => Line::good(
            area,
            &interface.name,
            format!("{driver}: native XDP ({})", features.text()),
        ),
        Some(_) => Line::limited(
            area,
            &interface.name,
            format!("{driver}: generic XDP only, says the kernel"),
            GENERIC,
        ),
        None if NATIVE_DRIVERS.contains(&driver) => Line::good(
            area,
            &interface.name,
            format!("{driver}: native XDP, known of the driver; not tried"),
        ),
        None => Line::limited(
            area,
            &interface.name,
            format!("{driver}: native XDP unknown until tried"),
            GENERIC,
        ),
    }
}

/// Speed of a link below which a full frame of other traffic holds a real-time one up for longer than 12 µs.
const GIGABIT: u64 = 1000;

/// The way to a switch: for interfaces of hardware, which may have one behind them.
fn switch_line(area: &'static str, name: &str) -> Option<Line> {
    let directory = Path::new("/sys/class/net").join(name);
    if !directory.join("device").exists() {
        return None;
    }
    let speed = fs::read_to_string(directory.join("speed")).ok();
    Some(speed_line(
        area,
        name,
        speed.and_then(|text| text.trim().parse().ok()),
    ))
}

fn speed_line(area: &'static str, name: &str, megabits: Option<u64>) -> Line {
    const MARK: &str = "`pcp = true` marks frames; set the switch to strict priority by PCP (docs/how-to/smoother.md)";
    const HIDDEN: &str = "whether the switch honours priorities cannot be seen from here";
    match megabits {
        Some(megabits) if megabits < GIGABIT && megabits > 0 => Line::limited(
            area,
            name,
            format!(
                "{megabits} Mbit/s: a full frame takes {} µs in each port; {HIDDEN}",
                1538 * 8 / megabits
            ),
            format!("a gigabit shortens every queue; {MARK}"),
        ),
        _ => Line::limited(
            area,
            name,
            format!("sends frames with a priority tag; {HIDDEN}"),
            MARK,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Grade;
    use super::*;

    #[test]
    fn native_drivers_are_those_of_the_page_about_hardware() {
        let page = include_str!("../../../../docs/reference/hardware.md");
        for driver in NATIVE_DRIVERS {
            let mut rows = page.lines();
            let row = rows.find(|line| line.starts_with(&format!("| `{driver}` |")));
            let native_since = row.and_then(|row| row.split('|').nth(3)).map(str::trim);
            // The page's columns are the kernels before 6.3 that it was made from.
            let is_early = native_since.is_some_and(|since| ["≤ 5.10", "6.1"].contains(&since));
            assert!(is_early, "{driver}: {native_since:?}");
        }
    }

    #[test]
    fn a_slow_link_is_told_with_the_time_of_a_frame() {
        let found = |megabits| speed_line("Interfaces", "eth0", megabits).found;
        assert!(found(Some(100)).contains("123 µs"));
        assert!(!found(Some(1000)).contains("µs"));
        assert!(found(None).contains("cannot be seen"));
    }

    #[test]
    fn attached_programs_are_named() {
        let one = serde_json::json!({"mode": 1, "prog": {"id": 7, "name": "demux", "tag": "x"}});
        assert_eq!(attached(&one), ["id 7, name demux, native"]);
        let several =
            serde_json::json!({"mode": 4, "attached": [{"mode": 2, "prog": {"id": 8}}, one]});
        assert_eq!(
            attached(&several),
            ["id 8, name none, generic", "id 7, name demux, native"]
        );
        assert!(attached(&serde_json::Value::Null).is_empty());
    }

    #[test]
    fn listings_with_rubbish_are_read_as_far_as_they_go() {
        let json = serde_json::json!([{"ifname": "a"}, 3, {"ifname": "b", "ifindex": 2, "linkinfo": {"info_kind": "veth"}}]);
        let found = interfaces(&json);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].name.as_str(), found[0].driver.as_deref()),
            ("b", Some("veth"))
        );
        assert_eq!(mode_line("x", &found[0], None).grade, Grade::Good);
    }
}
