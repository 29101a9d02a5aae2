//! Max-min fairness: no share exceeds its demand, and no share can grow without reducing a share that is not larger.

/// Divides `room` among `demands` and writes each share. Returns the level: those with a demand above it get exactly
/// the level. `u64::MAX` if all demands fit; the rest then remains unused.
///
/// ```
/// use tautline_proto::smoother::share::max_min;
///
/// let mut shares = [0; 3];
/// let level = max_min(90, &[10, 60, u64::MAX], &mut shares);
/// assert_eq!((level, shares), (40, [10, 40, 40]));
/// ```
///
/// # Panics
///
/// If the slices differ in length.
pub fn max_min(room: u64, demands: &[u64], shares: &mut [u64]) -> u64 {
    assert_eq!(demands.len(), shares.len());
    let mut left = room;
    let mut unmet = demands.len() as u64;
    let mut level = 0;
    // Each round but the last meets at least one demand, so there are at most as many rounds as demands, and one.
    while unmet > 0 {
        let next = left / unmet;
        let met = demands
            .iter()
            .filter(|&&demand| demand >= level && demand < next);
        let mut met_now = 0;
        for &demand in met {
            left -= demand;
            met_now += 1;
        }
        level = next;
        if met_now == 0 {
            break;
        }
        unmet -= met_now;
        // Demands that are met lie below `next`, and the level of the next round is not lower than that.
        debug_assert!(unmet == 0 || left / unmet >= next);
    }
    let level = if unmet == 0 { u64::MAX } else { level };
    for (share, &demand) in shares.iter_mut().zip(demands) {
        *share = demand.min(level);
    }
    level
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    fn shares(room: u64, demands: &[u64]) -> Vec<u64> {
        let mut shares = vec![0; demands.len()];
        max_min(room, demands, &mut shares);
        shares
    }

    #[test]
    fn small_demands_are_met_and_the_rest_is_equal() {
        assert_eq!(shares(100, &[]), []);
        assert_eq!(shares(100, &[30, 30, 30]), [30, 30, 30]);
        assert_eq!(shares(100, &[u64::MAX; 4]), [25; 4]);
        assert_eq!(shares(100, &[5, 20, 50, 60]), [5, 20, 37, 37]);
        assert_eq!(shares(0, &[0, 5]), [0, 0]);
        assert_eq!(shares(u64::MAX, &[u64::MAX, 1]), [u64::MAX - 1, 1]);
    }

    #[test]
    fn the_room_is_used_and_never_exceeded() {
        let mut state = 1u64;
        let mut random = |limit: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % limit
        };
        for _ in 0..2000 {
            let count = 1 + random(20);
            let demands: Vec<u64> = (0..count).map(|_| random(1000)).collect();
            let room = random(8000);
            let got = shares(room, &demands);
            let total: u64 = got.iter().sum();
            let wanted: u64 = demands.iter().sum();
            assert!(total <= room.min(wanted));
            assert!(
                total + count > room.min(wanted),
                "{demands:?} {room} {got:?}"
            );
            let unmet = demands
                .iter()
                .zip(&got)
                .filter(|(demand, share)| share < demand);
            let levels: Vec<u64> = unmet.map(|(_, share)| *share).collect();
            assert!(levels.iter().all(|level| *level == levels[0]));
            assert!(levels.is_empty() || got.iter().all(|share| *share <= levels[0]));
        }
    }
}
