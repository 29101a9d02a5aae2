//! A watcher's session of Zenoh, which publishes nothing, with or without a gateway on the machine.

use std::path::Path;
use std::time::{Duration, Instant};

use zenoh::{Session, Wait};

use crate::config::{Config, read_zenoh};

/// Time to connect. Lower: a router on a slow link is not reached. Higher: one that is not there is waited for.
const CONNECT: Duration = Duration::from_secs(3);

/// Configuration of a watcher: that of a gateway's file, or Zenoh's own, or neither; and the gateway's fleet.
pub(crate) fn configuration(
    gateway: Option<&Config>,
    zenoh: Option<&Path>,
) -> Result<zenoh::Config, String> {
    let read = |path| read_zenoh(path).map_err(|error| error.to_string());
    let config = match (gateway, zenoh) {
        (Some(gateway), None) => gateway.zenoh.clone(),
        (None, None) => return read(None),
        (_, path) => read(path)?,
    };
    beside(config).map_err(|error| format!("Zenoh's configuration: {error}"))
}

/// The configuration for a watcher on the owner's machine: it connects where the owner does, or otherwise to the owner,
/// and does not listen.
fn beside(mut config: zenoh::Config) -> zenoh::Result<zenoh::Config> {
    let listed = |config: &zenoh::Config, key: &str| {
        let text = config.get_json(key).unwrap_or_default();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        endpoints(&value)
    };
    let (connect, listen) = (
        listed(&config, "connect/endpoints"),
        listed(&config, "listen/endpoints"),
    );
    config.insert_json5("listen/endpoints", "[]")?;
    if connect.is_empty() && !listen.is_empty() {
        let own: Vec<String> = listen.iter().map(|one| local(one)).collect();
        config.insert_json5("mode", "\"client\"")?;
        config.insert_json5("connect/endpoints", &serde_json::json!(own).to_string())?;
    } else {
        let mode = config.get_json("mode").unwrap_or_default();
        if mode.contains("router") {
            config.insert_json5("mode", "\"peer\"")?;
        }
    }
    Ok(config)
}

/// Endpoints, which may be given for each mode.
fn endpoints(value: &serde_json::Value) -> Vec<String> {
    let list = |value: &serde_json::Value| {
        let all = value.as_array().into_iter().flatten();
        all.filter_map(|one| one.as_str().map(str::to_owned))
            .collect::<Vec<_>>()
    };
    match value.as_object() {
        Some(modes) => modes.values().flat_map(list).collect(),
        None => list(value),
    }
}

/// An endpoint that is listened on, as one to connect to.
fn local(endpoint: &str) -> String {
    endpoint
        .replace("/0.0.0.0:", "/127.0.0.1:")
        .replace("/[::]:", "/[::1]:")
}

/// Opens a session and waits a moment until it is connected.
///
/// # Errors
/// Those of Zenoh: a client reaches no router, a certificate is refused.
pub(crate) fn open(config: zenoh::Config) -> zenoh::Result<Session> {
    let session = zenoh::open(config).wait()?;
    let end = Instant::now() + CONNECT;
    while connections(&session) == 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(session)
}

/// Routers and peers that a session is connected to.
pub(crate) fn connections(session: &Session) -> usize {
    let info = session.info();
    info.routers_zid().wait().count() + info.peers_zid().wait().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(text: &str) -> (String, String, String) {
        let config = beside(zenoh::Config::from_json5(text).unwrap()).unwrap();
        let get = |key| config.get_json(key).unwrap();
        (
            get("mode"),
            get("connect/endpoints"),
            get("listen/endpoints"),
        )
    }

    #[test]
    fn a_watcher_never_takes_the_place_of_a_gateway() {
        let (mode, connect, listen) =
            about("{ mode: \"peer\", listen: { endpoints: [\"tcp/0.0.0.0:7447\"] } }");
        assert_eq!(mode, "\"client\"");
        assert_eq!(connect, "[\"tcp/127.0.0.1:7447\"]");
        assert_eq!(listen, "[]");
        let (mode, connect, listen) = about(
            "{ mode: \"router\", listen: { endpoints: [\"tcp/0.0.0.0:7447\"] }, \
             connect: { endpoints: [\"tcp/10.0.0.1:7447\"] } }",
        );
        assert_eq!(mode, "\"peer\"");
        assert_eq!(connect, "[\"tcp/10.0.0.1:7447\"]");
        assert_eq!(listen, "[]");
    }
}
