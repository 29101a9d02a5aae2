//! libFuzzer's entry into [`tautline_fuzz::targets::wire_frame`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tautline_fuzz::targets::wire_frame(data));
