//! Keys and certificates of a control plane, created by openssl.

#![expect(clippy::disallowed_methods, reason = "tests run programs and write files")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::HOST_GATEWAY;

/// Token of the administrator.
pub const ADMIN: &str = "admin-of-the-tests";

/// Arguments of openssl for a new key and certificate.
const NEW_CERTIFICATE: [&str; 7] =
    ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];

/// Paths of the keys, certificates and tokens.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) authority: PathBuf,
    pub(super) authority_key: PathBuf,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    pub(super) accounts: PathBuf,
    pub(super) accounts_public: PathBuf,
    pub(super) tokens: PathBuf,
}

impl Keys {
    /// Returns the paths of the files in a folder.
    pub(super) fn in_folder(folder: &Path) -> Self {
        Self {
            authority: folder.join("ca.crt"),
            authority_key: folder.join("ca.key"),
            certificate: folder.join("server.crt"),
            key: folder.join("server.key"),
            accounts: folder.join("accounts.key"),
            accounts_public: folder.join("accounts.pub"),
            tokens: folder.join("tokens.csv"),
        }
    }

    /// Creates the files.
    pub(super) fn create_in_folder(folder: &Path) -> Result<Self> {
        let keys = Self::in_folder(folder);
        let authority = path(&keys.authority)?;
        let authority_key = path(&keys.authority_key)?;
        openssl(
            &[
                &["req", "-x509"],
                &NEW_CERTIFICATE[..],
                &["-subj", "/CN=berth-tests", "-out", authority, "-keyout", authority_key],
            ]
            .concat(),
        )?;
        let names = format!(
            "subjectAltName=IP:127.0.0.1,IP:{HOST_GATEWAY},IP:10.96.0.1,DNS:kubernetes.default.svc,DNS:localhost"
        );
        let signed = [
            "-CA",
            authority,
            "-CAkey",
            authority_key,
            "-addext",
            &names,
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ];
        let arguments = [
            "-subj",
            "/CN=kube-apiserver",
            "-out",
            path(&keys.certificate)?,
            "-keyout",
            path(&keys.key)?,
        ];
        openssl(&[&["req", "-x509"], &NEW_CERTIFICATE[..], &signed, &arguments].concat())?;
        openssl(&["genrsa", "-out", path(&keys.accounts)?, "2048"])?;
        openssl(&[
            "rsa",
            "-in",
            path(&keys.accounts)?,
            "-pubout",
            "-out",
            path(&keys.accounts_public)?,
        ])?;
        let node = |number: u8| {
            format!("node-{number},system:node:rack1-{number},node-{number},\"system:nodes\"\n")
        };
        let nodes: String = (0..=99).map(node).collect();
        fs::write(&keys.tokens, format!("{ADMIN},admin,admin,\"system:masters\"\n{nodes}"))?;
        Ok(keys)
    }

    /// Creates a client certificate and its key. API servers read the user and the group from the certificate.
    pub(super) fn client(&self, file: &Path, user: &str, group: &str) -> Result<[PathBuf; 2]> {
        let [certificate, key] = ["crt", "key"].map(|ending| file.with_extension(ending));
        let signed = ["-CA", path(&self.authority)?, "-CAkey", path(&self.authority_key)?];
        let subject = format!("/O={group}/CN={user}");
        let arguments = ["-subj", &subject, "-out", path(&certificate)?, "-keyout", path(&key)?];
        let client = ["-addext", "basicConstraints=critical,CA:FALSE"];
        openssl(&[&["req", "-x509"], &NEW_CERTIFICATE[..], &signed, &client, &arguments].concat())?;
        Ok([certificate, key])
    }

    /// Writes a kubeconfig.
    pub(super) fn kubeconfig(&self, file: &Path, server: &str, token: &str) -> Result<()> {
        use base64::Engine as _;
        let authority =
            base64::engine::general_purpose::STANDARD.encode(fs::read(&self.authority)?);
        let text = format!(
            "apiVersion: v1\nkind: Config\n\
             clusters: [{{name: c, cluster: {{server: \"{server}\", certificate-authority-data: {authority}}}}}]\n\
             users: [{{name: u, user: {{token: \"{token}\"}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\ncurrent-context: c\n"
        );
        fs::write(file, text).with_context(|| file.display().to_string())
    }
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("the path is not valid UTF-8")
}

fn openssl(arguments: &[&str]) -> Result<()> {
    let done =
        Command::new("openssl").args(arguments).output().context("openssl (package openssl)")?;
    ensure!(
        done.status.success(),
        "openssl {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(())
}
