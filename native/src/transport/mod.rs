//! How ranks exchange tensors.
