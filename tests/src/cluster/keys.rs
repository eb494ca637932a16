//! Keys and certificates of a control plane, created by openssl.

#![expect(clippy::disallowed_methods, reason = "tests run programs and write files")]

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::HOST_GATEWAY;

/// Token of the administrator.
pub const ADMIN_TOKEN: &str = "admin-of-the-tests";

/// Arguments of openssl for a new key and certificate.
const NEW_CERTIFICATE: [&str; 7] =
    ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];

/// Paths of the keys, certificates and tokens.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) authority: PathBuf,
    pub(super) authority_key: PathBuf,
    pub(super) server_certificate: PathBuf,
    pub(super) server_key: PathBuf,
    pub(super) service_account_key: PathBuf,
    pub(super) service_account_public_key: PathBuf,
    pub(super) tokens: PathBuf,
}

impl Keys {
    /// Returns the paths of the files in a folder.
    pub(super) fn in_folder(folder: &Path) -> Self {
        Self {
            authority: folder.join("ca.crt"),
            authority_key: folder.join("ca.key"),
            server_certificate: folder.join("server.crt"),
            server_key: folder.join("server.key"),
            service_account_key: folder.join("accounts.key"),
            service_account_public_key: folder.join("accounts.pub"),
            tokens: folder.join("tokens.csv"),
        }
    }

    /// Creates the files. `address` is the address of the API server.
    pub(super) fn create_in_folder(folder: &Path, address: Ipv4Addr) -> Result<Self> {
        let keys = Self::in_folder(folder);
        let authority = path_str(&keys.authority)?;
        let authority_key = path_str(&keys.authority_key)?;
        run_openssl(
            &[
                &["req", "-x509"],
                &NEW_CERTIFICATE[..],
                &["-subj", "/CN=berth-tests", "-out", authority, "-keyout", authority_key],
            ]
            .concat(),
        )?;
        let names = format!(
            "IP:127.0.0.1,IP:{address},IP:{HOST_GATEWAY},IP:10.96.0.1,DNS:kubernetes.default.svc,DNS:localhost"
        );
        keys.create_serving_certificate(&folder.join("server"), "kube-apiserver", &names)?;
        // The key of an elliptic curve needs much less time than an RSA key.
        let key = path_str(&keys.service_account_key)?;
        let curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"];
        run_openssl(&[&["genpkey"], &curve[..], &["-out", key]].concat())?;
        let public_key = path_str(&keys.service_account_public_key)?;
        run_openssl(&["pkey", "-in", key, "-pubout", "-out", public_key])?;
        let node = |number: u8| {
            format!("node-{number},system:node:rack1-{number},node-{number},\"system:nodes\"\n")
        };
        let nodes: String = (0..=99).map(node).collect();
        fs::write(&keys.tokens, format!("{ADMIN_TOKEN},admin,admin,\"system:masters\"\n{nodes}"))?;
        Ok(keys)
    }

    /// Returns the flags for the certificate of a server on this machine. Without them, controller managers and
    /// schedulers create two RSA keys at startup.
    pub(super) fn serving_flags(&self) -> [String; 2] {
        [
            format!("--tls-cert-file={}", self.server_certificate.display()),
            format!("--tls-private-key-file={}", self.server_key.display()),
        ]
    }

    /// Creates the certificate of a server and its key. `names` are alternative names such as `IP:127.0.0.1`.
    pub(super) fn create_serving_certificate(
        &self,
        file: &Path,
        server: &str,
        names: &str,
    ) -> Result<[PathBuf; 2]> {
        let names = format!("subjectAltName={names}");
        self.create_signed_certificate(file, &format!("/CN={server}"), &["-addext", &names])
    }

    /// Creates a client certificate and its key. API servers read the user and the group from the certificate.
    pub(super) fn create_client_certificate(
        &self,
        file: &Path,
        user: &str,
        group: &str,
    ) -> Result<[PathBuf; 2]> {
        self.create_signed_certificate(file, &format!("/O={group}/CN={user}"), &[])
    }

    /// Creates a client certificate that expires at once, and its key.
    pub(super) fn create_expired_client_certificate(
        &self,
        file: &Path,
        user: &str,
        group: &str,
    ) -> Result<[PathBuf; 2]> {
        let [request, certificate, key] =
            ["csr", "crt", "key"].map(|ending| file.with_extension(ending));
        let (request, subject) = (path_str(&request)?, format!("/O={group}/CN={user}"));
        let new_key = &NEW_CERTIFICATE[..NEW_CERTIFICATE.len() - 2];
        let leaf = ["-addext", "basicConstraints=critical,CA:FALSE"];
        let files = ["-subj", subject.as_str(), "-out", request, "-keyout", path_str(&key)?];
        run_openssl(&[&["req"][..], new_key, &leaf, &files].concat())?;
        // `openssl req` refuses a validity of zero days.
        let sign = ["x509", "-req", "-days", "0", "-copy_extensions", "copy", "-set_serial", "1"];
        let (authority, key_of_authority) =
            (path_str(&self.authority)?, path_str(&self.authority_key)?);
        let signed = ["-CA", authority, "-CAkey", key_of_authority, "-in", request];
        run_openssl(&[&sign[..], &signed, &["-out", path_str(&certificate)?]].concat())?;
        Ok([certificate, key])
    }

    /// Returns the flags for front proxies, which name a user in request headers. The API server publishes their CA in
    /// the ConfigMap `kube-system/extension-apiserver-authentication`, and is itself the front proxy of virt-api.
    pub(super) fn front_proxy_flags(&self) -> Result<[String; 7]> {
        let file = self.authority.with_file_name("front-proxy");
        let [certificate, key] = self.create_client_certificate(&file, "front-proxy", "berth")?;
        Ok([
            format!("--requestheader-client-ca-file={}", self.authority.display()),
            // The same CA signs the certificates of other clients, which must not be accepted as front proxies.
            "--requestheader-allowed-names=front-proxy".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            format!("--proxy-client-cert-file={}", certificate.display()),
            format!("--proxy-client-key-file={}", key.display()),
        ])
    }

    /// Creates another CA, with an RSA key, and its key.
    pub(super) fn create_rsa_authority(file: &Path) -> Result<[PathBuf; 2]> {
        let [certificate, key] = ["crt", "key"].map(|ending| file.with_extension(ending));
        let new_key = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"];
        let files = ["-out", path_str(&certificate)?, "-keyout", path_str(&key)?];
        run_openssl(&[&new_key[..], &["-subj", "/CN=berth-tests"], &files].concat())?;
        Ok([certificate, key])
    }

    /// Creates a certificate that the CA has signed, and its key.
    fn create_signed_certificate(
        &self,
        file: &Path,
        subject: &str,
        extensions: &[&str],
    ) -> Result<[PathBuf; 2]> {
        let [certificate, key] = ["crt", "key"].map(|ending| file.with_extension(ending));
        let signed = ["-CA", path_str(&self.authority)?, "-CAkey", path_str(&self.authority_key)?];
        let arguments =
            ["-subj", subject, "-out", path_str(&certificate)?, "-keyout", path_str(&key)?];
        let leaf = ["-addext", "basicConstraints=critical,CA:FALSE"];
        run_openssl(
            &[&["req", "-x509"], &NEW_CERTIFICATE[..], &signed, &leaf, extensions, &arguments]
                .concat(),
        )?;
        Ok([certificate, key])
    }

    /// Writes a kubeconfig for the holder of a token.
    pub(super) fn write_kubeconfig(&self, file: &Path, server: &str, token: &str) -> Result<()> {
        self.write_user_kubeconfig(file, server, &format!("token: \"{token}\""))
    }

    /// Writes a kubeconfig for the holder of a client certificate.
    pub(super) fn write_certificate_kubeconfig(
        &self,
        file: &Path,
        server: &str,
        [certificate, key]: &[PathBuf; 2],
    ) -> Result<()> {
        let (certificate, key) = (path_str(certificate)?, path_str(key)?);
        let user = format!("client-certificate: \"{certificate}\", client-key: \"{key}\"");
        self.write_user_kubeconfig(file, server, &user)
    }

    /// Writes a kubeconfig; `user` is a YAML flow map without its braces.
    fn write_user_kubeconfig(&self, file: &Path, server: &str, user: &str) -> Result<()> {
        use base64::Engine as _;
        let authority =
            base64::engine::general_purpose::STANDARD.encode(fs::read(&self.authority)?);
        let text = format!(
            "apiVersion: v1\nkind: Config\n\
             clusters: [{{name: c, cluster: {{server: \"{server}\", certificate-authority-data: {authority}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\ncurrent-context: c\n"
        );
        fs::write(file, text).with_context(|| file.display().to_string())
    }
}

fn path_str(path: &Path) -> Result<&str> {
    path.to_str().context("the path is not valid UTF-8")
}

fn run_openssl(arguments: &[&str]) -> Result<()> {
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
