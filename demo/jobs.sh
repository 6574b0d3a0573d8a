#!/bin/sh
# A job's day without a scheduler: one node daemon, a dataset staged in, a job that reads it, writes
# checkpoints and results, and is killed together with the node daemon in the middle; then the job goes
# on, its results go home, and checksums compare every byte.
#
#   FOREBAY_DEMO_DIR=DIR   where to work; needs 1 GB (default /var/tmp)
set -eu

forebay=${FOREBAY:-forebay}
[ "$(id -u)" -eq 0 ] || {
    echo "demo jobs: a node daemon mounts for others: run this as root" >&2
    exit 2
}
work=$(mktemp -d "${FOREBAY_DEMO_DIR:-/var/tmp}/forebay-jobs.XXXXXX")
chmod 755 "$work"
FOREBAY_NODE_SOCKET=$work/run/node.sock
export FOREBAY_NODE_SOCKET
daemon=

cleanup() {
    code=$?
    trap - EXIT INT TERM
    for id in scratch ckpt; do
        "$forebay" instance destroy "$id" --hurry --timeout 20s >/dev/null 2>&1 || true
    done
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
    [ -z "$daemon" ] || wait "$daemon" 2>/dev/null || true
    if grep -q " $work/" /proc/self/mountinfo; then
        echo "demo: something below $work is still mounted; leaving it as it is" >&2
        exit "$code"
    fi
    rm -rf --one-file-system "$work"
    exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say() { printf '\n== %s\n' "$*"; }

cat >"$work/node.toml" <<TXT
name = "demo"
state = "$work/state"
socket = "$work/run/node.sock"
mount-root = "$work/mnt"
[[pool]]
name = "flash"
dir = "$work/pool"
capacity = "600MiB"
TXT

start_node() {
    "$forebay" node --config "$work/node.toml" 2>>"$work/node.log" &
    daemon=$!
    tries=0
    until "$forebay" node health >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 200 ] || {
            cat "$work/node.log" >&2
            exit 1
        }
        sleep 0.05
    done
}

say "the slow side: a dataset of 40 files"
mkdir -p "$work/pfs/dataset" "$work/pfs/ckpt"
for n in $(seq 40); do
    head -c 2M /dev/urandom >"$work/pfs/dataset/part-$n"
done

say "a node daemon, and what it offers"
start_node
"$forebay" pools

say "two instances: scratch for the job, a cache for its checkpoints"
scratch=$("$forebay" instance create private scratch --capacity 200MiB)
ckpt=$("$forebay" instance create cache ckpt --backing "$work/pfs/ckpt" --capacity 200MiB \
    --set max-age=1h)
"$forebay" instance list

say "the dataset comes in, the results will go out at the end"
"$forebay" stage in "$work/pfs/dataset" "$scratch/dataset"
"$forebay" stage out "$scratch/results/" "$work/pfs/results" --at-end

# Each part gives a result; after each the job writes a checkpoint, and goes on from it.
cat >"$work/job.sh" <<'TXT'
set -eu
scratch=$1 ckpt=$2 pace=$3
mkdir -p "$scratch/results"
done_before=0
[ ! -f "$ckpt/step" ] || done_before=$(cat "$ckpt/step")
echo "   the job begins behind part $done_before"
for n in $(seq $((done_before + 1)) 40); do
    sha256sum <"$scratch/dataset/part-$n" >"$scratch/results/sum-$n"
    head -c 1M "$scratch/dataset/part-$n" >"$ckpt/state-$n"
    echo "$n" >"$ckpt/step.new"
    sync "$ckpt/step.new"
    mv "$ckpt/step.new" "$ckpt/step"
    sleep "$pace"
done
TXT

say "the job, and after a moment kill -9 for the job and the node daemon"
sh "$work/job.sh" "$scratch" "$ckpt" 0.05 &
job=$!
sleep 1
kill -9 "$job" "$daemon"
wait "$job" "$daemon" 2>/dev/null || true
daemon=
echo "   killed behind part $(cat "$ckpt/step")"

say "the next node daemon takes up what it finds, the job goes on"
start_node
"$forebay" instance list
sh "$work/job.sh" "$scratch" "$ckpt" 0

say "the instances go: results and checkpoints come home first"
"$forebay" instance destroy ckpt
"$forebay" instance destroy scratch
"$forebay" stage list
"$forebay" manifest

say "every byte is compared"
for n in $(seq 40); do
    sha256sum <"$work/pfs/dataset/part-$n" | cmp -s - "$work/pfs/results/sum-$n" ||
        { echo "demo: result $n is wrong" >&2; exit 1; }
    head -c 1M "$work/pfs/dataset/part-$n" | cmp -s - "$work/pfs/ckpt/state-$n" ||
        { echo "demo: checkpoint $n is wrong" >&2; exit 1; }
done
[ "$(cat "$work/pfs/ckpt/step")" = 40 ]
echo "   40 results and 40 checkpoints are on the slow side, whole; nothing is left on the node:"
"$forebay" pools
