//! The kept corpus: inputs found by coverage, and those that once found a fault. A file
//! `kept/TARGET.hex` for each target, an input a line in hexadecimal; `#` begins a line that says
//! what the next one is for.
//!
//! Targets that take the same inputs share a file: [`file_of`].
//!
//! Every run begins with all of them as they are, and goes on with changes of them.

/// The kept inputs of a target by its name.
///
/// # Panics
///
/// If its file has a line that is not hexadecimal.
pub fn of_target(target: &str) -> Vec<Vec<u8>> {
    let file = FILES.iter().find(|(name, _)| *name == file_of(target));
    file.map_or(Vec::new(), |(_, text)| inputs(text))
}

/// The name of a target's file, without its ending: that of the Rust code which a target of C is held against.
pub fn file_of(target: &str) -> &str {
    match target {
        "mcu_frame" => "wire_frame",
        "mcu_loss" => "loss",
        "mcu_reassembly" => "reassembly",
        own => own,
    }
}

/// The input as a line of a file.
pub fn line(input: &[u8]) -> String {
    input.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn inputs(text: &str) -> Vec<Vec<u8>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(bytes).collect()
}

/// The bytes that hexadecimal digits stand for.
///
/// # Panics
///
/// If they are something else.
pub fn bytes(hex: &str) -> Vec<u8> {
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    assert!(rest.is_empty(), "half a byte: {hex}");
    let digit = |digit: u8| char::from(digit).to_digit(16).expect("hexadecimal") as u8;
    let bytes = pairs
        .iter()
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]));
    bytes.collect()
}

macro_rules! files {
    ($($target:literal)*) => {
        &[$(($target, include_str!(concat!("../kept/", $target, ".hex")))),*]
    };
}

const FILES: &[(&str, &str)] = files! {
    "authentication" "bundle" "c_interface" "ip_reassembly" "ip_receive" "loss" "message_plan" "reassembly" "recording" "smoother"
    "text" "vbus_handshake" "vbus_identity" "vbus_memory" "vbus_window" "wire_frame"
};
