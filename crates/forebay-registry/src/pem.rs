//! Certificates, keys and other secrets in files.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use forebay_base::users;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::{Error, Kind, Result};

/// A password, a key or a bundle of certificates is far smaller.
const FILE_MAX: u64 = 4 << 20;

/// A chain of certificates in PEM.
///
/// # Errors
///
/// [`Kind::Usage`] if there is none in the file; the kernel's error about the file.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
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

/// The error for a file that cannot be used for TLS.
pub fn unusable(path: &Path, why: impl std::fmt::Display) -> Error {
    let text = format!("{}: it cannot be used for TLS: {why}", path.display());
    Error::new(Kind::Usage, text)
}

/// The certificate authorities in a file.
///
/// # Errors
///
/// As [`certificates`].
pub fn roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| unusable(path, e))?;
    }
    Ok(roots)
}

/// A private key in PEM.
///
/// # Errors
///
/// As [`secret`]; [`Kind::Usage`] if the file has no private key.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(&secret(path)?).map_err(|e| unusable(path, e))
}

/// The contents of a file that only this user may read.
///
/// # Errors
///
/// [`Kind::Usage`] if another user may read or write the file.
pub fn secret(path: &Path) -> Result<Vec<u8>> {
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
