//! One engine is asked everything at once, within the time of one question.

use std::time::{Duration, Instant, SystemTime};

use futures_util::{StreamExt, stream};
use http::{StatusCode, header};

use super::members::Member;
use crate::app::settings;
use crate::config::Config;
use crate::control::dialect_detect::SignClient;
use crate::dialect::signs::Signs;
use crate::endpoint::Endpoint;
use crate::fleet::Role;
use crate::tokenization::exchange::{Asker, authorized, causes};
use crate::tokenization::{Facts, facts};

/// Engines that are asked at once.
const AT_ONCE: usize = 128;

/// Outcome of asking one engine.
#[derive(Debug)]
pub(in crate::cmd) struct Visit {
    pub(in crate::cmd) member: Member,
    /// Its facts, or the reason for which it could not be asked.
    pub(in crate::cmd) told: Result<EngineReport, String>,
    /// Until the answer to the probe, or until what it could not be asked was given up.
    pub(in crate::cmd) took: Duration,
}

/// Facts of one engine.
#[derive(Debug)]
pub(in crate::cmd) struct EngineReport {
    /// Status of its answer to `health.probe_path`.
    pub(in crate::cmd) health: StatusCode,
    /// By how much its clock is ahead of ours, in seconds; None = it sends no date.
    pub(in crate::cmd) ahead_s: Option<i64>,
    pub(in crate::cmd) facts: Facts,
    /// Prefillers alone are asked what they speak.
    pub(in crate::cmd) signs: Option<Signs>,
}

/// Asks all members, each question for `asker.time` at most; answers in the order of the members.
pub(in crate::cmd) async fn all(config: &Config, asker: &Asker, members: Vec<Member>) -> Vec<Visit> {
    let visits = members.into_iter().map(|member| one(config, asker, member));
    stream::iter(visits).buffered(AT_ONCE).collect().await
}

/// The engines of `role` that answered, each with its facts.
pub(in crate::cmd) fn answered(
    visits: &[Visit],
    role: Role,
) -> impl Iterator<Item = (&Endpoint, &EngineReport)> + Clone {
    let of_role = visits.iter().filter(move |visit| visit.member.role == role);
    of_role.filter_map(|visit| Some((&visit.member.engine, visit.told.as_ref().ok()?)))
}

async fn one(config: &Config, asker: &Asker, member: Member) -> Visit {
    let begun = Instant::now();
    let engine = member.engine.clone();
    let greet = async {
        let greeted = greet(asker, &engine, &config.health.probe_path).await;
        (greeted, begun.elapsed())
    };
    let tell = async {
        let told = facts::fetch(&asker.client, &engine, asker.authorization.as_ref(), asker.time).await;
        (told, begun.elapsed())
    };
    let ((greeted, took), (facts, told_after), signs) =
        tokio::join!(greet, tell, signs(config, asker, &member));
    match (greeted, facts) {
        (Ok((health, ahead_s)), Ok(facts)) => {
            Visit { member, told: Ok(EngineReport { health, ahead_s, facts, signs }), took }
        }
        (Err(why), _) => Visit { member, told: Err(why), took },
        (_, Err(error)) => {
            let why = format!("GET /version, /v1/models and /metrics: {}", error.why);
            Visit { member, told: Err(why), took: told_after }
        }
    }
}

async fn signs(config: &Config, asker: &Asker, member: &Member) -> Option<Signs> {
    if member.role != Role::Prefill {
        return None;
    }
    let Asker { client, authorization, time, .. } = asker.clone();
    let bootstrap = settings::protocol(config).bootstrap(&member.engine);
    Some(SignClient { client, authorization, time }.fetch_signs(&member.engine, &bootstrap).await)
}

/// Status, and how far the clock there is ahead; the body is not read.
async fn greet(asker: &Asker, engine: &Endpoint, path: &str) -> Result<(StatusCode, Option<i64>), String> {
    let call = authorized(asker.client.get(engine.url(path)), asker.authorization.as_ref());
    let late = || format!("GET {path}: no answer within {} ms", asker.time.as_millis());
    let answer = tokio::time::timeout(asker.time, call.send()).await.map_err(|_| late())?;
    let answer = answer.map_err(|error| causes(&error))?;
    let date = answer.headers().get(header::DATE).and_then(|date| date.to_str().ok());
    let ahead_s = date.and_then(|date| httpdate::parse_http_date(date).ok());
    Ok((answer.status(), ahead_s.map(|theirs| ahead_s_of(theirs, SystemTime::now()))))
}

/// Seconds by which `theirs` is ahead of `ours`; negative if it is behind.
fn ahead_s_of(theirs: SystemTime, ours: SystemTime) -> i64 {
    let whole = |span: Duration| i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    theirs.duration_since(ours).map_or_else(|behind| -whole(behind.duration()), whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_ahead_or_behind() {
        let noon = httpdate::parse_http_date("Sun, 06 Nov 1994 12:00:00 GMT").unwrap();
        let later = httpdate::parse_http_date("Sun, 06 Nov 1994 12:01:05 GMT").unwrap();
        assert_eq!((ahead_s_of(later, noon), ahead_s_of(noon, later), ahead_s_of(noon, noon)), (65, -65, 0));
    }
}
