//! MemCache's meta service.

use super::{Grade, Inquiry, Keys, Report, endpoints};
use crate::endpoint::Endpoint;
use crate::pool::PoolError;
use crate::pool::memcache::wire::Form;
use crate::pool::memcache::{MemCache, MemCacheConfig, RankHosts};

const ADDRESS: &str = "pool.addresses";
const ADMIN: &str = "pool.admins";

/// By the binary protocol, and what the HTTP address adds.
pub(super) async fn binary(inquiry: &Inquiry<'_>, report: &mut Report) -> Option<Keys> {
    let service = inquiry.addresses().into_iter().next()?;
    match hello(inquiry, &service).await {
        Ok(form) => report.say(
            Grade::Good,
            format!("MemCache meta service {service} answers{}", describe_form(inquiry, form)),
        ),
        Err(why) => {
            let http = !refused(&why) && inquiry.speaks_http(&service).await;
            let advice = match http {
                true => {
                    "an HTTP server listens there: give the meta_service_url, or use pool.kind = \"memcache_http\""
                }
                false => {
                    "is the meta service running, and is this its meta_service_url (not config_store_url)?"
                }
            };
            report.say(Grade::Bad, format!("MemCache meta service {service} ({ADDRESS}): {why}; {advice}"));
        }
    }
    let admins = endpoints(&inquiry.config.pool.admins);
    if admins.is_empty() {
        let why = "how keys are spelled can't be asked by this protocol";
        report.say(Grade::Note, format!("{why}: name the service's metrics_url in {ADMIN}"));
        return None;
    }
    inquiry.list(&admins, ADMIN, report).await
}

/// By the HTTP address alone.
pub(super) async fn by_http(inquiry: &Inquiry<'_>, report: &mut Report) -> Option<Keys> {
    let service = inquiry.addresses().into_iter().next()?;
    match inquiry.admin(&service).health().await {
        Ok(health) if health.service_ready == Some(false) => {
            report.say(
                Grade::Bad,
                format!("MemCache {service} ({ADDRESS}) answers, but its service is not ready"),
            );
        }
        Ok(_) => report.say(Grade::Good, format!("MemCache {service} answers over HTTP")),
        Err(why) => {
            let binary = !refused(&why) && hello(inquiry, &service).await.is_ok();
            let advice = match binary {
                true => "this is its meta_service_url: use pool.kind = \"memcache\", or give the metrics_url",
                false => "is the meta service running, and is this its metrics_url (1.1 and later)?",
            };
            report.say(Grade::Bad, format!("MemCache {service} ({ADDRESS}): {why}; {advice}"));
            return None;
        }
    }
    inquiry.list(&[service], ADDRESS, report).await
}

async fn hello(inquiry: &Inquiry<'_>, service: &Endpoint) -> Result<Option<Form>, PoolError> {
    let hosts: RankHosts = inquiry.config.pool.rank_hosts().collect();
    let memcache = MemCache::new(MemCacheConfig { service: service.clone(), hosts, in_flight: 1 });
    inquiry.within(memcache.form()).await
}

fn describe_form(inquiry: &Inquiry<'_>, form: Option<Form>) -> &'static str {
    match form {
        Some(Form::Flagged) => ", and tells places as 1.2 and later",
        Some(Form::Plain) => ", and tells places as 1.1",
        None if inquiry.config.pool.ranks.is_empty() => "; pool.ranks is empty: places are not asked for",
        None => ", but tells places in no way that is known here",
    }
}

/// True if nothing listens, so that no other protocol needs to be tried.
fn refused(why: &PoolError) -> bool {
    matches!(why, PoolError::Unreachable(text) if text.contains("refused"))
}
