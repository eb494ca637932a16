//! Invalid MachineDeployments: each problem is reported with its field and value.

use serde_json::{Map, Value, json};

use super::{DISK_POINTER, base_provider_spec, machine_deployment, render_deployment, set_value};

#[test]
fn every_problem_is_reported_with_its_field() {
    let spec = "/cloudProviderSpec";
    let template = "/cloudProviderSpec/virtualMachine/template";
    let cases: Vec<(String, Value, &str)> = vec![
        ("/cloudProvider".into(), json!("aws"), "cloudProvider: `aws`: must be `kubevirt`"),
        ("/operatingSystemSpec".into(), Value::Null, "operatingSystemSpec: is missing"),
        (
            format!("{spec}/virtualMachin"),
            json!({}),
            "virtualMachin: `{}`: unknown field; did you mean `virtualMachine`?",
        ),
        (format!("{template}/memory"), json!("8 Gib"), "template.memory: `8 Gib`"),
        (format!("{template}/memory"), json!("0"), "must be greater than 0"),
        (format!("{template}/cpus"), json!("two"), "template.cpus: `two`"),
        (format!("{DISK_POINTER}/size"), json!(""), "primaryDisk.size: is missing"),
        (format!("{DISK_POINTER}/osImage"), json!(""), "primaryDisk.osImage: is missing"),
        (
            format!("{DISK_POINTER}/pullMethod"),
            json!("push"),
            "pullMethod: `push`: must be node or pod",
        ),
        (
            format!("{DISK_POINTER}/storageAccessType"),
            json!("ReadManyWrite"),
            "must be ReadWriteOnce",
        ),
        (
            format!("{DISK_POINTER}/extraHeadersSecretRef"),
            json!("headers"),
            "`headers`: Secret not found in namespace test-namespace",
        ),
        (
            format!("{spec}/virtualMachine/dnsPolicy"),
            json!("Maybe"),
            "dnsPolicy: `Maybe`: must be ClusterFirst",
        ),
        (
            format!("{spec}/virtualMachine/dnsPolicy"),
            json!("None"),
            "dnsConfig.nameservers: is missing",
        ),
        (
            format!("{spec}/virtualMachine/evictionStrategy"),
            json!("None"),
            "must be External or LiveMigrate",
        ),
        (
            format!("{spec}/virtualMachine/enableNetworkMultiQueue"),
            json!("yes"),
            "`yes`: must be true or false",
        ),
        (format!("{spec}/virtualMachine/instancetype"), json!({"nam": "x"}), "unknown field `nam`"),
        (
            format!("{spec}/affinity"),
            json!({"podAffinityPreset": "hard", "podAntiAffinityPreset": "soft"}),
            "podAffinityPreset: cannot be set together with podAntiAffinityPreset",
        ),
        (
            format!("{spec}/affinity"),
            json!({"nodeAffinityPreset": {"type": "firm", "key": "k"}}),
            "nodeAffinityPreset.type: `firm`",
        ),
        (
            format!("{spec}/affinity"),
            json!({"nodeAffinityPreset": {"type": "hard"}}),
            "nodeAffinityPreset.key: is missing",
        ),
        (
            format!("{spec}/topologySpreadConstraints"),
            json!([{"maxSkew": "x", "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule"}]),
            "topologySpreadConstraints[0].maxSkew: `x`",
        ),
        (format!("{spec}/topologySpreadConstraints"), json!({}), "must be a list"),
        (format!("{spec}/auth/kubeconfig"), json!("{}"), "auth.kubeconfig: must be base64"),
        (format!("{spec}/auth/kubeconfig"), json!("e30="), "auth.kubeconfig: is not a kubeconfig"),
        (
            format!("{template}/secondaryDisks"),
            json!([{"size": "x"}]),
            "secondaryDisks[0].size: `x`",
        ),
        (
            format!("{template}/secondaryDisks"),
            json!([{"size": "1Gi"}, {"size": "1Gi"}, {"size": "1Gi"}, {"size": "1Gi"}]),
            "has 4 disks, but InfraConfig allows at most 3",
        ),
        (
            format!("{template}/secondaryDisks"),
            json!([{"size": "1Gi", "hotpluggable": true}]),
            "secondaryDisks[0].name: must be a name of at most 20",
        ),
        (
            format!("{template}/secondaryDisks"),
            json!([{"size": "1Gi", "hotpluggable": "true", "name": "a"}]),
            "secondaryDisks[0].hotpluggable: `true`: must be true or false",
        ),
        (
            format!("{template}/secondaryDisks"),
            json!([{"size": "1Gi", "name": "a"}]),
            "secondaryDisks[0].name: `a`: requires hotpluggable: true",
        ),
        (
            format!("{template}/secondaryDisks"),
            json!([{"size": "1Gi", "name": "a", "hotpluggable": true, "bus": "sata"}]),
            "secondaryDisks[0].bus: `sata`: must be scsi or virtio",
        ),
        (
            format!("{template}/secondaryDisks"),
            json!([{"size": "1Gi", "name": "a", "hotpluggable": true, "removalPolicy": "Keep"}]),
            "secondaryDisks[0].removalPolicy: `Keep`: must be Retain or Delete",
        ),
        (
            format!("{template}/secondaryDisks"),
            json!([{"size": "1Gi", "removalPolicy": "Delete"}]),
            "secondaryDisks[0].removalPolicy: `Delete`: requires hotpluggable: true",
        ),
        (
            format!("{template}/secondaryDisks"),
            json!([{"size": "1Gi", "name": "a", "hotpluggable": true, "source": "clone"}]),
            "secondaryDisks[0].source: `clone`: must be blank",
        ),
        (
            format!("{template}/secondaryDisks"),
            json!([
                {"size": "1Gi", "name": "a", "hotpluggable": true},
                {"size": "1Gi", "name": "a", "hotpluggable": true},
            ]),
            "secondaryDisks[1].name: `a`: is the name of another disk",
        ),
        (spec.to_owned(), json!("text"), "cloudProviderSpec: `text`: must be an object"),
    ];
    for (pointer, value, words) in cases {
        let mut provider = base_provider_spec();
        set_value(&mut provider, &pointer, value);
        let report =
            render_deployment(&machine_deployment(&provider), &[], "vm").expect_err(&pointer);
        assert!(report.contains(words), "{pointer}: {report}");
        assert!(
            report.contains(
                "MachineDeployment test-namespace/md-name: spec.template.spec.providerSpec.value"
            ),
            "{report}"
        );
    }
    let mut provider = base_provider_spec();
    set_value(&mut provider, &format!("{template}/cpus"), json!("two"));
    set_value(&mut provider, &format!("{template}/memory"), json!("lots"));
    let report =
        render_deployment(&machine_deployment(&provider), &[], &"x".repeat(64)).unwrap_err();
    for words in
        ["`two`", "`lots`", "has 64 characters: the name of a machine is also a label value"]
    {
        assert!(report.contains(words), "{report}");
    }
}

#[test]
fn more_devices_than_interrupt_vectors_are_reported() {
    let template = "/cloudProviderSpec/virtualMachine/template";
    let allowed = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
        "spec": {"images": {}, "maxSecondaryDisks": 32}});
    for (cpus, disks, is_reported) in
        [("128", 26, false), ("128", 27, true), ("96", 32, false), ("112", 32, true)]
    {
        let mut provider = base_provider_spec();
        set_value(&mut provider, &format!("{template}/cpus"), json!(cpus));
        let disk = json!({"size": "1Gi", "storageClassName": "fast"});
        set_value(&mut provider, &format!("{template}/secondaryDisks"), json!(vec![disk; disks]));
        let notes =
            render_deployment(&machine_deployment(&provider), std::slice::from_ref(&allowed), "vm")
                .unwrap()
                .warnings;
        let notes: Vec<String> = notes.iter().map(ToString::to_string).collect();
        let has_note = notes
            .iter()
            .any(|note| note.contains("interrupt vectors, but KVM routes 4056 directly"));
        assert_eq!(has_note, is_reported, "{cpus} CPUs and {disks} disks: {notes:?}");
    }
}

/// A machine's name may have 63 characters. The names of its volumes must still be DNS labels of at most 63 characters.
#[test]
fn volume_names_of_a_machine_with_a_long_name_are_dns_labels() {
    let template = "/cloudProviderSpec/virtualMachine/template";
    let mut provider = base_provider_spec();
    set_value(
        &mut provider,
        &format!("{template}/secondaryDisks"),
        json!([{"size": "1Gi", "storageClassName": "fast"}]),
    );
    let machine =
        render_deployment(&machine_deployment(&provider), &[], &"x".repeat(63)).unwrap().machine;
    let spec = &machine["spec"]["template"]["spec"];
    let names = |list: &Value| -> Vec<String> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let volumes = names(&spec["volumes"]);
    assert!(volumes.iter().all(|name| name.len() <= 63), "{volumes:?}");
    assert_eq!(volumes, names(&spec["domain"]["devices"]["disks"]));
    let claims = spec["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["dataVolume"]["name"].as_str());
    let made = machine["spec"]["dataVolumeTemplates"].as_array().unwrap();
    let made: Vec<&str> = made.iter().filter_map(|one| one["metadata"]["name"].as_str()).collect();
    assert_eq!(claims.collect::<Vec<_>>(), made);
}

proptest::proptest! {
    /// Arbitrary JSON as providerSpec is rendered, or rejected with a report, and never causes a panic.
    #[test]
    fn any_json_is_rendered_or_rejected(seed in proptest::num::u64::ANY) {
        let mut state = seed | 1;
        let mut next = move || { state ^= state << 13; state ^= state >> 7; state ^= state << 17; state };
        let mut provider = base_provider_spec();
        for _ in 0..next() % 4 + 1 {
            let mut at = &mut provider;
            for _ in 0..next() % 6 {
                let Some(count) = at.as_object().map(Map::len).filter(|count| *count > 0) else { break };
                let which = usize::try_from(next()).unwrap_or(0) % count;
                at = at.as_object_mut().unwrap().values_mut().nth(which).unwrap();
            }
            *at = match next() % 8 {
                0 => Value::Null,
                1 => json!(-1),
                2 => json!([{"size": 5}, "x", null]),
                3 => json!({"value": {"x": 1}}),
                4 => json!({"secretKeyRef": {"namespace": "n", "name": 5, "key": "k"}}),
                5 => json!("\u{0}\u{fffd} 𝟙"),
                6 => json!(1.5e300),
                _ => json!(true),
            };
        }
        if let Err(report) = render_deployment(&machine_deployment(&provider), &[], "vm") {
            proptest::prop_assert!(!report.is_empty());
        }
    }
}
