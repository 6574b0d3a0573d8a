//! Addresses of registries, as users write them.
//!
//! ```text
//! /dir  embedded:///dir                          one machine, in a directory
//! etcd://host:2379,host2:2379/prefix             etcd without TLS
//! etcds://host/prefix?ca=/ca.pem&user=NAME&password-file=/secret
//! ```

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::{Error, Kind, Result};

/// etcd's own port.
const PORT: u16 = 2379;

/// The prefix of a cluster's keys unless its address names another.
const PREFIX: &str = "/forebay/";

/// The longest prefix of a cluster. Keys of up to [`crate::limits::KEY_MAX`] follow it.
const PREFIX_MAX: usize = 200;

/// The most members in an address; a cluster of etcd has at most 7.
const HOSTS_MAX: usize = 16;

const FORMS: &str = "write etcd://host:2379,host2:2379/prefix for several nodes, or etcds:// with TLS \
                     (?ca=FILE&cert=FILE&key=FILE&user=NAME&password-file=FILE); for the node daemon of one machine \
                     an absolute path (/var/lib/forebay/registry) or embedded:///dir";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A directory of this machine.
    Embedded(PathBuf),
    Etcd(Endpoint),
}

/// An etcd cluster, and forebay's part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub hosts: Vec<Host>,
    /// The prefix; it begins and ends with `/`.
    pub prefix: String,
    pub access: Access,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// A name or an address; an IPv6 one is in brackets.
    pub name: String,
    pub port: u16,
}

impl Host {
    /// The name, or the address without brackets.
    pub(crate) fn bare_name(&self) -> &str {
        self.name.trim_matches(['[', ']'])
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

/// The credentials for a cluster. Secrets are in files, never in the address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// The certificates that sign the servers'; if there is one, TLS is used.
    pub ca: Option<PathBuf>,
    /// This node's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// A user of etcd, and the file with their password.
    pub user: Option<(String, PathBuf)>,
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address> {
        match text.split_once("://") {
            None if text.starts_with('/') => Ok(Address::Embedded(text.into())),
            Some(("embedded", dir)) if dir.starts_with('/') => Ok(Address::Embedded(dir.into())),
            Some(("embedded", _)) => Err(wrong(text, "the directory has to be an absolute path")),
            Some(("etcd", rest)) => endpoint(text, rest, Tls::No).map(Address::Etcd),
            Some(("etcds", rest)) => endpoint(text, rest, Tls::Yes).map(Address::Etcd),
            Some((scheme, _)) => Err(wrong(text, &format!("{scheme}:// is not known"))),
            None => Err(wrong(text, "it names no kind of registry")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Embedded(dir) => write!(f, "embedded://{}", dir.display()),
            Address::Etcd(endpoint) => endpoint.fmt(f),
        }
    }
}

/// The address without the credentials.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        let scheme = if self.access.ca.is_some() { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}{}", hosts.join(","), self.prefix.trim_end_matches('/'))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tls {
    Yes,
    No,
}

fn endpoint(text: &str, rest: &str, tls: Tls) -> Result<Endpoint> {
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (hosts, prefix) = match place.find('/') {
        Some(at) => place.split_at(at),
        None => (place, ""),
    };
    let hosts: Vec<Host> = hosts.split(',').map(|h| host(text, h)).collect::<Result<_>>()?;
    if hosts.len() > HOSTS_MAX {
        return Err(wrong(text, &format!("more than {HOSTS_MAX} hosts")));
    }
    let access = access(text, query)?;
    match (tls, &access.ca) {
        (Tls::Yes, None) => Err(wrong(
            text,
            "etcds:// needs ca=FILE, the certificates that sign the servers' (those that the system \
             trusts are in /etc/ssl/certs/ca-certificates.crt)",
        )),
        (Tls::No, Some(_)) => Err(wrong(text, "ca= is for etcds://")),
        (Tls::No, None) if access.identity.is_some() => {
            Err(wrong(text, "cert= and key= are for etcds://"))
        }
        _ => Ok(Endpoint { hosts, prefix: prefix_of(text, prefix)?, access }),
    }
}

fn host(text: &str, host: &str) -> Result<Host> {
    let (name, port) = match host.rsplit_once(':') {
        // The last colon is a part of the IPv6 address.
        Some((name, _)) if name.starts_with('[') && !name.ends_with(']') => (host, None),
        Some((name, port)) => (name, Some(port)),
        None => (host, None),
    };
    let bracketed = name.starts_with('[') && name.ends_with(']');
    let fits =
        |c: char| c.is_ascii_alphanumeric() || "-._".contains(c) || bracketed && "[]:%".contains(c);
    if name.is_empty() || !name.chars().all(fits) {
        return Err(wrong(
            text,
            &format!("{host:?} is not a host (an IPv6 address is in brackets)"),
        ));
    }
    let port = port.map_or(Ok(PORT), str::parse);
    match port {
        Ok(port) if port > 0 => Ok(Host { name: name.into(), port }),
        _ => Err(wrong(text, &format!("{host:?} has no port that could be one"))),
    }
}

fn prefix_of(text: &str, prefix: &str) -> Result<String> {
    let inner = prefix.trim_matches('/');
    if inner.is_empty() {
        return Ok(PREFIX.into());
    }
    if inner.contains("//") || inner.chars().any(char::is_control) {
        return Err(wrong(text, "the prefix has empty parts or control characters"));
    }
    match inner.len() > PREFIX_MAX {
        true => Err(wrong(text, &format!("the prefix is longer than {PREFIX_MAX} bytes"))),
        false => Ok(format!("/{inner}/")),
    }
}

fn access(text: &str, query: &str) -> Result<Access> {
    let (mut ca, mut cert, mut key, mut user, mut password) = (None, None, None, None, None);
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let slot = match name {
            "ca" => &mut ca,
            "cert" => &mut cert,
            "key" => &mut key,
            "user" => &mut user,
            "password-file" => &mut password,
            "password" => {
                return Err(wrong(
                    "(an address with a password)",
                    "a password in an address is seen by everybody: write it to a file of mode 0600 \
                     and name that with password-file=FILE",
                ));
            }
            _ => return Err(wrong(text, &format!("the option {name:?} is not known"))),
        };
        if name != "user" && !Path::new(value).is_absolute() {
            return Err(wrong(text, &format!("{name}= needs the absolute path of a file")));
        }
        if value.is_empty() || slot.replace(value.to_string()).is_some() {
            return Err(wrong(text, &format!("{name}= has to have one value")));
        }
    }
    let identity = both(text, (cert, key), "cert= and key=")?;
    let user = both(text, (user, password), "user= and password-file=")?;
    Ok(Access {
        ca: ca.map(PathBuf::from),
        identity: identity.map(|(cert, key)| (cert.into(), key.into())),
        user: user.map(|(user, file)| (user, file.into())),
    })
}

fn both<T>(text: &str, pair: (Option<T>, Option<T>), names: &str) -> Result<Option<(T, T)>> {
    match pair {
        (Some(one), Some(other)) => Ok(Some((one, other))),
        (None, None) => Ok(None),
        _ => Err(wrong(text, &format!("{names} go together"))),
    }
}

fn wrong(text: &str, why: &str) -> Error {
    Error::new(Kind::Usage, format!("{text}: not the address of a registry: {why}; {FORMS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_right() {
        let dir = Address::Embedded("/var/lib/forebay/registry".into());
        assert_eq!("/var/lib/forebay/registry".parse::<Address>().expect("a path"), dir);
        assert_eq!("embedded:///var/lib/forebay/registry".parse::<Address>().expect("a URL"), dir);
        for (text, shown) in [
            ("etcd://a", "etcd://a:2379/forebay"),
            ("etcd://a:1,b.c:2/x/y/", "etcd://a:1,b.c:2/x/y"),
            ("etcd://[::1]:99", "etcd://[::1]:99/forebay"),
            ("etcd://[fe80::1]", "etcd://[fe80::1]:2379/forebay"),
            ("etcds://a/?ca=/ca.pem&cert=/c&key=/k", "etcds://a:2379/forebay"),
            ("etcd://a?user=u&password-file=/p", "etcd://a:2379/forebay"),
        ] {
            let address: Address = text.parse().unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(address.to_string(), shown);
        }
    }

    #[test]
    fn addresses_that_are_wrong_are_told_with_the_remedy() {
        for (text, word) in [
            ("", "no kind"),
            ("relative/dir", "no kind"),
            ("embedded://dir", "absolute"),
            ("http://a", "http:// is not known"),
            ("etcd://", "is not a host"),
            ("etcd://a,,b", "is not a host"),
            ("etcd://::1:2379", "brackets"),
            ("etcd://a:0", "port"),
            ("etcd://a:70000", "port"),
            ("etcd://a/b//c", "empty parts"),
            ("etcds://a", "needs ca=FILE"),
            ("etcd://a?ca=/ca", "for etcds"),
            ("etcd://a?cert=/c&key=/k", "for etcds"),
            ("etcds://a?ca=/ca&cert=/c", "go together"),
            ("etcd://a?user=u", "go together"),
            ("etcd://a?user=u&password-file=p", "absolute path"),
            ("etcd://a?password=secret", "password-file"),
            ("etcd://a?color=red", "color"),
        ] {
            let error = text.parse::<Address>().expect_err(text);
            let (kind, said) = (error.kind(), error.to_string());
            assert!(kind == Kind::Usage && said.contains(word), "{text}: {said}");
            assert!(said.contains("etcd://host:2379") && !said.contains("secret"), "{said}");
        }
    }
}
