//! Certificates that the control plane's own CA signs, and kubeconfigs with client certificates.

use std::path::PathBuf;

use anyhow::Result;

use super::ControlPlane;
use super::keys::Keys;

impl ControlPlane {
    /// Returns the path of the certificate of the control plane's own CA.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        Keys::in_folder(self.folder.path()).authority
    }

    /// Returns a client certificate of a user in a group, signed by the control plane's own CA, and the key
    /// of the certificate.
    ///
    /// # Errors
    /// Fails if openssl fails.
    pub fn create_certificate(&self, name: &str, user: &str, group: &str) -> Result<[PathBuf; 2]> {
        Keys::in_folder(self.folder.path()).create_client_certificate(
            &self.folder.path().join(name),
            user,
            group,
        )
    }

    /// Returns a client certificate like [`Self::create_certificate`], which expires at once.
    ///
    /// # Errors
    /// Fails if openssl fails.
    pub fn create_expired_certificate(
        &self,
        name: &str,
        user: &str,
        group: &str,
    ) -> Result<[PathBuf; 2]> {
        Keys::in_folder(self.folder.path()).create_expired_client_certificate(
            &self.folder.path().join(name),
            user,
            group,
        )
    }

    /// Returns the certificate of a server with these alternative names, such as `IP:127.0.0.1`, signed by the control
    /// plane's own CA, and the key of the certificate. `name` is a path below the control plane's folder.
    ///
    /// # Errors
    /// Fails if openssl fails.
    pub fn create_serving_certificate(&self, name: &str, names: &str) -> Result<[PathBuf; 2]> {
        let file = self.folder.path().join(name);
        Keys::in_folder(self.folder.path()).create_serving_certificate(&file, "berth-tests", names)
    }

    /// Returns the certificate of another CA, with an RSA key, and this key. `name` is a path below the control plane's
    /// folder.
    ///
    /// # Errors
    /// Fails if openssl fails.
    pub fn create_rsa_authority(&self, name: &str) -> Result<[PathBuf; 2]> {
        Keys::create_rsa_authority(&self.folder.path().join(name))
    }

    /// Writes a kubeconfig for the holder of a client certificate, for use on this machine.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write_certificate_kubeconfig(
        &self,
        name: &str,
        certificate: &[PathBuf; 2],
    ) -> Result<PathBuf> {
        let file = self.folder.path().join(format!("{name}.kubeconfig"));
        let server = format!("https://{}:{}", self.address, self.port);
        let keys = Keys::in_folder(self.folder.path());
        keys.write_certificate_kubeconfig(&file, &server, certificate)?;
        Ok(file)
    }
}
