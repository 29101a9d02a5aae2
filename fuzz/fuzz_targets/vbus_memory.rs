//! libFuzzer's entry into [`tautline_fuzz::vbus::vbus_memory`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tautline_fuzz::vbus::vbus_memory(data));
