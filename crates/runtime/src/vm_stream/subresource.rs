//! Subresources of a VirtualMachineInstance that are byte streams.

use std::fmt;

/// Subresource of a VirtualMachineInstance that is a byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subresource {
    /// Serial console.
    Console,
    /// Graphical screen, with the protocol RFB of VNC.
    Vnc,
    /// This TCP port of the VM, in the pod network.
    PortForward(u16),
}

impl fmt::Display for Subresource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Console => f.write_str("console"),
            Self::Vnc => f.write_str("vnc"),
            Self::PortForward(port) => write!(f, "portforward/{port}/tcp"),
        }
    }
}
