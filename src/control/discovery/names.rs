//! Names whose addresses are engines.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::future::join_all;

use crate::endpoint::Endpoint;

/// The longest that one look-up may take.
const LOOKUP_TIME: Duration = Duration::from_secs(5);
/// An address must be missing so many times in a row: servers with many addresses answer with some
/// of them.
const ABSENCES: u32 = 3;
/// Most addresses of one name.
const MAX_ADDRESSES: usize = 4_096;

/// A resolver of host names.
pub trait Resolver: Send + Sync {
    /// The addresses of a name.
    fn addresses(&self, name: &Endpoint) -> impl Future<Output = io::Result<Vec<IpAddr>>> + Send;
}

/// The system's resolver.
#[derive(Clone, Copy, Debug)]
pub struct SystemResolver;

/// The names of one role, and what they were last known to mean.
#[derive(Debug)]
pub struct DnsNames<R> {
    resolver: R,
    /// With the looks at which an address was missing.
    known: Vec<(Endpoint, BTreeMap<Endpoint, u32>)>,
}

impl Resolver for SystemResolver {
    async fn addresses(&self, name: &Endpoint) -> io::Result<Vec<IpAddr>> {
        let found = tokio::net::lookup_host((name.host.as_str(), name.port)).await?;
        Ok(found.map(|address| address.ip()).collect())
    }
}

impl<R: Resolver> DnsNames<R> {
    /// Nothing is known of `names` yet.
    pub fn new(names: Vec<Endpoint>, resolver: R) -> DnsNames<R> {
        DnsNames { resolver, known: names.into_iter().map(|name| (name, BTreeMap::new())).collect() }
    }

    /// True if there are no names at all.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Looks again; returns all engines, and what went wrong with each name that could not be
    /// resolved, whose engines stay as they were.
    pub async fn look(&mut self) -> (Vec<Endpoint>, Vec<String>) {
        let resolver = &self.resolver;
        // At once: a name server that is away would take its time for each of them.
        let looked = self.known.iter().map(|(name, _)| async move {
            let lookup = tokio::time::timeout(LOOKUP_TIME, resolver.addresses(name)).await;
            lookup.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        });
        let looked = join_all(looked).await;
        let mut wrong = Vec::new();
        for ((name, known), found) in self.known.iter_mut().zip(looked) {
            match found {
                Ok(found) if !found.is_empty() => note(known, name, &found),
                Ok(_) => wrong.push(format!("{name}: it has no address")),
                Err(error) => wrong.push(format!("{name}: {error}")),
            }
        }
        let all = self.known.iter().flat_map(|(_, known)| known.keys().cloned()).collect();
        (all, wrong)
    }
}

fn note(known: &mut BTreeMap<Endpoint, u32>, name: &Endpoint, found: &[IpAddr]) {
    known.values_mut().for_each(|absences| *absences += 1);
    for address in found.iter().take(MAX_ADDRESSES) {
        // An IPv4 address in IPv6's clothes is the same engine.
        let engine = Endpoint::new(address.to_canonical().to_string(), name.port);
        known.insert(Endpoint { tls: name.tls, ..engine }, 0);
    }
    known.retain(|_, absences| *absences < ABSENCES);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Answers that somebody wrote down, one after the other; None = failed.
    struct ScriptedResolver(Mutex<Vec<Option<Vec<&'static str>>>>);

    impl Resolver for ScriptedResolver {
        async fn addresses(&self, _: &Endpoint) -> io::Result<Vec<IpAddr>> {
            let answer = self.0.lock().unwrap().remove(0);
            let answer = answer.ok_or(io::ErrorKind::NotFound)?;
            Ok(answer.iter().map(|text| text.parse().unwrap()).collect())
        }
    }

    async fn looks(answers: Vec<Option<Vec<&'static str>>>) -> Vec<(Vec<String>, usize)> {
        looks_for("decoders:8000", answers).await
    }

    async fn looks_for(name: &str, answers: Vec<Option<Vec<&'static str>>>) -> Vec<(Vec<String>, usize)> {
        let count = answers.len();
        let name = Endpoint::parse(name).unwrap();
        let mut names = DnsNames::new(vec![name], ScriptedResolver(Mutex::new(answers)));
        let mut seen = Vec::new();
        for _ in 0..count {
            let (all, wrong) = names.look().await;
            seen.push((all.iter().map(Endpoint::to_string).collect(), wrong.len()));
        }
        seen
    }

    #[tokio::test]
    async fn engines_of_a_name_are_spoken_to_as_the_name_says() {
        let looks = looks_for("https://decoders:8443", vec![Some(vec!["10.0.0.1"])]).await;
        assert_eq!(looks, [(vec!["https://10.0.0.1:8443".to_owned()], 0)], "never in the clear");
    }

    fn all(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[tokio::test]
    async fn addresses_come_at_once_and_go_when_they_are_missing_for_a_while() {
        let (one, two) = ("10.0.0.1", "10.0.0.2");
        let answers = [vec![one], vec![one, two], vec![two], vec![two], vec![one], vec![two], vec![two]];
        let seen = looks(answers.into_iter().chain([vec![two]]).map(Some).collect()).await;
        let both = all(&["10.0.0.1:8000", "10.0.0.2:8000"]);
        let expected = [1, 2, 2, 2, 2, 2, 2].map(|count| (both[..count].to_vec(), 0));
        assert_eq!(seen[..7], expected);
        assert_eq!(seen[7], (all(&["10.0.0.2:8000"]), 0));
    }

    #[tokio::test]
    async fn a_look_up_that_fails_changes_nothing() {
        let seen = looks(vec![Some(vec!["::1", "::ffff:10.0.0.1"]), None, Some(vec![]), None, None]).await;
        let both = all(&["10.0.0.1:8000", "[::1]:8000"]);
        assert_eq!(seen.iter().filter(|(names, _)| *names == both).count(), 5);
        assert_eq!(seen.iter().map(|(_, wrong)| wrong).sum::<usize>(), 4);
    }
}
