//! The function that the attribute stands on. Its body is passed on as it is, whatever is in it.
//!
//! A function that does no more than to return `Box::pin(async move { … })` is an async one by hand, or by another
//! attribute that went first, such as `async_trait`. What it does is in that block.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, TokenStreamExt, quote};
use syn::parse::{Parse, ParseStream, Parser};
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, GenericArgument, Path, PathArguments, PathSegment, Result, ReturnType, Signature,
    Token, Type, TypeGroup, TypeImplTrait, TypeParamBound, TypeParen, TypeReference, TypeTraitObject,
    Visibility, parse2,
};

pub(crate) struct Function {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    pub(crate) signature: Signature,
    body: Group,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        let signature: Signature = input
            .parse()
            .map_err(|error| Error::new(error.span(), "`#[rate_limit]` goes on a function or a method"))?;
        if input.peek(Token![;]) {
            return Err(input.error("`#[rate_limit]` needs a body to stand in front of"));
        }
        if let Some(constant) = &signature.constness {
            return Err(Error::new(constant.span, "a `const fn` cannot be limited: it has no time to go by"));
        }
        let body: Group = input.parse()?;
        Ok(Self { attributes, visibility, signature, body })
    }
}

impl Function {
    pub(crate) fn is_async(&self) -> bool {
        self.signature.asyncness.is_some() || self.boxed().is_some()
    }

    /// Whether what it returns is a future, as far as that can be read from the type: then it is called by a task,
    /// which it must not block.
    pub(crate) fn returns_future(&self) -> bool {
        match &self.signature.output {
            ReturnType::Type(_, returned) => is_future(returned),
            ReturnType::Default => false,
        }
    }

    /// Where the return type stands, or the name of a function that has none.
    pub(crate) fn returned_at(&self) -> Span {
        match &self.signature.output {
            ReturnType::Type(_, returned) => returned.span(),
            ReturnType::Default => self.signature.ident.span(),
        }
    }

    /// The same function, which does `first` before anything else.
    pub(crate) fn beginning_with(&self, first: &TokenStream) -> Result<TokenStream> {
        let body = match self.boxed() {
            Some((before, block)) => {
                let block = TokenTree::Group(beginning_with(&block, first)?);
                let future = Group::new(Delimiter::Parenthesis, quote!(async move #block));
                with_content(&self.body, quote!(#before #future))
            }
            None => beginning_with(&self.body, first)?,
        };
        let mut all = TokenStream::new();
        all.append_all(&self.attributes);
        // Items that the body begins with are behind statements now.
        all.extend(quote!(#[allow(clippy::items_after_statements)]));
        self.visibility.to_tokens(&mut all);
        self.signature.to_tokens(&mut all);
        body.to_tokens(&mut all);
        Ok(all)
    }

    /// `Box::pin` and the block of a body that is `Box::pin(async move { … })`.
    fn boxed(&self) -> Option<(TokenStream, Group)> {
        if self.signature.asyncness.is_some() {
            return None;
        }
        let tokens: Vec<TokenTree> = self.body.stream().into_iter().collect();
        let (TokenTree::Group(future), before) = tokens.split_last()? else { return None };
        let before: TokenStream = before.iter().cloned().collect();
        let path: Path = parse2(before.clone()).ok()?;
        let mut names = path.segments.iter().rev().map(|segment| segment.ident.to_string());
        let is_pin = names.next()? == "pin" && names.next()? == "Box";
        let future: Vec<TokenTree> = future.stream().into_iter().collect();
        match &future[..] {
            [TokenTree::Ident(first), TokenTree::Ident(second), TokenTree::Group(block)]
                if is_pin && first == "async" && second == "move" =>
            {
                Some((before, block.clone()))
            }
            _ => None,
        }
    }
}

/// Whether a type is a future by its name, or wraps one: `impl Future`, `Pin<Box<dyn Future>>`, `BoxFuture`,
/// `Self::Future`.
fn is_future(of: &Type) -> bool {
    match of {
        Type::ImplTrait(TypeImplTrait { bounds, .. }) | Type::TraitObject(TypeTraitObject { bounds, .. }) => {
            bounds.iter().any(|bound| match bound {
                TypeParamBound::Trait(bound) => bound.path.segments.last().is_some_and(is_named_future),
                _ => false,
            })
        }
        Type::Path(path) => path.path.segments.last().is_some_and(|last| {
            let wraps = ["Pin", "Box", "Option", "Result"].iter().any(|known| last.ident == known);
            is_named_future(last) || wraps && arguments(last).any(is_future)
        }),
        Type::Paren(TypeParen { elem, .. })
        | Type::Group(TypeGroup { elem, .. })
        | Type::Reference(TypeReference { elem, .. }) => is_future(elem),
        _ => false,
    }
}

fn is_named_future(segment: &PathSegment) -> bool {
    segment.ident.to_string().ends_with("Future")
}

fn arguments(segment: &PathSegment) -> impl Iterator<Item = &Type> {
    let given = match &segment.arguments {
        PathArguments::AngleBracketed(given) => Some(&given.args),
        _ => None,
    };
    given.into_iter().flatten().filter_map(|argument| match argument {
        GenericArgument::Type(given) => Some(given),
        _ => None,
    })
}

/// A block that does `first` before anything else.
fn beginning_with(block: &Group, first: &TokenStream) -> Result<Group> {
    let split = |input: ParseStream<'_>| Ok((input.call(Attribute::parse_inner)?, input.parse()?));
    let (inner, statements): (Vec<Attribute>, TokenStream) = Parser::parse2(split, block.stream())?;
    Ok(with_content(block, quote!(#(#inner)* #first #statements)))
}

/// The same braces, around something else.
fn with_content(block: &Group, content: TokenStream) -> Group {
    let mut body = Group::new(Delimiter::Brace, content);
    body.set_span(block.span());
    body
}
