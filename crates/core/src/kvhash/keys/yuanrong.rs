//! Yuanrong's rewriting of keys in vllm-ascend 0.19.1rc1 to 0.26.0rc1. A dot in the model's name
//! triggers it.

use sha2::{Digest, Sha256};

use super::bind::push_hex;

/// Hexadecimal digits of the digest that a rewritten key ends in.
const DIGEST_DIGITS: usize = 16;
/// Characters that are cut off to make room for `__` and the digest.
const TAIL_CHARS: usize = DIGEST_DIGITS + 2;

/// True if Yuanrong takes this character as it is.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_!@#%^*()+=:;".contains(c)
}

/// Rewrites the key that starts at byte `start` of `text`, if it is longer than `max_chars` or has
/// a character that Yuanrong does not take. Each such character becomes `_`, and `__` with the
/// start of the key's SHA-256 ends it.
pub fn rewrite(text: &mut String, start: usize, max_chars: usize) {
    let Some(key) = text.get(start..) else { return };
    if key.chars().all(is_plain) && key.chars().count() <= max_chars {
        return;
    }
    let digest = Sha256::digest(key.as_bytes());
    let kept = key.chars().map(|c| if is_plain(c) { c } else { '_' });
    let mut rewritten: String = kept.take(max_chars.saturating_sub(TAIL_CHARS)).collect();
    rewritten.push_str("__");
    push_hex(&mut rewritten, &digest[..DIGEST_DIGITS / 2]);
    text.truncate(start);
    text.push_str(&rewritten);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_key_of_the_buffer_is_touched() {
        let mut text = "a.b".to_owned();
        text.push_str("c.d");
        rewrite(&mut text, 3, 255);
        assert!(text.starts_with("a.bc_d__") && text.len() == 3 + 3 + TAIL_CHARS, "{text}");
    }

    #[test]
    fn plain_keys_up_to_the_limit_stay() {
        let mut text = "x".repeat(255);
        rewrite(&mut text, 0, 255);
        assert_eq!(text.len(), 255);
        text.push('x');
        rewrite(&mut text, 0, 255);
        assert_eq!((text.len(), text.contains("x__")), (255, true));
    }
}
