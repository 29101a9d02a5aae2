//! Nothing but tests: what the sources import, and how comments and documents are written.
