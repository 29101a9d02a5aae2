//! Jobs that messages activate.

use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tautline_exec::{Job, TaskSet};
use tautline_tasks::{Executive, MessageHead, MessageSource, OnMessage, RunError};

use super::{
    by_messages, compute, count_of, counter, ms, now, options, stopped, task, us, wait_until,
};

#[test]
fn messages_activate_and_keep_their_distance() {
    let set = TaskSet::new(vec![by_messages("command", ms(20)), task("other", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let begun = Arc::new(Mutex::new(Vec::new()));
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

/// A sender of datagrams, and a source of those that come, with the arrival that `stamp` finds for each.
fn datagrams(stamp: impl Fn(&[u8]) -> Duration + Send + 'static) -> (UnixDatagram, MessageSource) {
    let (receiver, sender) = UnixDatagram::pair().unwrap();
    receiver.set_nonblocking(true).unwrap();
    let descriptor = receiver.try_clone().unwrap();
    let take = move |buffer: &mut [u8]| {
        let length = receiver.recv(buffer).ok()?;
        let arrival = stamp(&buffer[..length]);
        Some(MessageHead { length, arrival })
    };
    (sender, MessageSource::new(descriptor, 64, take).unwrap())
}

/// A sender of exactly the period of its task, beside a more urgent task, and a source that knows the arrivals. However
/// late the jobs begin, no release is later than the message and the one before allow.
#[test]
fn releases_and_deadlines_follow_the_arrivals_however_late_jobs_begin() {
    const MESSAGES: u32 = 400;
    let period = ms(1);
    let mut urgent = task("urgent", ms(3));
    (urgent.deadline, urgent.worst_case) = (us(700), us(600));
    let set = TaskSet::new(vec![by_messages("command", period), urgent]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    executive
        .task("urgent", |_: &Job| compute(us(500)))
        .unwrap();
    let (sender, source) = datagrams(|bytes| {
        let stamp = u64::from_ne_bytes(bytes.try_into().unwrap());
        Duration::from_nanos(stamp)
    });
    executive.messages("command", source).unwrap();
    let begun = Arc::new(Mutex::new(Vec::with_capacity(MESSAGES as usize)));
    let jobs = begun.clone();
    let body = move |job: &Job| jobs.lock().unwrap().push((*job, now()));
    executive.task("command", body).unwrap();
    let running = executive.start(&options().with_cpu(0)).unwrap();
    std::thread::sleep(ms(20));
    let start = now();
    for number in 0..MESSAGES {
        let due = start + period * number;
        std::thread::sleep(due.saturating_sub(now()));
        // As if the machine were punctual.
        let stamp = due.as_nanos() as u64;
        sender.send(&stamp.to_ne_bytes()).unwrap();
    }
    wait_until(|| begun.lock().unwrap().len() == MESSAGES as usize);
    let summary = stopped(running);
    let begun = begun.lock().unwrap();
    let mut earliest = Duration::ZERO;
    for ((job, began), number) in begun.iter().zip(0..) {
        let arrival = start + period * number;
        let release = arrival.max(earliest);
        earliest = job.release + period;
        assert_eq!(job.arrival, arrival);
        assert_eq!(job.deadline, job.release + period);
        // More than 64 periods of a stall are not made up for.
        let is_after_a_stall = job.release <= *began - 64 * period;
        assert!(job.release == release || is_after_a_stall, "{job:?}");
    }
    let command = &summary.tasks[0];
    let late = command.trace.iter().filter(|job| job.end > job.deadline);
    assert_eq!(command.missed, late.count() as u64);
    let latency = command.latency.unwrap();
    assert!(latency.max >= command.response.max && latency.p50 >= command.response.p50);
    assert_eq!(summary.tasks[1].latency, None);
}

#[test]
fn each_message_of_a_source_activates_one_job_with_its_bytes() {
    let set = TaskSet::new(vec![by_messages("command", ms(2)), task("other", ms(5))]).unwrap();
    let mut executive = Executive::new(set).unwrap();
    let (sender, source) = datagrams(|_| now());
    sender.send(b"before the start").unwrap();
    let (_, wrong) = datagrams(|_| now());
    assert!(matches!(
        executive.messages("other", wrong),
        Err(RunError::NotByMessage { .. })
    ));
    executive.messages("command", source).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
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
}
