//! libFuzzer's entry into [`tautline_fuzz::ip::ip_reassembly`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tautline_fuzz::ip::ip_reassembly(data));
