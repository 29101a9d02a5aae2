//! Authenticated frames: bytes that were not sealed are refused, and sealed ones are taken once, unchanged.

use tautline_proto::authentication::{
    Cipher, Discipline, Key, KeyRing, Protection, Receiver, Refusal, SendKey, Sender, Space,
    Station, TRAILER_BYTES, Way,
};
use tautline_proto::wire::{Header, MacAddress, PortNumber, Priority, WHOLE_BYTES_MAX_ETHERNET};

const NOW: u64 = 1_800_000_000_000_000_000;
const TOLERANCE: u64 = 1_000_000_000;

/// The bytes as a header and its payload, then as a message that is sealed and changed as its first bytes say.
pub fn authentication(data: &[u8]) {
    let cipher = Cipher::ALL[data.len() % 2];
    let protection = Protection::ALL[data.len() / 2 % 2];
    // Not that of the vectors, which are the seeds: under theirs some are authentic.
    let secret = std::array::from_fn(|place| place as u8 ^ 0x5A);
    let ring = KeyRing::new([Key::new(1, cipher, 0, secret)]).expect("one key is a ring");
    let way = Way {
        source: Station::Ethernet(MacAddress([2, 0, 0, 0, 0, 10])),
        destination: Station::Ethernet(MacAddress([2, 0, 0, 0, 0, 11])),
    };
    let mut receiver = Receiver::new(Discipline::InWindow, 0, TOLERANCE);
    let mut space = Space::new();
    if let Ok((header, payload)) = Header::parse(data) {
        let opened = receiver.open(NOW, &ring, way, &header, payload, &mut space);
        assert!(opened.is_err(), "nobody has sealed this");
    }
    let bytes_max = WHOLE_BYTES_MAX_ETHERNET - TRAILER_BYTES;
    let message = &data[..data.len().min(bytes_max)];
    let header = Header::whole(
        PortNumber::MIN,
        PortNumber::MAX,
        Priority::NORMAL,
        message.len() as u16,
        7,
    );
    let (mut sender, mut keys) = (Sender::new(5, protection), SendKey::new(ring.clone()));
    let sealed = sender.seal(NOW, &mut keys, way, header, message, &mut space);
    let (sealed, payload) = sealed.expect("it fits a frame");
    let payload = payload.to_vec();
    let mut space = Space::new();
    let mut changed = payload.clone();
    if let [first, second, mask, ..] = data {
        let place = (usize::from(*first) << 8 | usize::from(*second)) % changed.len();
        changed[place] ^= mask;
        // The bits of the trailer that mean nothing are not covered.
        let trailer = message.len();
        changed[trailer] &= 1;
        changed[trailer + 1] = 0;
    }
    if changed != payload {
        let opened = receiver.open(NOW, &ring, way, &sealed, &changed, &mut space);
        assert!(opened.is_err(), "it was changed");
    }
    let opened = receiver.open(NOW, &ring, way, &sealed, &payload, &mut space);
    assert_eq!(opened, Ok((header, message)));
    let again = receiver.open(NOW, &ring, way, &sealed, &payload, &mut space);
    assert_eq!(again, Err(Refusal::Replayed));
}
