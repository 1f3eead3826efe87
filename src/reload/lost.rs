//! What a configuration must not lose while the gateway runs. Pure.
//!
//! A file that was emptied, or is cut, is a valid configuration: it says nothing, and what it said before would fall back to its
//! default. For most keys that is what an operator means who takes a line out. For these it would send requests to engines that nobody
//! named, or open what a key protects.

use std::path::{Path, PathBuf};

use crate::config::{Origin, Origins};

/// Keys that only a restart takes back to their default.
const KEPT: [&str; 3] = ["fleet.prefill", "fleet.decode", "server.admin_key"];

/// Why a configuration is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// A file of which nothing is left.
    #[error("file {} sets nothing any more: it is being written, or was emptied by mistake; to run without it, restart the gateway", .0.display())]
    File(PathBuf),
    /// A key that nobody sets any more.
    #[error(
        "{key} was set by {origin} and is set by nobody any more: to go back to its default, restart the gateway"
    )]
    Key {
        /// `section.key`.
        key: &'static str,
        /// Who set it.
        origin: Origin,
    },
}

/// Whether `new` lost what must not be lost.
///
/// # Errors
/// [`Lost`] names it.
pub fn check(running: &Origins, new: &Origins) -> Result<(), Lost> {
    let said: Vec<&Path> = new.files().collect();
    if let Some(file) = running.files().find(|file| !said.contains(file)) {
        return Err(Lost::File(file.to_owned()));
    }
    for key in KEPT {
        if *new.of(key) == Origin::Default && *running.of(key) != Origin::Default {
            return Err(Lost::Key { key, origin: running.of(key).clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Env};

    fn origins(file: &Path, text: &str) -> Origins {
        std::fs::write(file, text).unwrap();
        let args = crate::cli::ServeArgs { config: vec![file.to_owned()], ..Default::default() };
        Config::load(&args, &Env::new()).unwrap().origins
    }

    #[test]
    fn engines_and_keys_are_not_lost_and_the_rest_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("gateway.toml");
        let engines = "[fleet]\nprefill = [\"a:1\"]\ndecode = [\"b:1\"]\n";
        let running =
            origins(&file, &format!("{engines}[limit]\nqueue = 1\n[server]\nadmin_key = \"key\"\n"));
        for (text, expected) in [
            (format!("{engines}[server]\nadmin_key = \"other\"\n"), None),
            (engines.to_owned(), Some("server.admin_key was set by file ")),
            (
                "[fleet]\nprefill = [\"a:1\"]\n[server]\nadmin_key = \"key\"\n".to_owned(),
                Some("fleet.decode was set by file "),
            ),
            (String::new(), Some("file ")),
        ] {
            let outcome = check(&running, &origins(&file, &text)).map_err(|lost| lost.to_string());
            match expected {
                None => assert_eq!(outcome, Ok(())),
                Some(begin) => {
                    assert!(outcome.clone().is_err_and(|why| why.starts_with(begin)), "{text}: {outcome:?}")
                }
            }
        }
    }
}
