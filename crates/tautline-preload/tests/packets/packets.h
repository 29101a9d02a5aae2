/* Common to the cases of packet sockets: sockets, and questions to the peer at the other end of the cable. */
#ifndef PACKETS_H
#define PACKETS_H

#include "../cases/cases.h"
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>

enum { HEADER = 14 };

extern const struct test opening_tests[], sending_tests[], taking_tests[], waiting_tests[];
/* Index of the interface, and whether a socket is to be of the kind that has no header (SOCK_DGRAM). */
extern int interface_index;
extern const char *interface_name;
extern unsigned char own_mac[6];
/* The case's own EtherType. Each has another, so that what comes late to one is not the next one's. */
#define TYPE own_port

/* A packet socket on the interface, of the case's EtherType. */
struct sockaddr_ll link_address(int type, int index);
int packet_socket(int kind);
/* A frame in `frame` of the case's EtherType; how long it is. */
extern unsigned char frame[2048];
int framed(const char *destination, int size);
/* The peer sends `count` frames of `size` bytes of payload: to this host (h), all (b), a group (m), another station
 * (o), with a tag of no VLAN (v), in VLAN 5 (w), or to all from a sender that is no station (n). */
void ask_frames(int fd, char how, int count, int size);
void ask_frames_later(int fd, char how, int size, int milliseconds);
/* Waits until the next frame is there, looking at it only. */
void came(int fd);
/* Receives and writes what came. */
void taken_frame(int fd);
void told(const struct sockaddr_ll *from, socklen_t length);

#endif
