//! Why a part of a tenant is not as asked, for its condition and its event.

/// One reason in a machine's word and in a person's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// The reason of a condition: one word in `CamelCase`.
    pub reason: &'static str,
    /// Object, field, value, and what to do.
    pub message: String,
}

impl Fault {
    /// A fault.
    #[must_use]
    pub const fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message }
    }
}

/// The first few of a list, and how many more there are.
#[must_use]
pub fn some_of(all: &[String]) -> String {
    const NAMED: usize = 4;
    let named = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}
