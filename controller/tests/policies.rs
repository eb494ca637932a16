//! Connections that the rendered NetworkPolicies of a tenant permit: an independent evaluator computes the
//! verdicts, and the test writes them to `docs/isolation.md`.
//!
//! After a change of the policies, run this test with `BERTH_UPDATE=1` and review the difference.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests read files, and fail by panicking"
)]

#[path = "policies/documented.rs"]
mod documented;
#[path = "policies/evaluator.rs"]
mod evaluator;
#[path = "policies/two_tenants.rs"]
mod two_tenants;

use std::fmt::Write as _;

use evaluator::Port;
use two_tenants::TwoTenants;

const TCP: &str = "TCP";
const UDP: &str = "UDP";

/// Allowed with isolation `InCluster`, and with isolation `Egress`.
const YES: [bool; 2] = [true, true];
const NO: [bool; 2] = [false, false];
/// Allowed with isolation `Egress` only.
const EGRESS: [bool; 2] = [false, true];

/// Source, destination, protocol, port and verdict. Each line is a decision, and not the output of the renderer.
const TABLE: [(&str, &str, &str, u16, [bool; 2]); 64] = [
    // Connections inside the tenant.
    ("VM", "VM of the same tenant", TCP, 22, YES),
    ("VM", "importer", TCP, 8443, YES),
    // Connections between tenants.
    ("VM", "VM of another tenant", TCP, 22, NO),
    ("VM of another tenant", "VM", TCP, 22, NO),
    ("VM", "uploader of another tenant", TCP, 8443, NO),
    ("importer", "VM of another tenant", TCP, 80, NO),
    ("importer", "VM of another tenant, labelled image-repo", TCP, 80, NO),
    // The template of a tenant can set labels of pods.
    ("VM labelled as an importer", "internet", TCP, 443, EGRESS),
    ("VM labelled as an importer", "image server of InfraConfig", TCP, 8080, NO),
    ("VM of another tenant, labelled cdi-uploadproxy", "uploader", TCP, 8443, BLOCKED_AT_SOURCE),
    ("VM of another tenant, labelled virt-api", "VM", TCP, 22, NO),
    // Connections to DNS.
    ("VM", "cluster DNS", UDP, 53, YES),
    ("VM", "cluster DNS", TCP, 53, YES),
    ("VM", "cluster DNS", TCP, 9153, NO),
    ("VM", "Service of cluster DNS", UDP, 53, YES),
    ("VM", "NodeLocal DNSCache", UDP, 53, YES),
    ("VM", "name server of InfraConfig", UDP, 53, YES),
    ("importer", "cluster DNS", UDP, 53, YES),
    ("importer", "NodeLocal DNSCache", TCP, 53, YES),
    ("VM", "other pod of kube-system", TCP, 443, NO),
    // Connections to sources of images.
    ("importer", "internet", TCP, 443, YES),
    ("importer", "internet", TCP, 80, YES),
    ("importer", "internet", TCP, 8443, YES),
    ("importer", "internet", TCP, 25, EGRESS),
    ("importer", "image server of InfraConfig", TCP, 8080, YES),
    ("importer", "image server of InfraConfig", TCP, 22, NO),
    ("importer", "registry of spec.imageSources", TCP, 5000, YES),
    ("importer", "Service of images in the cluster", TCP, 8000, YES),
    ("importer", "image-repo of the cluster", TCP, 80, YES),
    ("importer", "private address", TCP, 443, NO),
    ("importer", "metadata", TCP, 80, NO),
    ("importer", "infra API server", TCP, 6443, NO),
    ("importer", "another node", TCP, 443, NO),
    // Connections to all other destinations.
    ("VM", "internet", TCP, 443, EGRESS),
    ("VM", "internet", UDP, 123, EGRESS),
    ("VM", "private address", TCP, 443, NO),
    ("VM", "shared address", TCP, 443, NO),
    ("VM", "metadata", TCP, 80, NO),
    ("VM", "metadata at a public address", TCP, 80, NO),
    ("VM", "the tenant's own API server", TCP, 6443, YES),
    ("VM", "infra API server", TCP, 6443, NO),
    ("VM", "Service of the infra API server", TCP, 443, NO),
    ("VM", "another node", TCP, 10250, NO),
    ("VM", "pod of the cluster", TCP, 80, NO),
    ("VM", "network of Services", TCP, 80, NO),
    ("VM", "network of spec.clusterNetworks", TCP, 443, NO),
    ("internet", "VM", TCP, 22, INBOUND),
    ("pod of the cluster", "VM", TCP, 22, INBOUND),
    ("another node", "VM", TCP, 22, INBOUND),
    ("its own node", "VM", TCP, 22, YES),
    ("VM", "its own node", TCP, 10250, YES),
    // Connections of CDI.
    ("cdi-uploadproxy", "uploader", TCP, 8443, YES),
    ("cdi-uploadproxy", "VM", TCP, 8443, INBOUND),
    ("cdi-deployment", "importer", TCP, 8443, YES),
    ("source of a clone elsewhere", "uploader", TCP, 8443, YES),
    ("source of a clone here", "uploader", TCP, 8443, YES),
    ("source of a clone here", "uploader of another tenant", TCP, 8443, NO),
    ("pod of the cluster", "uploader", TCP, 8443, INBOUND),
    // Connections of KubeVirt.
    ("virt-api", "VM", TCP, 22, YES),
    ("virt-api", "importer", TCP, 8443, INBOUND),
    ("virt-handler", "virt-handler of another node", TCP, 4333, YES),
    ("virt-handler", "VM", TCP, 22, INBOUND),
    ("VM", "virt-handler", TCP, 8186, NO),
    ("VM", "cdi-uploadproxy", TCP, 8443, NO),
];
/// Isolation `Egress` allows all inbound connections.
const INBOUND: [bool; 2] = [false, true];
/// The other tenant has isolation `InCluster`, so its pods cannot connect to other namespaces, although the
/// destination would allow it.
const BLOCKED_AT_SOURCE: [bool; 2] = [false, false];

/// Returns the verdict. The verdict must be the same for both address families, and for both meanings of `ipBlock`
/// in network plugins.
fn verdict(scene: &TwoTenants, from: &str, to: &str, port: Port<'_>) -> bool {
    let mut all = Vec::new();
    for blocks_apply_to_pods in [false, true] {
        let mut cluster = scene.cluster.clone();
        cluster.blocks_apply_to_pods = blocks_apply_to_pods;
        for is_v6 in [false, true] {
            let ends = (scene.endpoint(from, is_v6), scene.endpoint(to, is_v6));
            let (Some(from), Some(to)) = ends else { continue };
            all.push((blocks_apply_to_pods, is_v6, cluster.allows(&from, &to, port, is_v6)));
        }
    }
    let first = all.first().unwrap_or_else(|| panic!("{from} -> {to}: no address")).2;
    assert!(
        all.iter().all(|(.., is_allowed)| *is_allowed == first),
        "{from} -> {to} {}: (ipBlock is of pods, IPv6, allowed): {all:?}",
        port.number
    );
    first
}

#[test]
fn connections_match_the_table() {
    let scenes = ["InCluster", "Egress"].map(TwoTenants::with_isolation);
    let mut wrong = Vec::new();
    let mut table =
        String::from("| from | to | port | `InCluster` | `Egress` |\n|---|---|---|---|---|\n");
    for (from, to, protocol, number, expected) in TABLE {
        let port = Port { protocol, number };
        let found = [&scenes[0], &scenes[1]].map(|scene| verdict(scene, from, to, port));
        if found != expected {
            wrong.push(format!("{from} -> {to} {protocol} {number}: {found:?}, not {expected:?}"));
        }
        let [inside, egress] = found.map(|is_allowed| if is_allowed { "yes" } else { "no" });
        writeln!(table, "| {from} | {to} | {protocol} {number} | {inside} | {egress} |").unwrap();
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/isolation.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (begin, end) = ("<!-- table: begin -->\n", "<!-- table: end -->");
    let (head, rest) = document.split_once(begin).unwrap();
    let (current, tail) = rest.split_once(end).unwrap();
    if std::env::var_os("BERTH_UPDATE").is_some() {
        std::fs::write(path, format!("{head}{begin}{table}{end}{tail}")).unwrap();
    } else {
        assert!(current == table, "docs/isolation.md is old: run this test with BERTH_UPDATE=1");
    }
}

/// Without isolation, there is no policy of Berth, and all connections are allowed.
#[test]
fn without_isolation_everything_is_allowed() {
    let scene = TwoTenants::with_isolation("Off");
    for (from, to, protocol, number, _) in TABLE {
        if ["VM of another tenant", "source of a clone here"]
            .iter()
            .any(|one| from.starts_with(one))
            || to.contains("another tenant")
        {
            // This verdict depends on the isolation of the other tenant.
            continue;
        }
        assert!(verdict(&scene, from, to, Port { protocol, number }), "{from} -> {to}");
    }
}

/// Pods of another tenant that have labels of CDI or KubeVirt are not treated as CDI or KubeVirt: the labels only
/// count in the infra cluster's own namespaces.
#[test]
fn labels_of_another_tenant_grant_no_access() {
    let scene = TwoTenants::with_isolations("InCluster", "Off");
    for (from, to, number) in [
        ("VM of another tenant, labelled cdi-uploadproxy", "uploader", 8443),
        ("VM of another tenant, labelled cdi-uploadproxy", "importer", 8443),
        ("VM of another tenant, labelled virt-api", "VM", 22),
        ("VM of another tenant", "VM", 22),
    ] {
        assert!(!verdict(&scene, from, to, Port { protocol: TCP, number }), "{from} -> {to}");
    }
    let out = [
        ("importer", "VM of another tenant, labelled image-repo", 80),
        ("VM", "VM of another tenant", 22),
    ];
    for (from, to, number) in out {
        assert!(!verdict(&scene, from, to, Port { protocol: TCP, number }), "{from} -> {to}");
    }
}
