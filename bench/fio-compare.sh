#!/bin/sh
# What does `forebay bench` cost beside fio? The same accesses by both, by turns, in the same run:
# 4 KiB and 1 MiB, sequential writes, sequential and random reads, with fio's psync engine, one and
# two tasks, a file for each task, on tmpfs, where nothing but the tools and the kernel takes time.
#
#   bench/fio-compare.sh [FOREBAY]      # the binary; default target/release/forebay
#   DIR=/dev/shm SIZE=512m ROUNDS=7     # environment
#
# Prints the best IOPS and bandwidth of each and their ratio; exit code 1 if one is under 0.95. The
# best, because on tmpfs a disturbance can only slow a round down. Needs fio (apt-get install fio).
set -eu

forebay=${1:-target/release/forebay}
dir=$(mktemp -d "${DIR:-/dev/shm}/fio-compare.XXXXXX")
size=${SIZE:-512m}
rounds=${ROUNDS:-7}
trap 'rm -rf "$dir"' EXIT INT TERM

command -v fio >/dev/null || { echo "fio is missing: apt-get install fio" >&2; exit 2; }
"$forebay" bench --help >/dev/null || { echo "$forebay cannot bench" >&2; exit 2; }

# Each prints "IOPS bytes/s".
run_fio() { # rw bs tasks
    fio --name=job --ioengine=psync --rw="$1" --bs="$2" --size="$size" --numjobs="$3" \
        --directory="$dir" --fallocate=none --group_reporting --output-format=terse \
        --terse-version=3 >"$dir/fio.out"
    case $1 in
        *write) awk -F';' '/^3;/ { print $49, $48 * 1024 }' "$dir/fio.out" ;;
        *) awk -F';' '/^3;/ { print $8, $7 * 1024 }' "$dir/fio.out" ;;
    esac
}

run_forebay() { # rw bs tasks
    case $1 in
        write) flags=-w ;;
        read) flags="-r -E" ;;
        randread) flags="-r -E -z" ;;
    esac
    rm -f "$dir/ranks"
    # shellcheck disable=SC2086  # the flags are words
    "$forebay" bench ior $flags -k -F -t "$2" -b "$size" -N "$3" -o "$dir/ior" \
        -O "summaryFormat=CSV,saveRankPerformanceDetailsCSV=$dir/ranks" >"$dir/out" 2>"$dir/err"
    # As fio reckons: everything moved, by the longest time of a single task, not counting how long
    # one task waited for a processor to start on. The bandwidth includes open and close.
    awk -F, -v bs="$2" 'NR > 1 { bytes += $4 * $6; if ($4 > io) io = $4; if ($3 > all) all = $3 }
        END { unit = bs ~ /m$/ ? 1048576 : 1024; print bytes / (bs * unit) / io, bytes / all }' \
        "$dir/ranks"
}

best() { sort -g | tail -n 1; }

verdict=0
printf '%-10s %-4s %5s %12s %12s %6s %10s %10s %6s\n' \
    access size tasks forebay-IOPS fio-IOPS ratio forebay-MiB fio-MiB ratio
for bs in 4k 1m; do
    for tasks in 1 2; do
        for rw in write read randread; do
            : >"$dir/ours"
            : >"$dir/fios"
            round=0
            while [ "$round" -lt "$rounds" ]; do
                if [ "$rw" = write ]; then rm -f "$dir"/ior.* "$dir"/job.*; fi
                run_forebay "$rw" "$bs" "$tasks" >>"$dir/ours"
                run_fio "$rw" "$bs" "$tasks" >>"$dir/fios"
                round=$((round + 1))
            done
            a=$(awk '{ print $1 }' "$dir/ours" | best)
            b=$(awk '{ print $1 }' "$dir/fios" | best)
            c=$(awk '{ print $2 / 1048576 }' "$dir/ours" | best)
            d=$(awk '{ print $2 / 1048576 }' "$dir/fios" | best)
            awk -v rw="$rw" -v bs="$bs" -v n="$tasks" -v a="$a" -v b="$b" -v c="$c" -v d="$d" \
                'BEGIN { printf "%-10s %-4s %5d %12.0f %12.0f %6.2f %10.0f %10.0f %6.2f\n",
                         rw, bs, n, a, b, a / b, c, d, c / d; exit !(a / b >= 0.95 && c / d >= 0.95) }' ||
                verdict=1
        done
    done
done
exit $verdict
