//! A pool's keys beside those that the configuration makes, in words.

use super::{Grade, Keys, Report};
use crate::config::Config;
use crate::kvhash::keys::KeyConfig;
use crate::kvhash::keys::sample::{Judgement, judge};
use crate::naming_config::{self, Published};
use crate::pool::misfit::misfits;

/// Says whether the keys that were found are those that the gateway will ask for.
pub(super) fn compare(config: &Config, published: &[Published], found: Option<&Keys>, report: &mut Report) {
    let known = naming_config::key_config(config, published).and_then(|keys| {
        // Only a complete naming finds engines of another release than the preset's, or hashes of
        // other blocks.
        naming_config::naming(config, published).map(|_| keys)
    });
    let keys = match known {
        Ok(Some(keys)) => keys,
        Ok(None) => return,
        Err(trouble) if trouble.may_pass() => {
            let why = format!("the pool's keys can't be compared with the configuration: {trouble}");
            return report.say(Grade::Note, format!("{why}; set it, or name a prefiller that is up"));
        }
        Err(trouble) => return report.say(Grade::Bad, trouble.to_string()),
    };
    let Some(found) = found else { return };
    match judge(&keys, &found.sample, found.whole) {
        Ok(judged) => tell(&keys, &judged, report),
        Err(refusal) => report.say(Grade::Bad, format!("key.preset = {:?}: {refusal}", keys.preset.name)),
    }
}

fn tell(keys: &KeyConfig, judged: &Judgement, report: &mut Report) {
    let preset = keys.preset.name;
    if judged.keys == 0 {
        let why = "the pool is empty: whether its keys will be those of";
        return report.say(Grade::Note, format!("{why} {preset} shows once an engine has stored a prompt"));
    }
    if judged.fits() {
        let all = judged.fitting == judged.keys;
        let count = if all {
            format!("all {}", judged.keys)
        } else {
            format!("{} of {}", judged.fitting, judged.keys)
        };
        let rest = if all { "" } else { "; the others belong to other models or writers" };
        return report
            .say(Grade::Good, format!("{count} keys looked at are as {preset} writes them here{rest}"));
    }
    misfits(keys, judged).into_iter().for_each(|text| report.say(Grade::Bad, text));
}
