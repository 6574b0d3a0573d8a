//! The functions of `datawarp.h`. Each checks its arguments from C, does the work, and turns the outcome
//! into a number (A1).

mod instances;
mod stages;
