#!/bin/sh
# Four nodes with one slow directory, on this host: each has a network, mounts and a fast tier of its own,
# a real etcd is their registry. One node writes a checkpoint, the others read it before any of it is on the
# slow directory; that node is killed for good in the middle of its next checkpoint, another takes its files
# over; all unmount, and checksums compare every byte that was synced.
#
#   FOREBAY_DEMO_DIR=DIR   where to work; needs 1 GB (default /var/tmp)
set -eu

forebay=${FOREBAY:-forebay}
forebay=$(command -v "$forebay")
[ "$(id -u)" -eq 0 ] || {
    echo "demo nodes: nodes have networks and mounts of their own: run this as root" >&2
    exit 2
}
for tool in etcd ip nsenter unshare; do
    command -v $tool >/dev/null 2>&1 || {
        echo "demo nodes: $tool is missing (Debian: etcd-server, iproute2, util-linux)" >&2
        exit 2
    }
done
work=$(mktemp -d "${FOREBAY_DEMO_DIR:-/var/tmp}/forebay-nodes.XXXXXX")
nodes='n1 n2 n3 n4'
holders='' etcd=''

say() { printf '\n== %s\n' "$*"; }

# Waits up to a minute for a command to go well.
until_ok() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 600 ] || {
            echo "demo: in vain for a minute: $*" >&2
            tail -n 20 "$work"/*/tier/run/forebay.log "$work/etcd.log" >&2 || true
            exit 1
        }
        sleep 0.1
    done
}

# Runs a command on a node.
on() {
    at=$(cat "$work/$1/holder")
    shift
    nsenter --target "$at" --net --mount "$@"
}

# Whatever runs among the mounts of a node of ours, but for what holds them.
inside() {
    their=$(readlink "/proc/$1/ns/mnt") || return 0
    [ "$their" != "$(readlink /proc/self/ns/mnt)" ] || return 0
    for process in /proc/[0-9]*; do
        pid=${process#/proc/}
        [ "$pid" = "$1" ] || [ "$(readlink "$process/ns/mnt" 2>/dev/null)" != "$their" ] || echo "$pid"
    done
}

# Networks and mounts go with what holds them: nothing of them was ever to be seen outside.
cleanup() {
    code=$?
    trap - EXIT INT TERM
    for holder in $holders; do
        for pid in $(inside "$holder"); do kill -9 "$pid" 2>/dev/null || true; done
    done
    for pid in $etcd $holders; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf --one-file-system "$work"
    exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# A process with a network and mounts of its own.
hold() {
    mkdir -p "$work/$1"
    unshare --net --mount --propagation private sleep infinity &
    holders="$holders $!"
    echo $! >"$work/$1/holder"
    until_ok sh -c "[ \"\$(readlink /proc/$!/ns/mnt)\" != \"\$(readlink /proc/self/ns/mnt)\" ]"
}

say "a switch, and joined to it a host for the registry and four nodes"
hold switch
on switch ip link add br0 type bridge
on switch ip link set br0 up
number=0
for host in registry $nodes; do
    number=$((number + 1))
    hold $host
    on $host ip link set lo up
    on $host ip link add eth0 type veth peer name "port$number" netns "$(cat "$work/switch/holder")"
    on switch ip link set "port$number" master br0 up
    on $host ip addr add "10.99.0.$number/24" dev eth0
    on $host ip link set eth0 up
    echo "10.99.0.$number" >"$work/$host/address"
    echo "   $host has 10.99.0.$number"
done

say "etcd, and a key by which nodes know each other"
url=http://10.99.0.1
on registry etcd --data-dir "$work/etcd" --listen-client-urls $url:2379 --advertise-client-urls $url:2379 \
    --listen-peer-urls $url:2380 --initial-advertise-peer-urls $url:2380 \
    --initial-cluster default=$url:2380 >"$work/etcd.log" 2>&1 &
etcd=$!
until_ok grep -q 'ready to serve' "$work/etcd.log"
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$work/key")

# The same path on each node, as on a cluster.
mkdir -p "$work/slow" "$work/mnt"
mount_on() {
    on "$1" "$forebay" mount "$work/slow" "$work/mnt" --tier "$work/$1/tier" --node "$1" \
        --registry etcd://10.99.0.1:2379/demo --peer-listen "$(cat "$work/$1/address"):7400" \
        --cluster-key "$work/key" --preset hold --copies 1
}

# Whether each node has another that keeps copies of what is synced on it.
all_copied() { ! on n1 "$forebay" status --cluster "$work/mnt" | grep -q MISSING; }

say "each node mounts the slow directory, with a fast tier of its own; another keeps copies of what it syncs"
for node in $nodes; do mount_on $node; done
until_ok all_copied
on n1 "$forebay" status --cluster "$work/mnt"

say "n1 writes a checkpoint of 8 files, 128 MB; it stays in the fast tier of n1"
on n1 mkdir "$work/mnt/ckpt"
for part in 1 2 3 4 5 6 7 8; do
    on n1 dd if=/dev/urandom of="$work/mnt/ckpt/part-$part" bs=1M count=16 conv=fsync status=none
done
on n1 sh -c "cd $work/mnt/ckpt && sha256sum part-*" >"$work/sums"
seen=$(on n1 sh -c "cat $work/mnt/ckpt/part-* | wc -c")
echo "   n1 sees $seen bytes, on the slow directory are $(cat "$work"/slow/ckpt/part-* | wc -c)"

check_on() { on "$1" sh -c "cd $work/mnt/ckpt && sha256sum --quiet --check" <"$work/sums"; }

say "n2, n3 and n4 read it from n1"
for node in n2 n3 n4; do
    check_on $node
    echo "   $node: all 8 checksums are right"
done

say "n2 and n3 append to one log at the same time, 200 lines each"
on n1 touch "$work/mnt/log"
for node in n2 n3; do
    on $node sh -c "for n in \$(seq 200); do echo $node line \$n; done >>$work/mnt/log" &
    echo $! >"$work/$node/writer"
done
wait "$(cat "$work/n2/writer")" "$(cat "$work/n3/writer")"
on n3 sync "$work/mnt/log"
lines=$(on n1 sh -c "grep -c '^n[23] line [0-9]*\$' $work/mnt/log")
echo "   n1 reads $lines whole lines"
[ "$lines" = 400 ] && [ "$(on n1 sort -u "$work/mnt/log" | wc -l)" = 400 ]

say "n1 writes the next checkpoint, 40 files that it syncs one by one"
mkdir "$work/source"
(cd "$work/source" && for part in $(seq 40); do
    dd if=/dev/urandom of="next-$part" bs=1M count=4 status=none
done && sha256sum next-* >"$work/next")
on n1 mkdir "$work/mnt/next"
# What is in the list was synced before it was written there.
: >"$work/synced"
on n1 sh -c "for part in \$(seq 40); do
    dd if=$work/source/next-\$part of=$work/mnt/next/next-\$part bs=256K conv=fsync status=none 2>/dev/null || exit 0
    echo next-\$part >>$work/synced
done" &
writer=$!
until_ok sh -c "[ \$(wc -l <$work/synced) -ge 8 ]"

say "kill -9 of the daemon on n1 in the middle of it, which does not come back: who needs its files waits until another has them"
daemon=$(on n1 "$forebay" status --json "$work/mnt" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1)
began=$(date +%s)
kill -9 "$daemon"
on n1 umount --lazy "$work/mnt"
wait "$writer"
whole=$(wc -l <"$work/synced")
echo "   n1 had synced $whole of the 40 files, and was writing the next"
[ "$whole" -ge 8 ] && [ "$whole" -lt 40 ]
while read -r name; do grep " $name\$" "$work/next"; done <"$work/synced" >"$work/next-sums"
check_next() { on "$1" sh -c "cd $work/mnt/next && sha256sum --quiet --check" <"$work/next-sums"; }
for node in n2 n3 n4; do
    check_on $node
    check_next $node
    echo "   $node: all 8 checksums are right, and those of the $whole, $(($(date +%s) - began)) s after the death"
done
torn=$work/mnt/next/next-$((whole + 1))
echo "   of the file that n1 was writing $(on n2 sh -c "cat $torn 2>/dev/null | wc -c") of 4194304 bytes are there"
on n2 sh -c "echo written since >$work/mnt/note"
on n2 "$forebay" status --cluster "$work/mnt"
on n2 "$forebay" member stopped "$work/mnt" n1 --confirm n1

say "all unmount: every byte goes home"
for node in n2 n3 n4; do on $node "$forebay" umount "$work/mnt"; done
(cd "$work/slow/ckpt" && sha256sum --quiet --check) <"$work/sums"
(cd "$work/slow/next" && sha256sum --quiet --check) <"$work/next-sums"
[ "$(grep -c '^n[23] line [0-9]*$' "$work/slow/log")" = 400 ]
[ "$(cat "$work/slow/note")" = "written since" ]
echo "   8 checksums, the $whole that were synced of the next checkpoint, and 400 lines are right on the slow directory"
