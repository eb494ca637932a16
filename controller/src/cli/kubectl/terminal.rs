//! Raw mode of the terminal: each key is sent to the VM, also Ctrl-C.

use std::io::IsTerminal as _;
use std::sync::Mutex;

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
        restore_on_panic(original.clone());
        let mut raw = original.clone();
        cfmakeraw(&mut raw);
        tcsetattr(&stdin, SetArg::TCSANOW, &raw)?;
        Ok(Some(Self { original }))
    }
}

/// Restores the mode before the message of a panic is printed. A panic ends the shipped program without drops.
fn restore_on_panic(original: Termios) {
    let original = Mutex::new(original);
    let print_panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if let Ok(original) = original.lock() {
            tcsetattr(std::io::stdin(), SetArg::TCSANOW, &original).unwrap_or_default();
        }
        print_panic(panic);
    }));
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // There is no other way to report that the terminal is closed.
        tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.original).unwrap_or_default();
    }
}
