//! The user of a kubeconfig, and the credential files that a kubeconfig names.

use std::path::Path;

use kube::config::{AuthInfo, Kubeconfig};

use crate::certificate::{CertificateSource, Validity};

/// Returns the user in a kubeconfig's current context.
pub(crate) fn current_user(kubeconfig: &Kubeconfig) -> Option<&AuthInfo> {
    let current = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == *current)?;
    let name = context.context.as_ref()?.user.as_ref()?;
    let user = kubeconfig.auth_infos.iter().find(|user| user.name == *name)?;
    user.auth_info.as_ref()
}

/// Reads a file that a kubeconfig names.
#[expect(clippy::disallowed_methods, reason = "a credential is not a file of the observed host")]
pub(crate) fn read_credential_file(path: &Path) -> std::io::Result<String> {
    std::fs::read_to_string(path)
}

/// Returns the validity of a kubeconfig's client certificate; `None` if there is no certificate or it cannot be read.
pub(crate) fn certificate_validity(kubeconfig: &Kubeconfig) -> Option<Validity> {
    let user = current_user(kubeconfig)?;
    let source = CertificateSource {
        client_certificate_data: user.client_certificate_data.clone(),
        client_certificate: user.client_certificate.clone(),
    };
    source.validity(read_credential_file).unwrap_or_default()
}
