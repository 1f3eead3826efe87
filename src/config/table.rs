//! Tables of keys. Each section of the configuration is one table, by `section!`, and a row says
//! all that the program knows of a key: name, type, default, rule and effect.
//!
//! The section's struct, its defaults, checks, variables, reloads and reference come from the
//! table. The unit of a number is the last part of its name, and of its rule (`bounds`).

use super::{Invalid, Problem};
use serde_json::Value as Json;

/// Text that replaces a secret wherever it would be shown.
pub(super) const MASK: &str = "***";

/// Moments at which a running gateway takes another value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// As soon as the configuration is read again.
    AtOnce,
    /// Only once the gateway is started again.
    AfterRestart,
}

/// Finds what is wrong with a key's text, or with an entry of its list.
pub(crate) type Judge = fn(key: &'static str, text: &str) -> Option<Problem>;

/// Rules for the values of a key, beyond its type.
#[derive(Clone, Copy)]
pub(crate) enum Rule {
    /// Every value of the type is good.
    Any,
    /// A number from `min` to `max`, which `bounds` makes.
    Within {
        /// Smallest number that makes sense.
        min: u64,
        /// Largest number that makes sense.
        max: u64,
    },
    /// A text that is left out rather than empty.
    NotEmpty,
    /// A text, or a list of texts, with which this function finds nothing wrong.
    Judged(Judge),
    /// A text that is never shown.
    Secret {
        /// The familiar environment variable that also sets it, or its own.
        variable: &'static str,
    },
}

/// The value of a key, whatever its type.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum KeyValue<'a> {
    /// True or false.
    Switch(bool),
    /// A whole number.
    Whole(u64),
    /// A number that may be a fraction.
    Fraction(f64),
    /// A text; `None` = not set.
    Text(Option<&'a str>),
    /// The text of a secret; `None` = not set.
    Secret(Option<&'a str>),
    /// A list of texts.
    List(&'a [String]),
    /// A name out of a fixed set.
    Name {
        /// The name that is set.
        name: &'static str,
        /// All names of the set.
        names: &'static [&'static str],
    },
}

/// Ways in which a value given as bare text is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// As it stands, quotes optional.
    Text,
    /// A TOML array, or entries between commas.
    List,
    /// Any other TOML value.
    Other,
}

/// Types that the value of a key can have.
pub(crate) trait KeyType {
    /// The value as one of the kinds that tables know.
    fn value(&self) -> KeyValue<'_>;
}

/// A row of a table with the value that the key has.
pub(crate) struct Row<'a> {
    /// Name, as `section.key`.
    pub(crate) name: &'static str,
    /// Moment at which another value counts.
    pub(crate) effect: Effect,
    /// Rule for its values.
    pub(crate) rule: Rule,
    /// Value of the key.
    pub(crate) value: KeyValue<'a>,
}

impl Row<'_> {
    /// True if the value must not be shown.
    pub(crate) fn is_secret(&self) -> bool {
        matches!(self.rule, Rule::Secret { .. })
    }
}

/// A section of the configuration, which `section!` makes.
pub(crate) trait Section {
    /// Adds its rows in their order, and after them those of sections in it.
    fn add_rows<'a>(&'a self, rows: &mut Vec<Row<'a>>);

    /// This section with those values of `new` that count at once.
    fn updated_from(&self, new: &Self) -> Self;
}

impl Effect {
    /// The value that a running gateway goes on with.
    pub(crate) fn pick<T: Clone>(self, running: &T, new: &T) -> T {
        match self {
            Self::AtOnce => new.clone(),
            Self::AfterRestart => running.clone(),
        }
    }
}

impl<'a> Row<'a> {
    /// A key whose every value is good.
    pub(crate) fn new(name: &'static str, effect: Effect, value: KeyValue<'a>) -> Self {
        Self { name, effect, rule: Rule::Any, value }
    }

    /// The same key with a rule.
    pub(crate) fn with(self, rule: Rule) -> Self {
        Self { rule, ..self }
    }

    /// Checks the value by itself.
    pub(crate) fn check(&self, invalid: &mut Vec<Invalid>) {
        let key = self.name;
        let out_of_range = |value: String, min, max| (key, Problem::OutOfRange { key, value, min, max });
        match (self.rule, self.value) {
            (Rule::Within { min, max }, KeyValue::Whole(value)) if !(min..=max).contains(&value) => {
                invalid.push(out_of_range(value.to_string(), min, max));
            }
            // Infinity and NaN are TOML numbers, too. Exact: a week in ms is far below 2^53.
            (Rule::Within { min, max }, KeyValue::Fraction(value))
                if !(min as f64..=max as f64).contains(&value) =>
            {
                invalid.push(out_of_range(value.to_string(), min, max));
            }
            (Rule::NotEmpty, KeyValue::Text(Some(""))) => invalid.push((key, Problem::EmptyText { key })),
            (Rule::Judged(judge), KeyValue::Text(Some(text))) => {
                invalid.extend(judge(key, text).map(|problem| (key, problem)));
            }
            (Rule::Judged(judge), KeyValue::List(entries)) => {
                let problems = entries.iter().filter_map(|text| judge(key, text));
                invalid.extend(problems.map(|problem| (key, problem)));
            }
            _ => {}
        }
    }
}

impl KeyValue<'_> {
    /// Way in which bare text for the key is read.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Text(_) | Self::Secret(_) | Self::Name { .. } => Kind::Text,
            Self::List(_) => Kind::List,
            Self::Switch(_) | Self::Whole(_) | Self::Fraction(_) => Kind::Other,
        }
    }

    /// The value as it may be shown: null where it is not set, secrets masked.
    pub(crate) fn json(self) -> Json {
        match self {
            Self::Switch(on) => Json::from(on),
            Self::Whole(number) => Json::from(number),
            Self::Fraction(number) => Json::from(number),
            Self::Text(text) => Json::from(text),
            Self::Secret(text) => Json::from(text.map(|_| MASK)),
            Self::List(entries) => Json::from(entries),
            Self::Name { name, .. } => Json::from(name),
        }
    }
}

impl KeyType for bool {
    fn value(&self) -> KeyValue<'_> {
        KeyValue::Switch(*self)
    }
}

impl KeyType for u16 {
    fn value(&self) -> KeyValue<'_> {
        KeyValue::Whole(u64::from(*self))
    }
}

impl KeyType for u32 {
    fn value(&self) -> KeyValue<'_> {
        KeyValue::Whole(u64::from(*self))
    }
}

impl KeyType for u64 {
    fn value(&self) -> KeyValue<'_> {
        KeyValue::Whole(*self)
    }
}

impl KeyType for usize {
    fn value(&self) -> KeyValue<'_> {
        KeyValue::Whole(u64::try_from(*self).unwrap_or(u64::MAX))
    }
}

impl KeyType for f64 {
    fn value(&self) -> KeyValue<'_> {
        KeyValue::Fraction(*self)
    }
}

impl KeyType for String {
    fn value(&self) -> KeyValue<'_> {
        KeyValue::Text(Some(self))
    }
}

impl KeyType for Option<String> {
    fn value(&self) -> KeyValue<'_> {
        KeyValue::Text(self.as_deref())
    }
}

impl KeyType for Vec<String> {
    fn value(&self) -> KeyValue<'_> {
        KeyValue::List(self)
    }
}

/// A section's table. Each row is a key with its meaning, `key: type = default, effect, rule;`,
/// where a key without a rule takes every value of its type. What stands `apart` is no section and
/// has no rows; an update keeps it.
macro_rules! section {
    (
        $(#[$about:meta])+
        $Name:ident = $path:literal {
            $($(#[$doc:meta])+ $key:ident: $kind:ty = $default:expr, $effect:ident $(, $rule:expr)?;)*
        }
        $(sections { $($(#[$inner_doc:meta])+ $inner:ident: $Inner:ty,)+ })?
        $(apart { $($(#[$apart_doc:meta])+ $apart:ident: $Apart:ty,)+ })?
    ) => {
        $(#[$about])+
        #[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $Name {
            $($(#[$doc])+ pub $key: $kind,)*
            $($($(#[$inner_doc])+ pub $inner: $Inner,)+)?
            $($($(#[$apart_doc])+ #[serde(skip)] pub $apart: $Apart,)+)?
        }

        impl Default for $Name {
            fn default() -> Self {
                Self {
                    $($key: $default,)*
                    $($($inner: <$Inner>::default(),)+)?
                    $($($apart: <$Apart>::default(),)+)?
                }
            }
        }

        impl $crate::config::table::Section for $Name {
            fn add_rows<'a>(&'a self, rows: &mut Vec<$crate::config::table::Row<'a>>) {
                $(
                    let name = concat!($path, ".", stringify!($key));
                    let effect = $crate::config::table::Effect::$effect;
                    let value = $crate::config::table::KeyType::value(&self.$key);
                    rows.push($crate::config::table::Row::new(name, effect, value)$(.with($rule))?);
                )*
                $($($crate::config::table::Section::add_rows(&self.$inner, rows);)+)?
            }

            fn updated_from(&self, new: &Self) -> Self {
                Self {
                    $($key: $crate::config::table::Effect::$effect.pick(&self.$key, &new.$key),)*
                    $($($inner: $crate::config::table::Section::updated_from(&self.$inner, &new.$inner),)+)?
                    $($($apart: self.$apart.clone(),)+)?
                }
            }
        }
    };
}
pub(crate) use section;
