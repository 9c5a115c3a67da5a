//! The `inferometer` command.

fn main() {}
