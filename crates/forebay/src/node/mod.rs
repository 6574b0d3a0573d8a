//! The process of the node daemon: its registry, its door, its mounts and transfers (`hands`).

mod api;
mod asker;
mod cgroup;
mod children;
pub mod client;
mod hands;
mod jobs;
mod members;
mod running;
pub mod settings;
mod size;
mod staging;
mod unhome;
pub mod wire;

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::{Error, Result};
use forebay_node::{Node, NodeConfig};
use forebay_registry::Registry;

use crate::daemon::Ready;
use crate::http;
use crate::signals::{self, Blocked};

/// The time that steps under way get when the daemon is told to stop.
const PATIENCE: Duration = Duration::from_secs(20);

/// Serves until a signal stops it. Mounts and transfers stay. `ready` is told that it serves, or why not.
pub fn serve(config: NodeConfig, ready: Ready) -> Result<u8> {
    let blocked = Blocked::new();
    // Whatever umask the starting shell has, users can pass the shared directories; private ones set their own modes.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let socket = config.socket.clone();
    match begin(config) {
        // The group goes with the daemon.
        Ok((node, _group)) => {
            ready.serving(vec![format!("pid {}", std::process::id())]);
            let signal = blocked.wait();
            tracing::info!(signal = signals::name(signal), "stopping; mounts and transfers go on");
            node.stop(PATIENCE);
            let _ = std::fs::remove_file(&socket);
            Ok(0)
        }
        Err(error) => {
            ready.failed(&error);
            Err(error)
        }
    }
}

fn begin(config: NodeConfig) -> Result<(Arc<Node>, Option<cgroup::Group>)> {
    crate::daemon::lift_file_size_limit();
    for dir in [config.socket.parent(), Some(&config.mount_root), config.state.parent()] {
        make_dir(dir.unwrap_or(Path::new("/")))?;
    }
    let registry = registry(&config)?;
    let socket = config.socket.clone();
    let group = cgroup::of_transfers(&config);
    let hands = hands::Processes::new(group.as_ref().map(|group| group.at.clone()));
    let node = Node::start(config, registry, Arc::new(hands))?;
    members::tend(node.clone())?;
    let door = api::Door { node: node.clone() };
    http::serve_everybody(&socket, move |request| door.answer(request))?;
    tracing::info!(node = node.name(), socket = %socket.display(), "serving");
    Ok((node, group))
}

/// Makes directories that users must be able to pass.
pub fn make_dir(path: &Path) -> Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|e| Error::io(e, path.display().to_string()))
}

fn registry(config: &NodeConfig) -> Result<Arc<dyn Registry>> {
    let own = || format!("embedded://{}", config.state.join("registry").display());
    let address = config.registry.clone().unwrap_or_else(own);
    if config.registry.is_none() {
        // The first daemon on this machine makes the directory.
        forebay_node::own_dir(&config.state)?;
    }
    forebay_registry::open(&address)
}
