//! Tests that make network hosts, load BPF programs or act as several users. Most need root, and say so.

#[path = "../common/mod.rs"]
mod common;

mod authenticated;
mod bpf_load;
mod client_confinement;
mod conformance;
mod control;
mod control_confined;
mod control_faults;
mod control_flood;
mod control_raw;
mod control_service;
mod control_stranger;
mod control_udp;
mod demux_twin;
mod examples;
mod faults_frames;
mod faults_interface;
mod faults_process;
mod flood;
mod forked;
mod groups;
mod interface_identity;
mod joined_datagrams;
mod link_xsk;
mod locked;
mod neighbours;
mod old_kernel;
mod plain_udp;
mod priority;
mod raw_ports;
mod typed;
mod udp_batches;
mod udp_fragments;
mod vbus_stranger;
mod vlan;
