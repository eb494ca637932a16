//! Kinds of streams to a VM.

use std::fmt;
use std::str::FromStr;

use berth_runtime::vm_stream::Subresource;

/// Kind of a stream to a VM, as it is named in paths and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StreamKind {
    /// Serial console.
    Console,
    /// Graphical screen.
    Screen,
}

impl StreamKind {
    pub(crate) const ALL: [Self; 2] = [Self::Console, Self::Screen];

    /// Returns the subresource of KubeVirt.
    pub(crate) const fn subresource(self) -> Subresource {
        match self {
            Self::Console => Subresource::Console,
            Self::Screen => Subresource::Vnc,
        }
    }

    /// Returns the label of links and titles.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Console => "Console",
            Self::Screen => "Screen",
        }
    }

    /// Returns true if a message of the browser is an input of the user. Viewers of VNC also request updates of the screen
    /// while the user does nothing.
    pub(crate) fn is_user_input(self, message: &[u8]) -> bool {
        match self {
            Self::Console => true,
            // Types of messages in the protocol RFB: key, pointer, clipboard, and QEMU's keys with scan codes.
            Self::Screen => matches!(message.first(), Some(4 | 5 | 6 | 255)),
        }
    }
}

impl fmt::Display for StreamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Console => "console",
            Self::Screen => "screen",
        })
    }
}

/// The text is not the name of a kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnknownKind;

impl FromStr for StreamKind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        Self::ALL.into_iter().find(|kind| kind.to_string() == text).ok_or(UnknownKind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_and_pointers_are_inputs_of_the_user() {
        assert!(StreamKind::Console.is_user_input(b"ls\r"));
        for (first, expected) in [(0, false), (2, false), (3, false), (4, true), (5, true)] {
            assert_eq!(StreamKind::Screen.is_user_input(&[first, 1]), expected, "{first}");
        }
        assert!(!StreamKind::Screen.is_user_input(b""));
    }
}
