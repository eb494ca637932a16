//! Serial console and screen of a VM.

use berth_views::ObjectName;
use maud::{Markup, html};

use super::layout::Content;
use super::parts::machine_path;
use crate::assets;
use crate::vm_stream::kind::StreamKind;

/// Files of noVNC begin with this path.
const NOVNC: &str = "novnc/";

/// Returns the path of the page of a stream.
pub(super) fn stream_path(machine: &ObjectName, kind: StreamKind) -> String {
    format!("{}/{kind}", machine_path(machine))
}

/// Returns the page of a stream. The script connects it; without scripts, the page names the command for a shell.
pub(crate) fn content(machine: &ObjectName, kind: StreamKind) -> Content {
    let subresource = kind.subresource();
    let view = html! {
        p { "VM " a href=(machine_path(machine)) { (machine.name) } " in " (machine.namespace) }
        noscript { p .warning { "This page needs JavaScript." } }
        p .hint { "In a shell: " code { "kubectl berth " (subresource) " " (machine) } }
        (viewer(machine, kind))
    };
    Content { form: None, view }
}

fn viewer(machine: &ObjectName, kind: StreamKind) -> Markup {
    let name = format!("{} of {}", kind.label(), machine.name);
    html! {
        div #stream-tools .tools hidden {
            p #stream-state .live role="status" { "Connecting" }
            button #stream-toggle type="button" { "Disconnect" }
            @if kind == StreamKind::Screen {
                button #stream-reset type="button" { "Send Ctrl-Alt-Del" }
                button #stream-full type="button" { "Full screen" }
            }
        }
        p #stream-keys .hint hidden {
            "All keys are sent to the VM. " kbd { "Ctrl+Shift+Backspace" } " moves the focus back to the buttons."
            @if kind == StreamKind::Console { " " span #stream-size {} }
        }
        div #stream .stream role="region" aria-label=(name) hidden
            data-kind=(kind) data-path={ (stream_path(machine, kind)) "/stream" }
            data-xterm=[script_of(kind, StreamKind::Console, "xterm.mjs")]
            data-fit=[script_of(kind, StreamKind::Console, "addon-fit.mjs")]
            data-novnc=[script_of(kind, StreamKind::Screen, "novnc/core/rfb.js")] {}
        @if kind == StreamKind::Console {
            link rel="stylesheet" href=(assets::path("xterm.css"));
        } @else {
            // Without these links, the browser would find the modules one after the other.
            @for path in assets::paths_below(NOVNC) { link rel="modulepreload" href=(path); }
        }
        script type="module" src=(assets::path("stream.js")) {}
    }
}

/// Returns the path of a script that only pages of the kind `of` need.
fn script_of(kind: StreamKind, of: StreamKind, name: &str) -> Option<&'static str> {
    (kind == of).then(|| assets::path(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_name_the_command_and_load_only_their_own_scripts() {
        let machine = ObjectName::new("cluster-bank", "web");
        let console = content(&machine, StreamKind::Console).view.into_string();
        assert!(console.contains("kubectl berth console cluster-bank/web"), "{console}");
        assert!(console.contains("\"/vms/cluster-bank/web/console/stream\""), "{console}");
        assert!(console.contains("xterm.mjs") && !console.contains("novnc"), "{console}");
        let screen = content(&machine, StreamKind::Screen).view.into_string();
        assert!(screen.contains("kubectl berth vnc cluster-bank/web"), "{screen}");
        assert!(screen.contains("/novnc/core/rfb.js\"") && !screen.contains("xterm"), "{screen}");
        for text in [console, screen] {
            assert!(!text.contains("=\"\""), "a file is missing: {text}");
        }
    }
}
