//! Kinds that the API server serves, found by the words that kubectl accepts or by the fields of an object.

use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::client::ApiClient;

/// Kind of objects, in one version of its API.
#[derive(Debug, Clone)]
pub(super) struct Kind {
    /// Group and version, such as `apps/v1`; in the core group only the version, `v1`.
    pub(super) api_version: String,
    /// Name of the kind, such as `Deployment`.
    pub(super) name: String,
    plural: String,
    is_namespaced: bool,
    words: Vec<String>,
}

/// Cache of the kinds that the API server serves.
#[derive(Debug, Default)]
pub(super) struct Kinds(Mutex<Vec<Kind>>);

impl Kind {
    /// Returns true if kubectl accepts this word for the kind.
    pub(super) fn has_word(&self, word: &str) -> bool {
        self.words.iter().any(|one| one == word)
    }

    /// Returns the path of the kind's objects, in a namespace if the kind is namespaced and a namespace is given.
    pub(super) fn path(&self, namespace: Option<&str>) -> String {
        let version = version_path(&self.api_version);
        let plural = &self.plural;
        match namespace.filter(|_| self.is_namespaced) {
            Some(namespace) => format!("{version}/namespaces/{namespace}/{plural}"),
            None => format!("{version}/{plural}"),
        }
    }

    /// Reads an entry of an `APIResourceList`; `None` for a subresource.
    fn read(api_version: &str, resource: &Value) -> Option<Self> {
        let text = |field: &str| resource[field].as_str().map(str::to_owned);
        let plural = text("name").filter(|name| !name.contains('/'))?;
        let name = text("kind")?;
        let mut words = vec![plural.clone(), name.to_lowercase()];
        let short_names = resource["shortNames"].as_array().into_iter().flatten();
        words.extend(short_names.filter_map(|word| word.as_str().map(str::to_owned)));
        if let Some((group, _)) = api_version.split_once('/') {
            let qualified: Vec<String> =
                words.iter().map(|word| format!("{word}.{group}")).collect();
            words.extend(qualified);
        }
        Some(Self {
            api_version: api_version.to_owned(),
            name,
            plural,
            is_namespaced: resource["namespaced"] == true,
            words,
        })
    }
}

impl Kinds {
    /// Returns the first kind that meets a condition. Reads the kinds of the server again if no cached kind meets the
    /// condition.
    pub(super) fn find(
        &self,
        client: &ApiClient,
        is_wanted: impl Fn(&Kind) -> bool,
    ) -> Option<Kind> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !kinds.iter().any(&is_wanted) {
            *kinds = read_kinds(client)?;
        }
        kinds.iter().find(|&kind| is_wanted(kind)).cloned()
    }
}

/// Reads all kinds in the order in which kubectl prefers them.
fn read_kinds(client: &ApiClient) -> Option<Vec<Kind>> {
    let list = get_json(client, "/apis")?;
    let groups = list["groups"].as_array()?;
    let text = |version: &Value| version["groupVersion"].as_str().map(str::to_owned);
    let preferred = groups.iter().filter_map(|group| text(&group["preferredVersion"]));
    let others = groups.iter().flat_map(|group| group["versions"].as_array()).flatten();
    let mut versions = vec!["v1".to_owned()];
    for version in preferred.chain(others.filter_map(text)) {
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    let mut kinds = Vec::new();
    for version in versions {
        let list = get_json(client, &version_path(&version)).unwrap_or_default();
        let resources = list["resources"].as_array().into_iter().flatten();
        kinds.extend(resources.filter_map(|resource| Kind::read(&version, resource)));
    }
    Some(kinds)
}

fn version_path(api_version: &str) -> String {
    let root = if api_version.contains('/') { "apis" } else { "api" };
    format!("/{root}/{api_version}")
}

fn get_json(client: &ApiClient, path: &str) -> Option<Value> {
    serde_json::from_str(&client.get(path)?.ok()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kind_has_the_words_and_the_path_of_its_resource() {
        let resource = json!({
            "name": "tenantclusters", "singularName": "tenantcluster", "namespaced": false, "kind": "TenantCluster",
            "shortNames": ["tcluster"],
        });
        let kind = Kind::read("berth.dev/v1alpha1", &resource).unwrap();
        for word in ["tenantclusters", "tenantcluster", "tcluster", "tenantclusters.berth.dev"] {
            assert!(kind.has_word(word), "{word}");
        }
        assert!(!kind.has_word("tenant"));
        assert_eq!(kind.path(Some("default")), "/apis/berth.dev/v1alpha1/tenantclusters");
        let pods = json!({"name": "pods", "namespaced": true, "kind": "Pod"});
        let pods = Kind::read("v1", &pods).unwrap();
        assert_eq!(pods.path(Some("a")), "/api/v1/namespaces/a/pods");
        assert_eq!(pods.path(None), "/api/v1/pods");
        assert!(Kind::read("v1", &json!({"name": "pods/status", "kind": "Pod"})).is_none());
    }
}
