//! Calls of the library of `tokenizer.json`, which ends in a panic on some files: on more than
//! 65 534 merges of single bytes, for one. A panic there is an error here.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::TokenizerError;

/// Longest part of a panic's message that an error repeats, characters.
const MAX_MESSAGE_CHARS: usize = 200;

/// Calls the library. What the call changes must not be used again after a panic.
///
/// # Errors
/// The call's own, and a panic.
pub(super) fn catch_panic<T>(call: impl FnOnce() -> Result<T, TokenizerError>) -> Result<T, TokenizerError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let message: String = message(&*panic).chars().take(MAX_MESSAGE_CHARS).collect();
        Err(TokenizerError(format!("its library fails: {message}")))
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("for no known reason")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_of_a_call_is_an_error() {
        assert_eq!(catch_panic(|| Ok(7)).unwrap(), 7);
        let own: Result<(), _> = catch_panic(|| Err(TokenizerError::new("its own")));
        assert_eq!(own.unwrap_err().to_string(), "tokenizer: its own");
        let text: Result<(), _> = catch_panic(|| panic!("too many"));
        assert_eq!(text.unwrap_err().to_string(), "tokenizer: its library fails: too many");
        let formatted: Result<(), _> = catch_panic(|| panic!("{}", "é".repeat(900)));
        assert_eq!(formatted.unwrap_err().to_string().matches('é').count(), MAX_MESSAGE_CHARS);
        let other: Result<(), _> = catch_panic(|| std::panic::panic_any(7));
        assert!(other.unwrap_err().to_string().ends_with("no known reason"));
    }
}
