//! Renders the links of the host as a tree, from the uplink to the port of a VM: an uplink, the links stacked on
//! it, the bridge of each of these links, and the other ports of that bridge.

use std::collections::BTreeSet;

use berth_api::LinkName;

use super::api_name::api_name;
use berth_host_facts::links::{Link, LinkKind, Links};
use berth_runtime::cli::style::Style;
use berth_runtime::cli::text::{push_line, replace_control_characters, wrap_text};

/// Maximum number of links shown below a link. A host may have the links of thousands of tenants.
const MAX_CHILDREN: usize = 12;
/// Width of a default terminal, in columns.
const TERMINAL_WIDTH: usize = 80;
/// Minimum number of columns for the description of a link, even at a large indentation.
const MIN_TEXT_WIDTH: usize = 24;
/// Maximum depth of stacked links. A deeper stack is a cycle or a misconfiguration.
const MAX_DEPTH: usize = 12;

/// Renders the tree; empty if there is no bridge, bond, VLAN link or VXLAN tunnel.
#[must_use]
pub fn render(links: &Links, style: Style) -> String {
    let is_tree_node = |link: &&Link| {
        matches!(link.kind, LinkKind::Bridge | LinkKind::Bond | LinkKind::Vlan | LinkKind::Vxlan)
    };
    if !links.all.iter().any(|link| is_tree_node(&link)) {
        return String::new();
    }
    let mut tree = LinkTree { links, shown_links: BTreeSet::new(), output: String::new() };
    tree.output.push('\n');
    push_line(&mut tree.output, &style.format_heading("LINKS"), "");
    // The tree has two kinds of roots: first uplinks that are not ports of a bond, and then bridges without an
    // uplink.
    let in_bond = |link: &Link| {
        let master = link.master.as_ref().and_then(|master| links.find_by_name(master));
        master.is_some_and(|master| master.kind == LinkKind::Bond)
    };
    for link in links.uplinks().filter(|link| !in_bond(link)) {
        tree.render_branch(link, "", "");
    }
    for link in links.all.iter().filter(is_tree_node) {
        if link.parent.is_none() && !tree.shown_links.contains(&link.name) && link.master.is_none()
        {
            tree.render_branch(link, "", "");
        }
    }
    tree.output
}

struct LinkTree<'a> {
    links: &'a Links,
    shown_links: BTreeSet<&'a LinkName>,
    output: String,
}

impl<'a> LinkTree<'a> {
    /// Renders a link and all links above it.
    fn render_branch(&mut self, link: &'a Link, branch: &str, indent: &str) {
        let words = replace_control_characters(&self.link_description(link));
        let mut label = format!("  {indent}{branch}");
        let width = TERMINAL_WIDTH.saturating_sub(label.chars().count()).max(MIN_TEXT_WIDTH);
        for part in wrap_text(&words, width) {
            push_line(&mut self.output, &label, &part);
            label = " ".repeat(label.chars().count());
        }
        if !self.shown_links.insert(&link.name) || indent.chars().count() > 3 * MAX_DEPTH {
            return;
        }
        let indent = match branch {
            "" => String::new(),
            "└─ " => format!("{indent}   "),
            _ => format!("{indent}│  "),
        };
        let mut upper_links: Vec<&Link> = self.links.links_stacked_on(&link.name).collect();
        let is_bridge = link.kind == LinkKind::Bridge;
        if is_bridge {
            upper_links.extend(self.links.ports_of(&link.name));
        }
        let master = link.master.as_ref().and_then(|master| self.links.find_by_name(master));
        upper_links.extend(master.filter(|master| master.kind == LinkKind::Bridge));
        let mut seen = BTreeSet::new();
        upper_links
            .retain(|next| !self.shown_links.contains(&next.name) && seen.insert(&next.name));
        let hidden_count = upper_links.len().saturating_sub(MAX_CHILDREN);
        let last = upper_links.len().min(MAX_CHILDREN);
        let hidden: Vec<&Link> = upper_links.iter().skip(MAX_CHILDREN).copied().collect();
        for link in hidden {
            self.mark_hidden_link_as_shown(link);
        }
        for (index, next) in upper_links.into_iter().take(MAX_CHILDREN).enumerate() {
            let is_last = index + 1 == last && hidden_count == 0;
            self.render_branch(next, if is_last { "└─ " } else { "├─ " }, &indent);
        }
        if hidden_count > 0 {
            push_line(
                &mut self.output,
                &format!("  {indent}└─ "),
                &format!("and {hidden_count} more"),
            );
        }
    }

    /// Marks a link that is not rendered, and its bridge, as shown, so that they do not become roots of the tree.
    fn mark_hidden_link_as_shown(&mut self, link: &'a Link) {
        self.shown_links.insert(&link.name);
        self.shown_links.extend(link.master.as_ref());
    }

    /// Returns the text of a link: its name, kind, state and properties.
    fn link_description(&self, link: &Link) -> String {
        let kind = match link.kind {
            LinkKind::Physical => "physical".to_owned(),
            LinkKind::VirtualFunction => "virtual function".to_owned(),
            LinkKind::Bond => {
                let ports: Vec<&str> =
                    self.links.ports_of(&link.name).map(|port| port.name.as_str()).collect();
                if ports.is_empty() {
                    "bond without ports".to_owned()
                } else {
                    format!("bond of {}", ports.join(", "))
                }
            }
            LinkKind::OpenVSwitch => "Open vSwitch".to_owned(),
            LinkKind::Bridge if link.vlan_filtering == Some(true) => "VLAN-aware bridge".to_owned(),
            LinkKind::Bridge => "bridge".to_owned(),
            LinkKind::Vlan => {
                format!("VLAN {}", link.vlan.map_or_else(|| "?".to_owned(), |id| id.to_string()))
            }
            LinkKind::Vxlan => {
                let tunnel = link.tunnel.clone().unwrap_or_default();
                let vni = tunnel.vni.map_or_else(|| "?".to_owned(), |vni| vni.to_string());
                format!("VNI {vni} to {} peers", tunnel.peers.len())
            }
            LinkKind::Veth => "veth".to_owned(),
            LinkKind::Tun => "tap".to_owned(),
            LinkKind::Loopback | LinkKind::Other => "other".to_owned(),
        };
        let up = match (link.is_up, link.state) {
            (Some(false), _) => "down".to_owned(),
            (_, Some(state)) => api_name(&state).to_lowercase(),
            _ => String::new(),
        };
        let mut words = vec![kind, up];
        words.extend(link.mtu.map(|mtu| format!("MTU {mtu}")));
        if let Some(vlans) = link.vlans.as_ref().filter(|vlans| !vlans.all.is_empty()) {
            let own = vlans.pvid.map(|id| format!(", untagged {id}")).unwrap_or_default();
            words.push(format!("VLANs {}{own}", vlans.all));
        }
        words.extend(link.addresses.iter().cloned());
        if link.has_default_route {
            words.push("default route".to_owned());
        }
        words.extend(link.alias.as_ref().map(|alias| format!("({alias})")));
        words.retain(|word| !word.is_empty());
        format!("{}  {}", link.name, words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, kind: LinkKind, master: Option<&str>, parent: Option<&str>) -> Link {
        let parse = |name: &str| name.parse::<LinkName>().unwrap();
        Link {
            master: master.map(parse),
            parent: parent.map(parse),
            ..Link::new(parse(name), kind)
        }
    }

    #[test]
    fn every_link_is_shown_once() {
        let mut all = vec![
            link("eth0", LinkKind::Physical, Some("bond0"), None),
            link("bond0", LinkKind::Bond, Some("br-tenant"), None),
            link("bond0.10", LinkKind::Vlan, None, Some("bond0")),
            link("br-tenant", LinkKind::Bridge, None, None),
            link("vnet0", LinkKind::Tun, Some("br-tenant"), None),
            link("virbr0", LinkKind::Bridge, None, None),
        ];
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let links = Links { all, are_routes_known: true, ..Links::default() };
        let text = render(&links, Style::Plain);
        assert_eq!(
            text,
            "\nLINKS\n  bond0  bond of eth0\n  ├─ bond0.10  VLAN ?\n  └─ br-tenant  bridge\n     └─ vnet0  tap\n  \
             virbr0  bridge\n"
        );
    }

    #[test]
    fn a_cycle_of_links_is_cut() {
        let mut all = vec![
            link("a", LinkKind::Bridge, Some("b"), None),
            link("b", LinkKind::Bridge, Some("a"), None),
            link("eth0", LinkKind::Physical, Some("a"), None),
        ];
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let links = Links { all, are_routes_known: true, ..Links::default() };
        assert_eq!(render(&links, Style::Plain).lines().count(), 5);
    }
}
