//! Declarations as source text of other languages.

use std::fmt::Write as _;

use tautline::types::{Declaration, Field, Scalar};

/// Words that C or C++, Rust or Python keep for themselves: as a name they get a `_` behind them there.
const KEYWORDS: &[&str] = &[
    "False",
    "None",
    "Self",
    "True",
    "abstract",
    "alignas",
    "alignof",
    "and",
    "and_eq",
    "as",
    "asm",
    "assert",
    "async",
    "auto",
    "await",
    "become",
    "bitand",
    "bitor",
    "bool",
    "box",
    "break",
    "case",
    "catch",
    "char",
    "char16_t",
    "char32_t",
    "char8_t",
    "class",
    "co_await",
    "co_return",
    "co_yield",
    "compl",
    "concept",
    "const",
    "const_cast",
    "consteval",
    "constexpr",
    "constinit",
    "continue",
    "crate",
    "decltype",
    "def",
    "default",
    "del",
    "delete",
    "do",
    "double",
    "dyn",
    "dynamic_cast",
    "elif",
    "else",
    "enum",
    "except",
    "explicit",
    "export",
    "extern",
    "false",
    "final",
    "finally",
    "float",
    "fn",
    "for",
    "friend",
    "from",
    "gen",
    "global",
    "goto",
    "if",
    "impl",
    "import",
    "in",
    "inline",
    "int",
    "is",
    "lambda",
    "let",
    "long",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "nonlocal",
    "not",
    "not_eq",
    "nullptr",
    "operator",
    "or",
    "or_eq",
    "override",
    "pass",
    "priv",
    "private",
    "protected",
    "pub",
    "public",
    "raise",
    "ref",
    "register",
    "reinterpret_cast",
    "requires",
    "restrict",
    "return",
    "self",
    "short",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "static_cast",
    "struct",
    "super",
    "switch",
    "template",
    "this",
    "thread_local",
    "throw",
    "trait",
    "true",
    "try",
    "type",
    "typedef",
    "typeid",
    "typename",
    "typeof",
    "typeof_unqual",
    "union",
    "unsafe",
    "unsigned",
    "unsized",
    "use",
    "using",
    "virtual",
    "void",
    "volatile",
    "wchar_t",
    "where",
    "while",
    "with",
    "xor",
    "xor_eq",
    "yield",
];

/// Macros of the headers of C and POSIX, and of compilers in their default mode: a field of such a name does not
/// compile, or has another name. In C they get a `_` behind them.
const MACROS: &[&str] = &[
    "BUFSIZ",
    "CLOCKS_PER_SEC",
    "EOF",
    "HUGE_VAL",
    "I",
    "INFINITY",
    "NAN",
    "NULL",
    "PATH_MAX",
    "RAND_MAX",
    "complex",
    "errno",
    "i386",
    "imaginary",
    "linux",
    "major",
    "makedev",
    "minor",
    "noreturn",
    "offsetof",
    "stderr",
    "stdin",
    "stdout",
    "unix",
];

/// A name in C and C++.
fn c_word(name: &str) -> String {
    match MACROS.contains(&name) {
        true => format!("{name}_"),
        false => word(name),
    }
}

fn word(name: &str) -> String {
    let underscore = if KEYWORDS.contains(&name) { "_" } else { "" };
    format!("{name}{underscore}")
}

/// Name in Rust, where almost every word can be a name, so that the derived declaration keeps the name.
fn rust_word(name: &str) -> String {
    match name {
        "Self" | "crate" | "self" | "super" => word(name),
        name if KEYWORDS.contains(&name) => format!("r#{name}"),
        name => name.to_owned(),
    }
}

fn lines(declaration: &Declaration, line: impl Fn(&Field) -> String) -> String {
    declaration.fields().iter().map(line).collect()
}

/// Name of a number in C.
const fn c_number(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::I8 => "int8_t",
        Scalar::U8 => "uint8_t",
        Scalar::I16 => "int16_t",
        Scalar::U16 => "uint16_t",
        Scalar::I32 => "int32_t",
        Scalar::U32 => "uint32_t",
        Scalar::I64 => "int64_t",
        Scalar::U64 => "uint64_t",
        Scalar::F32 => "float",
        Scalar::F64 => "double",
    }
}

/// Format of Python's module `struct`.
const fn python_format(scalar: Scalar) -> char {
    match scalar {
        Scalar::I8 => 'b',
        Scalar::U8 => 'B',
        Scalar::I16 => 'h',
        Scalar::U16 => 'H',
        Scalar::I32 => 'i',
        Scalar::U32 => 'I',
        Scalar::I64 => 'q',
        Scalar::U64 => 'Q',
        Scalar::F32 => 'f',
        Scalar::F64 => 'd',
    }
}

/// A header of C and C++ with these types, and their type bytes. Sizes and offsets are asserted when it is compiled.
pub(super) fn c(declarations: &[Declaration]) -> String {
    let mut text = String::from(
        "/* Types of messages, from `taut types`: little-endian, fields one after the other. */\n\
         #pragma once\n\n#include <assert.h>\n#include <stddef.h>\n#include <stdint.h>\n\n\
         #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__\n\
         #error \"the messages are little-endian, and this machine's numbers are not\"\n#endif\n",
    );
    for declaration in declarations {
        let name = c_word(declaration.name());
        let fields = lines(declaration, |field| {
            let count = field.count.map(|count| format!("[{count}]"));
            format!(
                "\t{} {}{};\n",
                c_number(field.scalar),
                c_word(&field.name),
                count.unwrap_or_default()
            )
        });
        let packed = match declaration.is_aligned() {
            true => "",
            false => " __attribute__((packed))",
        };
        let offsets = lines(declaration, |field| {
            let (own, offset) = (c_word(&field.name), field.offset);
            format!("static_assert(offsetof(struct {name}, {own}) == {offset}, \"{own}\");\n")
        });
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "\nstruct{packed} {name} {{\n{fields}}};\n\
             static_assert(sizeof(struct {name}) == {}, \"{name}\");\n{offsets}\
             #define {name}_TYPE_BYTE {} /* fingerprint {:016x} */\n",
            declaration.bytes(),
            declaration.type_byte(),
            declaration.fingerprint()
        );
    }
    text
}

/// The types as structs of Rust.
pub(super) fn rust(declarations: &[Declaration]) -> String {
    let mut text = String::from("// Types of messages, from `taut types`.\n");
    for declaration in declarations {
        let fields = lines(declaration, |field| {
            let scalar = field.scalar;
            let own = match field.count {
                Some(count) => format!("[{scalar}; {count}]"),
                None => scalar.to_string(),
            };
            format!("    pub {}: {own},\n", rust_word(&field.name))
        });
        let packed = if declaration.is_aligned() {
            ""
        } else {
            ", packed"
        };
        let _ = write!(
            text,
            "\n#[derive(Clone, Copy, Debug, PartialEq, tautline::Typed)]\n#[repr(C{packed})]\n\
             pub struct {} {{\n{fields}}}\n",
            rust_word(declaration.name())
        );
    }
    text
}

/// The types as dataclasses of Python, for `tautline.layout()`.
pub(super) fn python(declarations: &[Declaration]) -> String {
    let mut text = String::from(
        "# Types of messages, from `taut types`.\n\
         from dataclasses import dataclass\nfrom typing import Annotated, Tuple\n",
    );
    for declaration in declarations {
        let fields = lines(declaration, |field| {
            let number = if field.scalar.is_float() {
                "float"
            } else {
                "int"
            };
            let format = python_format(field.scalar);
            let own = word(&field.name);
            match field.count {
                // One number with a count of 1 is a number itself, as `layout` reads it.
                Some(count) if count > 1 => {
                    format!("    {own}: Annotated[Tuple[{number}, ...], \"{count}{format}\"]\n")
                }
                _ => format!("    {own}: Annotated[{number}, \"{format}\"]\n"),
            }
        });
        let _ = write!(
            text,
            "\n\n@dataclass\nclass {}:\n{fields}",
            word(declaration.name())
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(text: &str) -> Declaration {
        text.parse().unwrap()
    }

    #[test]
    fn each_language_has_the_fields() {
        let types = [
            declared("State { position: f64[2], type: u16, rest: u8[6] }"),
            declared("Odd { a: u8, b: f32 }"),
        ];
        let text = c(&types);
        for line in [
            "struct State {\n\tdouble position[2];\n\tuint16_t type;\n\tuint8_t rest[6];\n};",
            "static_assert(offsetof(struct State, rest) == 18, \"rest\");",
            "static_assert(sizeof(struct State) == 24, \"State\");",
            &format!("#define State_TYPE_BYTE {} /* ", types[0].type_byte()),
            "struct __attribute__((packed)) Odd {\n\tuint8_t a;\n\tfloat b;\n};",
        ] {
            assert!(
                text.replace("type_", "type").contains(line),
                "{line}\n{text}"
            );
        }
        let text = rust(&types);
        assert!(text.contains(
            "#[repr(C)]\npub struct State {\n    pub position: [f64; 2],\n    pub r#type: u16,"
        ));
        assert!(text.contains(
            "#[repr(C, packed)]\npub struct Odd {\n    pub a: u8,\n    pub b: f32,\n}\n"
        ));
        let text = python(&types);
        assert!(
            text.contains("class State:\n    position: Annotated[Tuple[float, ...], \"2d\"]\n")
        );
        assert!(text.contains("    type_: Annotated[int, \"H\"]\n"));
    }

    #[test]
    fn a_macro_of_c_is_no_name_there() {
        let types = [declared(
            "NULL { unix: u8, linux: u8, errno: u8, EOF: u8, eof: u8 }",
        )];
        let fields = "{\n\tuint8_t unix_;\n\tuint8_t linux_;\n\tuint8_t errno_;\n\tuint8_t EOF_;\n\tuint8_t eof;\n};";
        assert!(
            c(&types).contains(&format!("struct NULL_ {fields}")),
            "{}",
            c(&types)
        );
        assert!(python(&types).contains("    unix: "));
    }

    #[test]
    fn a_word_of_a_language_is_no_name_there() {
        let types = [declared("class { Self: u8, not_eq: u8 }")];
        assert!(c(&types).contains("struct class_ {\n\tuint8_t Self_;\n\tuint8_t not_eq_;\n};"));
        assert!(c(&types).contains("sizeof(struct class_) == 2"));
        let in_rust = "pub struct r#class {\n    pub Self_: u8,\n    pub r#not_eq: u8,\n}";
        assert!(rust(&types).contains(in_rust), "{}", rust(&types));
        assert!(python(&types).contains("class class_:\n    Self_:"));
    }
}
