//! Tests of a trial that a previous agent process did not finish.

use berth_agent::apply::{ApplyBlocked, converge, links::trial};

use super::*;

const TRIAL_NOTE: &str = r#"{"bootID": "BOOT", "network": "trunk", "settings": "x", "port": "eth1", "bridge": "br-tenant", "deadline": 100}"#;

fn tree_with_note(boot: &str) -> (Tree, Root) {
    let tree = Tree::new();
    tree.write_file(trial::NOTE_FILE, TRIAL_NOTE.replace("BOOT", boot));
    let root = Root::open(tree.path()).unwrap();
    (tree, root)
}

#[test]
fn note_without_a_boot_id_stays_and_blocks_all_changes() {
    for (noted, now) in [(BOOT_ID, ""), ("", BOOT_ID), ("", "")] {
        let (_tree, root) = tree_with_note(noted);
        let error = trial::roll_back_unfinished_trial(&root, now).unwrap_err();
        assert!(error.to_string().contains("a trial attached eth1, and it is unknown"), "{error}");
        assert!(root.exists(trial::NOTE_FILE));

        let mut facts = host_facts();
        facts.boot_id = Some(BOOT_ID.to_owned());
        let model =
            RefCell::new(KernelModel { links: facts.links.clone(), ..KernelModel::default() });
        let reason = ApplyBlocked::TrialNotRolledBack(error);
        let context = ApplyContext::new(&root, BOOT_ID, &|| {})
            .with_kernel(&model)
            .with_blocked_reason(Some(reason.clone()));
        let text = format!(
            "apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {{name: a}}\nspec:\n{SHARED_BRIDGE_SPEC}"
        );
        let manifest = Manifest::parse(&text).unwrap();
        let observe_host = || {
            (
                HostFacts {
                    links: facts.links.clone(),
                    boot_id: facts.boot_id.clone(),
                    ..host_facts()
                },
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
fn note_of_another_boot_is_removed() {
    let (_tree, root) = tree_with_note("another");
    assert_eq!(trial::roll_back_unfinished_trial(&root, BOOT_ID).unwrap(), None);
    assert!(!root.exists(trial::NOTE_FILE));
}
