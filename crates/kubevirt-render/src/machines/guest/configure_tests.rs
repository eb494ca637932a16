//! Tests of the configuration of guests.

use berth_api::NetworkRoute;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const CLOUD_CONFIG: &str = "#cloud-config\n";
const IGNITION: &str = r#"{"ignition": {"version": "3.4.0"}}"#;

/// Returns an interface with an IPv4 address and an IPv6 address, and with a route whose next hop is outside of the
/// networks of both addresses.
fn tenant_interface() -> InterfaceConfig {
    let route =
        |to: &str, via: &str| NetworkRoute { to: to.parse().unwrap(), via: via.parse().unwrap() };
    InterfaceConfig {
        name: "tenant".to_owned(),
        mac: "02:10:20:30:40:50".parse().unwrap(),
        mtu: Some(1450),
        addresses: vec!["10.0.0.7/24".parse().unwrap(), "fd00:120::7/64".parse().unwrap()],
        gateways: vec!["10.0.0.1".parse().unwrap(), "fd00:120::1".parse().unwrap()],
        routes: vec![
            route("10.9.0.0/16", "192.0.2.1"),
            route("fd00:9::/48", "fd00:120::9"),
            route("10.8.0.0/16", "fd00:120::9"),
        ],
        nameservers: vec!["10.0.0.53".parse().unwrap(), "fd00:120::53".parse().unwrap()],
        search_domains: vec!["example.com".to_owned()],
    }
}

/// Returns an interface in an additional network, without addresses allocated by Berth.
fn further_interface() -> InterfaceConfig {
    InterfaceConfig::new_dhcp("additional-1".to_owned(), "02:10:20:30:40:51".parse().unwrap())
}

fn configure(
    operating_system: &str,
    interfaces: &[InterfaceConfig],
    user_data: &str,
    network_data: Option<&str>,
) -> GuestData {
    let machine = GuestMachine {
        tenant: "abc",
        name: "web-1",
        namespace: "cluster-abc",
        operating_system,
        interfaces,
        has_pod_network: true,
    };
    configure_guest(&machine, user_data, network_data)
}

/// Returns the content and the mode of a file of an Ignition config.
fn ignition_file(user_data: &str, path: &str) -> Option<(String, u64)> {
    use base64::Engine as _;
    let config: Value = serde_json::from_str(user_data).unwrap();
    let file = config["storage"]["files"].as_array()?.iter().find(|file| file["path"] == path)?;
    let source =
        file["contents"]["source"].as_str().unwrap().strip_prefix("data:;base64,").unwrap();
    let content = base64::engine::general_purpose::STANDARD.decode(source).unwrap();
    Some((String::from_utf8(content).unwrap(), file["mode"].as_u64().unwrap()))
}

const MACHINE_ENV: &str = "BERTH_TENANT=abc\nBERTH_MACHINE=web-1\nBERTH_NAMESPACE=cluster-abc\n\
    BERTH_ADDRESS_IPV4=10.0.0.7\nBERTH_ADDRESS_IPV6=fd00:120::7\n\
    BERTH_GATEWAY_IPV4=10.0.0.1\nBERTH_GATEWAY_IPV6=fd00:120::1\n";

#[test]
fn cloud_init_gets_network_data_and_machine_env() {
    let data = configure("ubuntu", &[tenant_interface(), further_interface()], CLOUD_CONFIG, None);
    assert_eq!(data.notes, []);
    let network: Value = serde_json::from_str(&data.network_data.unwrap()).unwrap();
    assert_eq!(
        network,
        json!({"version": 2, "ethernets": {
            "berth-tenant": {
                "match": {"macaddress": "02:10:20:30:40:50"}, "set-name": "tenant", "mtu": 1450,
                "dhcp4": false, "dhcp6": false, "accept-ra": false,
                "addresses": ["10.0.0.7/24", "fd00:120::7/64"],
                "gateway6": "fd00:120::1",
                "routes": [
                    {"to": "0.0.0.0/0", "via": "10.0.0.1", "metric": 50},
                    {"to": "10.9.0.0/16", "via": "192.0.2.1", "on-link": true},
                    {"to": "fd00:9::/48", "via": "fd00:120::9"},
                ],
                "nameservers": {"addresses": ["10.0.0.53", "fd00:120::53"], "search": ["example.com"]},
            },
            "berth-additional-1": {
                "match": {"macaddress": "02:10:20:30:40:51"}, "set-name": "additional-1",
                "dhcp4": true, "dhcp4-overrides": {"route-metric": 2000}, "accept-ra": true, "optional": true,
            },
            "enp1s0": {"match": {"name": "e*"}, "dhcp4": true},
        }})
    );
    let user: Value = serde_saphyr::from_str(&data.user_data).unwrap();
    assert_eq!(
        user["write_files"],
        json!([{"path": "/etc/berth/machine.env", "permissions": "0644", "content": MACHINE_ENV}])
    );
}

#[test]
fn a_single_family_is_configured_alone() {
    let mut interface = tenant_interface();
    interface.addresses.truncate(1);
    let data = configure("ubuntu", &[interface], CLOUD_CONFIG, None);
    let network: Value = serde_json::from_str(&data.network_data.unwrap()).unwrap();
    let tenant = &network["ethernets"]["berth-tenant"];
    assert_eq!(tenant["accept-ra"], Value::Null);
    assert_eq!(tenant["gateway6"], Value::Null);
    assert_eq!(tenant["routes"].as_array().unwrap().len(), 2);
}

#[test]
fn ignition_gets_keyfiles() {
    let interfaces = [tenant_interface(), further_interface()];
    let data = configure("rhcos", &interfaces, IGNITION, None);
    assert_eq!((&data.network_data, &data.notes), (&None, &vec![]));
    let keyfile = |name: &str| {
        let path = format!("/etc/NetworkManager/system-connections/berth-{name}.nmconnection");
        ignition_file(&data.user_data, &path).unwrap()
    };
    let (tenant, mode) = keyfile("tenant");
    assert_eq!(mode, 0o600);
    assert_eq!(
        tenant,
        "[connection]\nid=berth-tenant\ntype=ethernet\n\n\
         [ethernet]\nmac-address=02:10:20:30:40:50\nmtu=1450\n\n\
         [ipv4]\nmethod=manual\naddress1=10.0.0.7/24\nroute1=0.0.0.0/0,10.0.0.1,50\n\
         route2=10.9.0.0/16,192.0.2.1\nroute2_options=onlink=true\ndns=10.0.0.53;\n\
         dns-search=example.com;\n\n\
         [ipv6]\nmethod=manual\naddress1=fd00:120::7/64\nroute1=::/0,fd00:120::1,50\n\
         route2=fd00:9::/48,fd00:120::9\ndns=fd00:120::53;\ndns-search=example.com;\n"
    );
    for family in ["ipv4", "ipv6"] {
        let section = format!("[{family}]\nmethod=auto\nroute-metric=2000\n");
        assert!(keyfile("additional-1").0.contains(&section), "{section}");
    }
    assert!(keyfile("default").0.contains("autoconnect-priority=-999\n"));
    let env = ignition_file(&data.user_data, "/etc/berth/machine.env").unwrap();
    assert_eq!(env, (MACHINE_ENV.to_owned(), 0o644));
}

#[test]
fn flatcar_gets_networkd_units() {
    let data = configure("flatcar", &[tenant_interface(), further_interface()], IGNITION, None);
    let unit = |name: &str| {
        ignition_file(&data.user_data, &format!("/etc/systemd/network/10-berth-{name}.network"))
    };
    assert_eq!(
        unit("tenant").unwrap(),
        (
            "[Match]\nPermanentMACAddress=02:10:20:30:40:50\n\n[Link]\nMTUBytes=1450\n\n\
             [Network]\nDHCP=no\nAddress=10.0.0.7/24\nAddress=fd00:120::7/64\nIPv6AcceptRA=no\n\
             DNS=10.0.0.53\nDNS=fd00:120::53\nDomains=example.com\n\n\
             [Route]\nDestination=0.0.0.0/0\nGateway=10.0.0.1\nMetric=50\n\n\
             [Route]\nDestination=::/0\nGateway=fd00:120::1\nMetric=50\n\n\
             [Route]\nDestination=10.9.0.0/16\nGateway=192.0.2.1\nGatewayOnLink=yes\n\n\
             [Route]\nDestination=fd00:9::/48\nGateway=fd00:120::9\n"
                .to_owned(),
            0o644
        )
    );
    let further = unit("additional-1").unwrap().0;
    assert!(further.contains("RequiredForOnline=no\n"));
    for section in ["DHCPv4", "IPv6AcceptRA"] {
        assert!(further.contains(&format!("[{section}]\nRouteMetric=2000\n")), "{further}");
    }
}

#[test]
fn a_link_local_gateway_is_not_marked_on_link() {
    let mut interface = tenant_interface();
    interface.gateways = vec!["fe80::1".parse().unwrap()];
    let (to, via) = ("fd00:9::/48".parse().unwrap(), "fe80::2".parse().unwrap());
    interface.routes = vec![NetworkRoute { to, via }];
    let interfaces = [interface];
    let data = configure("ubuntu", &interfaces, CLOUD_CONFIG, None);
    let network: Value = serde_json::from_str(&data.network_data.unwrap()).unwrap();
    let tenant = &network["ethernets"]["berth-tenant"];
    assert_eq!(tenant["gateway6"], "fe80::1");
    assert_eq!(tenant["routes"], json!([{"to": "fd00:9::/48", "via": "fe80::2"}]));
    for (system, path, route) in [
        (
            "rhcos",
            "/etc/NetworkManager/system-connections/berth-tenant.nmconnection",
            "route1=::/0,fe80::1,50\nroute2=fd00:9::/48,fe80::2\n",
        ),
        (
            "flatcar",
            "/etc/systemd/network/10-berth-tenant.network",
            "Destination=::/0\nGateway=fe80::1\nMetric=50\n\n[Route]",
        ),
    ] {
        let data = configure(system, &interfaces, IGNITION, None);
        let (file, _) = ignition_file(&data.user_data, path).unwrap();
        assert!(file.contains(route), "{file}");
    }
}

#[test]
fn data_of_the_user_take_precedence() {
    let interfaces = [tenant_interface()];
    let data = configure("ubuntu", &interfaces, CLOUD_CONFIG, Some("version: 2"));
    assert_eq!(data.network_data.as_deref(), Some("version: 2"));
    assert_eq!(data.notes, [GuestNote::NetworkDataExists]);
    assert!(data.user_data.contains("BERTH_TENANT=abc"));
    let path = "/etc/berth/machine.env";
    let own = json!({"ignition": {"version": "3.4.0"}, "storage": {"files": [{"path": path}]}});
    let data = configure("rhcos", &interfaces, &own.to_string(), None);
    assert_eq!(data.notes, [GuestNote::FileExists(path.to_owned())]);
    // Without addresses, the data stay unchanged.
    for interfaces in [&[][..], &[further_interface()]] {
        let data = configure("ubuntu", interfaces, "#!/bin/sh\n", None);
        assert_eq!((data.user_data.as_str(), data.network_data), ("#!/bin/sh\n", None));
        assert_eq!(data.notes, []);
    }
}

#[test]
fn user_data_that_cannot_be_merged_stay_unchanged() {
    for (operating_system, text, has_network_data, words) in [
        ("ubuntu", "#!/bin/sh\necho c4n4ry\n", true, "must be a #cloud-config"),
        ("ubuntu", "#cloud-config\nc4n4ry: [", true, "not a valid cloud-config"),
        ("ubuntu", "#cloud-config\nwrite_files: c4n4ry\n", true, "must be a list"),
        ("ubuntu", "#cloud-config\nwrite_files: [{path: c4n4ry}]\n", true, "must be a block list"),
        ("ubuntu", "#cloud-config\n{write_files: [c4n4ry]}\n", true, "must be a block list"),
        ("rhcos", "{\"c4n4ry\"", false, "not a valid Ignition config"),
        ("rhcos", "{\"ignition\": {\"version\": \"3\"}, \"storage\": 5}", false, "storage must be"),
        ("flatcar", CLOUD_CONFIG, false, "flatcar needs an Ignition config"),
    ] {
        let data = configure(operating_system, &[tenant_interface()], text, None);
        assert_eq!(data.user_data, text);
        assert_eq!(data.network_data.is_some(), has_network_data, "{text}");
        let notes: Vec<String> = data.notes.iter().map(ToString::to_string).collect();
        assert!(matches!(&notes[..], [note] if note.contains(words)), "{text}: {notes:?}");
        assert!(!format!("{notes:?} {:?}", data.notes).contains("c4n4ry"), "{notes:?}");
    }
}

#[test]
fn lines_of_the_user_stay_unchanged() {
    let item = r#"- {"content":"#;
    for (text, before) in [
        (
            "#cloud-config\nwrite_files:\n- path: /x\n  permissions: 0644  # octal\nruncmd: [ls]\n",
            "- path: /x",
        ),
        (
            "#cloud-config\nwrite_files: # files\n\n  # one\n  - path: /x\n    content: |\n      - a\n",
            "  - path: /x",
        ),
    ] {
        let data = configure("ubuntu", &[tenant_interface()], text, None);
        assert_eq!(data.notes, []);
        let added: Vec<&str> = data.user_data.lines().filter(|line| line.contains(item)).collect();
        assert_eq!(added.len(), 1);
        assert_eq!(data.user_data.replace(&format!("{}\n", added[0]), ""), text);
        assert!(data.user_data.contains(&format!("{}\n{before}", added[0])), "{}", data.user_data);
    }
    for text in [
        "#cloud-config",
        "#cloud-config\nwrite_files:\nruncmd: [ls]\n",
        "#cloud-config\nwrite_files:",
    ] {
        let data = configure("ubuntu", &[tenant_interface()], text, None);
        assert_eq!(data.notes, [], "{text}");
        assert!(data.user_data.contains("\nwrite_files:\n- {"), "{}", data.user_data);
    }
}

#[test]
fn ignition_2_names_the_filesystem() {
    let text = r#"{"ignition": {"version": "2.3.0"}}"#;
    let data = configure("flatcar", &[tenant_interface()], text, None);
    let config: Value = serde_json::from_str(&data.user_data).unwrap();
    let file = &config["storage"]["files"][0];
    assert_eq!((&file["filesystem"], &file["overwrite"]), (&json!("root"), &Value::Null));
}

#[test]
fn invalid_search_domains_are_not_written() {
    let mut interface = tenant_interface();
    interface.search_domains.push("a\n[Link]".to_owned());
    for (operating_system, text) in
        [("ubuntu", CLOUD_CONFIG), ("rhcos", IGNITION), ("flatcar", IGNITION)]
    {
        let data = configure(operating_system, &[interface.clone()], text, None);
        assert_eq!(data.notes, [GuestNote::InvalidSearchDomain("a\n[Link]".to_owned())]);
    }
}

proptest! {
    #[test]
    fn any_cloud_config_stays_valid(
        text in "#cloud-config\n(write_files:|  - path: a\n|- path: b\n|[-a-z:\\[\\] \n#\"'{}|>&*!%\r]){0,30}",
    ) {
        let data = configure("ubuntu", &[tenant_interface()], &text, None);
        if data.notes.is_empty() {
            let before: Value = serde_saphyr::from_str(&text).unwrap();
            let after: Value = serde_saphyr::from_str(&data.user_data).unwrap();
            prop_assert_eq!(&after["write_files"][0]["path"], "/etc/berth/machine.env");
            for (key, value) in before.as_object().into_iter().flatten() {
                if key != "write_files" {
                    prop_assert_eq!(value, &after[key]);
                }
            }
            let mut lines = data.user_data.split('\n');
            for line in text.trim_end_matches('\n').split('\n') {
                prop_assert!(lines.any(|other| other == line), "{:?}", data.user_data);
            }
        } else {
            prop_assert_eq!(data.user_data, text);
        }
    }

    #[test]
    fn any_user_data_are_accepted(text in ".{0,60}|\\{\"ignition\": \\{\"version\": \"3\"\\}, \"storage\": .{0,20}\\}") {
        for operating_system in ["ubuntu", "flatcar", "rhcos"] {
            let data = configure(operating_system, &[tenant_interface()], &text, None);
            if !data.notes.is_empty() {
                prop_assert_eq!(&data.user_data, &text);
            }
        }
    }
}
