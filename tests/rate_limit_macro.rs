//! The attribute on functions of every shape: what it asks, what it returns, and that it changes nothing else.
//!
//! What it refuses to compile is in `crates/tollgate-macros/tests`.

#![cfg(feature = "macros")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::RefCell;
use std::fmt::Display;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::{Clock, Denied, Limiter, ManualHand, WhenFull, rate_limit};

const SECOND: Duration = Duration::from_secs(1);

/// A future that never has to wait, to its end.
fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

type Result<T = (), E = Denied> = std::result::Result<T, E>;

// ---------------------------------------------------------------- budgets

#[test]
fn without_a_key_there_is_one_budget() {
    #[rate_limit("2/h")]
    fn limited(_who: &str) -> Result {
        Ok(())
    }
    limited("alice").unwrap();
    limited("bob").unwrap();
    let denied = limited("carol").unwrap_err();
    assert_eq!(denied.decision().limit(), 2);
    assert!(denied.to_string().starts_with("rate limit reached by rule `limited`: retry after"), "{denied}");
}

#[test]
fn each_key_has_its_own() {
    #[rate_limit("1/h", key = who)]
    fn limited(who: &str) -> Result {
        assert!(!who.is_empty());
        Ok(())
    }
    limited("alice").unwrap();
    limited("bob").unwrap();
    assert!(limited("alice").is_err() && limited("bob").is_err());
}

#[test]
fn a_key_and_the_parts_of_a_tuple_are_looked_at_and_not_taken() {
    struct NotCopy(String);

    #[rate_limit("1/h", key = who)]
    fn one(who: String) -> Result<String> {
        Ok(who)
    }
    #[rate_limit("1/h", key = (what.0, (who, 7), &who[..1]))]
    fn several(who: String, what: NotCopy) -> Result<(String, String)> {
        Ok((who, what.0))
    }
    assert_eq!(one("alice".into()).unwrap(), "alice");
    let call = |who: &str, what: &str| several(who.into(), NotCopy(what.into()));
    assert_eq!(call("alice", "upload").unwrap(), ("alice".into(), "upload".into()));
    assert!(call("alice", "upload").is_err());
    assert!(call("alice", "download").is_ok());
    assert!(call("bob", "upload").is_ok());
}

#[test]
fn a_key_may_be_any_expression_and_leave_early() {
    #[rate_limit("1/h", key = text.parse::<u32>()?)]
    fn limited(text: &str) -> Result<u32, Box<dyn std::error::Error>> {
        Ok(text.parse::<u32>()? * 2)
    }
    assert_eq!(limited("21").unwrap(), 42);
    assert!(limited(" 21").unwrap_err().is::<std::num::ParseIntError>());
    assert!(limited("021").unwrap_err().is::<Denied>());
}

#[test]
fn costs_are_spent() {
    #[rate_limit("10/h", cost = items.len() as u64)]
    fn batch(items: &[u8]) -> Result {
        Ok(())
    }
    #[rate_limit("10/h", key = who, cost = if big { 8 } else { 2 })]
    fn either(who: u8, big: bool) -> Result {
        Ok(())
    }
    batch(&[0; 7]).unwrap();
    assert!(batch(&[0; 4]).is_err());
    batch(&[0; 3]).unwrap();
    batch(&[]).unwrap();
    assert_eq!(batch(&[0; 11]).unwrap_err().retry_after(), None);

    either(1, true).unwrap();
    either(1, false).unwrap();
    assert!(either(1, false).is_err());
    either(2, true).unwrap();
    assert!(either(2, true).is_err());
}

#[test]
fn a_clock_of_ones_own_moves_it() {
    static TIME: LazyLock<(Clock, ManualHand)> = LazyLock::new(Clock::manual);

    #[rate_limit("1 per 5 s", key = request, clock = TIME.0.clone())]
    fn submit(request: &str) -> Result {
        Ok(())
    }
    submit("order 7").unwrap();
    submit("order 8").unwrap();
    assert_eq!(submit("order 7").unwrap_err().retry_after(), Some(5 * SECOND));
    TIME.1.advance(5 * SECOND - Duration::from_nanos(1));
    assert!(submit("order 7").is_err());
    TIME.1.advance(Duration::from_nanos(1));
    submit("order 7").unwrap();
}

#[test]
fn room_is_as_asked_for() {
    const ROOM: usize = 2;

    #[rate_limit("1/h", key = who, max_keys = ROOM * 2, when_full = WhenFull::Deny)]
    fn limited(who: u32) -> Result {
        Ok(())
    }
    let refused = (0..1_000).filter_map(|who| limited(who).err()).collect::<Vec<_>>();
    assert!((900..=996).contains(&refused.len()), "{}", refused.len());
    assert_eq!(refused[0].decision().cause(), tollgate::Cause::NoRoom);
}

#[test]
fn rules_go_by_their_name_or_the_functions() {
    #[rate_limit("1/h")]
    fn plain() -> Result {
        Ok(())
    }
    #[rate_limit("1/h", name = "mails")]
    fn named() -> Result {
        Ok(())
    }
    #[rate_limit("1/h named in-text")]
    fn in_text() -> Result {
        Ok(())
    }
    #[rate_limit("1/h; 1/d")]
    fn several() -> Result {
        Ok(())
    }
    #[rate_limit("1/h")]
    fn größe() -> Result {
        Ok(())
    }
    #[rate_limit("1/h")]
    fn r#yield() -> Result {
        Ok(())
    }
    let second = |call: fn() -> Result| call().and_then(|()| call()).unwrap_err().decision().rule_name();
    assert_eq!(second(plain), Some("plain"));
    assert_eq!(second(named), Some("mails"));
    assert_eq!(second(in_text), Some("in-text"));
    assert_eq!(second(several), None);
    assert_eq!(second(größe), None);
    assert_eq!(second(r#yield), Some("yield"));
}

#[test]
fn every_kind_of_policy() {
    #[rate_limit("log 2/h; shadow 1/h named watched", key = who)]
    fn limited(who: u8) -> Result {
        Ok(())
    }
    limited(1).unwrap();
    limited(1).unwrap();
    assert!(limited(1).is_err());
    limited(2).unwrap();
}

#[test]
fn a_place_at_work_is_held_until_the_function_ends() {
    #[rate_limit("2 at once", key = who)]
    fn nested(who: u8, depth: u32) -> Result<u32> {
        if depth == 0 { Ok(0) } else { nested(who, depth - 1).map(|inner| inner + 1) }
    }
    assert_eq!(nested(1, 1).unwrap(), 1);
    assert!(nested(1, 2).is_err());
    assert_eq!(nested(1, 1).unwrap(), 1);

    #[rate_limit("1 at once")]
    async fn task(inner: impl Future<Output = ()>) -> Result {
        inner.await;
        Ok(())
    }
    let mut context = Context::from_waker(Waker::noop());
    let mut first = Box::pin(task(std::future::pending()));
    assert!(first.as_mut().poll(&mut context).is_pending());
    assert!(now(task(async {})).is_err());
    drop(first);
    now(task(async {})).unwrap();
}

// ---------------------------------------------------------------- what a refused call does

#[test]
fn errors_are_made_of_denied() {
    #[derive(Debug)]
    enum AppError {
        TooMany(Option<Duration>),
        Other,
    }
    impl From<Denied> for AppError {
        fn from(denied: Denied) -> Self {
            Self::TooMany(denied.retry_after())
        }
    }
    #[rate_limit("1/h", on_limit = error)]
    fn limited(good: bool) -> Result<u8, AppError> {
        if good { Ok(1) } else { Err(AppError::Other) }
    }
    assert!(matches!(limited(false), Err(AppError::Other)));
    assert!(matches!(limited(true), Err(AppError::TooMany(Some(_)))));
}

#[test]
fn any_value_may_be_returned_instead() {
    #[rate_limit("1/h", on_limit = -1)]
    fn number() -> i32 {
        1
    }
    #[rate_limit("1/h", on_limit = ())]
    fn nothing(runs: &mut u32) {
        *runs += 1;
    }
    #[rate_limit("1/h", on_limit = |denied| format!("wait {}", denied.retry_after().unwrap().as_secs_f64().ceil()))]
    fn told() -> String {
        "done".into()
    }
    #[rate_limit("1/h", on_limit = fallback)]
    fn given(fallback: String) -> String {
        format!("not {fallback}")
    }
    #[rate_limit("1/h", on_limit = panic!("too many"))]
    fn loud() {}

    assert_eq!((number(), number()), (1, -1));
    let mut runs = 0;
    nothing(&mut runs);
    nothing(&mut runs);
    assert_eq!(runs, 1);
    assert_eq!((told(), told()), ("done".into(), "wait 3600".into()));
    assert_eq!((given("this".into()), given("this".into())), ("not this".into(), "this".into()));
    loud();
    assert!(std::panic::catch_unwind(loud).is_err());
}

#[test]
fn waiting_blocks_the_thread() {
    #[rate_limit("1000/s burst 1", on_limit = wait)]
    fn plain() -> u8 {
        1
    }
    #[rate_limit("1/h burst 2", key = who, cost = cost, on_limit = wait, max_wait = SECOND)]
    fn impatient(who: u8, cost: u64) -> Result {
        Ok(())
    }
    #[rate_limit("1/h", on_limit = wait else |denied| denied.retry_after().is_some(), max_wait = Duration::ZERO)]
    fn otherwise() -> bool {
        false
    }
    let start = std::time::Instant::now();
    assert_eq!((0..4).map(|_| plain()).sum::<u8>(), 4);
    assert!(start.elapsed() >= Duration::from_millis(3));

    impatient(1, 2).unwrap();
    assert!(impatient(1, 1).unwrap_err().retry_after().is_some());
    assert!(impatient(2, 3).unwrap_err().retry_after().is_none());
    assert_eq!((otherwise(), otherwise()), (false, true));
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn waiting_in_a_task_takes_no_thread() {
    static TIME: LazyLock<(Clock, ManualHand)> = LazyLock::new(Clock::manual);

    #[rate_limit("1/s burst 1", key = who, clock = TIME.0.clone(), on_limit = wait)]
    async fn limited(who: String) -> String {
        who
    }
    #[rate_limit("1/h", on_limit = wait, max_wait = SECOND)]
    async fn impatient() -> Result {
        Ok(())
    }
    assert_eq!(limited("alice".into()).await, "alice");
    // Sent to another task: nothing that is held while it waits keeps it from that.
    let waiting = tokio::spawn(limited("alice".into()));
    assert_eq!(limited("bob".into()).await, "bob");
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    TIME.1.advance(SECOND);
    assert_eq!(waiting.await.unwrap(), "alice");

    impatient().await.unwrap();
    assert!(impatient().await.is_err());
}

// ---------------------------------------------------------------- functions of every shape

#[test]
fn async_functions_are_asked_when_they_run() {
    #[rate_limit("1/h", key = id(who).await)]
    async fn limited(who: &str) -> Result<usize> {
        Ok(id(who).await.len())
    }
    async fn id(who: &str) -> &str {
        who
    }
    let never_run = limited("alice");
    drop(never_run);
    assert_eq!(now(limited("alice")).unwrap(), 5);
    assert!(now(limited("alice")).is_err());

    fn is_send(_: &impl Send) {}
    is_send(&limited("bob"));
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

#[test]
fn async_functions_by_hand_are_async_functions() {
    struct Door(u8);

    impl Door {
        #[rate_limit("1/h", key = (self.0, who))]
        fn open<'a>(&'a self, who: &'a str) -> Boxed<'a, Result<usize>> {
            Box::pin(async move {
                let who = who;
                Ok(who.len())
            })
        }
    }
    #[rate_limit("1/h")]
    fn not_by_hand() -> Result<Boxed<'static, u8>> {
        Ok(Box::pin(async move { 1 }))
    }
    let door = Door(1);
    drop(door.open("alice"));
    assert_eq!(now(door.open("alice")).unwrap(), 5);
    assert!(now(door.open("alice")).is_err());
    assert_eq!(now(not_by_hand().unwrap()), 1);
    assert!(not_by_hand().is_err());
}

struct Service {
    tenant: &'static str,
    limiter: Arc<Limiter>,
    served: u32,
}

impl Service {
    fn new(tenant: &'static str) -> Self {
        Self { tenant, limiter: Arc::new(Limiter::new("1/h").unwrap()), served: 0 }
    }

    #[rate_limit("1/h", key = self.tenant)]
    fn by_tenant(&self) -> Result<&str> {
        Ok(self.tenant)
    }

    /// Borrowed only while it is asked, so that the body may change it.
    #[rate_limit(limiter = self.limiter, key = what)]
    fn by_its_own(&mut self, what: &str) -> Result<u32> {
        self.served += 1;
        Ok(self.served)
    }

    #[rate_limit("1/h", on_limit = self)]
    fn taken(self) -> Self {
        Self { served: 100, ..self }
    }

    #[rate_limit(limiter = self.limiter, key = "async")]
    async fn later(&mut self) -> Result<u32> {
        self.served += 1;
        now(async {});
        Ok(self.served)
    }
}

#[test]
fn methods() {
    let (mut one, mut other) = (Service::new("one"), Service::new("other"));
    assert_eq!(one.by_tenant().unwrap(), "one");
    assert_eq!(other.by_tenant().unwrap(), "other");
    assert!(one.by_tenant().is_err());

    assert_eq!(one.by_its_own("a").unwrap(), 1);
    assert_eq!(one.by_its_own("b").unwrap(), 2);
    assert!(one.by_its_own("a").is_err());
    assert_eq!(other.by_its_own("a").unwrap(), 1);
    assert!(one.limiter.peek("a").is_denied());

    assert_eq!(now(one.later()).unwrap(), 3);
    assert!(now(one.later()).is_err());
    assert_eq!((one.taken().served, other.taken().served), (100, 1));
}

trait Greet {
    #[rate_limit("1/h")]
    fn greet(&self) -> Result<String> {
        Ok("hello".into())
    }
}

impl Greet for u8 {}

impl Greet for u16 {
    #[rate_limit("1/h", key = *self)]
    fn greet(&self) -> Result<String> {
        Ok(format!("hello {self}"))
    }
}

#[test]
fn methods_of_traits() {
    // The default method is one function, whoever has it.
    assert_eq!(1_u8.greet().unwrap(), "hello");
    assert!(2_u8.greet().is_err());
    assert_eq!(1_u16.greet().unwrap(), "hello 1");
    assert_eq!(2_u16.greet().unwrap(), "hello 2");
    assert!(2_u16.greet().is_err());
}

#[test]
fn generic_functions_have_one_limiter() {
    #[rate_limit("2/h")]
    fn generic<'a, T: Display + ?Sized, const N: usize>(item: &'a T, _: &str) -> Result<(&'a T, [u8; N])>
    where
        [u8; N]: Sized,
    {
        Ok((item, [0; N]))
    }
    assert_eq!(generic::<str, 1>("a", "").unwrap().0, "a");
    assert_eq!(generic::<u32, 2>(&7, "").unwrap().1.len(), 2);
    assert!(generic::<u64, 3>(&7, "").is_err());
}

#[test]
fn impl_trait_and_patterns() {
    #[rate_limit("1/h", key = (first, tag))]
    fn limited(
        (first, _): (u8, u8),
        [.., last]: [u8; 3],
        tag: impl AsRef<str> + std::hash::Hash,
    ) -> Result<impl Iterator<Item = usize>> {
        Ok((0..usize::from(last)).chain([tag.as_ref().len()]))
    }
    #[rate_limit("1/h", on_limit = 0..0)]
    fn opaque() -> impl Iterator<Item = u8> {
        0..1
    }
    assert_eq!(limited((1, 2), [3, 4, 5], "tag").unwrap().count(), 6);
    assert!(limited((1, 3), [4, 5, 6], "tag").is_err());
    assert_eq!((opaque().count(), opaque().count()), (1, 0));
}

/// Documented.
#[rate_limit("1/h", on_limit = 0)]
#[inline(never)]
#[allow(unsafe_code, reason = "an unsafe function stays one")]
pub(crate) unsafe extern "C-unwind" fn special(pointer: *const u8) -> u8 {
    // SAFETY: the caller gives a pointer to something that lives.
    unsafe { *pointer }
}

#[rate_limit("1/h", on_limit = 0)]
fn with_inner_attributes() -> u8 {
    #![allow(non_snake_case, reason = "of a name inside")]
    let Three = 3;
    Three + 4
}

#[test]
fn what_is_written_on_a_function_stays() {
    let call: unsafe extern "C-unwind" fn(*const u8) -> u8 = special;
    #[allow(unsafe_code, reason = "as above")]
    // SAFETY: the number lives until the call is over.
    let calls = unsafe { (call(&7), call(&8)) };
    assert_eq!(calls, (7, 0));
    assert_eq!((with_inner_attributes(), with_inner_attributes()), (7, 0));
}

#[test]
fn names_do_not_meet() {
    static LIMITER: u8 = 1;

    #[rate_limit("1/h", key = (limiter, decision, denied, permit, waiting), cost = cost)]
    #[allow(clippy::too_many_arguments, reason = "all the names")]
    fn limited(limiter: u8, decision: u8, denied: u8, permit: u8, waiting: u8, cost: u64) -> Result<u64> {
        use std::result::Result::Ok;
        #[allow(non_upper_case_globals, reason = "a name that is in use")]
        static __TOLLGATE_LIMITER: u64 = 1;
        Ok(u64::from(limiter + decision + denied + permit + waiting + LIMITER) + cost + __TOLLGATE_LIMITER)
    }
    assert_eq!(limited(1, 1, 1, 1, 1, 1).unwrap(), 8);
    assert!(limited(1, 1, 1, 1, 1, 1).is_err());
}

#[test]
fn two_attributes_are_two_limits() {
    #[rate_limit("3/h", name = "all")]
    #[rate_limit("1/h", key = who, name = "each")]
    fn limited(who: u8) -> Result {
        Ok(())
    }
    let refused_by = |who| limited(who).unwrap_err().decision().rule_name();
    limited(1).unwrap();
    limited(2).unwrap();
    assert_eq!(refused_by(1), Some("each"));
    limited(3).unwrap();
    assert_eq!(refused_by(4), Some("all"));
}

#[test]
fn functions_may_share_a_limiter() {
    static SHARED: LazyLock<Limiter> = LazyLock::new(|| Limiter::new("2/h").unwrap());
    thread_local!(static RUN: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) });

    #[rate_limit(limiter = SHARED, key = who)]
    fn read(who: &str) -> Result {
        RUN.with_borrow_mut(|run| run.push("read"));
        Ok(())
    }
    #[rate_limit(limiter = SHARED, key = who, cost = 2, on_limit = false)]
    fn write(who: &str) -> bool {
        RUN.with_borrow_mut(|run| run.push("write"));
        true
    }
    read("alice").unwrap();
    assert!(!write("alice"));
    read("alice").unwrap();
    assert!(write("bob"));
    assert_eq!(RUN.take(), ["read", "read", "write"]);
    assert_eq!(SHARED.stats().live_keys, 2);
}

#[test]
fn many_threads_meet_one_limiter() {
    #[rate_limit("100/h", on_limit = 0)]
    fn limited() -> u32 {
        1
    }
    let admitted: u32 = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| (0..100).map(|_| limited()).sum::<u32>())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 100);
}

mod elsewhere {
    pub(crate) mod limits {
        pub(crate) use tollgate::*;
    }
}

#[test]
fn the_library_may_be_elsewhere() {
    #[elsewhere::limits::rate_limit("1/h", crate = crate::elsewhere::limits)]
    fn limited() -> Result {
        Ok(())
    }
    limited().unwrap();
    assert!(limited().is_err());
}
