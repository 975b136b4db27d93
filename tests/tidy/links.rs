//! Links of the pages, which are read as files and in rustdoc. A link to a file or to an item is named by a label: what
//! that means in a file stands in the page itself; in rustdoc `docs/links.md` is included before the page, and the first
//! definition counts.

use std::path::Path;

/// What labels mean in rustdoc. That the items are there is rustdoc's to say.
const LABELS: &str = "docs/links.md";

/// A page of another package, and the link by which this one has it.
const LINKED: (&str, &str) = ("benches/README.md", "docs/benchmarks.md");

/// What is wrong with the links of all pages among these files.
pub(crate) fn dead(root: &Path, files: &[(String, String)]) -> Vec<String> {
    let labels = text_of(files, LABELS);
    let mut found = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".md") && path != LABELS) {
        let exists = |target: &str| root.join(path).parent().is_some_and(|place| place.join(target).exists());
        found.extend(as_file(text, exists).into_iter().map(|what| format!("{path}: link: {what}")));
        if let Some(comes_after_labels) = included(files, path) {
            let wrong = in_rustdoc(text, labels, comes_after_labels);
            found.extend(wrong.into_iter().map(|what| format!("{path}: link in rustdoc: {what}")));
        }
    }
    let pages = || files.iter().filter(|(path, _)| path.ends_with(".md") && path != LABELS);
    let is_used = |label: &str| pages().any(|(_, text)| definitions(text).any(|(known, _)| known == label));
    let unused = definitions(labels).filter(|(label, _)| !is_used(label));
    found.extend(unused.map(|(label, _)| format!("{LABELS}: link: no page has a [{label}]")));
    found
}

fn text_of<'a>(files: &'a [(String, String)], path: &str) -> &'a str {
    files.iter().find(|(known, _)| known == path).map_or("", |(_, text)| text)
}

/// Whether the labels come before a page wherever the source includes it; `None` if it does not.
fn included(files: &[(String, String)], page: &str) -> Option<bool> {
    let page = if page == LINKED.0 { LINKED.1 } else { page };
    let mut found = None;
    for (_, text) in files.iter().filter(|(path, _)| path.starts_with("src/")) {
        let lines: Vec<&str> = text.lines().collect();
        let includes = |line: &str, page: &str| {
            let file =
                line.trim_start().strip_prefix("#").and_then(|line| line.split_once("include_str!(\""));
            let file = file.and_then(|(_, rest)| rest.split_once("\")")).map(|(file, _)| file);
            file.is_some_and(|file| file.trim_start_matches("../") == page)
        };
        for (index, _) in lines.iter().enumerate().filter(|(_, line)| includes(line, page)) {
            let before = lines[..index].iter().rev().take_while(|line| line.contains("include_str!"));
            found = Some(found.unwrap_or(true) && before.into_iter().any(|line| includes(line, LABELS)));
        }
    }
    found
}

/// What leads nowhere when the page is read as a file.
fn as_file(text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let inline = inline(text).map(|target| ("", target));
    for (label, target) in inline.chain(definitions(text)) {
        let file = target.split('#').next().unwrap_or(target);
        match target {
            _ if target.contains("://") || target.starts_with("data:") => {}
            _ if target.contains("::") => found.push(format!("`{target}` is no file: give it a label")),
            _ if target.starts_with('#') && headings(text).any(|heading| heading == target[1..]) => {}
            _ if target.starts_with('#') => found.push(format!("there is no heading for {target}")),
            _ if !exists(file) => found.push(format!("there is no {file}")),
            _ if !label.is_empty() && !labels(text).contains(&label) => {
                found.push(format!("nothing is called [{label}]"));
            }
            _ => {}
        }
    }
    for label in labels(text) {
        if !definitions(text).any(|(known, _)| known == label) {
            found.push(format!("[{label}] is not defined"));
        }
    }
    found
}

/// What leads nowhere when rustdoc has the page: it has no files beside it.
fn in_rustdoc(text: &str, labels: &str, comes_after_labels: bool) -> Vec<String> {
    let is_file =
        |target: &str| !target.contains(':') && !target.starts_with('#') && !target.ends_with(".svg");
    let mut found: Vec<String> = inline(text)
        .filter(|target| is_file(target))
        .map(|target| format!("{target} is not there: give it a label"))
        .collect();
    for (label, target) in definitions(text).filter(|(_, target)| is_file(target)) {
        if !comes_after_labels {
            found.push(format!("[{label}] means {target}: {LABELS} has to come before the page"));
        } else if !definitions(labels).any(|(known, _)| known == label) {
            found.push(format!("[{label}] means {target}: {LABELS} has to say what it means"));
        }
    }
    found
}

/// The lines of a page that are no code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The targets of `[text](target)`.
fn inline(text: &str) -> impl Iterator<Item = &str> {
    prose(text).flat_map(|line| line.split("](").skip(1).filter_map(|rest| rest.split(')').next()))
}

/// The labels that are used: of `[text][label]`, of `[label]` where the page has one, and the code in brackets that
/// rustdoc alone would take for a link.
fn labels(text: &str) -> Vec<&str> {
    let defined: Vec<&str> = definitions(text).map(|(label, _)| label).collect();
    let used = |line| {
        let brackets = str::match_indices(line, '[').filter_map(move |(at, _)| {
            let (label, after) = line[at + 1..].split_once(']')?;
            Some((line[..at].ends_with(']'), label, after))
        });
        brackets.filter_map(|(is_named, label, after)| {
            let is_code =
                label.len() > 2 && label.starts_with('`') && label.ends_with('`') && !label.contains(' ');
            let is_alone = !after.starts_with(['(', '[', ':']);
            (is_named || is_alone && (is_code || defined.contains(&label))).then_some(label)
        })
    };
    prose(text).flat_map(used).collect()
}

/// The labels that are defined, with their targets.
fn definitions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    prose(text).filter_map(|line| {
        let (label, target) = line.strip_prefix('[')?.split_once("]: ")?;
        (!target.contains(' ')).then_some((label, target))
    })
}

/// The headings of a page as links name them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    prose(text).filter(|line| line.starts_with('#')).map(|line| {
        let said = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        said.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
    })
}

#[test]
fn a_dead_link_is_noticed() {
    let there = |target: &str| matches!(target, "architecture.md" | "../README.md" | "../src/gate.rs");
    let dead = |text: &str| as_file(text, there);
    assert_eq!(dead("[a](nowhere.md) and [b](../nowhere/either.rs#L1)").len(), 2);
    assert_eq!(
        dead("# Here\n[a](architecture.md#code-map), [b](../README.md), [c](#here), [d](https://a.org/b)"),
        [""; 0]
    );
    assert_eq!(dead("# Here it is!\n[c](#here-it-is)"), [""; 0]);
    assert_eq!(dead("[c](#there)"), ["there is no heading for #there"]);
    assert_eq!(dead("[a](crate::Gate)"), ["`crate::Gate` is no file: give it a label"]);
    assert_eq!(dead("[`Gate`] and [`a`][b]"), ["[`Gate`] is not defined", "[b] is not defined"]);
    assert_eq!(dead("[`a`][Gate], [Gate]\n\n[Gate]: ../src/gate.rs\n"), [""; 0]);
    assert_eq!(dead("[`a`][Gate]\n\n[Gate]: ../src/door.rs\n"), ["there is no ../src/door.rs"]);
    assert_eq!(dead("Nothing.\n\n[Gate]: ../src/gate.rs\n"), ["nothing is called [Gate]"]);
    assert_eq!(dead("```text\n[a](nowhere.md) [`Gate`]\n```\n`[[rule]]` and `key[0]`"), [""; 0]);
}

#[test]
fn a_link_that_rustdoc_cannot_follow_is_noticed() {
    let page = "[`Gate`][Gate]\n\n[Gate]: ../src/gate.rs\n";
    let labels = "[Gate]: crate::Gate\n";
    assert_eq!(in_rustdoc(page, labels, true), [""; 0]);
    assert_eq!(in_rustdoc(page, labels, false).len(), 1);
    assert_eq!(in_rustdoc(page, "[Door]: crate::Door\n", true).len(), 1);
    assert_eq!(in_rustdoc("[a](architecture.md), [b](#here)", labels, true).len(), 1);
    assert_eq!(in_rustdoc("![a][chart]\n\n[chart]: charts/chart.svg", labels, false), [""; 0]);
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let source =
        "#![doc = include_str!(\"../../docs/links.md\")]\n#![doc = include_str!(\"../../docs/gate.md\")]\n";
    assert_eq!(included(&[file("src/gate/mod.rs", source)], "docs/gate.md"), Some(true));
    let source = "#[doc = include_str!(\"../docs/gate.md\")]\npub mod gate {}\n";
    assert_eq!(included(&[file("src/guide.rs", source)], "docs/gate.md"), Some(false));
    assert_eq!(included(&[file("src/guide.rs", source)], "docs/door.md"), None);
    let source = "#[doc = include_str!(\"../docs/benchmarks.md\")]\npub mod benchmarks {}\n";
    assert_eq!(included(&[file("src/guide.rs", source)], "benches/README.md"), Some(false));
    let unused = [file("docs/links.md", labels), file("docs/door.md", "# Door\n")];
    assert_eq!(dead(Path::new("."), &unused), ["docs/links.md: link: no page has a [Gate]"]);
}
