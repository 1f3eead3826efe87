//! The preset of keys that an unknown name most likely means.

use crate::kvhash::keys::{Preset, Refusal};

/// A name that differs by more letters than this is not taken for another.
const MAX_DISTANCE: usize = 3;
/// Names longer than this are not compared, bytes.
const MAX_COMPARED_BYTES: usize = 64;

/// A question that names the nearest preset, or the list of all, for a refusal that says that there
/// is none of this name; else nothing.
pub(super) fn hint(refusal: &Refusal) -> String {
    let Refusal::UnknownPreset(name) = refusal else { return String::new() };
    match nearest(name) {
        Some(preset) => format!(": did you mean `{preset}`?"),
        None => {
            let all: Vec<&str> = Preset::all().iter().map(|preset| preset.name).collect();
            format!("; there are {}", all.join(", "))
        }
    }
}

/// The preset whose name is a small edit away, else the newest that begins with the name.
fn nearest(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > MAX_COMPARED_BYTES {
        return None;
    }
    let names = || Preset::all().iter().map(|preset| preset.name);
    let near = names().map(|known| (strsim::osa_distance(name, known), known));
    let edited = near.min().filter(|(distance, _)| *distance <= MAX_DISTANCE.min(name.len() / 3));
    // A release that has no row of its own has the keys of the one before it.
    edited.map(|(_, known)| known).or_else(|| names().rfind(|known| known.starts_with(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_preset_is_a_small_edit_or_a_longer_name() {
        for (unknown, known) in [
            ("mooncake", Some("mooncake-store-0.30")),
            ("mooncake-store-0.3", Some("mooncake-store-0.30")),
            ("ascend-0.20", Some("ascend-0.21")),
            ("mooncake_store-0.24", Some("mooncake-store-0.24")),
            ("lmcach", Some("lmcache")),
            ("nothing-like-it", None),
            ("", None),
        ] {
            assert_eq!(nearest(unknown), known, "{unknown}");
        }
        assert!(hint(&Refusal::UnknownPreset("x".into())).contains("; there are ascend-0.13, "));
        assert_eq!(hint(&Refusal::UnreadableVersion("x".into())), "");
    }
}
