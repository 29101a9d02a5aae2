//! libFuzzer's entry into [`tautline_fuzz::mcu::mcu_frame`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tautline_fuzz::mcu::mcu_frame(data));
