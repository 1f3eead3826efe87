//! Checks LMCache's controller, coordinator and directories.

use super::{Grade, Inquiry, Keys, Report, counted};
use crate::config::PoolKind;
use crate::pool::lmcache::{Directory, Lmcache, LmcacheSettings};

/// Instances that are named.
const NAMED: usize = 8;

/// Asks for the list of instances.
pub(super) async fn ask(inquiry: &Inquiry<'_>, report: &mut Report) -> Option<Keys> {
    let endpoint = inquiry.addresses().into_iter().next()?;
    let (name, directory) = match inquiry.config.pool.kind {
        PoolKind::LmcacheCoordinator => {
            ("coordinator", Directory::Coordinator { model: String::new(), world_size: 1 })
        }
        _ => ("controller", Directory::Controller),
    };
    let settings = LmcacheSettings {
        endpoint: endpoint.clone(),
        directory,
        chunk_tokens: std::num::NonZeroUsize::MIN,
        p2p: false,
    };
    let lmcache = Lmcache::new(inquiry.client.clone(), settings);
    let text = format!("LMCache {name} {endpoint} (pool.addresses)");
    match inquiry.within(lmcache.instances()).await {
        Ok(instances) if instances.is_empty() => {
            let why = "answers, but no instance is registered: nothing is cached anywhere";
            report.say(Grade::Note, format!("{text} {why}"));
        }
        Ok(instances) => {
            let named: Vec<String> =
                instances.iter().take(NAMED).map(|(name, host)| format!("{name} on {host}")).collect();
            let count = counted(instances.len(), "instance");
            report.say(Grade::Good, format!("{text} answers: {count}, {}", named.join(", ")));
        }
        Err(why) => {
            let advice = format!("is the {name} running, and is this its HTTP port?");
            report.say(Grade::Bad, format!("{text}: {why}; {advice}"));
        }
    }
    None
}
