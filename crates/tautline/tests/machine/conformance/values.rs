//! Sampling ports: the last value, and one of each source.

use super::*;
use tautline::Wait;
use tautline::error::OptionsError;

pub(super) fn the_last_value_is_kept(pair: &Pair) {
    let options = sampling_with(|options| options.refresh_period = Duration::from_millis(100));
    let (mut publisher, mut reader, to) = pair.values(&options);
    let mut buffer = buffer();
    assert_eq!(
        reader.read_into(&mut buffer).unwrap(),
        None,
        "there has never been a value"
    );
    for value in 1..=5u8 {
        publisher.give(to, Priority::NORMAL, &pattern(100, value));
    }
    settle(pair);
    let sample = reader.read_into(&mut buffer).unwrap().unwrap();
    assert_eq!(&buffer[..sample.length], pattern(100, 5));
    assert!(sample.new);
    assert_eq!(sample.valid, sample.age <= options.refresh_period);
    assert!(sample.valid || !pair.is_virtual());
    assert_eq!((sample.overwritten, sample.sequence), (4, 4));
    assert_eq!(sample.source.port, port(21));
    let again = reader.read_into(&mut buffer).unwrap().unwrap();
    assert!(!again.new);
    assert_eq!((again.overwritten, again.sequence), (0, 4));
    assert_eq!(again.arrival, sample.arrival);
    if let Some(network) = &pair.network {
        network.advance(Duration::from_millis(150));
    } else {
        std::thread::sleep(Duration::from_millis(150));
    }
    let old = reader.read_into(&mut buffer).unwrap().unwrap();
    assert!(!old.valid && old.age >= Duration::from_millis(100));
    publisher.give(to, Priority::NORMAL, b"new");
    let new = reader.take_into(&mut buffer);
    assert_eq!(&buffer[..new.length], b"new");
    assert!(new.new && new.overwritten == 0);
    assert_eq!(new.valid, new.age <= options.refresh_period);
    // A message larger than a value has no place in a sampling port, nor have its fragments.
    let large = publisher.send(to, Priority::NORMAL, &[0; 2000]);
    assert_eq!(large.is_err(), answers_sender(pair));
    settle(pair);
    assert!(!reader.read_into(&mut buffer).unwrap().unwrap().new);
    let unfit = if answers_sender(pair) { 0 } else { 2 };
    assert_eq!(pair.b.status().ports[0].unfit, unfit);
}

pub(super) fn each_source_has_its_own_value(pair: &Pair) {
    let options = sampling_with(|options| {
        (options.sources, options.refresh_period) = (3, Duration::from_millis(100))
    });
    let mut hub = pair
        .on_b(|node| node.sampling(port(22)).options(&options).open())
        .unwrap();
    let mut publishers: Vec<_> = (31..35)
        .map(|number| {
            let options = SamplingOptions::default();
            let open = |node: &tautline::Node| node.sampling(port(number)).options(&options).open();
            let mut publisher = pair.on_a(open).unwrap();
            let to = publisher.destination("peer", port(22)).unwrap();
            (publisher, to)
        })
        .collect();
    let mut publish = |index: usize, value: &[u8]| {
        let (publisher, to) = &mut publishers[index];
        let expected = match answers_sender(pair) && value == b"refused" {
            true => Err(SendError::PeerGone),
            false => Ok(()),
        };
        assert_eq!(publisher.send(*to, Priority::NORMAL, value), expected);
        if let Some(network) = &pair.network {
            network.advance(Duration::from_micros(100));
        }
    };
    let mut buffer = buffer();
    let mut newer = |hub: &mut tautline::SamplingPort, wait: bool| {
        let mut seen = Vec::new();
        let mut each = |sample: &tautline::Sample, bytes: &[u8]| {
            assert!(sample.new);
            seen.push((sample.source.port.get(), bytes.to_vec(), sample.overwritten));
        };
        if wait && let Some(sample) = hub.look(&mut buffer, Wait::Until(pair.soon())) {
            each(&sample, &buffer[..sample.length]);
        }
        while let Some(sample) = hub.look(&mut buffer, Wait::Poll) {
            each(&sample, &buffer[..sample.length]);
        }
        seen
    };
    assert!(newer(&mut hub, false).is_empty());
    assert_eq!(hub.sources().count(), 0);
    publish(1, b"b1");
    publish(0, b"a1");
    publish(1, b"b2");
    publish(2, b"c1");
    publish(3, b"refused");
    settle(pair);
    let expected = [(31, "a1", 0), (32, "b2", 1), (33, "c1", 0)];
    let expected = expected.map(|(port, text, over)| (port, text.as_bytes().to_vec(), over));
    assert_eq!(
        newer(&mut hub, true),
        expected,
        "the first to arrive at first"
    );
    assert!(newer(&mut hub, false).is_empty(), "nothing is newer");
    assert!(!hub.fresh());
    publish(2, b"c2");
    publish(0, b"a2");
    settle(pair);

    let mut buffer = vec![0; 1484];
    let last = hub.read_into(&mut buffer).unwrap().unwrap();
    assert_eq!(
        (&buffer[..2], last.new),
        (&b"a2"[..], true),
        "the last of all"
    );
    let known: Vec<_> = hub.sources().collect();
    assert_eq!(known.len(), 3);
    let third = *known.iter().find(|source| source.port == port(33)).unwrap();
    let c = hub.read_from(third).unwrap().unwrap();
    let facts = (c.sample().new, c.sample().overwritten);
    assert_eq!((&c[..2], facts), (&b"c2"[..], (true, 0)));
    let c = hub.read_from(third).unwrap().unwrap();
    assert_eq!((&c[..2], c.sample().new), (&b"c2"[..], false));
    let stranger = tautline::Source {
        port: port(34),
        ..third
    };
    assert!(hub.read_from(stranger).unwrap().is_none());
    publish(3, b"refused");
    publish(1, b"b3");
    settle(pair);
    let next = hub.take_into(&mut buffer);
    assert_eq!((&buffer[..2], next.source.port), (&b"b3"[..], port(32)));
    let status = &pair.b.status().ports[0];
    assert_eq!(status.sources, Some(3));
    assert_eq!((status.received, status.overwritten), (6, 1));
    if answers_sender(pair) {
        // The fourth is refused as often as it tries to connect, and sends nothing.
        assert!(status.sources_refused > 0);
        assert_eq!(status.frames, 7);
    } else {
        assert_eq!((status.frames, status.sources_refused), (9, 2));
    }
    assert_eq!(status.peers.len(), 3);
    assert!(status.peers.iter().all(|peer| peer.lost == 0));
    for sources in [0, 49] {
        let options = sampling_with(|options| options.sources = sources);
        let refused = pair.on_b(|node| node.sampling(port(24)).options(&options).open());
        assert!(matches!(
            refused,
            Err(PortError::Options(OptionsError::Sources { .. }))
        ));
    }
}
