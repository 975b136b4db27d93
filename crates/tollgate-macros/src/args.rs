//! What stands between the parentheses of the attribute.

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Expr, Ident, LitStr, Path, Result, Token, parse_quote};

const NAMES: &str = "key, cost, on_limit, max_wait, max_keys, when_full, clock, name, limiter or crate";

pub(crate) struct Args {
    pub(crate) source: Source,
    pub(crate) key: Option<Expr>,
    pub(crate) cost: Option<Expr>,
    pub(crate) on_limit: OnLimit,
    /// Where the library is.
    pub(crate) library: Path,
}

/// Which limiter is asked.
pub(crate) enum Source {
    /// One that the function has for itself.
    Own(Box<Own>),
    /// One that is somewhere already.
    Given(Expr),
}

pub(crate) struct Own {
    pub(crate) policy: LitStr,
    pub(crate) name: Option<LitStr>,
    pub(crate) max_keys: Option<Expr>,
    pub(crate) when_full: Option<Expr>,
    pub(crate) clock: Option<Expr>,
}

/// What a call does that may not pass.
pub(crate) enum OnLimit {
    Refuse(Answer),
    Wait { at: Span, max_wait: Option<Expr>, otherwise: Answer },
}

/// What a refused call returns.
pub(crate) enum Answer {
    /// The error of a result.
    Error,
    Value(Expr),
}

impl Parse for Args {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let policy: Option<LitStr> = if input.peek(LitStr) { Some(input.parse()?) } else { None };
        let mut rest = Named::default();
        let mut separated = policy.is_none();
        while !input.is_empty() {
            if !separated {
                input.parse::<Token![,]>()?;
                if input.is_empty() {
                    break;
                }
            }
            rest.parse_one(input)?;
            separated = false;
        }
        let Named { key, cost, on_limit, max_wait, max_keys, when_full, clock, name, limiter, library } =
            rest;

        let of_own = [named("max_keys", &max_keys), named("when_full", &when_full), named("clock", &clock)];
        let of_keys = &of_own[..2];
        let source = match (policy, limiter) {
            (Some(policy), None) => {
                if let (None, Some((at, what))) = (&key, of_keys.iter().flatten().next()) {
                    return Err(Error::new(
                        *at,
                        format!("`{what}` needs a `key`: without one there is a single budget"),
                    ));
                }
                let [max_keys, when_full, clock] = [max_keys, when_full, clock].map(value);
                Source::Own(Box::new(Own { policy, name: value(name), max_keys, when_full, clock }))
            }
            (None, Some((_, limiter))) => {
                let name = named("name", &name);
                if let Some((at, what)) = of_own.into_iter().flatten().chain(name).next() {
                    return Err(Error::new(at, format!("`{what}` is up to whoever builds the `limiter`")));
                }
                Source::Given(limiter)
            }
            (Some(_), Some((at, _))) => {
                return Err(Error::new(at, "give a policy or a `limiter`, which has its own, but not both"));
            }
            (None, None) => {
                return Err(Error::new(
                    Span::call_site(),
                    "a policy such as \"10/min\" is missing, or `limiter = EXPR`",
                ));
            }
        };
        let on_limit = match (value(on_limit), max_wait) {
            (Some(OnLimit::Wait { at, otherwise, .. }), max_wait) => {
                OnLimit::Wait { at, max_wait: value(max_wait), otherwise }
            }
            (_, Some((at, _))) => {
                return Err(Error::new(at, "`max_wait` belongs to `on_limit = wait`"));
            }
            (on_limit, None) => on_limit.unwrap_or(OnLimit::Refuse(Answer::Error)),
        };
        let library = value(library).unwrap_or_else(|| parse_quote!(::tollgate));
        Ok(Self { source, key: value(key), cost: value(cost), on_limit, library })
    }
}

/// An argument's value, and where its name stands.
type Argument<T> = Option<(Span, T)>;

fn value<T>(argument: Argument<T>) -> Option<T> {
    argument.map(|(_, value)| value)
}

fn named<T>(name: &'static str, argument: &Argument<T>) -> Option<(Span, &'static str)> {
    argument.as_ref().map(|(at, _)| (*at, name))
}

#[derive(Default)]
struct Named {
    key: Argument<Expr>,
    cost: Argument<Expr>,
    on_limit: Argument<OnLimit>,
    max_wait: Argument<Expr>,
    max_keys: Argument<Expr>,
    when_full: Argument<Expr>,
    clock: Argument<Expr>,
    name: Argument<LitStr>,
    limiter: Argument<Expr>,
    library: Argument<Path>,
}

impl Named {
    fn parse_one(&mut self, input: ParseStream<'_>) -> Result<()> {
        // Any word, for `crate` is one of them.
        let name = input
            .call(Ident::parse_any)
            .map_err(|error| Error::new(error.span(), format!("expected an argument: {NAMES}")))?;
        match name.to_string().as_str() {
            "key" => once(&mut self.key, &name, input),
            "cost" => once(&mut self.cost, &name, input),
            "on_limit" => once(&mut self.on_limit, &name, input),
            "max_wait" => once(&mut self.max_wait, &name, input),
            "max_keys" => once(&mut self.max_keys, &name, input),
            "when_full" => once(&mut self.when_full, &name, input),
            "clock" => once(&mut self.clock, &name, input),
            "name" => once(&mut self.name, &name, input),
            "limiter" => once(&mut self.limiter, &name, input),
            "crate" => once(&mut self.library, &name, input),
            other => Err(Error::new(name.span(), format!("unknown argument `{other}`: use {NAMES}"))),
        }
    }
}

fn once<T: Parse>(place: &mut Argument<T>, name: &Ident, input: ParseStream<'_>) -> Result<()> {
    if place.is_some() {
        return Err(Error::new(name.span(), format!("`{name}` is given twice")));
    }
    if !input.peek(Token![=]) {
        return Err(Error::new(name.span(), format!("`{name}` needs a value: `{name} = …`")));
    }
    input.parse::<Token![=]>()?;
    *place = Some((name.span(), input.parse()?));
    Ok(())
}

impl Parse for OnLimit {
    /// `error`, `wait`, `wait else EXPR` or any other expression.
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let ahead = input.fork();
        let word: Option<Ident> = ahead.parse().ok();
        let ends = ahead.is_empty() || ahead.peek(Token![,]);
        match word {
            Some(word) if word == "wait" && (ends || ahead.peek(Token![else])) => {
                input.parse::<Ident>()?;
                let otherwise = match input.parse::<Option<Token![else]>>()? {
                    Some(_) => Answer::Value(input.parse()?),
                    None => Answer::Error,
                };
                Ok(Self::Wait { at: word.span(), max_wait: None, otherwise })
            }
            Some(word) if word == "error" && ends => {
                input.parse::<Ident>()?;
                Ok(Self::Refuse(Answer::Error))
            }
            _ => Ok(Self::Refuse(Answer::Value(input.parse()?))),
        }
    }
}
