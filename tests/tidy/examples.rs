//! Public items have examples that run. A type, a trait or a free function has one of its own; a method has one, or is
//! called in an example of its type or of another method of it.

/// A public item, by what its documentation and the code around it say.
struct Item<'a> {
    line: usize,
    name: &'a str,
    /// The type of a method.
    owner: Option<&'a str>,
    /// What is compiled of its documentation.
    examples: String,
}

/// The public items of a file without an example, as the line and what is said of it.
pub(crate) fn missing(text: &str) -> Vec<(usize, String)> {
    let items = items(text);
    let is_called = |method: &Item<'_>| {
        let calls =
            [format!(".{}(", method.name), format!("::{}(", method.name), format!("::{})", method.name)];
        let of_its_type = items.iter().filter(|item| item.owner.or(Some(item.name)) == method.owner);
        of_its_type.into_iter().any(|item| calls.iter().any(|call| item.examples.contains(call)))
    };
    let has_none = |item: &&Item<'_>| item.examples.is_empty() && !(item.owner.is_some() && is_called(item));
    items
        .iter()
        .filter(has_none)
        .map(|item| match item.owner {
            Some(owner) => (item.line, format!("no example has `{owner}::{}`", item.name)),
            None => (item.line, format!("`{}` has no example", item.name)),
        })
        .collect()
}

fn items(text: &str) -> Vec<Item<'_>> {
    let mut found = Vec::new();
    let (mut owner, mut documentation, mut is_hidden) = (None, Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        let content = line.trim_start();
        if let Some(said) = content.strip_prefix("///") {
            documentation.push(said.trim());
            continue;
        }
        if content.starts_with("#[") {
            is_hidden |= content == "#[doc(hidden)]";
            continue;
        }
        if line.starts_with("impl") {
            owner = implemented(line);
        }
        if let (Some((name, is_fn)), false) = (public(content), is_hidden) {
            let is_method = is_fn && content.len() < line.len();
            let owner = if is_method { owner } else { None };
            found.push(Item { line: index + 1, name, owner, examples: compiled(&documentation) });
        }
        documentation.clear();
        is_hidden = false;
    }
    found
}

/// The name of what a line makes public, and whether that is a function.
fn public(content: &str) -> Option<(&str, bool)> {
    let mut rest = content.strip_prefix("pub ")?;
    loop {
        let (word, after) = rest.split_once(' ')?;
        match word {
            "async" | "const" | "unsafe" => rest = after,
            "fn" | "struct" | "enum" | "trait" => {
                let end = after.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(after.len());
                return Some((&after[..end], word == "fn"));
            }
            _ => return None,
        }
    }
}

/// The type of an `impl`: what stands behind its parameters, or behind `for`.
fn implemented(line: &str) -> Option<&str> {
    let mut depth = 0_i32;
    let parameters = line.strip_prefix("impl")?;
    let ends = parameters.char_indices().find(|&(at, c)| {
        let is_arrow = c == '>' && parameters[..at].ends_with('-');
        depth += i32::from(c == '<') - i32::from(c == '>' && !is_arrow);
        depth == 0
    });
    let rest = &parameters[ends?.0..];
    let name = rest.rsplit_once(" for ").map_or(rest, |(_, name)| name);
    let name = name.trim_start_matches(['>', ' ', '&']);
    Some(&name[..name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len())])
}

/// The code blocks of a documentation that are compiled.
fn compiled(documentation: &[&str]) -> String {
    let mut examples = String::new();
    let mut block = None;
    for line in documentation {
        match (line.strip_prefix("```"), block) {
            (Some(_), Some(_)) => block = None,
            (Some(kind), None) => block = Some(matches!(kind, "" | "rust" | "no_run" | "should_panic")),
            (None, Some(true)) => {
                examples.push_str(line);
                examples.push('\n');
            }
            _ => {}
        }
    }
    examples
}

#[test]
fn an_item_without_an_example_is_noticed() {
    let found = |text: &str| missing(text).into_iter().map(|(line, _)| line).collect::<Vec<_>>();
    let example = |code: &str| format!("/// Says.\n///\n/// ```\n/// {code}\n/// ```\n");
    assert_eq!(found("/// A gate.\npub struct Gate;\n"), [2]);
    assert_eq!(found("/// A gate.\n///\n/// ```text\n/// gate\n/// ```\npub enum Gate {}\n"), [6]);
    assert_eq!(found("/// A gate.\n///\n/// ```ignore\n/// gate\n/// ```\npub trait Gate {}\n"), [6]);
    assert_eq!(found(&format!("{}pub struct Gate;\n", example("Gate;"))), []);
    assert_eq!(found(&format!("{}#[must_use]\npub fn gate() {{}}\n", example("gate();"))), []);
    assert_eq!(found("pub(crate) struct Gate;\nstruct Inner;\n#[doc(hidden)]\npub fn hidden() {}\n"), []);
    let with = |code: &str, methods: &str| {
        format!("{}pub struct Gate<'a>;\nimpl<'a, R: Fn() -> u8> Gate<'a> {{\n{methods}}}\n", example(code))
    };
    assert_eq!(found(&with("gate.open();", "    pub fn open(&self) {}\n")), []);
    assert_eq!(found(&with("iter.map(Gate::open);", "    pub const fn open(&self) {}\n")), []);
    assert_eq!(found(&with("gate.open_n();", "    pub fn open(&self) {}\n")), [8]);
    assert_eq!(
        found(&with(
            "gate.open();",
            "    /// ```\n    /// gate.close();\n    /// ```\n    pub fn shut(&self) {}\n    pub async fn close(&self) {}\n"
        )),
        []
    );
    // What another type's example calls says nothing of this one.
    let others = format!(
        "{}pub struct Gate;\nimpl Door {{\n    pub fn open(&self) {{}}\n}}\n",
        example("gate.open();")
    );
    assert_eq!(found(&others), [8]);
}
