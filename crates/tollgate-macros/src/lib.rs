//! The attribute macro of tollgate. Use it as `tollgate::rate_limit`, where it is documented: the code it writes
//! goes by the library of the very same version.
//!
//! The text of a policy is read and checked here by the library's own modules. They are in `shared` as links,
//! for a library cannot depend on what depends on it, and a crate in between would be one more under the engine.
//! Packaging follows links, so a published crate holds the files themselves.

mod args;
mod expand;
mod function;
mod text;

use proc_macro::TokenStream;

macro_rules! shared {
    ($($path:literal $name:ident),*) => { $(
        #[path = $path]
        #[allow(dead_code, unused_imports, unexpected_cfgs, unreachable_pub, reason = "the library uses the rest")]
        mod $name;
    )* };
}

shared!(
    "shared/algorithm/mod.rs" algorithm,
    "shared/compile.rs" compile,
    "shared/error.rs" error,
    "shared/parse.rs" parse,
    "shared/policy.rs" policy
);

/// Limits how often a function may be called. Documented as `tollgate::rate_limit`.
#[proc_macro_attribute]
pub fn rate_limit(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let (arguments, item) = (arguments.into(), proc_macro2::TokenStream::from(item));
    expand::rate_limit(arguments, item.clone())
        .unwrap_or_else(|error| {
            // The function stays, so that whoever calls it is not told that there is none.
            let mut told = error.into_compile_error();
            told.extend(item);
            told
        })
        .into()
}
