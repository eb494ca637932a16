//! Watch of the InfraConfig, which configures the spread of control-plane VMs.

use std::sync::Arc;

use berth_api::InfraConfig;
use berth_api::names::INFRA_CONFIG;
use berth_runtime::watch::Informer;

use super::service::ExtenderService;

/// Passes the configuration to the extender; never ends. Calls do not wait for the InfraConfig, because it changes only
/// preferences: until it is listed, the defaults apply.
pub(super) async fn watch_config(service: Arc<ExtenderService>, configs: Informer<InfraConfig>) {
    let mut changes = configs.subscribe();
    loop {
        let config = configs.get(INFRA_CONFIG);
        let spread = config.map(|config| config.spec.control_plane_spread()).unwrap_or_default();
        service.extender().set_control_plane_spread(&spread);
        if changes.recv().await.is_none() {
            // The branch is never reached: the informers run as long as the program.
            return std::future::pending().await;
        }
    }
}
