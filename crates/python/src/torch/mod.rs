//! What `weftlink.torch` is made of: one rank's end of a process group.

mod group;

pub(crate) use group::Group;
