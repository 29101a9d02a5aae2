//! libFuzzer's entry into [`tautline_fuzz::targets::bundle`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tautline_fuzz::targets::bundle(data));
