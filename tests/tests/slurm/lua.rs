//! The Lua scripts alone, in Lua 5.1, with a command in the place of `forebay`.

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_tests::{Out, PATIENCE, finish, needs_tools, sys, text};

const POOLS: &str =
    "{\"pools\":[{\"id\":\"flash\",\"granularity\":1048576,\"quantity\":9,\"free\":9}]}";

struct Bench {
    dir: PathBuf,
}

impl Bench {
    /// A bench; `plays` is the command's script, after `#!/bin/sh`.
    fn new(name: &str, plays: &str) -> Bench {
        let dir = std::env::temp_dir().join(format!("fbt-lua-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let at = dir.join("forebay");
        std::fs::write(&at, format!("#!/bin/sh\n{plays}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&at, mode).unwrap();
        Bench { dir }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.join(name), text).unwrap();
    }

    /// Runs `code` after the definitions that Slurm gives a script.
    fn lua(&self, code: &str) -> Out {
        let file = self.dir.join("main.lua");
        let slurm = "slurm = { SUCCESS = 0, ERROR = -1, NO_VAL = 4294967294,\n\
                     log_error = function() end, log_user = function(f, ...) print(f:format(...)) end }\n";
        std::fs::write(&file, format!("{slurm}{code}\n")).unwrap();
        let mut command = Command::new("lua5.1");
        command.arg(&file).current_dir(contrib()).env("FOREBAY", self.dir.join("forebay"));
        command.env("FOREBAY_SPOOL", &self.dir).env("SLURM_CONF", self.dir.join("slurm.conf"));
        finish(&mut command, PATIENCE)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn contrib() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib/slurm")
}

/// Lua's popen():close() hides how a command ended: only a whole status line is success.
#[test]
fn a_hook_that_is_killed_has_failed() {
    needs_tools!("lua5.1");
    for (plays, expected) in [
        ("echo 'forebay: ok'", "0 \n"),
        ("kill -9 $$", "-1 "),
        ("printf 'forebay: ok'; kill -9 $$", "-1 "),
        ("echo 17; kill -9 $$", "-1 "),
        ("exit 0", "-1 "),
        ("echo 'forebay: error line 3: no'", "-1 line 3: no"),
        ("echo 'forebay: busy 3 of 7'", "0 BUSY"),
    ] {
        let bench = Bench::new("killed", plays);
        let out =
            bench.lua("dofile('burst_buffer.lua'); print(slurm_bb_test_data_in('17', '/s'))").ok();
        let told = out.stdout.replace('\t', " ");
        assert!(told.starts_with(expected), "{plays}: {told:?}");
    }
}

/// Words with special characters reach no shell.
#[test]
fn nothing_of_a_user_s_reaches_a_shell() {
    needs_tools!("lua5.1");
    let bench = Bench::new("words", "touch $0.ran; echo 'forebay: ok'");
    let ran = bench.dir.join("forebay.ran");
    for word in ["17;id", "$(id)", "1 2", "a\\nb", "`id`", "x'y", "", "a\\0b", "n[1-2]", "a&b", "*"]
    {
        let code = format!("dofile('burst_buffer.lua'); print(slurm_bb_data_in(\"{word}\"))");
        let out = bench.lua(&code).ok();
        assert!(out.stdout.starts_with("-1"), "{word}: {out:?}");
        assert!(!ran.exists(), "{word}");
    }
    // Any user can pass arguments to `scontrol show bbstat`.
    let out =
        bench.lua("dofile('burst_buffer.lua'); print(slurm_bb_get_status('$(id)', ';id', '0'))");
    assert!(out.ok().stdout.starts_with('0') && ran.exists(), "the command runs without them");
}

/// Versions differ in the last arguments, and a site may have a script of its own.
#[test]
fn all_hooks_are_there_for_every_version_and_a_module_leaves_globals_alone() {
    needs_tools!("lua5.1");
    let bench = Bench::new("module", "echo \"$@\" >&2; echo 'forebay: ok'");
    let hooks = "{ 'pools', 'job_process', 'setup', 'data_in', 'test_data_in', 'real_size', 'paths', \
                 'pre_run', 'post_run', 'data_out', 'test_data_out', 'job_teardown', 'get_status' }";
    let out = bench.lua(&format!(
        "local m = loadfile('burst_buffer.lua')('burst_buffer_forebay')\n\
         assert(slurm_bb_setup == nil, 'a global')\n\
         assert(dofile('burst_buffer.lua') == 0)\n\
         for _, name in ipairs({hooks}) do\n\
             assert(type(m['slurm_bb_' .. name]) == 'function', name)\n\
             assert(type(_G['slurm_bb_' .. name]) == 'function', name)\n\
         end\n\
         slurm_bb_setup('1', '2', '3', '(null)', '0', '/s')\n\
         slurm_bb_setup('1', '2', '3', 'flash', '1024', '/s', {{ job_id = 1 }})\n\
         slurm_bb_job_teardown('1', '/s', 'true', '2', '3')\n\
         slurm_bb_job_teardown('1', '/s', 'false')\n\
         local n = loadfile('job_submit.lua')('job_submit_forebay')\n\
         assert(slurm_job_submit == nil and n.submit)\n"
    ));
    let calls: Vec<&str> = out.stderr.lines().collect();
    assert_eq!(
        calls,
        [
            "job setup --job 1 --uid 2 --gid 3 --script /s",
            "job setup --job 1 --uid 2 --gid 3 --script /s --pool flash --bytes 1024",
            "job teardown --job 1 --hurry",
            "job teardown --job 1",
        ],
        "{out:?}"
    );
    out.ok();
}

/// A missing pool is added where Slurm reads it, and nowhere else.
#[test]
fn pools_and_room_are_added_to_what_is_submitted() {
    needs_tools!("lua5.1");
    let plays = "echo bytes_per_node=3145729; echo 'forebay: ok'";
    let bench = Bench::new("submit", plays);
    bench.write("slurm.conf", "BurstBufferType=burst_buffer/lua\nGresTypes=gpu,forebay\n");
    bench.write("burst_buffer.conf", "Directive=DW\n");
    bench.write("pools.json", POOLS);
    let submit = |job: &str| {
        bench.lua(&format!(
            "dofile('job_submit.lua')\nlocal job = {job}\nprint(slurm_job_submit(job, {{}}, 1))\n\
             print(job.script) print(job.gres) print(job.burst_buffer)"
        ))
    };
    let script = "#!/bin/sh\\n\\n#DW jobdw capacity=3MB \\\\\\n#DW type=scratch\\n#DW swap 1GiB\\ntrue\\n#DW capacity=1\\n";
    let job = format!(
        "{{ script = \"{script}\", min_nodes = 4294967294, gres = 'gres:gpu:1,forebay:1' }}"
    );
    let out = submit(&job).ok().stdout;
    assert!(
        out.starts_with("0\n#!/bin/sh\n\n#DW jobdw capacity=3MB pool=flash \\\n#DW type"),
        "{out}"
    );
    assert!(out.contains("true\n#DW capacity=1\n\n"), "behind the head nothing is changed: {out}");
    assert!(out.contains("gres:gpu:1,forebay:4\n"), "{out}");
    let own = "{ script = '#!/bin/sh\\n#FB private capacity=3MB\\n', min_nodes = 2 }";
    let out = submit(own).ok().stdout;
    assert!(out.contains("#DW pool=flash capacity=6291458"), "so that hooks run: {out}");
    let none = "{ script = '#!/bin/sh\\necho #DW\\n', min_nodes = 1 }";
    assert!(submit(none).ok().stdout.starts_with("0\n#!/bin/sh\necho #DW\n\nnil\nnil"));
    assert!(sys::on_path("timeout"), "what bounds commands within slurmctld");
    let _ = text(&bench.dir);
}

/// Only whole words are read, and only of directives that have a capacity.
#[test]
fn what_looks_like_a_capacity_in_a_path_is_left_alone() {
    needs_tools!("lua5.1");
    let bench = Bench::new("paths", "echo 'forebay: ok'");
    let with_pools = |line: &str| {
        let code = format!(
            "local m = loadfile('job_submit.lua')('job_submit_forebay')\n\
             io.write(m.with_pools([[{line}]], 'DW', 'flash'))"
        );
        bench.lua(&code).ok().stdout
    };
    for line in [
        "#DW stage_in type=file source=/pfs/capacity=5/a destination=$DW_JOB_STRIPED/a",
        "#DW stage_in type=file source=/a capacity=5",
        "#DW jobdw type=cache pfs=/pfs/capacity=5/a",
        "#DW jobdw pool=nvme capacity=5GB",
    ] {
        assert_eq!(with_pools(line).trim_end(), line);
    }
    let path = "#DW jobdw type=cache pfs=/capacity=5/pool=a capacity=5GB";
    assert_eq!(with_pools(path).trim_end(), format!("{path} pool=flash"));
    assert_eq!(with_pools("#DW capacity=1").trim_end(), "#DW capacity=1 pool=flash");
}

/// A plan that works on one node only limits the nodes that Slurm may choose.
#[test]
fn a_job_gets_no_more_nodes_than_it_can_use() {
    needs_tools!("lua5.1");
    let plays = "echo \"$@\" >&2; echo nodes_max=1; echo 'forebay: ok'";
    let bench = Bench::new("nodes", plays);
    bench.write("pools.json", POOLS);
    for (nodes, asked, most) in [
        ("", None, "1"),
        ("min_nodes = 1", Some("--nodes-least 1"), "1"),
        ("min_nodes = 1, max_nodes = 1", Some("--nodes 1"), "1"),
        ("min_nodes = 1, max_nodes = 4", Some("--nodes-least 1"), "1"),
    ] {
        let out = bench.lua(&format!(
            "dofile('job_submit.lua')\nlocal job = {{ script = '#!/bin/sh\\n#DW jobdw\\n', {nodes} }}\n\
             slurm_job_submit(job, {{}}, 1)\nprint(job.max_nodes)"
        ));
        assert_eq!(out.stdout.trim(), most, "{nodes}: {out:?}");
        let asked_for =
            out.stderr.find("--nodes").map(|at| out.stderr[at..].split(" --dir").next());
        assert_eq!(asked_for.flatten(), asked, "{nodes}: {out:?}");
    }
}

/// Where an instance is on more nodes than the job needs, Slurm chooses among them.
#[test]
fn a_job_with_a_named_instance_is_kept_off_nodes_that_lack_it() {
    needs_tools!("lua5.1");
    let bench = Bench::new("placed", "echo persistent=set; echo 'forebay: ok'");
    bench.write("pools.json", POOLS);
    bench.write("persistent.json", r#"[{"name":"set","nodes":["n02","n03"]}]"#);
    let conf = "NodeName=DEFAULT CPUs=4\nnodename = n[01-03,10],login # all\nInclude more.conf\n";
    bench.write("slurm.conf", conf);
    bench.write("more.conf", "NodeName=r[1-2]c[7,9]\n");
    let others = "n01,n10,login,r1c7,r1c9,r2c7,r2c9";
    let placed = |job: &str| {
        let out = bench.lua(&format!(
            "dofile('job_submit.lua')\nlocal job = {{ script = '#!/bin/sh\\n#DW persistentdw name=set\\n', {job} }}\n\
             io.write(slurm_job_submit(job, {{}}, 1), ' ', tostring(job.req_nodes), ' ',\
             tostring(job.exc_nodes), ' ', tostring(job.max_nodes))"
        ));
        out.ok().stdout
    };
    for (job, expected) in [
        ("min_nodes = 1, max_nodes = 1", format!("0 nil {others} 1")),
        ("num_tasks = 64", format!("0 nil {others} 2")),
        ("min_nodes = 2, max_nodes = 2", "0 n02,n03 nil 2".into()),
        ("min_nodes = 2", "0 n02,n03 nil 2".into()),
        ("exc_nodes = 'n02'", format!("0 nil n02,{others} 2")),
        ("req_nodes = 'n[03]', min_nodes = 1", format!("0 n[03] {others} 2")),
    ] {
        assert_eq!(placed(job), expected, "{job}");
    }
    let refused = placed("req_nodes = 'n[02-03],r1c7', min_nodes = 1");
    assert!(refused.contains("on n02,n03, and --nodelist asks for r1c7\n-1"), "{refused}");
    assert!(placed("min_nodes = 3").contains("on 2 nodes, and the job wants 3"));
}
