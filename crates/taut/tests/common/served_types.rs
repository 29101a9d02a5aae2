//! A machine of a few processes, for clients of Foxglove's protocol: a receiver and a sender of typed messages on a
//! bus, and a server with a token.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;

use crate::common::{Running, Scratch, Served, taut};
use crate::typed::{EndsSender, STATE, send_typed};

/// Token of the server.
pub(crate) const TOKEN: &str = "0123456789abcdef";
/// Last part of the topic of the messages: the receiving port by its name.
pub(crate) const TOPIC_END: &str = "/arm.9/motor.state";

/// Lets a client look at the server, by its address.
pub(crate) fn with_served(name: &str, look: impl FnOnce(&str)) {
    let scratch = Scratch::new(name);
    let bus = scratch.0.join("tautline/vbus/live");
    let (config, token) = (scratch.0.join("motor.toml"), scratch.0.join("token"));
    let path = bus.display();
    let port = "[[port]]\nname = \"state\"\nnumber = 7\nkind = \"queuing\"\ntype = \"State\"\n";
    let text = format!("link = \"vbus\"\nbus = \"{path}\"\nnode = \"motor\"\n{STATE}{port}");
    fs::write(&config, text).unwrap();
    fs::write(&token, TOKEN).unwrap();
    fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(&scratch.0, Permissions::from_mode(0o700)).unwrap();
    // The buses that there are without a name are those of the user, in its runtime directory.
    let own = |arguments: &[&str]| -> Command {
        let mut command = taut(arguments);
        command.env("XDG_RUNTIME_DIR", &scratch.0);
        command
    };
    let [config, token] = [&config, &token].map(|path| path.to_str().unwrap());
    let mut receive = own(&["recv", "7", "--config", config, "--count", "1000000"]);
    let _receiver = Running::start(receive.stdout(Stdio::null()), "listening on port 7");
    let listen = ["serve", "--listen", "127.0.0.1:0", "--token-file", token];
    let served = Served::of(&mut own(&listen));
    let is_enough = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| send_typed(&bus, &is_enough));
        let _ends = EndsSender(&is_enough);
        look(&served.address);
    });
}
