//! Numbers of requests by verb and resource, read from the metrics of API servers.

use std::collections::BTreeMap;

/// Number of requests by verb and `resource/subresource`.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct RequestCounts(BTreeMap<(String, String), f64>);

impl RequestCounts {
    pub(crate) fn add(&mut self, verb: &str, resource: &str, count: f64) {
        *self.0.entry((verb.to_owned(), resource.to_owned())).or_default() += count;
    }

    /// Reads the numbers of requests for resources from the `/metrics` of kube-apiserver, which counts a watch only
    /// when it ends.
    pub(crate) fn from_server_metrics(text: &str) -> Self {
        let mut counts = Self::default();
        for sample in samples(text, "apiserver_request_total") {
            let label = |name: &str| sample.label(name).unwrap_or_default();
            let (verb, resource) = (label("verb"), label("resource"));
            if resource.is_empty() {
                continue;
            }
            let resource = match label("subresource") {
                "" => resource.to_owned(),
                part => format!("{resource}/{part}"),
            };
            counts.add(verb, &resource, sample.value);
        }
        counts
    }

    /// Returns the requests since `before`, without the requests of other clients, whose number is the difference
    /// between `others` and `others_before`.
    pub(crate) fn delta_since(&self, before: &Self, others: &Self, others_before: &Self) -> Self {
        let mut difference = Self::default();
        for (key, now) in &self.0 {
            let count_in = |counts: &Self| counts.0.get(key).copied().unwrap_or_default();
            let theirs = count_in(others) - count_in(others_before);
            let count = now - count_in(before) - theirs;
            if count > 0.0 {
                difference.0.insert(key.clone(), count);
            }
        }
        difference
    }

    /// Returns verb, resource and number of each kind of request, most frequent first.
    pub(crate) fn entries(&self) -> Vec<(&str, &str, f64)> {
        let each = self
            .0
            .iter()
            .map(|((verb, resource), count)| (verb.as_str(), resource.as_str(), *count));
        let mut all: Vec<_> = each.collect();
        all.sort_by(|(.., one), (.., other)| other.total_cmp(one));
        all
    }
}

/// A line of a metric in Prometheus text format.
#[derive(Debug)]
pub(crate) struct Sample<'a> {
    labels: &'a str,
    pub(crate) value: f64,
}

impl<'a> Sample<'a> {
    /// Returns the value of a label. The parser assumes that label values contain no quotes or commas.
    pub(crate) fn label(&self, name: &str) -> Option<&'a str> {
        let mut pairs = self.labels.split(',').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value.trim_matches('"'))
    }
}

/// Returns all lines of a metric from a text in Prometheus format.
pub(crate) fn samples<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = Sample<'a>> {
    text.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.rsplit_once('}')?,
            None => ("", rest.strip_prefix(' ')?),
        };
        Some(Sample { labels, value: value.trim().parse().ok()? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="pods",subresource="status",verb="PATCH"} 3
apiserver_request_total{code="409",resource="pods",subresource="status",verb="PATCH"} 1
apiserver_request_total{code="200",resource="leases",subresource="",verb="PUT"} 1.6e+01
apiserver_request_total{code="200",resource="",subresource="",verb="GET"} 9
apiserver_request_totals{code="200",resource="nodes",verb="GET"} 9
plain 7
"#;

    #[test]
    fn server_requests_are_summed_by_verb_and_resource() {
        let counts = RequestCounts::from_server_metrics(TEXT);
        assert_eq!(counts.entries(), [("PUT", "leases", 16.0), ("PATCH", "pods/status", 4.0)]);
        assert_eq!(samples(TEXT, "plain").map(|sample| sample.value).sum::<f64>(), 7.0);
    }

    #[test]
    fn requests_of_other_clients_are_subtracted() {
        let (before, mut others) = (RequestCounts::default(), RequestCounts::default());
        others.add("PATCH", "pods/status", 3.0);
        let remaining = RequestCounts::from_server_metrics(TEXT).delta_since(
            &before,
            &others,
            &RequestCounts::default(),
        );
        assert_eq!(remaining.entries(), [("PUT", "leases", 16.0), ("PATCH", "pods/status", 1.0)]);
        let none = RequestCounts::from_server_metrics(TEXT).delta_since(
            &RequestCounts::from_server_metrics(TEXT),
            &before,
            &before,
        );
        assert!(none.entries().is_empty());
    }
}
