//! Shared-memory objects of Tautline: the memory of a port, and who may write which part of it.
#![cfg_attr(not(loom), no_std)]
