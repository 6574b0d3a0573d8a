//! Slurm: the scripts that it calls, alone in Lua 5.1.

mod lua;
