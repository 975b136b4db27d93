//! Any text: no panic; what parses is written and read back the same; an error points into the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::{Policy, Rule};

fuzz_target!(|text: &str| {
    match text.parse::<Policy>() {
        Ok(policy) => {
            assert_eq!(policy.validate(), Ok(()), "{text:?}");
            let written = policy.to_string();
            assert_eq!(written.parse::<Policy>(), Ok(policy), "{text:?} was written as {written:?}");
        }
        Err(error) => {
            // One past the end is where something was missing.
            let columns = text.chars().count() + 1;
            assert!(
                error.column().is_some_and(|column| (1..=columns).contains(&column)),
                "{text:?}: {error:?}"
            );
            assert!(!error.message().is_empty());
        }
    }
    if let Ok(rule) = text.parse::<Rule>() {
        assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule.clone()), "{text:?}");
        assert_eq!(text.parse::<Policy>(), Ok(Policy::from(rule)), "{text:?}");
    }
});
