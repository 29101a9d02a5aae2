//! Fuzzing of the protocol core, and of V-Bus.
//!
//! [`targets`] are ordinary functions from bytes to nothing that panic where something is wrong.
//! Two programs run them: libFuzzer through the stubs in `fuzz_targets/`, with coverage and nightly
//! Rust,
//!
//! ```text
//! cargo run --release --manifest-path fuzz/Cargo.toml --bin short -- --write-corpus fuzz/corpus
//! cargo +nightly fuzz run --features libfuzzer wire_frame
//! ```
//!
//! and `short`, on stable Rust and in the tests, with random bytes and mutated [`seeds`]. Those are
//! made from the test vectors in `docs/vectors/wire`, and [`kept`] in `kept/`: what libFuzzer found and
//! reduced to the inputs that reach something no other reaches, and what once found a fault. The C
//! interface (`c_interface`) is there with the feature `c-interface` only, and is run by the tests of
//! `bindings/c` too; so are recordings (`recording`) with the feature of that name, by the tests of `tautline-capture`.

pub mod authentication;
#[cfg(feature = "c-interface")]
pub mod c_interface;
pub mod inputs;
pub mod ip;
pub mod kept;
pub mod mcu;
#[cfg(feature = "recording")]
pub mod recording;
pub mod seeds;
pub mod smoother;
pub mod targets;
pub mod vbus;
pub mod window;
