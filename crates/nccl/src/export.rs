//! The names that the library exports: each function has a strong one, `pncclAllReduce`, and a weak one, `ncclAllReduce`, which a profiler may
//! define itself and pass on.

/// Defines a function and exports both of its names. An error becomes its result code; a panic does not leave the function, which
/// then returns `ncclInternalError`, or what follows `or_if_it_panics`.
macro_rules! nccl {
    ($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        nccl!(@names $(#[$attribute])* fn $name($($argument: $type),*) -> $crate::abi::ResultCode {
            $crate::failure::code_of(stringify!($name), move || $body)
        });
    };
    ($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty, or_if_it_panics $otherwise:expr; $body:block) => {
        nccl!(@names $(#[$attribute])* fn $name($($argument: $type),*) -> $result {
            $crate::failure::value_of(stringify!($name), $otherwise, move || $body)
        });
    };
    (@names $(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block) => {
        $(#[$attribute])*
        #[allow(non_snake_case, reason = "NCCL's names")]
        #[unsafe(export_name = concat!("p", stringify!($name)))]
        pub(crate) extern "C" fn $name($($argument: $type),*) -> $result $body

        #[cfg(target_arch = "x86_64")]
        std::arch::global_asm!(
            concat!(".weak ", stringify!($name)),
            concat!(".type ", stringify!($name), ",@function"),
            concat!(stringify!($name), ":"),
            concat!("jmp p", stringify!($name), "@PLT"),
            concat!(".size ", stringify!($name), ", .-", stringify!($name)),
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::global_asm!(
            concat!(".weak ", stringify!($name)),
            concat!(".type ", stringify!($name), ",%function"),
            concat!(stringify!($name), ":"),
            concat!("b p", stringify!($name)),
            concat!(".size ", stringify!($name), ", .-", stringify!($name)),
        );
    };
}
