-- Slurm's burst_buffer/lua over `forebay job ...`, for Slurm 22.05 and newer, Lua 5.1 and newer.
--
-- It stands beside slurm.conf, with burst_buffer.conf, and asks the node daemon of this host through the
-- `forebay` command. A site with a burst_buffer.lua of its own puts this one into Lua's path and writes
--     local forebay = require "burst_buffer_forebay"
--     slurm_bb_setup = forebay.slurm_bb_setup        -- or a function that chooses
-- because a chunk that is required defines no globals.
--
-- Slurm loads the file anew for every call, so nothing is kept between calls. Up to 22.05 the arguments
-- end before uid and gid; later versions add them, and job_info. Nothing here depends on which.
--
-- What a user has written reaches a shell nowhere: words of commands are checked (SAFE), and scripts
-- travel as paths. popen():close() of Lua 5.1 hides exit codes, so the last line a command prints is
-- what counts: "forebay: ok", "forebay: busy TEXT" or "forebay: error TEXT". A command that was killed
-- has printed none, and has failed.

local name = ...
local M = {}

local SAFE = "^[A-Za-z0-9_./:=,@%%-]+$"

-- The command. slurmctld's environment may name another one.
local FOREBAY = os.getenv("FOREBAY") or "/usr/bin/forebay"

-- process, pools and paths run inside slurmctld, which cannot go on meanwhile: they get so many seconds.
local INSIDE = "timeout -s KILL 5 "

local KILLED = "ended without a word: it was killed, or is not installed on the controller (%s)"

-- Puts a command together; nil and why if a word must not reach a shell.
local function command(limit, words)
    for _, word in ipairs(words) do
        if not word:match(SAFE) then
            return nil, "an argument holds characters that are refused: " .. word:gsub("[%c]", "?")
        end
    end
    if not FOREBAY:match(SAFE) then
        return nil, "FOREBAY in slurmctld's environment holds characters that are refused"
    end
    return "exec " .. limit .. FOREBAY .. " " .. table.concat(words, " ") .. " </dev/null"
end

-- Splits what was printed: status word, its text, and the lines before it.
local function judged(printed)
    local before, last = printed:match("^(.*\n)([^\n]*)\n$")
    if not last then
        before, last = "", printed:match("^([^\n]*)\n$")
    end
    local status, text = (last or ""):match("^forebay: (%a+) ?(.*)$")
    if status == "ok" or status == "busy" or status == "error" then
        return status, text, before
    end
    return nil
end

-- Runs `forebay job VERB ...`: status, text and data lines. Every failure is "error".
local function run(limit, words)
    table.insert(words, 1, "job")
    local line, why = command(limit, words)
    if not line then
        return "error", why, ""
    end
    local pipe, refused = io.popen(line, "r")
    if not pipe then
        return "error", "forebay job " .. words[2] .. ": " .. tostring(refused), ""
    end
    local printed = pipe:read("*a") or ""
    pipe:close()
    local status, text, before = judged(printed)
    if not status then
        return "error", "forebay job " .. words[2] .. " " .. KILLED:format(FOREBAY), printed
    end
    return status, text, before
end

-- What most hooks return: Slurm puts the text into the job's reason.
local function hook(limit, words)
    local status, text = run(limit, words)
    if status == "ok" then
        return slurm.SUCCESS, ""
    end
    if status == "busy" then
        return slurm.SUCCESS, slurm.SLURM_BB_BUSY or "BUSY"
    end
    slurm.log_error("forebay: %s", text)
    return slurm.ERROR, text
end

-- Slurm writes "(null)" for a pool that was not asked for.
local function given(value)
    return value and value ~= "" and value ~= "(null)" and value ~= "0"
end

-- Inside slurmctld, at submission. A mistake is printed by sbatch, with line and caret.
function M.slurm_bb_job_process(job_script)
    local status, text, before = run(INSIDE, { "process", "--script", job_script })
    if status == "ok" then
        return slurm.SUCCESS
    end
    local lines = {}
    for line in before:gmatch("[^\n]+") do
        lines[#lines + 1] = line:match("^| (.*)$")
    end
    return slurm.ERROR, #lines > 0 and table.concat(lines, "\n") or text
end

-- Inside slurmctld, every half minute. Without pools nothing is said: what Slurm knows stays.
function M.slurm_bb_pools()
    local status, _, before = run(INSIDE, { "pools" })
    local pools = before:match("^[^\n]+")
    if status ~= "ok" or not pools or not pools:find('"id"', 1, true) then
        return slurm.SUCCESS
    end
    return slurm.SUCCESS, pools
end

function M.slurm_bb_setup(job_id, uid, gid, pool, bb_size, job_script)
    local words = { "setup", "--job", job_id, "--uid", uid, "--gid", gid, "--script", job_script }
    if given(pool) then
        words[#words + 1] = "--pool"
        words[#words + 1] = pool
    end
    if given(bb_size) then
        words[#words + 1] = "--bytes"
        words[#words + 1] = bb_size
    end
    return hook("", words)
end

function M.slurm_bb_data_in(job_id)
    return hook("", { "data-in", "--job", job_id })
end

function M.slurm_bb_test_data_in(job_id)
    return hook("", { "test-data-in", "--job", job_id })
end

-- Only a number is an answer; without one Slurm keeps what was asked for.
function M.slurm_bb_real_size(job_id)
    local status, text, before = run("", { "real-size", "--job", job_id })
    if status ~= "ok" then
        return slurm.ERROR, text
    end
    local bytes = before:match("^(%d+)\n")
    if bytes then
        return slurm.SUCCESS, bytes
    end
    return slurm.SUCCESS
end

-- Inside slurmctld, when the job has its nodes.
function M.slurm_bb_paths(job_id, _, path_file)
    return hook(INSIDE, { "paths", "--job", job_id, "--file", path_file })
end

function M.slurm_bb_pre_run(job_id)
    return hook("", { "pre-run", "--job", job_id })
end

function M.slurm_bb_post_run(job_id)
    return hook("", { "post-run", "--job", job_id })
end

function M.slurm_bb_data_out(job_id)
    return hook("", { "data-out", "--job", job_id })
end

function M.slurm_bb_test_data_out(job_id)
    return hook("", { "test-data-out", "--job", job_id })
end

-- The script is not looked at: Slurm may pass a dummy here.
function M.slurm_bb_job_teardown(job_id, _, hurry)
    local words = { "teardown", "--job", job_id }
    if hurry == "true" then
        words[#words + 1] = "--hurry"
    end
    return hook("", words)
end

-- `scontrol show bbstat`: up to 22.05 all arguments are the asker's, later the first two are his ids, and
-- nothing tells which. So none is looked at, and everybody reads the same: what each pool has.
function M.slurm_bb_get_status()
    local status, text, before = run("", { "pools" })
    if status ~= "ok" then
        return slurm.SUCCESS, text .. "\n"
    end
    local lines = {}
    for pool in before:gmatch("{[^{}]*}") do
        local id = pool:match('"id"%s*:%s*"([^"]*)"')
        local number = function(key)
            return tonumber(pool:match('"' .. key .. '"%s*:%s*(%d+)') or "0")
        end
        if id then
            local gib = number("granularity") / 2 ^ 30
            lines[#lines + 1] = ("pool %s: %.1f of %.1f GiB are free, in grains of %d MiB\n"):format(
                id, number("free") * gib, number("quantity") * gib, number("granularity") / 2 ^ 20)
        end
    end
    lines[#lines + 1] = "Your jobs: `forebay job status`, on any node.\n"
    return slurm.SUCCESS, table.concat(lines)
end

-- For tests, and for routers that run commands of their own.
M.judged = judged

if name then
    return M
end
for key, value in pairs(M) do
    if key:match("^slurm_bb_") then
        _G[key] = value
    end
end
return slurm.SUCCESS
