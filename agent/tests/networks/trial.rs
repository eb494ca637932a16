//! Tests of a trial that an earlier process did not finish.

use berth_agent::apply::{ApplyBlocked, converge, links::trial};

use super::*;

const NOTE: &str = r#"{"bootID": "BOOT", "network": "trunk", "settings": "x", "port": "eth1", "bridge": "br-tenant", "deadline": 100}"#;

fn tree(boot: &str) -> (Tree, Root) {
    let tree = Tree::new();
    tree.file(trial::FILE, NOTE.replace("BOOT", boot));
    let root = Root::open(tree.path()).unwrap();
    (tree, root)
}

#[test]
fn a_note_without_a_boot_id_stays_and_stops_all_changes() {
    for (noted, now) in [(BOOT, ""), ("", BOOT), ("", "")] {
        let (_tree, root) = tree(noted);
        let error = trial::recover(&root, now).unwrap_err();
        assert!(
            error.to_string().contains("eth1 was attached on trial, and it is unknown"),
            "{error}"
        );
        assert!(root.exists(trial::FILE));

        let mut facts = host();
        facts.boot_id = Some(BOOT.to_owned());
        let model = RefCell::new(Model { links: facts.links.clone(), ..Model::default() });
        let reason = ApplyBlocked::Trial(error);
        let context = ApplyContext::new(&root, BOOT, &|| {})
            .with_kernel(&model)
            .with_blocked_reason(Some(reason.clone()));
        let text = format!(
            "apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {{name: a}}\nspec:\n{SHARED}"
        );
        let manifest = Manifest::parse(&text).unwrap();
        let observe_host = || {
            (
                HostFacts { links: facts.links.clone(), boot_id: facts.boot_id.clone(), ..host() },
                HostSettings::default(),
            )
        };
        let nothing = BTreeSet::new();
        let converged = converge(
            &context,
            &manifest.spec,
            &manifest.unparsed,
            &nothing,
            &observe_host,
            &mut |_| {},
        );
        assert_eq!(converged.blocked_reason, Some(reason));
        assert!(converged.outcomes.is_empty() && !converged.plan.is_empty());
        assert_eq!(model.borrow().links, facts.links);
    }
}

#[test]
fn a_note_of_another_boot_is_void() {
    let (_tree, root) = tree("another");
    assert_eq!(trial::recover(&root, BOOT).unwrap(), None);
    assert!(!root.exists(trial::FILE));
}
