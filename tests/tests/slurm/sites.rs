//! Scripts as sites have them, word for word, except for the path of the parallel file system, which is
//! this test's, and for programs, which are not installed here.

use forebay_tests::slurm::{Setup, Slurm};

use crate::{Scenario, own, pfs, put, shown};

pub const SCENARIOS: &[Scenario] = &[
    ("striped, as at NERSC", striped),
    ("a name right behind the variable", braces),
    ("striped and private on two nodes", striped_and_private),
    ("an unquoted heredoc", heredoc),
    ("NNF's xfs", nnf),
];

/// From a site's user guide: data in by file and directory, a directory out.
fn striped(slurm: &Slurm) {
    let dir = pfs(slurm, "cscratch1/sd/username");
    for inside in ["path", "path/to", "dir"] {
        std::fs::create_dir(dir.join(inside)).unwrap();
        own(&dir.join(inside));
    }
    let bytes = put(&dir.join("path/to/filename"), 200_000, 5);
    put(&dir.join("dir/other"), 1000, 6);
    let global = shown(&slurm.out()).to_string() + "/pfs";
    let id = slurm.submit(
        &[],
        &format!(
            "#!/bin/bash -l\n\
             #SBATCH -N 1\n\
             #SBATCH -t 00:10:00\n\
             #DW jobdw capacity=10GB access_mode=striped type=scratch\n\
             #DW stage_in source={global}/cscratch1/sd/username/path/to/filename destination=$DW_JOB_STRIPED/filename type=file\n\
             #DW stage_in source={global}/cscratch1/sd/username/dir destination=$DW_JOB_STRIPED type=directory\n\
             #DW stage_out source=$DW_JOB_STRIPED/dirname destination={global}/cscratch1/sd/username/dirname type=directory\n\
             mkdir $DW_JOB_STRIPED/dirname\n\
             cp $DW_JOB_STRIPED/filename $DW_JOB_STRIPED/other $DW_JOB_STRIPED/dirname\n"
        ),
    );
    assert_eq!(slurm.finished(&id), "COMPLETED", "{}", slurm.output(&id));
    assert!(std::fs::read(dir.join("dirname/filename")).unwrap() == bytes);
    assert_eq!(std::fs::read(dir.join("dirname/other")).unwrap().len(), 1000);
}

/// Values end in a slash, since scripts use them like this.
fn braces(slurm: &Slurm) {
    let dir = pfs(slurm, "run");
    let run = shown(&dir);
    let id = slurm.submit(
        &[],
        &format!(
            "#!/bin/bash\n#SBATCH -N 1\n#DW jobdw capacity=1GB access_mode=striped type=scratch\n\
             #DW stage_out type=file source=${{DW_JOB_STRIPED}}result.h5 destination={run}/result.h5\n\
             echo result >${{DW_JOB_STRIPED}}result.h5\n"
        ),
    );
    assert_eq!(slurm.finished(&id), "COMPLETED", "{}", slurm.output(&id));
    assert_eq!(std::fs::read_to_string(dir.join("result.h5")).unwrap(), "result\n");
}

/// Refused at submission, with the remedy.
fn striped_and_private(slurm: &Slurm) {
    let refused = slurm.sbatch(
        &["-N", "2"],
        "#!/bin/bash\n#DW jobdw type=scratch access_mode=striped,private capacity=100GB\nsrun hostname\n",
    );
    assert_ne!(refused.code, Some(0));
    for part in [":2:", "access_mode=private", "#FB private"] {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
}

/// `sbatch <<EOF` replaces $DW_JOB_STRIPED by nothing where it is not set.
fn heredoc(slurm: &Slurm) {
    let refused = slurm.sbatch(
        &[],
        "#!/bin/bash\n#SBATCH -N 1\n#DW jobdw capacity=10GB access_mode=striped type=scratch\n\
         #DW stage_in type=file source=/pfs/in.dat destination=/in.dat\n\
         #DW stage_out type=directory source=/out destination=/pfs/out\n./a.out /in.dat /out\n",
    );
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("<<'EOF'"), "{refused:?}");
    assert!(refused.stderr.contains('^'), "a caret is under the word: {refused:?}");
}

/// NNF's dialect: a file system of its own per node, with copies in and out.
fn nnf(slurm: &Slurm) {
    if !forebay_tests::sys::on_path("mkfs.xfs") {
        return;
    }
    let dir = pfs(slurm, "lus");
    let bytes = put(&dir.join("in"), 100_000, 9);
    let lus = shown(&dir);
    let name = if slurm.setup == Setup::Lua { "my-space" } else { "other-space" };
    let variable = format!("DW_JOB_{}", name.replace('-', "_"));
    let id = slurm.submit(
        &[],
        &format!(
            "#!/bin/bash\n#SBATCH -N 1\n#DW jobdw type=xfs capacity=400MiB name={name}\n\
             #DW copy_in source={lus}/in destination=${variable}/in\n\
             #DW copy_out source=${variable}/out destination={lus}/out\n\
             stat -f -c %T ${variable}\ncp ${variable}/in ${variable}/out\n"
        ),
    );
    assert_eq!(slurm.finished(&id), "COMPLETED", "{}", slurm.output(&id));
    assert_eq!(slurm.output(&id).trim(), "xfs");
    assert!(std::fs::read(dir.join("out")).unwrap() == bytes);
}
