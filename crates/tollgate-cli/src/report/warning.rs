//! What a reader of the numbers has to know of them: how the logs were read, and what makes the numbers doubtful.

use super::table::grouped;
use super::{Outcome, duration};
use crate::input::{Format, Totals};

/// How the logs were read, in a few words; logs that were read alike together.
pub(crate) fn formats(read: &Totals) -> Vec<String> {
    let mut kinds: Vec<(String, u64)> = Vec::new();
    for seen in &read.formats {
        let fields = seen.fields.iter().map(|(field, name)| format!("{field}={name}"));
        let text = match seen.format {
            Format::Clf => "common or combined log format".to_owned(),
            Format::Json => format!("JSON lines with {}", fields.collect::<Vec<_>>().join(", ")),
            Format::Csv => format!("CSV with {}", fields.collect::<Vec<_>>().join(", ")),
        };
        match kinds.iter_mut().find(|(known, _)| *known == text) {
            Some((_, logs)) => *logs += 1,
            None => kinds.push((text, 1)),
        }
    }
    let is_one = kinds.len() == 1;
    let told = kinds.into_iter().map(|(text, logs)| if is_one { text } else { format!("{text} ({logs})") });
    told.collect()
}

/// All that makes the numbers of a report doubtful.
pub(super) fn warnings(read: &Totals, policies: &[Outcome]) -> Vec<String> {
    let disorder = read.is_disordered().then(|| disorder(read));
    disorder.into_iter().chain(policies.iter().flat_map(evictions)).collect()
}

pub(crate) fn disorder(read: &Totals) -> String {
    format!(
        "the input is not in order: {} of {} requests came too late for their place, by up to {}, and were decided at \
         the time of the line before, so these numbers are not those of the traffic. Sort the log by time (one with the \
         newest line first: `tac LOG | tollgate replay -`), name the logs of several servers as separate files, or \
         give --reorder more seconds.",
        grouped(read.too_late),
        grouped(read.requests),
        duration(read.latest_by_ns)
    )
}

/// A client that is forgotten begins anew, with all of its budget.
pub(crate) fn evictions(outcome: &Outcome) -> impl Iterator<Item = String> {
    outcome.scopes.iter().filter(|scope| scope.evicted > 0).map(|scope| {
        let (of, advice) = match scope.name.as_str() {
            "" => (outcome.title.clone(), "--max-keys".to_owned()),
            name => (name.to_owned(), format!("`max_keys` in rule `{name}` of the file")),
        };
        format!(
            "refusals of `{of}` are understated: the table was full, and {} clients were forgotten early and began \
             anew. Give it more room with {advice}.",
            grouped(scope.evicted)
        )
    })
}

/// What whole seconds do to small bursts.
pub(super) const WHOLE_SECONDS: &str = "Times are whole seconds: what came within a second is decided at its \
    beginning, as if all at once, so small bursts are refused more often than they were in truth.";
