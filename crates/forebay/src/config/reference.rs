//! `docs/CONFIGURATION.md`, written from the table of keys. The test keeps the file in step;
//! `UPDATE_DOCS=1 cargo test -p forebay configuration` rewrites it.

#![cfg(test)]

use std::fmt::Write;
use std::path::Path;

use super::keys::{Change, KEYS, Key, Sets};

const HEAD: &str = "\
# Configuration

<!-- Written from the table of keys in crates/forebay/src/config/keys.rs by its test; edit there. -->

These are the settings of mounts. The node daemon has a file of its own:
[JOBS](JOBS.md#the-node-daemons-configuration).

Every setting below can be given in four places. The first one that has it wins:

1. a flag: `--max-age 10s`
2. an environment variable: `FOREBAY_MAX_AGE=10s`
3. a file: `max-age = \"10s\"` in the file named by `--config` or `FOREBAY_CONFIG`, else in
   `$XDG_CONFIG_HOME/forebay/config.toml` (`~/.config` if that is not set), else in
   `/etc/forebay.toml`. It holds for every mount; what is in a section `[mount.NAME]` holds for that
   mount alone and wins over the rest of the file
4. the default

`forebay config show` prints every value with the place it came from. An unknown key, a value of
the wrong kind, or a size or time without a unit is an error that says what to write instead
(exit code 2). An unknown `FOREBAY_` variable is warned of, and otherwise ignored.

Settings with *for instances too* can be given for a cache instance (`forebay instance create cache
--set`, `#FB cache set=`). All others are the node's: root serves that mount, whoever asked for it.

Sizes are written with decimal units (`kB`, `MB`, `GB`, `TB`) or binary ones (`KiB`, `MiB`, `GiB`,
`TiB`); times with `us`, `ms`, `s`, `min`, `h`, `d`; shares of the fast tier as `80%`.

Settings marked *live* can be changed while the mount is in use, by command or from inside the
mount:

```
forebay get /mnt/fast max-age
forebay set /mnt/fast max-age=10s rate-max=50MB/s
cat /mnt/fast/.forebay/config/max-age
echo 10s > /mnt/fast/.forebay/config/max-age
```

A live change lasts until unmount. Watermarks must keep the order
`dirty-low <= dirty-high <= dirty-hard <= used-high <= 98%`.

A new policy holds from the next request on. Setting `policy` to write-through or write-around while
something is dirty, or a `tier-size` that is too small even after clean bytes are evicted, also starts
a drain of everything; `forebay set` waits for it unless told `--background`, a write to
`.forebay/config/` does not. A file that has dirty bytes is never written around the tier: with
`write-around`, or under a rule that denies it, it is written in the tier and flushed when it is
closed (beyond a quota: by the drain). More in [S14 to S16](SEMANTICS.md#s14-what-goes-around-the-tier).

## Mounts with a name

A section of the file describes a mount, for `forebay mount NAME` and `forebay mount --all`. Its three
paths are absolute; any setting can stand beside them. More in
[OPERATING](OPERATING.md#several-mounts-and-etcfstab).

```
[mount.project]
backing = \"/slow/project\"    # or one file or block device
tier = \"/nvme/project\"
at = \"/mnt/project\"
tier-size = \"200GiB\"
```

## Rules

Which files may come into the tier, and for whom, is said by `[[rule]]` tables of the file, or by
`forebay rules add` until unmount; `[[mount.NAME.rule]]` tables are of that mount, before the others.
`forebay rules save` prints such tables of the rules that a mount has. The first of them whose conditions all hold decides when a file is
opened; `forebay rules --help` says what then happens. There are at most 256.

```
[[rule]]
name = \"models\"            # letters, digits and '-'
action = \"allow\"           # or deny, deny-reads, deny-writes
path = [\"models/**\"]       # *, ? within a name, ** over directories; see below
uid = [\"alice\", 1001]      # also gid; names or numbers
cgroup = \"user.slice\"      # and those below it; of cgroup v2
pid = 4711                 # and those it started; the rule goes with the last of them
size-min = \"1MiB\"          # also size-max: of the file when it is opened
quota = \"50GiB\"            # of the tier, for all of the rule's files together
pin = true                 # not evicted, neither for room nor by `forebay evict`
```

What is kept out altogether (`deny`) has no part of the tier, so a quota or a pin for it is refused.

A pattern without a slash is a name in any directory; one with a slash, also in front, is a path from
the root of the mount: `*.log` is every log, `/*.log` those at the root, `**/tmp/*` what lies in any
`tmp`. The same patterns are `flush --last`'s.

A rule that denies something or has a quota costs passthrough: the descriptor goes through the daemon,
except beside others that have the file open past it. A process of another pid namespace than the
daemon's is in no control group and no family that a rule could match. The other limits are in
[S13](SEMANTICS.md#s13-admission-rules).

What comes beyond a quota takes the place of what the rule's files have had in the tier longest. Where
none of that can go, since it is dirty, pinned or open past the daemon, the request is denied: a read
is not kept, a write goes to the backing store, after what is dirty of that file. A read or a write
that is larger than the quota is denied, and sequential reads are fetched by the MiB. Read-ahead takes
at most half of a quota; requests that arrive at the same time can go beyond it by their own size.

A file with the defaults written out:

```toml
";

fn reference() -> String {
    let mut text = HEAD.to_string();
    for key in KEYS.iter().filter(|key| !key.default.is_empty()) {
        writeln!(text, "{} = {}", key.name, toml_default(key)).expect("a string takes all");
    }
    text.push_str("```\n\n## Settings\n");
    for key in KEYS {
        let live = if key.change == Change::Live { ", live" } else { "" };
        let instance = if key.instance == Sets::Asker { ", for instances too" } else { "" };
        let default = match key.default {
            "" => "none".into(),
            default => format!("`{default}`"),
        };
        write!(
            text,
            "\n### {}\n\n{}.\n\nTakes {}. Default: {default}{live}{instance}. Variable: `{}`.\n",
            key.name,
            key.doc,
            key.allowed(),
            key.env(),
        )
        .expect("a string takes all");
    }
    text
}

fn toml_default(key: &Key) -> String {
    let bare = key.default.parse::<u64>().is_ok() || key.default.parse::<bool>().is_ok();
    if bare { key.default.into() } else { format!("\"{}\"", key.default) }
}

#[test]
fn the_configuration_page_says_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CONFIGURATION.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, reference()).expect("docs/ is writable");
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == reference(), "run UPDATE_DOCS=1 cargo test -p forebay configuration");
}

/// forebay can read the file in the page, which sets only defaults.
#[test]
fn the_configuration_page_shows_a_file_that_works() {
    let page = reference();
    let toml = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let raw = super::ConfigFile::from_toml(toml, Path::new("page")).unwrap().common;
    let settings = super::Settings::resolve(&raw).unwrap();
    assert_eq!(settings.tunables, forebay_engine::Tunables::default());
}
