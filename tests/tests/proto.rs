//! The client of the kubelet's PodResources API is the one that its definition gives.
//! `BERTH_UPDATE=1 cargo test -p berth-tests --test proto` writes it anew.

#![expect(clippy::disallowed_methods, reason = "tests look at files")]

use std::path::Path;

#[test]
fn the_generated_client_is_current() {
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent");
    let definition = protox::compile(["podresources.proto"], [agent.join("proto")]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .emit_rerun_if_changed(false)
        .out_dir(folder.path())
        .compile_fds(definition)
        .unwrap();
    let generated = std::fs::read_to_string(folder.path().join("v1.rs")).unwrap();
    let file = agent.join("src/observe/kubelet/podresources/v1.rs");
    if std::env::var_os("BERTH_UPDATE").is_some() {
        std::fs::write(&file, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(committed == generated, "{} is not what the definition gives", file.display());
}
