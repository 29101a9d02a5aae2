//! The functions that programs call.

/// Makes functions that a program calls in place of the C library's of the same names.
macro_rules! hooks {
    ($($(#[$text:meta])* $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)? $body:block)*) => {
        $(
            $(#[$text])*
            ///
            /// # Safety
            /// As the C library's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) $(-> $result)? {
                // SAFETY: the caller's promise. A descriptor and an option are no pointers.
                unsafe { $body }
            }
        )*
    };
}

pub mod lifetime;
pub mod receiving;
pub mod sending;
pub mod sets;
pub mod sleeping;
