//! A real Slurm over real node daemons: the whole life of jobs, under both of its burst buffer plug-ins.

use forebay_tests::needs_slurm;
use forebay_tests::slurm::{Setup, Slurm};

#[test]
fn starts() {
    needs_slurm!();
    let slurm = Slurm::start(Setup::Lua, 2, 256);
    let id = slurm.submit(&[], "#!/bin/sh\necho hello\n");
    assert_eq!(slurm.finished(&id), "COMPLETED");
}
