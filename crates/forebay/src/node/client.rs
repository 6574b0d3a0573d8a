//! The client of a node daemon.

use std::path::{Path, PathBuf};

use forebay_base::{Error, Kind, Result};
use forebay_node::config::SOCKET;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::http::{Client, Liveness};

/// Which node daemon to ask.
#[derive(Debug, Clone, clap::Args)]
pub struct NodeArgs {
    /// The socket of the node daemon [default: $FOREBAY_NODE_SOCKET or /run/forebay/node.sock].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

pub struct NodeClient {
    socket: PathBuf,
    client: Client,
}

impl NodeArgs {
    pub fn client(&self) -> NodeClient {
        match &self.socket {
            Some(given) => NodeClient::at(given),
            None => NodeClient::of_environment(),
        }
    }
}

impl NodeClient {
    pub fn of_environment() -> NodeClient {
        let given = std::env::var_os("FOREBAY_NODE_SOCKET").map(PathBuf::from);
        NodeClient::at(&given.unwrap_or_else(|| SOCKET.into()))
    }

    pub fn at(socket: &Path) -> NodeClient {
        NodeClient { socket: socket.into(), client: Client::at(socket) }
    }

    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.read(self.client.get(path))
    }

    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T> {
        self.read(self.client.post(path, body))
    }

    fn read<T: DeserializeOwned>(&self, answer: Result<Value>) -> Result<T> {
        let socket = self.socket.display();
        let answer = answer.map_err(|error| match error.kind() {
            Kind::Unreachable if self.client.liveness() == Liveness::Dead => Error::new(
                Kind::Unreachable,
                format!(
                    "no node daemon at {socket}: `forebay node` starts one; if its socket is elsewhere, \
                     name it with --socket or FOREBAY_NODE_SOCKET"
                ),
            ),
            _ => error,
        })?;
        serde_json::from_value(answer).map_err(|e| {
            let why = format!("{socket}: the node daemon answers as another version");
            Error::new(Kind::Unreachable, why).with_source(e)
        })
    }
}
