//! Measures what a machine and a kernel can hold, and reports it.
