//! Whom to believe, and who to be: certificates, keys and passwords, all in files.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use forebay_base::users;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::{Access, Error, Kind, Result};

/// A password, a key or a bundle of certificates is far smaller.
const FILE_MAX: u64 = 4 << 20;

/// What TLS needs; `None` without it.
pub fn config(access: &Access) -> Result<Option<Arc<ClientConfig>>> {
    let Some(ca) = &access.ca else { return Ok(None) };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|e| unusable(ca, e))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| unusable(ca, e))?
        .with_root_certificates(roots);
    let config = match &access.identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let private = PrivateKeyDer::from_pem_slice(&secret(key)?);
            let private = private.map_err(|e| unusable(key, e))?;
            let chain = certificates(cert)?;
            builder.with_client_auth_cert(chain, private).map_err(|e| unusable(cert, e))?
        }
    };
    Ok(Some(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(e, path.display().to_string()))?;
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|e| unusable(path, e))?;
    match found.is_empty() {
        true => Err(Error::new(
            Kind::Usage,
            format!(
                "{}: it holds no certificate in PEM (-----BEGIN CERTIFICATE-----)",
                path.display()
            ),
        )),
        false => Ok(found),
    }
}

fn unusable(path: &Path, why: impl std::fmt::Display) -> Error {
    let text = format!("{}: it cannot be used for TLS: {why}", path.display());
    Error::new(Kind::Usage, text)
}

/// # Errors
///
/// [`Kind::Usage`] if somebody else may read or write the file.
pub fn password(path: &Path) -> Result<String> {
    let text = String::from_utf8(secret(path)?);
    let text = text.map_err(|_| Error::new(Kind::Usage, format!("{}: no text", path.display())))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_string())
}

fn secret(path: &Path) -> Result<Vec<u8>> {
    let failed = |e| Error::io(e, path.display().to_string());
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    let us = rustix::process::geteuid().as_raw();
    let remedy = |why: String| {
        let shown = path.display();
        Error::new(
            Kind::Usage,
            format!("{shown}: {why}: chmod 600 {shown} and chown it to yourself"),
        )
    };
    if !meta.is_file() {
        return Err(Error::new(Kind::Usage, format!("{}: no regular file", path.display())));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(remedy(format!(
            "a secret that others may use (mode {:o})",
            meta.mode() & 0o777
        )));
    }
    if meta.uid() != us && meta.uid() != 0 {
        return Err(remedy(format!("a secret that {} owns", users::show(meta.uid()))));
    }
    let mut bytes = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let path = dir.path().join("secret");
        std::fs::write(&path, "pass word\n").expect("it can be written");
        for (mode, right) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("it is ours");
            match password(&path) {
                Ok(text) => assert!(right && text == "pass word", "{mode:o}"),
                Err(error) => assert!(!right && error.to_string().contains("chmod 600"), "{error}"),
            }
        }
        assert!(
            password(dir.path()).expect_err("a directory").to_string().contains("no regular file")
        );
    }

    #[test]
    fn a_file_without_certificates_is_told() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let path = dir.path().join("ca");
        std::fs::write(&path, "nothing").expect("it can be written");
        let access = Access { ca: Some(path), ..Access::default() };
        assert!(config(&access).expect_err("nothing in it").to_string().contains("no certificate"));
    }
}
