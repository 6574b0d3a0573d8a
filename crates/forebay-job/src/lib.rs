//! What a job script asks for: directives read from its text, and the plan they come to.
//!
//! Pure: text in, plan or problems out. Nothing here looks at a file, a node or the network, since a
//! scheduler calls it where it may not wait.

pub mod plan;
