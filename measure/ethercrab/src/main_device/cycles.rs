//! The work of the main device: all sub-devices to OP, then cycles at a fixed period.

use std::time::Duration;

use ethercrab::MainDevice;
use ethercrab::std::ethercat_now;
use hdrhistogram::Histogram;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};

use crate::run::Outcome;
use crate::{DEVICES_MAX, PROCESS_BYTES_MAX};

/// Cycles before those that are measured: the first answers come to states of before.
const WARM_UP: u32 = 20;
/// Added to the working counter by each device that has read its inputs and written its outputs.
const COUNTED_BY_DEVICE: u16 = 3;

/// Time since some start.
fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

fn sleep_until(time: Duration) {
    let (clock, flags) = (ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME);
    while clock_nanosleep(clock, flags, &TimeSpec::from(time)).is_err() {}
}

/// Figures of the cycles.
struct Figures {
    round_trips: Histogram<u64>,
    /// Cycles whose answer was not there when the next cycle began.
    missed: u32,
    /// Cycles whose frame was lost.
    lost: u32,
    /// Cycles that not every device took part in.
    uncounted: u32,
    /// Inputs that do not answer the outputs of the cycle before.
    wrong: u32,
}

pub(crate) async fn work(main_device: &MainDevice<'_>, cycles: u32, period_us: u64) -> Outcome {
    let group = main_device
        .init_single_group::<DEVICES_MAX, PROCESS_BYTES_MAX>(ethercat_now)
        .await?;
    let devices = group.len();
    if devices == 0 {
        return Err("there is no sub-device".into());
    }
    let group = group.into_op(main_device).await?;
    let counted = devices as u16 * COUNTED_BY_DEVICE;
    let period = Duration::from_micros(period_us);
    let mut figures = Figures {
        round_trips: Histogram::new(3)?,
        missed: 0,
        lost: 0,
        uncounted: 0,
        wrong: 0,
    };
    let mut asked: Option<u64> = None;
    let mut begins = now() + period;
    for cycle in 0..WARM_UP + cycles {
        let number = u64::from(cycle) * 1000;
        for device in group.iter(main_device) {
            device
                .outputs_raw_mut()
                .copy_from_slice(&number.to_le_bytes());
        }
        sleep_until(begins);
        let start = now();
        let answer = group.tx_rx(main_device).await;
        let end = now();
        let is_measured = cycle >= WARM_UP;
        let answers = answer.as_ref().ok().zip(asked);
        let wrong = answers.map_or(0, |(_, asked)| {
            let expected = (asked + 1).to_le_bytes();
            let mut all = group.iter(main_device);
            u32::from(!all.all(|device| device.inputs_raw()[..] == expected))
        });
        asked = answer.is_ok().then_some(number);
        if is_measured {
            figures.wrong += wrong;
            figures.missed += u32::from(end > begins + period);
            match answer {
                Ok(answer) => {
                    figures
                        .round_trips
                        .record((end - start).as_nanos() as u64)?;
                    figures.uncounted += u32::from(answer.working_counter != counted);
                }
                Err(_) => figures.lost += 1,
            }
        }
        begins += period;
        while begins < now() {
            // A cycle that begins late is not made up for.
            begins += period;
        }
    }
    let is_op = group.tx_rx(main_device).await?.all_op();
    Ok(line(&figures, devices, is_op))
}

fn line(figures: &Figures, devices: usize, is_op: bool) -> String {
    let at = |percentile| figures.round_trips.value_at_quantile(percentile);
    format!(
        "{{\"devices\":{devices},\"op\":{is_op},\"cycles\":{},\"missed\":{},\"lost\":{},\
         \"uncounted\":{},\"wrong\":{},\"p50_ns\":{},\"p99_ns\":{},\"p999_ns\":{},\"max_ns\":{}}}",
        figures.round_trips.len(),
        figures.missed,
        figures.lost,
        figures.uncounted,
        figures.wrong,
        at(0.5),
        at(0.99),
        at(0.999),
        figures.round_trips.max(),
    )
}
