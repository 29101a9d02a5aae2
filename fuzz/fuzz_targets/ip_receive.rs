//! libFuzzer's entry into [`tautline_fuzz::ip::ip_receive`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tautline_fuzz::ip::ip_receive(data));
