//! The peer: a plain client that knows the names of all Nodes beforehand, and patches one label of each Node.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Patch, PatchParams, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;
use tokio::runtime::Runtime;

use super::{PEER_LABEL, setup};

/// The peer, with an API client for each tenant.
pub(super) struct Peer {
    runtime: Runtime,
    clients: Vec<Client>,
    concurrency: usize,
}

impl Peer {
    /// Creates the clients from the kubeconfigs of all tenants.
    pub(super) fn new(kubeconfigs: &[(String, String)], concurrency: usize) -> Result<Self> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build()?;
        let clients = runtime.block_on(async {
            let mut clients = Vec::new();
            for (tenant, text) in kubeconfigs {
                let options = KubeConfigOptions::default();
                let kubeconfig = Kubeconfig::from_yaml(text)?;
                let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
                let client = config.map_err(anyhow::Error::from).map(Client::try_from);
                clients.push(client?.with_context(|| tenant.clone())?);
            }
            anyhow::Ok(clients)
        })?;
        Ok(Self { runtime, clients, concurrency })
    }

    /// Patches the Node of the first machine of each tenant in parallel, and returns the elapsed time.
    pub(super) fn patch_all(&self, value: &str) -> Result<Duration> {
        let patch = Patch::Merge(json!({"metadata": {"labels": {PEER_LABEL: value}}}));
        let begin = Instant::now();
        self.runtime.block_on(async {
            let each = self.clients.iter().map(|client| {
                let request = Request::new("/api/v1/nodes").patch(
                    &setup::machine_name(1),
                    &PatchParams::default(),
                    &patch,
                );
                async move {
                    let request = request?;
                    client.request_text(request).await.context("patch a Node")?;
                    anyhow::Ok(())
                }
            });
            stream::iter(each).buffer_unordered(self.concurrency).try_collect::<()>().await
        })?;
        Ok(begin.elapsed())
    }
}
