use std::future::Future;
use std::pin::Pin;
use tollgate::{Denied, rate_limit};

#[rate_limit("10/min", on_limit = wait)]
fn opaque() -> impl Future<Output = ()> {
    async {}
}

#[rate_limit("10/min", on_limit = wait)]
fn boxed<'a>(name: &'a str) -> Pin<Box<dyn Future<Output = usize> + Send + 'a>> {
    let length = name.len();
    Box::pin(async move { length })
}

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

#[rate_limit("10/min", on_limit = wait)]
fn by_alias() -> BoxFuture<'static, u8> {
    Box::pin(std::future::ready(1))
}

#[rate_limit("10/min", on_limit = wait)]
fn in_a_result() -> Result<BoxFuture<'static, u8>, Denied> {
    Ok(Box::pin(async move { 1 }))
}

trait Call {
    type Future: Future<Output = ()>;
    fn call(&self) -> Self::Future;
}

struct Service;

impl Call for Service {
    type Future = std::future::Ready<()>;

    #[rate_limit("10/min", on_limit = wait)]
    fn call(&self) -> Self::Future {
        std::future::ready(())
    }
}

fn main() {}
