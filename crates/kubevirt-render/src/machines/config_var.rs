//! A value of a providerSpec that may come from a Secret. Where it does, no message shows it.

use std::fmt;
use std::ops::Deref;

use berth_api::Quantity;

/// A text, and whether a Secret has it. As text in a message it hides what a Secret has.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct ConfigVar {
    value: String,
    is_secret: bool,
}

/// What stands in a message for a value from a Secret.
const HIDDEN: &str = "(from a Secret)";

impl ConfigVar {
    /// What a Secret has.
    pub(super) const fn secret(value: String) -> Self {
        Self { value, is_secret: true }
    }

    /// Whether a Secret has it.
    pub(super) const fn is_secret(&self) -> bool {
        self.is_secret
    }

    /// The value itself, for the machine that is made of it.
    pub(super) fn expose(self) -> String {
        self.value
    }

    /// As a quantity.
    ///
    /// # Errors
    /// What is wrong with it. The parser's own words quote what stands there, so they are for values of the object alone.
    pub(super) fn quantity(&self) -> Result<Quantity, String> {
        self.value.parse::<Quantity>().map_err(|error| {
            if self.is_secret { "is not a quantity".to_owned() } else { error.to_string() }
        })
    }
}

impl From<String> for ConfigVar {
    fn from(value: String) -> Self {
        Self { value, is_secret: false }
    }
}

impl From<&str> for ConfigVar {
    fn from(value: &str) -> Self {
        value.to_owned().into()
    }
}

impl Deref for ConfigVar {
    type Target = str;

    fn deref(&self) -> &str {
        &self.value
    }
}

/// What a message shows of a value.
///
/// A function that takes one is generic, so that a [`ConfigVar`] is not dereferenced to the value that it hides.
pub(super) trait Redacted {
    fn redacted(&self) -> &str;
}

impl Redacted for ConfigVar {
    fn redacted(&self) -> &str {
        if self.is_secret { HIDDEN } else { &self.value }
    }
}

impl Redacted for str {
    fn redacted(&self) -> &str {
        self
    }
}

impl Redacted for String {
    fn redacted(&self) -> &str {
        self
    }
}

impl fmt::Display for ConfigVar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.redacted())
    }
}

impl fmt::Debug for ConfigVar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.redacted(), f)
    }
}
