//! Properties of a link that differ from the desired ones.

use std::fmt;

/// One property that differs: `MTU 1500 -> 9000`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The property.
    pub what: &'static str,
    /// Its observed value.
    pub is: String,
    /// Its desired value.
    pub should_be: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
        write!(f, "{} {} -> {}", self.what, word(&self.is), word(&self.should_be))
    }
}

/// Several differences, with a `Display` like `MTU 1500 -> 9000, state down -> up`.
pub(crate) struct Listed<'a>(pub(crate) &'a [Difference]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, difference) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            difference.fmt(f)?;
        }
        Ok(())
    }
}
