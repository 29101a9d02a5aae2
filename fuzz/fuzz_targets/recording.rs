//! libFuzzer's entry into [`tautline_fuzz::recording`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tautline_fuzz::recording::recording(data));
