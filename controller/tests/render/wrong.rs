//! What is wrong is said; whatever stands there.

use serde_json::{Map, Value, json};

use super::{DISK, base, deployment, rendered, set};

#[test]
fn what_is_wrong_is_said_with_its_field_and_all_at_once() {
    let spec = "/cloudProviderSpec";
    let template = "/cloudProviderSpec/virtualMachine/template";
    let cases: Vec<(String, Value, &str)> = vec![
        ("/cloudProvider".into(), json!("aws"), "cloudProvider: `aws`: is not `kubevirt`"),
        ("/operatingSystemSpec".into(), Value::Null, "operatingSystemSpec: cannot be empty"),
        (
            format!("{spec}/virtualMachin"),
            json!({}),
            "virtualMachin: `{}`: there is no such field; is `virtualMachine` meant?",
        ),
        (format!("{template}/memory"), json!("8 Gib"), "template.memory: `8 Gib`"),
        (format!("{template}/memory"), json!("0"), "is not above 0"),
        (format!("{template}/cpus"), json!("two"), "template.cpus: `two`"),
        (format!("{DISK}/size"), json!(""), "primaryDisk.size: is missing"),
        (format!("{DISK}/osImage"), json!(""), "primaryDisk.osImage: is missing"),
        (
            format!("{DISK}/pullMethod"),
            json!("push"),
            "pullMethod: `push`: is neither node nor pod",
        ),
        (format!("{DISK}/storageAccessType"), json!("ReadManyWrite"), "is no access mode"),
        (
            format!("{DISK}/extraHeadersSecretRef"),
            json!("headers"),
            "`headers`: is no Secret of namespace test-namespace",
        ),
        (
            format!("{spec}/virtualMachine/dnsPolicy"),
            json!("Maybe"),
            "dnsPolicy: `Maybe`: is no DNS policy",
        ),
        (
            format!("{spec}/virtualMachine/dnsPolicy"),
            json!("None"),
            "dnsConfig.nameservers: is missing",
        ),
        (
            format!("{spec}/virtualMachine/evictionStrategy"),
            json!("None"),
            "is neither External nor LiveMigrate",
        ),
        (
            format!("{spec}/virtualMachine/enableNetworkMultiQueue"),
            json!("yes"),
            "`yes`: is neither true nor false",
        ),
        (format!("{spec}/virtualMachine/instancetype"), json!({"nam": "x"}), "unknown field `nam`"),
        (
            format!("{spec}/affinity"),
            json!({"podAffinityPreset": "hard", "podAntiAffinityPreset": "soft"}),
            "exclude each other",
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
        (format!("{spec}/topologySpreadConstraints"), json!({}), "is not a list"),
        (format!("{spec}/auth/kubeconfig"), json!("{}"), "auth.kubeconfig: is not base64"),
        (format!("{spec}/auth/kubeconfig"), json!("e30="), "auth.kubeconfig: is not a kubeconfig"),
        (
            format!("{template}/secondaryDisks"),
            json!([{"size": "x"}]),
            "secondaryDisks[0].size: `x`",
        ),
        (
            format!("{template}/secondaryDisks"),
            json!([{"size": "1Gi"}, {"size": "1Gi"}, {"size": "1Gi"}, {"size": "1Gi"}]),
            "has 4 disks, and InfraConfig allows 3",
        ),
        (spec.to_owned(), json!("text"), "cloudProviderSpec: `text`: is not an object"),
    ];
    for (pointer, value, words) in cases {
        let mut provider = base();
        set(&mut provider, &pointer, value);
        let told = rendered(&deployment(&provider), &[], "vm").expect_err(&pointer);
        assert!(told.contains(words), "{pointer}: {told}");
        assert!(
            told.contains(
                "MachineDeployment test-namespace/md-name: spec.template.spec.providerSpec.value"
            ),
            "{told}"
        );
    }
    let mut provider = base();
    set(&mut provider, &format!("{template}/cpus"), json!("two"));
    set(&mut provider, &format!("{template}/memory"), json!("lots"));
    let told = rendered(&deployment(&provider), &[], &"x".repeat(64)).unwrap_err();
    for words in ["`two`", "`lots`", "is 64 characters long: a machine's name is also a label"] {
        assert!(told.contains(words), "{told}");
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
        let mut provider = base();
        set(&mut provider, &format!("{template}/cpus"), json!(cpus));
        let disk = json!({"size": "1Gi", "storageClassName": "fast"});
        set(&mut provider, &format!("{template}/secondaryDisks"), json!(vec![disk; disks]));
        let notes =
            rendered(&deployment(&provider), std::slice::from_ref(&allowed), "vm").unwrap().notes;
        let notes: Vec<String> = notes.iter().map(ToString::to_string).collect();
        let is_said =
            notes.iter().any(|note| note.contains("interrupt vectors, and KVM routes 4056"));
        assert_eq!(is_said, is_reported, "{cpus} CPUs and {disks} disks: {notes:?}");
    }
}

/// A machine's name may be as long as a label; its volumes' names are labels too.
#[test]
fn volumes_of_a_machine_with_a_long_name_have_names_that_pods_take() {
    let template = "/cloudProviderSpec/virtualMachine/template";
    let mut provider = base();
    set(
        &mut provider,
        &format!("{template}/secondaryDisks"),
        json!([{"size": "1Gi", "storageClassName": "fast"}]),
    );
    let machine = rendered(&deployment(&provider), &[], &"x".repeat(63)).unwrap().machine;
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
    /// Any JSON where a providerSpec should be: an answer, never a panic, and never a machine without a word.
    #[test]
    fn anything_may_stand_there(seed in proptest::num::u64::ANY) {
        let mut dice = seed | 1;
        let mut next = move || { dice ^= dice << 13; dice ^= dice >> 7; dice ^= dice << 17; dice };
        let mut provider = base();
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
        if let Err(told) = rendered(&deployment(&provider), &[], "vm") {
            proptest::prop_assert!(!told.is_empty());
        }
    }
}
