//! Jobs that messages activate.

use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tautline_exec::{Activation, Job, TaskSet};
use tautline_tasks::{Executive, MessageSource, OnMessage, RunError};

use super::{by_messages, count_of, counter, ms, options, stopped, task, wait_until};

#[test]
fn messages_activate_and_keep_their_distance() {
    let mut command = task("command", ms(20));
    command.activation = Activation::Message {
        port: "command".into(),
    };
    let set = TaskSet::new(vec![command, task("other", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let begun = Arc::new(std::sync::Mutex::new(Vec::new()));
    let jobs = begun.clone();
    let body = move |job: &Job| jobs.lock().unwrap().push(job.release);
    executive.task("command", body).unwrap();
    executive.task("other", |_: &Job| {}).unwrap();
    let running = executive.start(&options()).unwrap();
    assert!(matches!(
        running.trigger("other"),
        Err(RunError::NotByMessage { .. })
    ));
    let trigger = running.trigger("command").unwrap();
    std::thread::sleep(ms(30));
    assert!(begun.lock().unwrap().is_empty(), "no message, no job");
    for _ in 0..3 {
        trigger.fire();
    }
    wait_until(|| begun.lock().unwrap().len() == 3);
    stopped(running);
    let begun = begun.lock().unwrap();
    assert!(
        begun.windows(2).all(|pair| pair[1] - pair[0] >= ms(20)),
        "{begun:?}"
    );
}

/// A receiver and a sender of datagrams, and a source of what the receiver gets.
fn datagrams() -> (UnixDatagram, MessageSource) {
    let (receiver, sender) = UnixDatagram::pair().unwrap();
    receiver.set_nonblocking(true).unwrap();
    let descriptor = receiver.try_clone().unwrap();
    let take = move |buffer: &mut [u8]| receiver.recv(buffer).ok();
    (sender, MessageSource::new(descriptor, 64, take).unwrap())
}

#[test]
fn each_message_of_a_source_activates_one_job_with_its_bytes() {
    let set = TaskSet::new(vec![by_messages("command", ms(2)), task("other", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let (sender, source) = datagrams();
    sender.send(b"before the start").unwrap();
    let (_, wrong) = datagrams();
    assert!(matches!(
        executive.messages("other", wrong),
        Err(RunError::NotByMessage { .. })
    ));
    executive.messages("command", source).unwrap();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let jobs = seen.clone();
    let body = OnMessage(move |job: &Job, message: &[u8]| {
        let text = String::from_utf8(message.to_vec()).unwrap();
        jobs.lock().unwrap().push((job.release, text));
    });
    executive.task("command", body).unwrap();
    executive.task("other", |_: &Job| {}).unwrap();
    let running = executive.start(&options()).unwrap();
    wait_until(|| seen.lock().unwrap().len() == 1);
    for number in 0..5 {
        sender.send(format!("{number}").as_bytes()).unwrap();
    }
    wait_until(|| seen.lock().unwrap().len() == 6);
    // The two ways of activation do not disturb each other.
    running.trigger("command").unwrap().fire();
    wait_until(|| seen.lock().unwrap().len() == 7);
    sender.send(b"last").unwrap();
    wait_until(|| seen.lock().unwrap().len() == 8);
    let summary = stopped(running);
    assert!(!summary.tasks[0].is_left, "it waited, and was woken");
    let seen = seen.lock().unwrap();
    let texts: Vec<&str> = seen.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(
        texts,
        ["before the start", "0", "1", "2", "3", "4", "", "last"]
    );
    assert!(
        seen.windows(2).all(|pair| pair[1].0 - pair[0].0 >= ms(2)),
        "{seen:?}"
    );
}

#[test]
fn a_descriptor_that_is_readable_without_a_message_does_not_take_the_cpu() {
    let set = TaskSet::new(vec![by_messages("broken", ms(2)), task("good", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let (sender, _unused) = datagrams();
    let (receiver, far) = UnixDatagram::pair().unwrap();
    far.send(b"never taken").unwrap();
    let looks = Arc::new(AtomicU64::new(0));
    let counted = looks.clone();
    let take = move |_: &mut [u8]| {
        counted.fetch_add(1, Ordering::Relaxed);
        None
    };
    let source = MessageSource::new(receiver, 64, take).unwrap();
    executive.messages("broken", source).unwrap();
    executive.task("broken", |_: &Job| {}).unwrap();
    let (good, body) = counter();
    executive.task("good", body).unwrap();
    let running = executive.start(&options().with_cpu(0)).unwrap();
    wait_until(|| count_of(&good) >= 20);
    let summary = stopped(running);
    assert!(!summary.tasks[0].is_left);
    // A loop without a pause would look some hundred thousand times in these 100 ms.
    assert!(count_of(&looks) < 10_000, "{}", count_of(&looks));
    drop(sender);
}
