//! How long a plan takes on a fabric: its one interpreter, in virtual time.
//!
//! The [engine] runs a plan step by step. A step begins when what it needs is there, its data flows over the links of the fabric,
//! which it shares fairly with everything else under way, and what it sends is seen a hop later. Time is whole picoseconds and
//! nothing depends on a clock, a thread or the order of a hash table: the same question has the same answer to the last digit.

pub mod engine;
