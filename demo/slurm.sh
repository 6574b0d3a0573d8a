#!/bin/sh
# A Slurm of its own on this host: a controller, two nodes with mounts of their own, and one job with data
# in and out. While it runs, its node daemon and slurmctld are killed; both come back, the job's results go
# home, checksums compare every byte, and all is torn down.
#
#   FOREBAY_DEMO_DIR=DIR   where to work; needs 1 GB (default /var/tmp)
set -eu

forebay=${FOREBAY:-forebay}
forebay=$(command -v "$forebay")
here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
[ "$(id -u)" -eq 0 ] || {
    echo "demo slurm: node daemons mount for others: run this as root" >&2
    exit 2
}
id slurm >/dev/null 2>&1 || {
    echo "demo slurm: there is no account slurm (Debian's package slurmctld makes it)" >&2
    exit 2
}
work=$(mktemp -d "${FOREBAY_DEMO_DIR:-/var/tmp}/forebay-slurm.XXXXXX")
chmod 755 "$work"
# Programs that slurm and nobody must be able to run.
cp "$forebay" "$work/forebay"
forebay=$work/forebay
export SLURM_CONF="$work/etc/slurm.conf"
services='' holders='' ctld=''

say() { printf '\n== %s\n' "$*"; }
user() { setpriv --reuid nobody --regid nogroup --clear-groups "$@"; }

# Waits up to a minute for a command to go well.
until_ok() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 600 ] || {
            echo "demo: in vain for a minute: $*" >&2
            tail -n 20 "$work"/*/log "$work/logs/ctld.log" >&2 || true
            exit 1
        }
        sleep 0.1
    done
}

# Whatever runs among the mounts of a node of ours, but for what holds them.
inside() {
    their=$(readlink "/proc/$1/ns/mnt") || return 0
    for process in /proc/[0-9]*; do
        pid=${process#/proc/}
        [ "$pid" = "$1" ] || [ "$(readlink "$process/ns/mnt" 2>/dev/null)" != "$their" ] || echo "$pid"
    done
}

cleanup() {
    code=$?
    trap - EXIT INT TERM
    [ -z "$ctld" ] || scancel --full --hurry --user nobody >/dev/null 2>&1 || true
    for node in n1 n2; do
        socket=$work/$node/node.sock
        [ -S "$socket" ] || continue
        for id in $(FOREBAY_NODE_SOCKET=$socket timeout 10 "$forebay" instance list 2>/dev/null |
            awk '/^job-/ { print $1 }'); do
            FOREBAY_NODE_SOCKET=$socket timeout 30 "$forebay" instance destroy "$id" --hurry \
                --timeout 20s >/dev/null 2>&1 || true
        done
    done
    for holder in $holders; do
        for pid in $(inside "$holder"); do kill -9 "$pid" 2>/dev/null || true; done
    done
    for pid in $ctld $services $holders; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf --one-file-system "$work"
    exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# A port of the loopback that nobody listens on.
port=$((13000 + $$ % 8000))
free_port() {
    while ss -Hltn "sport = :$port" 2>/dev/null | grep -q .; do port=$((port + 1)); done
    echo "$port"
}

say "etcd, which the nodes share, and munge, by which Slurm knows who asks"
mkdir -p "$work/etc" "$work/ctld" "$work/logs" "$work/mnt" "$work/out" "$work/pfs" \
    "$work/munge/run" "$work/munge/own" "$work/controller" "$work/n1" "$work/n2"
chmod 777 "$work/out" "$work/pfs"
chmod 700 "$work/munge/own"
chown slurm "$work/ctld" "$work/logs"
client=$(free_port)
port=$((client + 1))
peer=$(free_port)
etcd --data-dir "$work/etcd" --listen-client-urls "http://127.0.0.1:$client" \
    --advertise-client-urls "http://127.0.0.1:$client" --listen-peer-urls "http://127.0.0.1:$peer" \
    --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
    --initial-cluster "default=http://127.0.0.1:$peer" >"$work/logs/etcd" 2>&1 &
services="$services $!"
head -c 1024 /dev/urandom >"$work/munge/own/key"
chmod 400 "$work/munge/own/key"
munged -F --key-file="$work/munge/own/key" --socket="$work/munge/run/socket" \
    --pid-file="$work/munge/run/pid" --log-file="$work/munge/own/log" \
    --seed-file="$work/munge/own/seed" >/dev/null 2>&1 &
services="$services $!"
until_ok test -S "$work/munge/run/socket"

# As forebay-node.controller.toml and forebay-node.compute.toml in contrib/slurm.
config() {
    cat <<TXT2
name = "$1"
state = "$work/$1/state"
socket = "$work/$1/node.sock"
mount-root = "$work/mnt"
registry = "etcd://127.0.0.1:$client/demo"
TXT2
}
{
    config controller
    cat <<TXT2
[scheduler]
cluster = "demo"
user = "slurm"
spool = "$work/spool"
logs = "$work/joblogs"
slurm-conf = "$SLURM_CONF"
TXT2
} >"$work/controller/node.toml"
for node in n1 n2; do
    {
        config $node
        printf '[[pool]]\nname = "flash"\ndir = "%s"\ncapacity = "400MiB"\n' "$work/$node/pool"
    } >"$work/$node/node.toml"
done

# What contrib/slurm has, with the paths of this demo.
slurm_port=$((peer + 1))
port=$slurm_port
slurm_port=$(free_port)
host=$(hostname -s)
cp "$here/contrib/slurm/burst_buffer.lua" "$here/contrib/slurm/job_submit.lua" "$work/etc/"
cp "$here/contrib/slurm/burst_buffer.lua.conf" "$work/etc/burst_buffer.conf"
cat >"$work/etc/epilog" <<TXT2
#!/bin/sh
export FOREBAY=$forebay FOREBAY_NODE_SOCKET=$work/\$SLURMD_NODENAME/node.sock
exec sh $here/contrib/slurm/epilog.sh
TXT2
chmod 755 "$work/etc/epilog"
cat >"$SLURM_CONF" <<TXT2
ClusterName=demo
SlurmctldHost=$host(127.0.0.1)
SlurmUser=slurm
SlurmdUser=root
SlurmctldPort=$slurm_port
AuthType=auth/munge
AuthInfo=socket=$work/munge/run/socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
MailProg=/bin/true
StateSaveLocation=$work/ctld
SlurmctldPidFile=$work/ctld/pid
SlurmctldLogFile=$work/logs/ctld.log
SlurmdPidFile=$work/%n/slurmd.pid
SlurmdLogFile=$work/%n/slurmd.log
SlurmdSpoolDir=$work/%n/slurmd
BurstBufferType=burst_buffer/lua
JobSubmitPlugins=lua
GresTypes=forebay
PrologFlags=Alloc
Epilog=$work/etc/epilog
NodeName=n[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((slurm_port + 1))-$((slurm_port + 2))] CPUs=2 RealMemory=500 Gres=forebay:350 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
TXT2

start_daemon() {
    node=$1
    shift
    "$@" "$forebay" node --config "$work/$node/node.toml" 2>>"$work/$node/log" &
    echo $! >"$work/$node/pid"
    until_ok env FOREBAY_NODE_SOCKET="$work/$node/node.sock" "$forebay" node health
}
start_ctld() {
    FOREBAY=$forebay FOREBAY_NODE_SOCKET=$work/controller/node.sock FOREBAY_SPOOL=$work/spool \
        slurmctld -D >/dev/null 2>&1 &
    ctld=$!
    until_ok sh -c 'scontrol ping | grep -q UP'
}

say "a node daemon for the controller, and one with a pool for each node"
start_daemon controller
services="$services $(cat "$work/controller/pid")"
for node in n1 n2; do
    unshare --mount --propagation private sleep infinity &
    holder=$!
    holders="$holders $holder"
    echo "$holder" >"$work/$node/holder"
    until_ok sh -c "[ \"\$(readlink /proc/$holder/ns/mnt)\" != \"\$(readlink /proc/self/ns/mnt)\" ]"
    start_daemon "$node" nsenter --target "$holder" --mount
done
FOREBAY_NODE_SOCKET=$work/n1/node.sock "$forebay" pools

say "slurmctld, and a slurmd for each node"
start_ctld
for node in n1 n2; do
    mkdir -p "$work/$node/slurmd"
    nsenter --target "$(cat "$work/$node/holder")" --mount slurmd -D -N "$node" >/dev/null 2>&1 &
done
until_ok sh -c '[ "$(sinfo -h -N -t idle -o %N | wc -l)" -eq 2 ]'
until_ok sh -c 'scontrol show burst | grep -q flash'
sinfo

say "the slow side: a dataset of 20 files, and a job script"
mkdir "$work/pfs/set"
for n in $(seq 20); do head -c 2M /dev/urandom >"$work/pfs/set/part-$n"; done
chown -R nobody "$work/pfs"
cat >"$work/out/job.sh" <<TXT2
#!/bin/bash
#SBATCH -N 1
#DW jobdw capacity=200MiB access_mode=striped type=scratch
#DW stage_in type=directory source=$work/pfs/set destination=\$DW_JOB_STRIPED/set
#DW stage_out type=directory source=\$DW_JOB_STRIPED/sums destination=$work/pfs/sums
mkdir \$DW_JOB_STRIPED/sums
for n in \$(seq 20); do
    sha256sum <\$DW_JOB_STRIPED/set/part-\$n >\$DW_JOB_STRIPED/sums/part-\$n
    sleep 1
done
TXT2
cat "$work/out/job.sh"

say "what forebay makes of it, before anything is submitted"
FOREBAY_NODE_SOCKET=$work/n1/node.sock "$forebay" job check "$work/out/job.sh" || true

say "submitted by an ordinary user"
cd "$work/out"
job=$(user sbatch --parsable job.sh)
until_ok sh -c "scontrol show job $job | grep -q BurstBufferState=running"
squeue -o '%i %u %T %N %b'
node=$(squeue -h -j "$job" -o %N)

say "kill -9 in the middle: slurmctld, and the node daemon of $node"
# Slurm saves its state every five seconds: what is younger it would begin anew.
sleep 6
kill -9 "$ctld" "$(cat "$work/$node/pid")"
wait "$ctld" "$(cat "$work/$node/pid")" 2>/dev/null || true
sleep 1
start_daemon "$node" nsenter --target "$(cat "$work/$node/holder")" --mount
start_ctld
echo "   both are back; the job has gone on meanwhile"

say "the job ends, its results go home, its instance goes"
until_ok sh -c "scontrol show job $job | grep -q BurstBufferState=complete"
scontrol show job "$job" | grep -E 'JobState|BurstBuffer'
sed 's/^/   /' "$work/joblogs/demo-$job.log"

say "every byte is compared"
for n in $(seq 20); do
    sha256sum <"$work/pfs/set/part-$n" | cmp -s - "$work/pfs/sums/part-$n" ||
        { echo "demo: result $n is wrong" >&2; exit 1; }
done
echo "   20 results are on the slow side, whole; nothing is left on the nodes:"
FOREBAY_NODE_SOCKET=$work/n1/node.sock "$forebay" pools
FOREBAY_NODE_SOCKET=$work/n1/node.sock "$forebay" instance list
