//! The credentials for TLS: certificates, keys and passwords, all in files.

use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;

use crate::pem::{certificates, private_key, roots, secret, unusable};
use crate::{Access, Error, Kind, Result};

/// The configuration of TLS; `None` without TLS.
pub fn config(access: &Access) -> Result<Option<Arc<ClientConfig>>> {
    let Some(ca) = &access.ca else { return Ok(None) };
    let roots = roots(ca)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| unusable(ca, e))?
        .with_root_certificates(roots);
    let mut config = match &access.identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let private = private_key(key)?;
            builder
                .with_client_auth_cert(certificates(cert)?, private)
                .map_err(|e| unusable(cert, e))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Some(Arc::new(config)))
}

/// The same for HTTP/1.
pub fn without_http2(config: &Arc<ClientConfig>) -> Arc<ClientConfig> {
    let mut config = ClientConfig::clone(config);
    config.alpn_protocols.clear();
    Arc::new(config)
}

/// # Errors
///
/// [`Kind::Usage`] if another user may read or write the file.
pub fn password(path: &Path) -> Result<String> {
    let text = String::from_utf8(secret(path)?);
    let text = text.map_err(|_| Error::new(Kind::Usage, format!("{}: no text", path.display())))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_string())
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
