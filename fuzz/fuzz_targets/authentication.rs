//! libFuzzer's entry into [`tautline_fuzz::authentication::authentication`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tautline_fuzz::authentication::authentication(data));
