//! Tests that the generated client of the kubelet's PodResources API matches the protobuf definition. `BERTH_UPDATE=1
//! cargo test -p berth-tests --test proto` generates the client again.

#![expect(clippy::disallowed_methods, reason = "tests read files")]

use std::path::Path;

/// The messages are in `host-facts`, which has no asynchronous runtime; the client is in the agent.
#[test]
fn generated_client_is_current() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let proto = repository.join("agent/proto");
    let definition = protox::compile(["podresources.proto"], [proto]).unwrap();
    let messages = "::berth_host_facts::kubelet::podresources::v1";
    for (file, client) in [
        ("crates/host-facts/src/kubelet/podresources/v1.rs", false),
        ("agent/src/observe/pod_resources/v1.rs", true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut builder = tonic_prost_build::configure()
            .build_server(false)
            .build_client(client)
            .build_transport(false)
            .emit_rerun_if_changed(false)
            .out_dir(folder.path());
        if client {
            builder = builder.extern_path(".v1", messages);
        }
        builder.compile_fds(definition.clone()).unwrap();
        let generated = std::fs::read_to_string(folder.path().join("v1.rs")).unwrap();
        let file = repository.join(file);
        if std::env::var_os("BERTH_UPDATE").is_some() {
            std::fs::write(&file, &generated).unwrap();
        }
        let committed = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            committed == generated,
            "{} differs from the generated code; run the test with BERTH_UPDATE=1",
            file.display()
        );
    }
}
