-- Slurm's job_submit/lua for jobs with burst buffers of forebay. It stands beside slurm.conf, with
-- JobSubmitPlugins=lua there, and does what Slurm's burst_buffer plug-ins leave open:
--
-- - Mistakes in directives are told to the user at submission, with line and caret.
-- - Slurm refuses `capacity=` without `pool=` and says so in its log only: the missing pool is added.
-- - What a job needs on each node becomes a GRES, if slurm.conf has GresTypes=forebay: a pool over the
--   cluster does not say on which node room is.
-- - For a script of `#BB` lines alone burst_buffer/lua runs no hook, and for one of `#FB` lines neither:
--   the first is refused with the command to use instead, the second gets a line that Slurm knows.
-- - A job that uses named instances is kept off all other nodes, and Slurm chooses among theirs.
-- - A job that asks for what only one node can have gets no more: `-n 64` alone may get several.
--
-- A site with a job_submit.lua of its own puts this one into Lua's path and calls it from there:
--     local forebay = require "job_submit_forebay"
--     function slurm_job_submit(job, parts, uid)
--         local rc = forebay.submit(job)
--         if rc ~= slurm.SUCCESS then return rc end ...
--
-- This runs inside slurmctld, which waits: it reads the script's text, slurm.conf, burst_buffer.conf and
-- two files of the spool, and runs one command that reads text.

local name = ...
local M = {}

local SAFE = "^[A-Za-z0-9_./:=,@%%-]+$"
local FOREBAY = os.getenv("FOREBAY") or "/usr/bin/forebay"
local SPOOL = os.getenv("FOREBAY_SPOOL") or "/run/forebay/slurm"
local CONF = (os.getenv("SLURM_CONF") or "/etc/slurm/slurm.conf"):match("^(.*)/[^/]*$")

-- Lines of ours begin so.
local WORDS = { "#DW", "#BB", "#FB" }

local function contents(path)
    local file = io.open(path, "r")
    if not file then
        return ""
    end
    local text = file:read("*a") or ""
    file:close()
    return text
end

-- The value of a key of slurm.conf or burst_buffer.conf, lower case, or nil.
local function setting(file, key)
    for line in contents(CONF .. "/" .. file):gmatch("[^\n]+") do
        local found, value = line:match("^%s*(%a+)%s*=%s*([^%s#]+)")
        if found and found:lower() == key:lower() then
            return value
        end
    end
end

-- The script's head: lines up to the first that is no comment; Slurm skips blank ones.
local function head(script)
    local lines = {}
    for line in script:gmatch("[^\n]+") do
        if line:sub(1, 1) ~= "#" then
            break
        end
        lines[#lines + 1] = line
    end
    return lines
end

local function asks(lines, word)
    for _, line in ipairs(lines) do
        if line:sub(1, #word) == word then
            return true
        end
    end
    return false
end

-- What Slurm makes of --bb and the script: the former comes behind the script's first line.
local function whole(script, extra)
    if extra == "" then
        return script
    end
    local first, rest = script:match("^(#[^\n]*\n)(.*)$")
    if first then
        return first .. extra .. "\n" .. rest
    end
    return extra .. "\n" .. script
end

-- The pools that the node daemon told last, in its order: name and grain.
local function pools()
    local found = {}
    for text in contents(SPOOL .. "/pools.json"):gmatch("{[^{}]*}") do
        local id = text:match('"id"%s*:%s*"([^"]*)"')
        local grain = tonumber(text:match('"granularity"%s*:%s*(%d+)') or "")
        if id and grain and grain > 0 then
            found[#found + 1] = { name = id, grain = grain }
        end
    end
    return found
end

-- A number that sbatch was told; nil if it was told none.
local function given(count)
    return count and count ~= slurm.NO_VAL and count ~= 0 and count or nil
end

-- Runs `forebay job process` on the text, by a file that only SlurmUser reads.
local function processed(text, least, most, directive)
    local path = os.tmpname()
    local file = io.open(path, "w")
    if not file then
        return "error", "cannot write " .. path .. " on the controller", ""
    end
    file:write(text)
    file:close()
    local words = { "timeout -s KILL 5", FOREBAY, "job process --script", path }
    if least then
        words[#words + 1] = (least == most and "--nodes %d" or "--nodes-least %d"):format(least)
    end
    if directive:match(SAFE) then
        words[#words + 1] = "--directive " .. directive
    end
    local printed, status, told, before = "", nil, nil, nil
    if FOREBAY:match(SAFE) and path:match(SAFE) then
        local pipe = io.popen("exec " .. table.concat(words, " ") .. " </dev/null", "r")
        printed = pipe and pipe:read("*a") or ""
        if pipe then
            pipe:close()
        end
    end
    os.remove(path)
    before, told = printed:match("^(.-)([^\n]*)\n$")
    status, told = (told or ""):match("^forebay: (%a+) ?(.*)$")
    if status ~= "ok" and status ~= "error" then
        return "error", "`" .. FOREBAY .. " job process` ended without a word on the controller", ""
    end
    return status, told, before
end

-- `key=value` lines; values of a key that comes often are gathered.
local function facts(before)
    local found = { persistent = {} }
    for key, value in before:gmatch("([%l_]+)=([^\n]*)\n") do
        if value:match(SAFE) then
            if key == "persistent" then
                table.insert(found.persistent, value)
            else
                found[key] = value
            end
        end
    end
    return found
end

-- The lines that are for people.
local function told_of(before)
    local lines = {}
    for line in before:gmatch("[^\n]+") do
        lines[#lines + 1] = line:match("^| (.*)$")
    end
    return lines
end

-- First words of directives whose capacity is one.
local COUNTED = { jobdw = true, create_persistent = true, capacity = true }

-- Adds the pool behind each capacity of a directive that names none, continued lines included.
local function with_pools(text, directive, pool)
    local out, in_head, block = {}, true, {}
    local function done()
        local joined = table.concat(block, "\n")
        local first = joined:sub(2 + #directive):match("^[%s\\]*([^%s=]*)")
        if COUNTED[first] and not joined:find("%f[%S]pool=") then
            joined = joined:gsub("%f[%S]capacity=[^%s\\]*", "%0 pool=" .. pool)
        end
        out[#out + 1] = joined
        block = {}
    end
    for line in (text .. "\n"):gmatch("([^\n]*)\n") do
        in_head = in_head and (line == "" or line:sub(1, 1) == "#")
        if in_head and line:sub(2, 1 + #directive) == directive then
            block[#block + 1] = line
            if line:sub(-1) ~= "\\" then
                done()
            end
        else
            if #block > 0 then
                done()
            end
            out[#out + 1] = line
        end
    end
    if #block > 0 then
        done()
    end
    return table.concat(out, "\n")
end

local function refused(text)
    for line in text:gmatch("[^\n]+") do
        slurm.log_user("%s", line)
    end
    return slurm.ERROR
end

-- The room as a GRES, in grains, in place of what the user may have written for it.
local function with_gres(gres, grains)
    local kept = {}
    for item in (gres or ""):gmatch("[^,]+") do
        if not item:gsub("^gres[:/]", ""):match("^forebay%f[^%w_]") then
            kept[#kept + 1] = item
        end
    end
    kept[#kept + 1] = ("forebay:%d"):format(grains)
    return table.concat(kept, ",")
end

-- The nodes that hold all of the named instances, in order; nil if one is unknown.
local function nodes_of(names)
    local text, left = contents(SPOOL .. "/persistent.json"), nil
    for _, wanted in ipairs(names) do
        local here = {}
        for record in text:gmatch("{[^{}]*}") do
            if record:match('"name"%s*:%s*"([^"]*)"') == wanted then
                for node in (record:match('"nodes"%s*:%s*%[([^%]]*)%]') or ""):gmatch('"([^"]*)"') do
                    here[#here + 1] = node
                end
            end
        end
        if not left then
            left = here
        else
            local both = {}
            for _, node in ipairs(left) do
                for _, other in ipairs(here) do
                    if node == other then
                        both[#both + 1] = node
                    end
                end
            end
            left = both
        end
    end
    return left or {}
end

-- Has the job get no more nodes than these, if there is a bound.
local function at_most(job, bound)
    if bound and (given(job.max_nodes) or math.huge) > bound then
        job.max_nodes = bound
    end
end

-- The names that a list stands for, such as n[1-3,07].
local function expanded(list)
    local names = {}
    -- Commas in brackets part numbers, not names.
    local parted = list:gsub("%b[]", function(numbers) return (numbers:gsub(",", ";")) end)
    for item in parted:gmatch("[^,]+") do
        local before, numbers, behind = item:match("^(.-)%[(.-)%](.*)$")
        if not before then
            names[#names + 1] = item
        end
        for part in (numbers or ""):gmatch("[^;]+") do
            local from, to = part:match("^(%d+)-(%d+)$")
            from, to = from or part, to or part
            for number = tonumber(from) or 1, tonumber(to) or 0 do
                local text = ("%0" .. #from .. "d"):format(number)
                for _, name in ipairs(expanded(before .. text .. behind:gsub(";", ","))) do
                    names[#names + 1] = name
                end
            end
        end
    end
    return names
end

-- The lists of nodes in slurm.conf, and in files that it includes.
local function node_lists(file, found)
    for line in contents(file:sub(1, 1) == "/" and file or CONF .. "/" .. file):gmatch("[^\n]+") do
        local list = line:match("^%s*[Nn][Oo][Dd][Ee][Nn][Aa][Mm][Ee]%s*=%s*([^%s#]+)")
        local included = line:match("^%s*[Ii][Nn][Cc][Ll][Uu][Dd][Ee]%s+([^%s#]+)")
        if list and list:upper() ~= "DEFAULT" then
            found[#found + 1] = list
        elseif included then
            node_lists(included, found)
        end
    end
    return found
end

-- Names of a list that are not among the given ones.
local function others(list, given_ones)
    local has, left = {}, {}
    for _, node in ipairs(given_ones) do
        has[node] = true
    end
    for _, node in ipairs(expanded(list)) do
        if not has[node] then
            left[#left + 1] = node
        end
    end
    return left
end

-- Keeps the job on the instances' nodes, and leaves the choice to Slurm where there is one.
local function placed(job, names, nodes)
    if #names == 0 then
        return slurm.SUCCESS
    end
    local where = nodes_of(names)
    if #where < nodes then
        return refused(("forebay: %s: on %d nodes, and the job wants %d; `forebay instance list` says where it is. "
            .. "One that was made a moment ago is known here within seconds"):format(
            table.concat(names, ", "), #where, nodes))
    end
    local elsewhere = others(job.req_nodes or "", where)
    if #elsewhere > 0 then
        return refused(("forebay: %s: on %s, and --nodelist asks for %s"):format(
            table.concat(names, ", "), table.concat(where, ","), table.concat(elsewhere, ",")))
    end
    local lists = node_lists("slurm.conf", {})
    -- Nodes that slurm.conf does not name cannot be told from those that lack it.
    local unlisted = #others(table.concat(where, ","), expanded(table.concat(lists, ","))) > 0
    if #where == nodes or unlisted then
        if not unlisted or (job.req_nodes or "") == "" then
            job.req_nodes = table.concat(where, ",", 1, nodes)
        end
    else
        local without = { job.exc_nodes ~= "" and job.exc_nodes or nil }
        for _, list in ipairs(lists) do
            without[#without + 1] = table.concat(others(list, where), ",")
        end
        job.exc_nodes = table.concat(without, ","):gsub(",,+", ","):gsub("^,", ""):gsub(",$", "")
    end
    at_most(job, #where)
    return slurm.SUCCESS
end

-- What burst_buffer/lua must find in the script, so that its hooks run.
local function prepared_for_lua(job, found, lines, directive, pool, bytes)
    if found.lone == "yes" then
        return refused("forebay: Slurm runs nothing for a script with only #BB create_persistent or "
            .. "destroy_persistent lines.\nUse `forebay instance create private NAME --capacity SIZE` and "
            .. "`forebay instance destroy NAME` on any node, or put the lines into the script that uses it.")
    end
    if job.script then
        job.script = with_pools(job.script, directive, pool)
    end
    if job.burst_buffer and job.burst_buffer ~= "" then
        job.burst_buffer = with_pools(job.burst_buffer, directive, pool)
    elseif not asks(lines, "#" .. directive) then
        job.burst_buffer = bytes > 0 and ("#%s pool=%s capacity=%.0f"):format(directive, pool, bytes)
            or ("#%s pool=%s"):format(directive, pool)
    end
    return slurm.SUCCESS
end

-- The pool and its grain that the job is counted in.
local function counted_in(found)
    local all = pools()
    for _, pool in ipairs(all) do
        if not found.pool or pool.name == found.pool then
            return pool
        end
    end
    return nil, found.pool and ("forebay: pool=%s: there is no such pool; `forebay pools` lists them"):format(found.pool)
        or "forebay: no pool is known: does forebay-node run on the controller, with [scheduler]?"
end

function M.submit(job)
    local text = whole(job.script or "", job.burst_buffer or "")
    local lines, ours = head(text), false
    for _, word in ipairs(WORDS) do
        ours = ours or asks(lines, word)
    end
    if not ours then
        return slurm.SUCCESS
    end
    local is_lua = (setting("slurm.conf", "BurstBufferType") or "") == "burst_buffer/lua"
    local directive = is_lua and (setting("burst_buffer.conf", "Directive") or "BB_LUA") or "DW"
    local nodes, most = given(job.min_nodes), given(job.max_nodes)
    local status, told, before = processed(text, nodes, most, directive)
    local lines_told = told_of(before)
    for _, line in ipairs(lines_told) do
        slurm.log_user("%s", line)
    end
    if status ~= "ok" then
        return refused("forebay: " .. (#lines_told > 0 and "see above" or told))
    end
    local found = facts(before)
    local pool, why = counted_in(found)
    if not pool then
        return refused(why)
    end
    local each = tonumber(found.bytes_per_node or "0")
    if not is_lua and not asks(lines, "#DW") and not asks(lines, "#BB") then
        return refused("forebay: with burst_buffer/datawarp Slurm runs nothing for #FB lines alone: write #DW")
    end
    if is_lua then
        local rc = prepared_for_lua(job, found, lines, directive, pool.name, each * (nodes or 1))
        if rc ~= slurm.SUCCESS then
            return rc
        end
    end
    if each > 0 and (setting("slurm.conf", "GresTypes") or ""):find("forebay", 1, true) then
        job.gres = with_gres(job.gres, math.ceil(each / pool.grain))
    end
    at_most(job, tonumber(found.nodes_max))
    return placed(job, found.persistent, nodes or 1)
end

function M.slurm_job_submit(job)
    return M.submit(job)
end

function M.slurm_job_modify()
    return slurm.SUCCESS
end

-- For tests.
M.with_pools, M.with_gres, M.head = with_pools, with_gres, head

if name then
    return M
end
slurm_job_submit, slurm_job_modify = M.slurm_job_submit, M.slurm_job_modify
return slurm.SUCCESS
