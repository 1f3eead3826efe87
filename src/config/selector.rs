//! Label selectors of Kubernetes, judged before they are sent: an API server's refusal would come
//! when the gateway runs.
//!
//! The grammar is that of `labels.Parse` in k8s.io/apimachinery: requirements between commas, each
//! `key`, `!key`, `key=value`, `key==value`, `key!=value`, `key in (a,b)`, `key notin (a,b)`,
//! `key>1` or `key<1`.

/// Longest name and longest value of a label, bytes.
const MAX_LABEL_BYTES: usize = 63;
/// Longest prefix of a label's name, bytes.
const MAX_PREFIX_BYTES: usize = 253;

/// Reason why a text is no selector; `None` when it is one.
pub(super) fn wrong(text: &str) -> Option<&'static str> {
    requirements(text).and_then(|all| all.into_iter().try_for_each(requirement)).err()
}

/// Letters, digits, `-`, `_` and `.`, the first and the last of them a letter or digit.
pub(super) fn is_label(text: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    edge(text.bytes().next()) && edge(text.bytes().next_back()) && text.bytes().all(inner)
}

/// Cut at commas that are not between parentheses.
fn requirements(text: &str) -> Result<Vec<&str>, &'static str> {
    let (mut found, mut from, mut inside) = (Vec::new(), 0, false);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' if inside => return Err("a parenthesis in another one"),
            '(' => inside = true,
            ')' if !inside => return Err("a closing parenthesis without an opening one"),
            ')' => inside = false,
            ',' if !inside => {
                found.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    found.push(&text[from..]);
    if inside { Err("a parenthesis that is not closed") } else { Ok(found) }
}

fn requirement(text: &str) -> Result<(), &'static str> {
    let text = text.trim();
    if let Some(name) = text.strip_prefix('!') {
        return key(name.trim());
    }
    if let Some((head, values)) = text.split_once('(') {
        let head: Vec<&str> = head.split_whitespace().collect();
        let [name, "in" | "notin"] = head[..] else {
            return Err("values in parentheses follow `key in` or `key notin`");
        };
        let values = values.strip_suffix(')').ok_or("something after the closing parenthesis")?;
        key(name)?;
        return values.split(',').map(str::trim).try_for_each(value);
    }
    if let Some(at) = text.find(['=', '!', '<', '>']) {
        let (name, rest) = text.split_at(at);
        key(name.trim())?;
        return compared(rest);
    }
    if text.split_whitespace().any(|word| word == "in" || word == "notin") {
        return Err("`in` and `notin` are followed by values in parentheses");
    }
    key(text)
}

fn compared(rest: &str) -> Result<(), &'static str> {
    if let Some(number) = rest.strip_prefix(['<', '>']) {
        let whole = number.trim().parse::<i64>().is_ok();
        return if whole { Ok(()) } else { Err("`<` and `>` compare with whole numbers") };
    }
    let text = ["==", "!=", "="].iter().find_map(|sign| rest.strip_prefix(sign));
    value(text.ok_or("an unknown comparison")?.trim())
}

fn key(text: &str) -> Result<(), &'static str> {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let prefixed = prefix.is_none_or(|prefix| {
        let lower = prefix.bytes().all(|byte| !byte.is_ascii_uppercase() && byte != b'_');
        prefix.len() <= MAX_PREFIX_BYTES && lower && prefix.split('.').all(is_label)
    });
    if name.len() <= MAX_LABEL_BYTES && is_label(name) && prefixed {
        Ok(())
    } else if text.is_empty() {
        Err("a requirement without a key")
    } else {
        Err("a key that no label can have")
    }
}

/// Values may be empty.
fn value(text: &str) -> Result<(), &'static str> {
    let good = text.is_empty() || (text.len() <= MAX_LABEL_BYTES && is_label(text));
    if good { Ok(()) } else { Err("a value that no label can have") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the tests of `labels.Parse`, and from what operators write.
    #[test]
    fn selectors_are_told_from_what_is_none() {
        for good in [
            "x=a,y=b,z=c",
            "x!=a,y=b",
            "x=",
            "x= ",
            "x==a",
            "x = a , y=b",
            "x>1",
            "x<1,y",
            "x notin ( ab , c ) , !y",
            "x in (),y in ( )",
            "!x",
            "modelserving.volcano.sh/name=llm,modelserving.volcano.sh/entry=true",
            "leaderworkerset.sigs.k8s.io/name=llm,leaderworkerset.sigs.k8s.io/worker-index=0",
            "app.kubernetes.io/component in (prefill,both)",
            "in=a",
        ] {
            assert_eq!(wrong(good), None, "{good}");
        }
        for bad in [
            "",
            "x=a,",
            ",x=a",
            "x=a||y=b",
            "x==a==b",
            "!x=a",
            "x<a",
            "x>",
            "x in a",
            "x in (a",
            "x in (a))",
            "x in (a) b",
            "x notin ((a))",
            "x y (a)",
            "x!a",
            "=a",
            "-x=a",
            "x=a b",
            "x=-a",
            "Pre.Fix/x=a",
            "a/b/c=d",
            "/x",
            "role: prefill",
        ] {
            assert!(wrong(bad).is_some(), "{bad}");
        }
        assert!(wrong(&format!("{}=a", "x".repeat(64))).is_some());
        assert!(wrong(&format!("x={}", "a".repeat(64))).is_some());
        assert_eq!(wrong(&format!("{}/x=a", ["a"; 100].join("."))), None);
    }
}
