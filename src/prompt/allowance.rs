//! Limits of one rendering beside minijinja's fuel, which counts instructions, however much one of
//! them does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use minijinja::value::{Object, Value};
use minijinja::{Error, ErrorKind, State};

/// The variable that carries the allowance to filters and methods; no template names it.
pub(super) const ALLOWANCE: &str = "__pd_proxy_allowance";
/// Bytes of text that any rendering may make beside its output, and more for every byte of the
/// request. Templates keep each text a few times over; one that joins a thousand system messages of
/// a quarter of a kilobyte in a loop takes half of the first. Copied, it is some tens of
/// milliseconds.
const BASE_BYTES: u64 = 256 << 20;
const PER_BYTE: u64 = 64;
/// Shorter texts cost what an instruction costs, which is counted already.
const SMALL_BYTES: usize = 64;

/// Ends work on a prompt that nobody waits for any more. Copies are one and the same.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends the work, at the next item of a list or the next text that a template looks at, or
    /// before the text is tokenised.
    pub fn now(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// True if it was told to end.
    pub fn is_told(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Number of times that one rendering may still look at an item of a list, and how many bytes of
/// text it may still make. A slice of a list is no list: minijinja walks to an item of it from its
/// beginning each time. And a text that grows in a loop is copied in each round.
#[derive(Debug)]
pub(super) struct Allowance {
    looks: AtomicU64,
    bytes: AtomicU64,
    stop: Stop,
}

impl Allowance {
    /// So many looks, and bytes by the size of the request.
    pub(super) fn new(looks: u64, source_bytes: usize, stop: Stop) -> Arc<Self> {
        let bytes = BASE_BYTES.saturating_add(PER_BYTE.saturating_mul(source_bytes as u64));
        Arc::new(Self { looks: AtomicU64::new(looks), bytes: AtomicU64::new(bytes), stop })
    }

    /// Nothing is left of one or the other: what was rendered since is not the conversation.
    pub(super) fn spent(&self) -> bool {
        self.looks.load(Ordering::Relaxed) == 0 || self.bytes.load(Ordering::Relaxed) == 0
    }

    /// Takes a look; false where there is none.
    pub(super) fn look(&self) -> bool {
        if self.stop.is_told() {
            self.looks.store(0, Ordering::Relaxed);
        }
        take(&self.looks, 1)
    }

    /// Takes the bytes of a text that was made, or all that are left; false in that case.
    fn make(&self, bytes: u64) -> bool {
        let enough = !self.stop.is_told() && take(&self.bytes, bytes);
        if !enough {
            self.bytes.store(0, Ordering::Relaxed);
        }
        enough
    }
}

impl Object for Allowance {}

fn take(from: &AtomicU64, amount: u64) -> bool {
    from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(amount)).is_ok()
}

/// Takes what it costs to make, or to go through, a text of so many bytes.
pub(super) fn charge(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    if bytes < SMALL_BYTES {
        return Ok(());
    }
    let value = state.lookup(ALLOWANCE);
    let allowance = value.as_ref().and_then(|value| value.downcast_object_ref::<Allowance>());
    match allowance.is_none_or(|allowance| allowance.make(bytes as u64)) {
        true => Ok(()),
        false => Err(Error::from(ErrorKind::OutOfFuel)),
    }
}

/// The filter behind what a template keeps in a variable: the value as it is, once it is paid for.
/// A list counts a byte for each of its items: where one grows in a loop, minijinja copies it in
/// one of 32 rounds.
pub(super) fn kept(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    let bytes = value.as_str().map(str::len).or_else(|| value.len()).unwrap_or(0);
    charge(state, bytes).map(|()| value)
}

#[cfg(test)]
mod tests {
    use super::super::jinja::environment;
    use super::super::kept::with_paid_variables;
    use super::*;

    /// Every way in which a template makes a text, or goes through one, on a text of 100 bytes.
    #[test]
    fn texts_are_paid_for_once_each_time() {
        for source in [
            "{{ t }}",
            "{% set a %}{{ t }}{% endset %}",
            "{% set a = t ~ '' %}",
            "{% macro f(x) %}{% set a = x ~ '' %}{% endmacro %}{{ f(t) }}",
            "{{ (t|trim)[:1] }}",
            "{{ (t|string)[:1] }}",
            "{{ ([t]|join)[:1] }}",
            "{{ ([t[2:]]|tojson)[:1] }}",
            "{{ t.split('y')|length }}",
            "{% set a = [0] * 100 %}",
        ] {
            let renders = |bytes| {
                let allowance = Allowance {
                    looks: AtomicU64::new(9),
                    bytes: AtomicU64::new(bytes),
                    stop: Stop::default(),
                };
                let variables =
                    [("t", Value::from("x".repeat(100))), (ALLOWANCE, Value::from_object(allowance))];
                let source = with_paid_variables(source).unwrap();
                environment().render_str(&source, Value::from_pairs(variables)).map_err(|error| error.kind())
            };
            assert_eq!(renders(99), Err(ErrorKind::OutOfFuel), "{source}");
            assert!(renders(110).is_ok(), "{source}");
        }
    }

    #[test]
    fn spent_allowance_stays_spent() {
        let allowance = Allowance::new(2, 1, Stop::default());
        assert!(allowance.make(BASE_BYTES + PER_BYTE - 1) && !allowance.spent());
        assert!(!allowance.make(2) && allowance.spent() && !allowance.make(1));
        let (stop, looks) = (Stop::default(), |allowance: &Allowance| (allowance.look(), allowance.spent()));
        let allowance = Allowance::new(9, 1, stop.clone());
        assert_eq!(looks(&allowance), (true, false));
        stop.now();
        assert_eq!(looks(&allowance), (false, true));
        let allowance = Allowance::new(9, 1, stop);
        assert!(!allowance.make(1) && allowance.spent());
    }
}
