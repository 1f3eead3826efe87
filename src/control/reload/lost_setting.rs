//! Settings that a configuration must not lose while the gateway runs. The module is pure.
//!
//! A file that was emptied, or is cut, is a valid configuration: its keys would fall back to their
//! defaults. For most keys an operator who deletes a line means that. For these it would send
//! requests to engines that nobody named, or open what a key protects.

use std::path::PathBuf;

use crate::config::{Loaded, Origin};

/// Keys that only a restart takes back to their default.
const PROTECTED_KEYS: [&str; 3] = ["fleet.prefill", "fleet.decode", "server.admin_key"];

/// Reasons why a configuration is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LostSetting {
    /// A file that sets no key any more.
    #[error("file {} sets nothing any more: it is being written, or was emptied by mistake; to run without it, restart the gateway", .0.display())]
    File(PathBuf),
    /// A key that no source sets any more.
    #[error(
        "{key} was set by {origin} and is set by nobody any more: to go back to its default, restart the gateway"
    )]
    Key {
        /// Name, as `section.key`.
        key: &'static str,
        /// Origin of the value before.
        origin: Origin,
    },
}

/// Checks that `new` has not lost a setting of these. A change that only waited for a restart may
/// be taken back: it changes nothing.
///
/// # Errors
/// [`LostSetting`] names the setting.
pub fn check(running: &Loaded, new: &Loaded) -> Result<(), LostSetting> {
    let (before, now) = (&running.origins, &new.origins);
    if let Some(file) = before.files().difference(now.files()).next() {
        return Err(LostSetting::File(file.clone()));
    }
    let changed = running.config.differs(&new.config);
    for key in PROTECTED_KEYS {
        let unset = *now.of(key) == Origin::Default && *before.of(key) != Origin::Default;
        if unset && changed.contains(&key) {
            return Err(LostSetting::Key { key, origin: before.of(key).clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cli::ServeArgs;
    use crate::config::{Config, Env};

    /// With files `0`, `1` and so on of `dir` that say this.
    fn loaded(dir: &Path, texts: &[&str]) -> Loaded {
        let file = |(at, text): (usize, &&str)| {
            let path = dir.join(at.to_string());
            std::fs::write(&path, text).unwrap();
            path
        };
        let config = texts.iter().enumerate().map(file).collect();
        Config::load(&ServeArgs { config, ..ServeArgs::default() }, &Env::new()).unwrap()
    }

    const ENGINES: &str = "fleet.prefill = [\"a:1\"]\nfleet.decode = [\"b:1\"]\n";

    #[test]
    fn engines_and_keys_are_not_lost_and_the_rest_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let with = |more: &str| format!("{ENGINES}{more}");
        let running = loaded(
            dir.path(),
            &[&with("limit.queue = 1\nserver.admin_key = \"key\"\n"), "log.level = \"info\""],
        );
        let level = "log.level = \"info\"";
        for (texts, expected) in [
            ([with("server.admin_key = \"other\""), level.to_owned()], None),
            ([with(""), level.to_owned()], Some("server.admin_key was set by file ")),
            (
                ["fleet.prefill = [\"a:1\"]\nserver.admin_key = \"key\"".to_owned(), level.to_owned()],
                Some("fleet.decode was set by file "),
            ),
            ([String::new(), level.to_owned()], Some("file ")),
            ([with("server.admin_key = \"key\""), String::new()], Some("file ")),
        ] {
            let outcome = check(&running, &loaded(dir.path(), &texts.each_ref().map(String::as_str)));
            let outcome = outcome.err().map(|lost| lost.to_string());
            match expected {
                None => assert_eq!(outcome, None),
                Some(begin) => assert!(
                    outcome.clone().is_some_and(|why| why.starts_with(begin)),
                    "{texts:?}: {outcome:?}"
                ),
            }
        }
    }

    #[test]
    fn a_file_whose_value_another_one_overrides_still_sets_something() {
        let dir = tempfile::tempdir().unwrap();
        let running = loaded(dir.path(), &["log.level = \"info\"", ENGINES]);
        let new = loaded(dir.path(), &["log.level = \"info\"", &format!("{ENGINES}log.level = \"warning\"")]);
        assert_eq!(check(&running, &new), Ok(()));
    }

    #[test]
    fn setting_that_awaits_a_restart_may_be_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let looked_for = "discovery.file = \"/engines\"";
        let (before, after) = (loaded(dir.path(), &[looked_for]), loaded(dir.path(), &[ENGINES]));
        let adopted = super::super::adopt::adopt(&before.config, &after.config).unwrap();
        assert_eq!(adopted.pending, ["fleet.prefill", "fleet.decode", "discovery.file"]);
        let running = Loaded { config: adopted.config, origins: after.origins, warnings: after.warnings };
        assert_eq!(check(&running, &loaded(dir.path(), &[looked_for])), Ok(()));
    }
}
