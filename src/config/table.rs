//! Tables of keys. Each section of the configuration is one table, by `section!`, and a row says
//! all that the program knows of a key: name, type, default, rule and effect.
//!
//! The section's struct, its defaults, checks, variables, reloads and reference come from the
//! table. The unit of a number is the last part of its name, and of its rule (`bounds`).

use super::{Invalid, Problem};

/// Moments at which a running gateway takes another value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// When the configuration is read again.
    AtOnce,
    /// When the gateway is started again.
    AfterRestart,
}

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
}

/// The value of a key, whatever its type.
#[derive(Clone, Copy)]
pub(crate) enum KeyValue {
    /// A whole number.
    Whole(u64),
    /// A number that may be a fraction.
    Fraction(f64),
    /// Anything that is no number.
    Other,
}

/// Types that the value of a key can have.
pub(crate) trait KeyType {
    /// The value as one of the kinds that tables know.
    fn value(&self) -> KeyValue;
}

/// A row of a table with the value that the key has.
pub(crate) struct Row {
    /// Name, as `section.key`.
    pub(crate) name: &'static str,
    /// Rule for its values.
    pub(crate) rule: Rule,
    /// Value of the key.
    pub(crate) value: KeyValue,
}

/// A section of the configuration, which `section!` makes.
pub(crate) trait Section {
    /// Adds its rows in their order, and after them those of sections in it.
    fn add_rows(&self, rows: &mut Vec<Row>);

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

impl Row {
    /// A key whose every value is good.
    pub(crate) fn new(name: &'static str, value: KeyValue) -> Self {
        Self { name, rule: Rule::Any, value }
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
            _ => {}
        }
    }
}

impl KeyType for bool {
    fn value(&self) -> KeyValue {
        KeyValue::Other
    }
}

impl KeyType for u16 {
    fn value(&self) -> KeyValue {
        KeyValue::Whole(u64::from(*self))
    }
}

impl KeyType for u32 {
    fn value(&self) -> KeyValue {
        KeyValue::Whole(u64::from(*self))
    }
}

impl KeyType for u64 {
    fn value(&self) -> KeyValue {
        KeyValue::Whole(*self)
    }
}

impl KeyType for usize {
    fn value(&self) -> KeyValue {
        KeyValue::Whole(u64::try_from(*self).unwrap_or(u64::MAX))
    }
}

impl KeyType for f64 {
    fn value(&self) -> KeyValue {
        KeyValue::Fraction(*self)
    }
}

/// A section's table. Each row is a key with its meaning, `key: type = default, effect, rule;`,
/// where a key without a rule takes every value of its type.
macro_rules! section {
    (
        $(#[$about:meta])+
        $Name:ident = $path:literal {
            $($(#[$doc:meta])+ $key:ident: $kind:ty = $default:expr, $effect:ident $(, $rule:expr)?;)*
        }
        $(sections { $($(#[$inner_doc:meta])+ $inner:ident: $Inner:ty,)+ })?
    ) => {
        $(#[$about])+
        #[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $Name {
            $($(#[$doc])+ pub $key: $kind,)*
            $($($(#[$inner_doc])+ pub $inner: $Inner,)+)?
        }

        impl Default for $Name {
            fn default() -> Self {
                Self { $($key: $default,)* $($($inner: <$Inner>::default(),)+)? }
            }
        }

        impl $crate::config::table::Section for $Name {
            fn add_rows(&self, rows: &mut Vec<$crate::config::table::Row>) {
                $(
                    let name = concat!($path, ".", stringify!($key));
                    let value = $crate::config::table::KeyType::value(&self.$key);
                    rows.push($crate::config::table::Row::new(name, value)$(.with($rule))?);
                )*
                $($($crate::config::table::Section::add_rows(&self.$inner, rows);)+)?
            }

            fn updated_from(&self, new: &Self) -> Self {
                Self {
                    $($key: $crate::config::table::Effect::$effect.pick(&self.$key, &new.$key),)*
                    $($($inner: $crate::config::table::Section::updated_from(&self.$inner, &new.$inner),)+)?
                }
            }
        }
    };
}
pub(crate) use section;
