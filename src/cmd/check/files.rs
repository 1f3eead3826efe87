//! Looks at UCM's directories.

use std::path::PathBuf;

use super::{Grade, Inquiry, Keys, Report, counted};
use crate::kvhash::keys::sample::MAX_SAMPLE_KEYS;
use crate::pool::listing::list_files;

/// Looks below every root.
pub(super) async fn look(inquiry: &Inquiry<'_>, report: &mut Report) -> Option<Keys> {
    let (mut sample, mut whole) = (Vec::new(), true);
    for root in &inquiry.config.key.roots {
        let path = PathBuf::from(root);
        match inquiry.within(list_files(path)).await {
            Ok(below) => {
                let count = below.files.len();
                let files = counted(count, "file");
                let more = if below.more { "more than " } else { "" };
                let such = below.files.first().map_or_else(String::new, |file| format!(", such as {file}"));
                report.say(Grade::Good, format!("{root} (key.roots) can be read: {more}{files}{such}"));
                whole &= !below.more;
                let step = count.div_ceil(MAX_SAMPLE_KEYS).max(1);
                sample.extend(below.files.into_iter().step_by(step));
            }
            Err(why) => {
                let advice = "is the share mounted here, at the same place as on the engines' machines?";
                report.say(Grade::Bad, format!("{root} (key.roots): {why}; {advice}"));
            }
        }
    }
    if !report.good() {
        return None;
    }
    let step = sample.len().div_ceil(MAX_SAMPLE_KEYS).max(1);
    Some(Keys { sample: sample.into_iter().step_by(step).collect(), whole })
}
