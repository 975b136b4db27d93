//! What the attribute refuses to compile, and what it says.
//!
//! Each file in `refused` is compiled by itself, and what the compiler says is compared with the `.stderr` beside it.
//! `TRYBUILD=overwrite cargo test -p tollgate-macros` writes those anew.

use std::path::Path;

#[test]
fn each_with_its_reason() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/refused/*.rs");
    // With the feature `tokio` on as well, what is left is refused for the same reasons.
    if cfg!(not(feature = "tokio")) {
        cases.compile_fail("tests/refused/without_tokio/*.rs");
    }
}

/// A copy would be a second reader of policies, and drift.
#[test]
fn what_is_shared_is_the_librarys() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["algorithm", "compile.rs", "error.rs", "parse.rs", "policy.rs"] {
        let [shared, library] = [here.join("src/shared"), here.join("../../src")]
            .map(|place| place.join(name).canonicalize().expect("a file of the repository"));
        assert_eq!(shared, library);
    }
}
