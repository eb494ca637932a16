//! Raw mode of the terminal: each key is sent to the VM, also Ctrl-C.

use std::io::IsTerminal as _;

use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

/// Raw mode of standard input. The previous mode is restored on drop.
#[derive(Debug)]
pub(super) struct RawMode {
    original: Termios,
}

impl RawMode {
    /// Enables the raw mode; returns `None` if standard input is no terminal.
    pub(super) fn enable() -> nix::Result<Option<Self>> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let original = tcgetattr(&stdin)?;
        let mut raw = original.clone();
        cfmakeraw(&mut raw);
        tcsetattr(&stdin, SetArg::TCSANOW, &raw)?;
        Ok(Some(Self { original }))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // There is no other way to report that the terminal is closed.
        tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.original).unwrap_or_default();
    }
}
