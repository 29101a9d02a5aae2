//! libFuzzer's entry into [`tautline_fuzz::c_interface`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tautline_fuzz::c_interface::c_interface(data));
