//! `#[derive(Typed)]`, as `tautline` hands it on: the implementation of `tautline::Typed` for a struct, and the checks
//! without which it would not be sound.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::{Data, DeriveInput, Error, Fields, parse_macro_input};

/// Implements `tautline::Typed`: messages that are values of this struct.
///
/// The struct has `#[repr(C)]`, and numbers and arrays of numbers as fields. If the compiler would put padding between
/// them or at the end, it is refused: order the fields by size, name the gap (`reserved: [u8; 4]`), or write
/// `#[repr(C, packed)]`. `docs/reference/types.md` uses one; the tests compile that.
///
/// ```text
/// #[derive(Clone, Copy, tautline::Typed)]
/// #[repr(C)]
/// struct JointState {
///     position: [f64; 7],
///     flags: u32,
///     reserved: u32,
/// }
/// ```
#[proc_macro_derive(Typed)]
pub fn typed(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input)
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}

fn expand(input: &DeriveInput) -> Result<Tokens, Error> {
    let refused = |what: &str| Err(Error::new_spanned(&input.ident, what));
    let Data::Struct(data) = &input.data else {
        return refused("a message is a struct");
    };
    let Fields::Named(fields) = &data.fields else {
        return refused("the fields of a message have names");
    };
    if !input.generics.params.is_empty() {
        return refused("a message has one layout: no parameters");
    }
    if !is_repr_c(input)? {
        return refused("a message needs #[repr(C)], or #[repr(C, packed)]");
    }
    let ident = &input.ident;
    let name = plain(ident);
    let (names, types): (Vec<_>, Vec<_>) = fields
        .named
        .iter()
        .map(|field| (field.ident.as_ref().map(plain), &field.ty))
        .unzip();
    Ok(quote! {
        // SAFETY: `repr(C)`, all fields in their order; that their bytes are all bytes is checked below.
        #[automatically_derived]
        unsafe impl ::tautline::Typed for #ident {
            const NAME: &'static str = #name;
            const FIELDS: &'static [::tautline::types::StaticField] = &[
                #(::tautline::types::StaticField::of::<#types>(#names)),*
            ];
        }
        const _: () = ::core::assert!(
            ::core::mem::size_of::<#ident>() == 0 #(+ ::core::mem::size_of::<#types>())*,
            "padding in a message: order the fields by size, name the gap, or write #[repr(C, packed)]"
        );
    })
}

/// The name without `r#`.
fn plain(ident: &syn::Ident) -> String {
    ident.to_string().trim_start_matches("r#").to_owned()
}

/// Whether the struct has `repr(C)`; an alignment besides would be padding, which is checked by the size.
fn is_repr_c(input: &DeriveInput) -> Result<bool, Error> {
    let mut found = false;
    for attribute in input.attrs.iter().filter(|one| one.path().is_ident("repr")) {
        attribute.parse_nested_meta(|meta| {
            found |= meta.path.is_ident("C");
            if meta.input.peek(syn::token::Paren) {
                let _number: syn::Expr = meta.input.parse()?;
            }
            Ok(())
        })?;
    }
    Ok(found)
}
