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

pub mod epoll;
pub mod lifetime;
pub mod receiving;
pub mod sending;
pub mod sets;
pub mod sleeping;

#[allow(unsafe_code)] // A function of the C library.
unsafe extern "C-unwind" {
    /// Ends the thread if another one has cancelled it. The C library's calls do that by themselves; system calls past
    /// it do not.
    fn pthread_testcancel();
}
