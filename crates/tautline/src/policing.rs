//! Policing: the rate and the burst beyond which a port's frames are dropped on arrival.

use std::time::Duration;

use serde::Serialize;
use tautline_shm::layout::Control;
use tautline_shm::police::{self, Bucket};

use crate::error::OptionsError;

/// Highest rate: frames a second at [`tautline_shm::police::INTERVAL_NS_MIN`].
pub(crate) const RATE_MAX: u32 = 10_000_000;

/// Rate and burst of frames that a port takes. Further frames are dropped before anything else is done for
/// them, and counted  ([`PortStatus::policed`](crate::status::PortStatus::policed)): a flood for one port then costs
/// the machine as little as it can. A message of several fragments counts with each of them.
///
/// On link `xdp` the demux drops in the driver's poll; on the others a frame has cost its way to the
/// port's socket already.
///
/// ```
/// use tautline::port::{Policing, QueuingOptions};
/// use std::time::Duration;
///
/// let policing = Policing::per_second(10_000, 32);
/// assert_eq!(policing.interval, Duration::from_micros(100));
/// let options = QueuingOptions { policing: Some(policing), ..QueuingOptions::default() };
/// options.check()?;
/// # Ok::<(), tautline::PortError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Policing {
    /// One frame passes in each such time: 100 ns to an hour.
    #[serde(rename = "interval_ns", serialize_with = "nanoseconds")]
    pub interval: Duration,
    /// Frames that pass at once after a pause, 1 to 1,000,000.
    pub burst: u32,
}

fn nanoseconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_nanos().try_into().unwrap_or(u64::MAX))
}

impl Policing {
    /// So many frames a second, 1 to ten million, and bursts of so many. The interval is rounded up to
    /// whole nanoseconds, so the rate is never more than asked for, and less by at most 1 %.
    #[must_use]
    pub const fn per_second(rate: u32, burst: u32) -> Self {
        // A rate of none is refused by `check`, as an interval without end.
        let interval_ns = match rate {
            0 => u64::MAX,
            rate => 1_000_000_000_u64.div_ceil(rate as u64),
        };
        Self {
            interval: Duration::from_nanos(interval_ns),
            burst,
        }
    }

    /// Checks the limits above.
    ///
    /// # Errors
    /// [`OptionsError::Policing`].
    pub fn check(&self) -> Result<(), OptionsError> {
        self.bucket().map(drop)
    }

    pub(crate) fn bucket(&self) -> Result<Bucket, OptionsError> {
        u64::try_from(self.interval.as_nanos())
            .ok()
            .and_then(|interval_ns| Bucket::new(interval_ns, self.burst))
            .ok_or(OptionsError::Policing {
                interval: self.interval,
                burst: self.burst,
            })
    }

    pub(crate) fn of(control: &Control) -> Option<Self> {
        let (interval_ns, burst) = police::limits(control)?;
        Some(Self {
            interval: Duration::from_nanos(interval_ns),
            burst,
        })
    }
}
