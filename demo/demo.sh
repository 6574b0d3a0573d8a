#!/bin/sh
# Shows what forebay does for three kinds of work on a slow directory: a checkpoint burst, a
# dataset read twice, a compile. The slow directory is a throttled one (100 MB/s, 5 ms a call), so
# no second disk is needed. At the end checksums prove that it holds every byte.
#
#   FOREBAY_DEMO_DIR=DIR       where to work; needs 3 GB (default /var/tmp)
#   FOREBAY_DEMO_PICTURE=FILE  draw the result as an SVG picture, too; docs/demo.svg is made so
set -eu

forebay=${FOREBAY:-forebay}
throttle=100MB,5ms
writers=8
work=$(mktemp -d "${FOREBAY_DEMO_DIR:-/var/tmp}/forebay-demo.XXXXXX")

cleanup() {
    code=$?
    trap - EXIT INT TERM
    for name in without with; do
        if grep -q " $work/$name/mnt " /proc/self/mountinfo; then
            "$forebay" umount --keep-dirty "$work/$name/mnt" >/dev/null 2>&1 || true
        fi
        if grep -q " $work/$name/mnt " /proc/self/mountinfo; then
            echo "demo: $work/$name/mnt is still mounted; leaving $work as it is" >&2
            exit "$code"
        fi
    done
    rm -rf "$work"
    exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.2f", b - a }'; }
say() { printf '\n== %s\n' "$*"; }

# The data that is written and read: random, so that nothing shrinks on the way.
make_data() {
    mkdir -p "$work/data/ranks" "$work/data/set" "$work/data/project"
    for n in $(seq 100); do
        head -c 1M /dev/urandom >"$work/data/ranks/rank-$n.ckpt"
    done
    head -c 500M /dev/urandom >"$work/data/model.ckpt"
    for n in $(seq 40); do
        head -c 5M /dev/urandom >"$work/data/set/part-$n.bin"
    done
    make_project "$work/data/project"
}

# Forty C files over one header, and a main that calls them all.
make_project() {
    : >"$1/all.h"
    : >"$1/calls.inc"
    for n in $(seq 40); do
        echo "int f$n(int x);" >>"$1/all.h"
        echo "sum += f$n(sum);" >>"$1/calls.inc"
        printf '#include <stdio.h>\n#include "all.h"\nint f%d(int x) { return x %% %d + 1; }\n' \
            "$n" "$((n + 1))" >"$1/f$n.c"
    done
    printf '#include <stdio.h>\n#include "all.h"\nint main(void) { int sum = 0;\n%s\n%s }\n' \
        '#include "calls.inc"' 'printf("%d\n", sum); return 0;' >"$1/main.c"
}

# Both sides start from a slow directory that has the dataset and the project already.
prepare() {
    mkdir -p "$work/$1/slow/out" "$work/$1/mnt"
    cp -r "$work/data/set" "$work/data/project" "$work/$1/slow/"
    sync
}

mount_on() {
    name=$1
    shift
    "$forebay" mount "$work/$name/slow" "$work/$name/mnt" --tier "$work/$name/tier" \
        --throttle "$throttle" "$@" >/dev/null
}

# What a program sees is then the file system's doing, not the kernel's page cache: as with more
# data than memory, or after a reboot.
forget_cached() {
    find "$1" -type f -exec sh -c 'for f; do dd if="$f" iflag=nocache count=0 status=none; done' \
        sh {} +
}

burst() {
    cp "$work/data/model.ckpt" "$1/out/" &
    find "$work/data/ranks" -type f -print0 | xargs -0 -P "$writers" -n 5 cp -t "$1/out"
    wait
}

read_set() {
    find "$1/set" -type f -print0 | xargs -0 -P 2 -n 20 cat >/dev/null
}

compile() {
    (
        cd "$1/project"
        for n in $(seq 40) ; do echo "f$n"; done | xargs -P 2 -I{} cc -O1 -c {}.c -o {}.o
        cc -O1 -o main main.c f*.o
        [ "$(./main)" -gt 0 ]
    )
}

# Runs a workload and keeps its time in a file of the side and the name.
timed() {
    side=$1 name=$2
    shift 2
    start=$(now)
    "$@"
    since "$start" >"$work/$side.$name"
    printf '   %-28s %8s s\n' "$name" "$(cat "$work/$side.$name")"
}

all_work() {
    side=$1 at=$work/$1/mnt
    timed "$side" burst burst "$at"
    timed "$side" read-1 read_set "$at"
    [ "$side" = with ] || "$forebay" evict "$at" >/dev/null
    forget_cached "$at/set"
    timed "$side" read-2 read_set "$at"
    if command -v cc >/dev/null 2>&1; then
        timed "$side" compile compile "$at"
    fi
}

row() {
    [ -f "$work/with.$2" ] || return 0
    printf '%s\t%s\t%s\n' "$1" "$(cat "$work/without.$2")" "$(cat "$work/with.$2")" >>"$work/bars"
    awk -v what="$1" -v a="$(cat "$work/without.$2")" -v b="$(cat "$work/with.$2")" \
        'BEGIN { printf "  %-44s %9.2f s %9.2f s %8.1f x\n", what, a, b, a / (b > 0 ? b : 0.01) }'
}

sums() { (cd "$1" && find . -path ./.forebay -prune -o -type f -exec sha256sum {} + | sort -k 2); }

say "The slow directory: 100 MB/s, 5 ms a call, in $work; the fast tier is on the same disk"
make_data
prepare without
prepare with

say "Without the fast tier"
echo "   (forebay over the same throttled directory, writing around its tier, the kernel gathering"
echo "   writes until close as an NFS client does, the tier emptied between reads: what programs"
echo "   get from the slow directory itself)"
mount_on without --policy write-around --passthrough off --kernel-writeback
all_work without
"$forebay" umount "$work/without/mnt" >/dev/null

say "With forebay"
mount_on with
all_work with

say "The drain, behind the programs' backs"
"$forebay" status "$work/with/mnt"
start=$(now)
"$forebay" flush --wait "$work/with/mnt"
since "$start" >"$work/drain"
sums "$work/with/mnt" >"$work/seen"
"$forebay" umount "$work/with/mnt"

say "Is every byte there? sha256 of what programs see in the mount, and of the slow directory"
sums "$work/with/slow" >"$work/stored"
files=$(wc -l <"$work/stored")
cmp "$work/seen" "$work/stored"
# The same data as was written, too.
(cd "$work/data" && sha256sum model.ckpt ranks/* set/*) |
    sed 's,  ranks/,  ./out/,; s,  set/,  ./set/,; s,  model,  ./out/model,' >"$work/written"
[ "$(sort "$work/written" "$work/stored" | uniq -d | wc -l)" -eq "$(wc -l <"$work/written")" ]
[ "$files" -gt 200 ]
echo "   $files files, all the same"

say "Result"
printf '\tslow directory\twith forebay\n' >"$work/bars"
printf '  %-44s %11s %11s\n' "" "without" "with"
row "checkpoint: 100 files and one of 500 MiB" burst
row "dataset of 200 MiB, first read" read-1
row "dataset of 200 MiB, read again" read-2
row "compile of 41 C files" compile
printf '  %-44s %11s %9.2f s\n' "drain of what was still dirty, behind" "" "$(cat "$work/drain")"
if [ -n "${FOREBAY_DEMO_PICTURE:-}" ]; then
    "$forebay" bench bars "$work/bars" --out "$FOREBAY_DEMO_PICTURE" \
        --title "Seconds that programs wait (slow directory: 100 MB/s, 5 ms)"
fi
echo
