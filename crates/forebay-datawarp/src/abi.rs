//! The functions of `datawarp.h`. Each checks what C gave it, has the work done, and turns the outcome
//! into a number (A1).

mod instances;
mod stages;
