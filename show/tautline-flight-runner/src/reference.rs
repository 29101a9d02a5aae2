//! The flight as it would be if nothing were ever late: in virtual time, in this process, the same in every run.

use tautline_flight::flight::Flight;

use crate::course::{mission, scene};
use crate::record::Sample;
use crate::world::SAMPLE_STEPS;

/// Samples of the reference, from the start for so many seconds.
pub(crate) fn fly(seed: u64, seconds: f64) -> Vec<Sample> {
    let mut flight = Flight::new(scene(seed), mission()).with_eyes();
    let mut samples = Vec::new();
    while flight.world.seconds() < seconds {
        flight.step();
        if flight.world.steps().is_multiple_of(SAMPLE_STEPS) {
            samples.push(Sample::of(&flight.world, &flight.motors, &flight.status));
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Errors;

    #[test]
    fn the_reference_flies_well_and_is_the_same_each_time() {
        let samples = fly(1, 7.0);
        assert_eq!(samples, fly(1, 7.0));
        let errors = Errors::of(&samples, 3.5, 7.0).unwrap();
        assert!(
            errors.tilt_rms < 6.0 && errors.position_max < 1.0,
            "{errors:?}"
        );
    }
}
