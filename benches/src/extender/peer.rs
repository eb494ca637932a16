//! The peer: an extender that parses requests as the controller's extender does, and accepts every host.

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use berth_extender::scheduler_api;
use berth_runtime::local_server::{JsonText, serve_json};
use berth_runtime::serve::{self, ListenAddress};
use serde_json::json;

/// Limit for the bytes of a request body, the same as in the controller.
const MAX_BODY_BYTES: usize = 8 << 20;

/// Arguments of the peer: the listen address.
#[derive(Debug, clap::Args)]
pub(crate) struct AcceptAllArgs {
    #[arg(long)]
    listen: ListenAddress,
}

async fn filter(body: Bytes) -> JsonText {
    let answer = match scheduler_api::parse_filter_args(&body) {
        Ok(read) => {
            json!({"Nodes": null, "NodeNames": read.node_names, "FailedNodes": {}, "Error": ""})
        }
        Err(error) => json!({"Error": error.to_string()}),
    };
    JsonText(answer.to_string())
}

/// Answers requests until the process is killed.
pub(crate) fn accept_all(args: &AcceptAllArgs) -> Result<()> {
    // The controller's extender has the same number of threads.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let server = serve::bind(&args.listen).await;
        let server = server.with_context(|| format!("--listen {}", args.listen))?;
        serve_json(server, MAX_BODY_BYTES, Router::new().route("/filter", post(filter))).await;
        Ok(())
    })
}
