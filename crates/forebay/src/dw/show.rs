//! JSON as Cray's `dw_wlm_cli` prints it.

use serde_json::{Value, json};

use super::sessions::{Piece, Session, Sessions};

/// The window and the writes allowed in it before flash is spared. forebay has no such limit; these are
/// Cray's defaults.
const WINDOW: (u64, u64) = (86_400, 10);

pub fn instances(Sessions(all): &Sessions) -> Value {
    let each = |session| move |piece| instance(session, piece);
    let list: Vec<Value> =
        all.iter().flat_map(|session| session.pieces.iter().map(each(session))).collect();
    json!({ "instances": list })
}

fn instance(session: &Session, piece: &Piece) -> Value {
    json!({
        "id": piece.id,
        "label": piece.label,
        "capacity": { "bytes": piece.bytes, "nodes": piece.nodes },
        "created": session.created,
        "expiration": piece.expires,
        "intact": true,
        "public": false,
        "limits": { "write_window_length": WINDOW.0, "write_window_multiplier": WINDOW.1 },
        "links": { "configurations": [piece.id], "session": session.id },
        "state": state(session, piece.ready),
    })
}

pub fn sessions(Sessions(all): &Sessions) -> Value {
    let one = |session: &Session| {
        json!({
            "id": session.id,
            "token": session.token,
            "creator": "SLURM",
            "owner": session.owner,
            "created": session.created,
            "expiration": 0,
            "links": { "client_nodes": session.nodes },
            "state": state(session, session.pieces.iter().all(|piece| piece.ready)),
        })
    };
    json!({ "sessions": all.iter().map(one).collect::<Vec<_>>() })
}

pub fn configurations(Sessions(all): &Sessions) -> Value {
    let pieces = all.iter().flat_map(|session| &session.pieces);
    let one = |piece: &Piece| json!({ "id": piece.id, "links": { "instance": piece.id } });
    json!({ "configurations": pieces.map(one).collect::<Vec<_>>() })
}

fn state(session: &Session, ready: bool) -> Value {
    json!({
        "actualized": ready,
        "fuse_blown": false,
        "goal": if session.stays { "create" } else { "destroy" },
        "mixed": false,
        "transitioning": !ready || !session.stays,
    })
}

#[cfg(test)]
mod tests {
    use super::super::sessions::tests::sessions as known;
    use super::*;

    #[test]
    fn what_belongs_together_has_one_number() {
        let (i, s, c) = (instances(&known()), sessions(&known()), configurations(&known()));
        let (i, s, c) = (&i["instances"][0], &s["sessions"][0], &c["configurations"][0]);
        assert_eq!(i["links"]["session"], s["id"]);
        assert_eq!(c["links"]["instance"], i["id"]);
        assert_eq!((&s["token"], &s["owner"]), (&json!("set"), &json!(7)));
        assert_eq!(i["capacity"], json!({ "bytes": 2048, "nodes": 2 }));
        assert_eq!(i["state"]["goal"], "create");
    }
}
