//! Properties of a link that differ from the desired ones.

use std::fmt;

/// One property that differs: `MTU 1500 -> 9000`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// Name of the property, such as `MTU`.
    pub property: &'static str,
    pub observed: String,
    pub desired: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
        write!(f, "{} {} -> {}", self.property, word(&self.observed), word(&self.desired))
    }
}

/// List of differences, whose `Display` prints `MTU 1500 -> 9000, state down -> up`.
pub(crate) struct DifferenceList<'a>(pub(crate) &'a [Difference]);

impl fmt::Display for DifferenceList<'_> {
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
