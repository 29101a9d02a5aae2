//! Real-time datagrams on stock Linux: nodes, ports and links.
