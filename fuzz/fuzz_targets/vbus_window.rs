//! libFuzzer's entry into [`tautline_fuzz::window::vbus_window`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tautline_fuzz::window::vbus_window(data));
