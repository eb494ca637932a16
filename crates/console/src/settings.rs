//! Settings of the console, from the command line.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Settings of the console.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Kubeconfig of the watches; `None` for the pod's ServiceAccount.
    pub kubeconfig: Option<PathBuf>,
    /// True if users sign in with their own credentials, although there is a kubeconfig.
    pub sign_in: bool,
    /// Address on which the console listens.
    pub listen: SocketAddr,
    /// Protection of the connections of browsers.
    pub transport: Transport,
}

/// Protection of the connections of browsers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Unencrypted HTTP.
    Plain,
    /// TLS with the certificate and the key in these PEM files.
    Tls {
        /// Certificates, the one of the server first.
        certificate: PathBuf,
        /// Private key.
        key: PathBuf,
    },
    /// A proxy in front of the console terminates TLS.
    TlsProxy,
}

/// Reason why settings are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The console of a kubeconfig has the rights of this kubeconfig, so other hosts must not connect to it.
    #[error(
        "--listen must be a loopback address: with --kubeconfig, the console has your rights; to serve other users, add \
         --sign-in"
    )]
    KubeconfigNotOnLoopback,
    /// Credentials would be sent over the network unencrypted.
    #[error(
        "--listen is not a loopback address, so users would send credentials unencrypted: specify --tls-certificate and \
         --tls-key, or --tls-proxy if a proxy terminates TLS"
    )]
    Unencrypted,
}

impl Settings {
    /// Returns true if users sign in with their own credentials.
    #[must_use]
    pub const fn has_sign_in(&self) -> bool {
        self.sign_in || self.kubeconfig.is_none()
    }

    /// Returns true if browsers use addresses of the loopback only.
    pub(crate) fn is_local(&self) -> bool {
        self.listen.ip().is_loopback() && self.transport == Transport::Plain
    }

    /// Checks that no credential is exposed.
    ///
    /// # Errors
    /// Returns the reason why the settings are refused.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.listen.ip().is_loopback() {
            return Ok(());
        }
        if !self.has_sign_in() {
            return Err(SettingsError::KubeconfigNotOnLoopback);
        }
        match self.transport {
            Transport::Plain => Err(SettingsError::Unencrypted),
            Transport::Tls { .. } | Transport::TlsProxy => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_exposed_to_other_hosts() {
        let tls = Transport::Tls { certificate: "a".into(), key: "b".into() };
        for (listen, kubeconfig, sign_in, transport, expected) in [
            ("127.0.0.1:1", true, false, Transport::Plain, Ok(())),
            ("[::1]:1", false, true, Transport::Plain, Ok(())),
            ("0.0.0.0:1", true, false, tls.clone(), Err(SettingsError::KubeconfigNotOnLoopback)),
            ("0.0.0.0:1", true, true, Transport::Plain, Err(SettingsError::Unencrypted)),
            ("10.0.0.1:1", false, false, Transport::Plain, Err(SettingsError::Unencrypted)),
            ("10.0.0.1:1", false, false, tls, Ok(())),
            ("[::]:1", true, true, Transport::TlsProxy, Ok(())),
        ] {
            let listen = listen.parse().unwrap();
            let kubeconfig = kubeconfig.then(|| "kubeconfig".into());
            let settings = Settings { kubeconfig, sign_in, listen, transport };
            assert_eq!(settings.check(), expected, "{settings:?}");
        }
    }
}
