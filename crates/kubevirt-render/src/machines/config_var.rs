//! A value in a providerSpec (machine-controller's `ConfigVarString`). Messages redact the value if it comes from a
//! Secret.

use std::fmt;
use std::ops::Deref;

use berth_api::{ParseQuantityError, Quantity};

/// A string that may come from a Secret. `Display` and `Debug` redact it if it does.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct ConfigVar {
    value: String,
    is_secret: bool,
}

/// Text that replaces a value from a Secret in messages.
const REDACTED: &str = "(from a Secret)";

/// Error for a value that is not a quantity.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidQuantity {
    /// The invalid value comes from a Secret, so messages must not quote it.
    #[error("is not a quantity")]
    SecretValue,
    /// The invalid value is in the object itself, so messages may quote it.
    #[error(transparent)]
    PlainValue(ParseQuantityError),
}

impl ConfigVar {
    /// Creates a value from a Secret.
    pub(super) const fn from_secret(value: String) -> Self {
        Self { value, is_secret: true }
    }

    /// Returns true if the value comes from a Secret.
    pub(super) const fn is_secret(&self) -> bool {
        self.is_secret
    }

    /// Returns the value itself, for the rendered VirtualMachine.
    pub(super) fn into_plain_string(self) -> String {
        self.value
    }

    /// Parses the value as a quantity.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is not a quantity. [`ParseQuantityError`] quotes the value, so it is included only
    /// if the value does not come from a Secret.
    pub(super) fn parse_quantity(&self) -> Result<Quantity, InvalidQuantity> {
        self.value.parse().map_err(|error| {
            if self.is_secret {
                InvalidQuantity::SecretValue
            } else {
                InvalidQuantity::PlainValue(error)
            }
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

/// A value that is quoted in messages. A value from a Secret is redacted.
///
/// Functions that quote a value take `impl Redacted` instead of `&str`. A parameter of type `&str` would accept a
/// [`ConfigVar`] by dereferencing it, and the message would contain the string that must be redacted.
pub(super) trait Redacted {
    fn redacted(&self) -> &str;
}

impl Redacted for ConfigVar {
    fn redacted(&self) -> &str {
        if self.is_secret { REDACTED } else { &self.value }
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
