//! A process that writes over the memories that its peers map.
#![allow(unsafe_code)] // Writes over mappings that the library has made.

use rand_xoshiro::Xoshiro256PlusPlus as Random;
use rand_xoshiro::rand_core::Rng;

/// Everything of this process that a peer maps: where it starts, and how many bytes.
pub fn own_memories() -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| line.contains("taut-vbus"));
    let writable = ours.filter(|line| line.contains(" rw-s "));
    writable
        .map(|line| {
            let (range, _) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(start), number(end) - number(start))
        })
        .collect()
}

/// Writes random words over one of these memories, mostly those that make sense where messages have at most `bytes_max`
/// bytes.
pub fn write_anywhere(random: &mut Random, memories: &[(usize, usize)], bytes_max: usize) {
    let (start, bytes) = memories[random.next_u32() as usize % memories.len()];
    // Mostly at the beginning, where the words are that others act on; sometimes plausible ones.
    let span = match random.next_u32() % 3 {
        0 => bytes.min(1024),
        1 => bytes.min(4096),
        _ => bytes,
    };
    for _ in 0..64 {
        let place = start + random.next_u32() as usize % span / 4 * 4;
        let value = match random.next_u32() % 4 {
            0 => random.next_u32(),
            1 => random.next_u32() % 20,
            2 => u32::MAX - random.next_u32() % 20,
            _ => bytes_max as u32 + random.next_u32() % 3,
        };
        // SAFETY: the place is within a writable mapping of this process, aligned to four bytes.
        // The library's own use of it is what this test wants to spoil, in this process alone.
        unsafe { (place as *mut u32).write_volatile(value) };
    }
}
