//! libFuzzer's entry into [`tautline_fuzz::smoother::smoother`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tautline_fuzz::smoother::smoother(data));
