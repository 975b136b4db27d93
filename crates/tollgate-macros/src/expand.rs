//! The statements that a limited function begins with.
//!
//! The signature stays what it is and the body goes on behind them, in the same block: so `self`, `?`, `.await`,
//! lifetimes and `impl Trait` mean what they meant. Names of our own cannot meet those of the function: variables
//! are hygienic, and the static is in a block of its own, with what it is built from.

use crate::args::{Answer, Args, OnLimit, Own, Source};
use crate::function::Function;
use crate::policy::Policy;
use crate::text;
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, ExprTuple, Lit, Path, Result, parse2};

pub(crate) fn rate_limit(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let function: Function = parse2(item)?;
    let args: Args = parse2(arguments)?;
    let first = match &args.source {
        Source::Own(own) => {
            let policy = text::policy(&own.policy)?;
            let policy = text::named(policy, own.name.as_ref(), &function.signature.ident)?;
            check_cost(&args, &policy)?;
            let limiter = own_limiter(own, &policy, &args, &function);
            ask(&args, &function, &limiter, text::has_places(&policy))?
        }
        Source::Given(limiter) => {
            ask(&args, &function, &quote_spanned!(limiter.span()=> &(#limiter)), false)?
        }
    };
    function.beginning_with(&first)
}

/// A cost that is written down can be seen never to pass.
fn check_cost(args: &Args, policy: &Policy) -> Result<()> {
    let most = text::cost_max(policy);
    match (&args.cost, literal_cost(args)) {
        (Some(at), Some(cost)) if cost > most => {
            Err(Error::new(at.span(), format!("a cost of {cost} never passes: at most {most} do at once")))
        }
        _ => Ok(()),
    }
}

/// The cost, where it is known by now.
fn literal_cost(args: &Args) -> Option<u64> {
    match &args.cost {
        None => Some(1),
        Some(Expr::Lit(ExprLit { lit: Lit::Int(number), .. })) => number.base10_parse().ok(),
        Some(_) => None,
    }
}

/// The limiter of this function, built when it is first called.
fn own_limiter(own: &Own, policy: &Policy, args: &Args, function: &Function) -> TokenStream {
    let library = &args.library;
    let Own { max_keys, when_full, clock, .. } = own;
    let policy = policy.to_string();
    let name = function.signature.ident.to_string();
    let (room, check) = match (&args.key, max_keys) {
        (None, _) => (quote!(.max_keys(1)), quote!()),
        (_, None) => (quote!(), quote!()),
        (_, Some(max_keys)) => {
            let at = here(max_keys.span());
            let check = quote_spanned! {at=>
                const __TOLLGATE_MAX_KEYS: usize = #max_keys;
                const _: () = assert!(__TOLLGATE_MAX_KEYS > 0, "`max_keys` of 0 leaves no room for any key");
            };
            (quote_spanned!(at=> .max_keys(__TOLLGATE_MAX_KEYS)), check)
        }
    };
    let when_full = when_full.iter();
    let clock = clock.iter();
    quote_spanned! {here(Span::call_site())=> {
        #check
        static __TOLLGATE_LIMITER: ::std::sync::LazyLock<#library::Limiter> = ::std::sync::LazyLock::new(|| {
            #library::__macros::built(
                #name,
                #library::Limiter::builder().policy(#policy) #room #(.when_full(#when_full))* #(.clock(#clock))*.build(),
            )
        });
        &__TOLLGATE_LIMITER
    }}
}

/// Asks the limiter, and returns unless the call may go on.
fn ask(args: &Args, function: &Function, limiter: &TokenStream, has_places: bool) -> Result<TokenStream> {
    let library = &args.library;
    let at = here(Span::call_site());
    let key = args.key.as_ref().map_or_else(|| quote!(&()), borrowed);
    let cost = args.cost.as_ref().map_or_else(|| quote!(1), |cost| quote!(#cost));
    let (answer, asking) = match &args.on_limit {
        OnLimit::Refuse(answer) if has_places => {
            (answer, quote_spanned!(at=> limiter.try_start_n(#key, #cost)))
        }
        OnLimit::Refuse(answer) => {
            (answer, quote_spanned!(at=> limiter.try_acquire_n(#key, #cost).into_result()))
        }
        OnLimit::Wait { at: word, .. } if has_places => {
            return Err(Error::new(*word, "there is no waiting for a limit of so many at once"));
        }
        OnLimit::Wait { at: word, .. } if function.is_async() && cfg!(not(feature = "tokio")) => {
            let message = "waiting in an async function needs the feature `tokio` of tollgate";
            return Err(Error::new(*word, message));
        }
        OnLimit::Wait { at: word, .. } if !function.is_async() && function.returns_future() => {
            let message = "this would block whoever calls for a future: write an `async fn`, or a body that is \
                           `Box::pin(async move { .. })` and nothing else";
            return Err(Error::new(*word, message));
        }
        OnLimit::Wait { max_wait, otherwise, .. } => {
            let max_wait = max_wait.iter();
            let wait = quote_spanned!(at=> #library::Wait::new().cost(#cost) #(.max_wait(#max_wait))*);
            let asking = if function.is_async() {
                // In two statements: a key that is made for the call is gone before anybody waits.
                quote_spanned! {at=> {
                    let waiting = limiter.acquire_with(#key, #wait);
                    waiting.await.into_result()
                }}
            } else {
                quote_spanned!(at=> limiter.acquire_blocking_with(#key, #wait).into_result())
            };
            (otherwise, asking)
        }
    };
    let asked = quote_spanned! {at=> {
        let limiter: &#library::Limiter = #limiter;
        let asked = #asking;
        asked
    }};
    let refusal = refusal(answer, library, function);
    Ok(if has_places {
        // The permit ends with the function.
        quote_spanned! {at=>
            let _permit = match #asked {
                ::core::result::Result::Ok(permit) => permit,
                ::core::result::Result::Err(denied) => #refusal,
            };
        }
    } else if is_always_served(args) {
        quote_spanned!(at=> let _ = #asked;)
    } else {
        quote_spanned!(at=> if let ::core::result::Result::Err(denied) = #asked { #refusal })
    })
}

/// Whether there is nothing to return: whoever waits at the function's own limiter, for as long as it takes and for
/// what fits, is served.
fn is_always_served(args: &Args) -> bool {
    matches!(&args.on_limit, OnLimit::Wait { max_wait: None, otherwise: Answer::Error, .. })
        && matches!(&args.source, Source::Own(own) if own.when_full.is_none())
        && literal_cost(args).is_some()
}

/// Returns what a refused call returns; `denied` is the refusal.
fn refusal(answer: &Answer, library: &Path, function: &Function) -> TokenStream {
    let at = here(Span::call_site());
    match answer {
        Answer::Error => {
            // All of it at the return type, for that is where the trouble is if this does not compile.
            let returned_at = function.returned_at();
            let library = library.to_token_stream().into_iter().map(|mut token| {
                token.set_span(returned_at.resolved_at(token.span()));
                token
            });
            let returned_at = here(returned_at);
            let error = quote_spanned!(returned_at=> #(#library)*::__macros::FromDenied::from_denied(denied));
            quote_spanned!(at=> return #error)
        }
        Answer::Value(closure @ Expr::Closure(_)) => {
            quote_spanned!(at=> return #library::__macros::answer(denied, #closure))
        }
        // The lints are for a `panic!` and for `()`, which are values too.
        Answer::Value(value) => quote_spanned! {at=> {
            let _ = denied;
            #[allow(unreachable_code, clippy::diverging_sub_expression, clippy::unused_unit)]
            return #value;
        }},
    }
}

/// A key is looked at and not taken, nor are the parts of a tuple: the body may want them.
fn borrowed(key: &Expr) -> TokenStream {
    match key {
        Expr::Tuple(ExprTuple { elems, .. }) => {
            let parts = elems.iter().map(borrowed);
            quote_spanned!(key.span()=> &(#(#parts,)*))
        }
        _ => quote_spanned!(key.span()=> &(#key)),
    }
}

/// A place in the user's source for names of our own.
fn here(place: Span) -> Span {
    place.resolved_at(Span::mixed_site())
}
