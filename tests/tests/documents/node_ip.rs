//! Tests that the documented cloud-config gives the kubelet of a machine the address in `/etc/berth/machine.env`: the
//! user data are rendered as for a machine, and a POSIX shell executes their commands.

use std::path::Path;
use std::process::Command;

use berth_kubevirt_render::machines::InterfaceConfig;
use berth_kubevirt_render::machines::guest::{GuestMachine, configure_guest};
use serde_json::Value;

use crate::read_text;

const ENV_FILE: &str = "/etc/berth/machine.env";
const KUBELET_FILE: &str = "/etc/default/kubelet";

/// Returns the user data of a machine with these addresses, from the user data of the tenant.
fn render(user_data: &str, addresses: &[&str]) -> Value {
    let interface = InterfaceConfig {
        name: "tenant".to_owned(),
        mac: "02:10:20:30:40:50".parse().unwrap(),
        mtu: None,
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        gateways: Vec::new(),
        routes: Vec::new(),
        nameservers: Vec::new(),
        search_domains: Vec::new(),
    };
    let machine = GuestMachine {
        tenant: "abc",
        name: "web-1",
        namespace: "cluster-abc",
        operating_system: "ubuntu",
        interfaces: &[interface],
        has_pod_network: true,
    };
    let data = configure_guest(&machine, user_data, None);
    assert_eq!(data.notes, []);
    serde_saphyr::from_str(&data.user_data).unwrap()
}

/// Executes a command of a guest in a shell, with the files of the guest in this folder.
fn run_in_shell(command: &str, folder: &Path) {
    let path_of = |file: &str| folder.join(Path::new(file).file_name().unwrap());
    let command = [ENV_FILE, KUBELET_FILE]
        .into_iter()
        .fold(command.to_owned(), |text, file| text.replace(file, path_of(file).to_str().unwrap()));
    let output = Command::new("sh").args(["-euc", &command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn documented_user_data_set_the_address_of_the_kubelet() {
    let document = read_text("docs/machines.md");
    let mut blocks =
        document.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let snippet = blocks.find(|block| block.contains("--node-ip=")).unwrap();
    // The option for both families is in the text after the example.
    let both = document.split("`--node-ip=").nth(1).unwrap().split('`').next().unwrap();
    for (addresses, option, expected) in [
        (&["10.0.0.7/24"][..], None, "10.0.0.7"),
        (&["10.0.0.7/24", "fd00:120::7/64"][..], None, "10.0.0.7"),
        (&["10.0.0.7/24", "fd00:120::7/64"][..], Some(both), "10.0.0.7,fd00:120::7"),
    ] {
        let user_data = render(snippet, addresses);
        let file = &user_data["write_files"][0];
        assert_eq!(file["path"], ENV_FILE);
        let folder = tempfile::tempdir().unwrap();
        let content = file["content"].as_str().unwrap();
        assert!(content.contains("\nBERTH_ADDRESS_IPV4=10.0.0.7\n"), "{content}");
        std::fs::write(folder.path().join("machine.env"), content).unwrap();
        let command = user_data["runcmd"][0].as_str().unwrap();
        let command = option.map_or_else(
            || command.to_owned(),
            |option| command.replace("$BERTH_ADDRESS_IPV4", option),
        );
        run_in_shell(&command, folder.path());
        let written = std::fs::read_to_string(folder.path().join("kubelet")).unwrap();
        assert_eq!(written, format!("KUBELET_EXTRA_ARGS=--node-ip={expected}\n"), "{command}");
    }
}
