//! What executes the operators of a stage.
