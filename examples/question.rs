//! One program, any link: questions and answers between two machines over `xdp`, between two processes of
//! one machine over `vbus`. Nothing but the configuration says which.
//!
//! ```sh
//! cargo run --example question examples/answer_vbus.toml &    # answers
//! cargo run --example question examples/ask_vbus.toml         # asks
//! ```
//!
//! On two machines, as root: `answer_xdp.toml` on the one and `ask_xdp.toml` on the other, with their
//! interfaces and MAC addresses in them.
//!
//! Arguments: the configuration file, and how many questions there are.

use std::time::Duration;

use tautline::{Node, NodeConfig, Priority, QueuingPort, SendError, Wait, now};

/// How long to wait for the other side to come.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments
        .next()
        .unwrap_or("examples/ask_vbus.toml".to_owned());
    let count: u32 = arguments.next().unwrap_or("3".to_owned()).parse()?;

    let node = Node::open(NodeConfig::from_file(file)?)?;
    let port = node.queuing("talk").open()?;
    println!("link {}", node.report().link);
    // A node that has an `answerer` among its neighbours asks.
    if node.neighbours().by_name("answerer").is_some() {
        ask(port, count)
    } else {
        answer(port, count)
    }
}

fn ask(mut port: QueuingPort, count: u32) -> Result<(), Box<dyn std::error::Error>> {
    let to = port.destination("answerer", port.number())?;
    let mut buffer = vec![0; port.message_bytes_max()];
    let give_up = now() + PATIENCE;
    for number in 0..count {
        let question = format!("{number}?");
        loop {
            // A bus says that nobody is there yet; over a network there is just no answer. Either
            // way: ask again.
            match port.send(to, Priority::NORMAL, question.as_bytes()) {
                Ok(()) | Err(SendError::PeerGone) => {}
                Err(error) => return Err(error.into()),
            }
            let soon = now() + Duration::from_millis(50);
            let length = match port.receive_into(&mut buffer, Wait::Until(soon))? {
                Some(message) => message.length,
                None => 0,
            };
            let answer = String::from_utf8_lossy(&buffer[..length]);
            // Not the second answer to a question that was asked twice.
            if answer.starts_with(&question) {
                println!("{answer}");
                break;
            }
            if now() > give_up {
                return Err("nobody answers".into());
            }
        }
    }
    Ok(())
}

fn answer(mut port: QueuingPort, count: u32) -> Result<(), Box<dyn std::error::Error>> {
    let mut buffer = vec![0; port.message_bytes_max()];
    let last = format!("{}?", count - 1);
    loop {
        let Some(message) = port.receive_into(&mut buffer, Wait::Until(now() + PATIENCE))? else {
            return Err("nobody asks".into());
        };
        let question = String::from_utf8_lossy(&buffer[..message.length]).into_owned();
        let answer = format!("{question} yes");
        port.reply(message.source, message.priority, answer.as_bytes())?;
        if question == last {
            return Ok(());
        }
    }
}
