"""A ground station: sends a mission, flies it, reads it back, lands.

Argument: the address and port at which the craft calls. Everything here is pymavlink's: the messages, the loader of
missions, the helpers for arming.
"""

import math
import sys

from pymavlink import mavutil, mavwp

WAYPOINTS = [(4.0, 0.0, 3.0), (4.0, 4.0, 4.0), (0.0, 4.0, 3.0)]
PATIENCE = 20
ml = mavutil.mavlink


def receive(link, kind):
    message = link.recv_match(type=kind, blocking=True, timeout=PATIENCE)
    assert message is not None, f"no {kind}"
    return message


def order(link, command, *parameters):
    words = list(parameters) + [0] * (7 - len(parameters))
    link.mav.command_long_send(link.target_system, link.target_component, command, 0, *words)
    answer = receive(link, "COMMAND_ACK")
    assert answer.command == command
    return answer.result


def check_parameters(link):
    link.mav.param_request_list_send(link.target_system, link.target_component)
    values = {}
    while True:
        value = receive(link, "PARAM_VALUE")
        values[value.param_id] = value.param_value
        if len(values) == value.param_count:
            break
    print("parameters", values)
    link.param_set_send("CRUISE_SPD", 4.0)
    assert receive(link, "PARAM_VALUE").param_value == 4.0
    link.param_set_send("CRUISE_SPD", 4000.0)
    assert receive(link, "PARAM_VALUE").param_value == 4.0, "beyond the limit"


def mission(link, home):
    loader = mavwp.MAVWPLoader(link.target_system, link.target_component)
    metres = 111319.49
    for number, (east, north, height) in enumerate(WAYPOINTS):
        latitude = home.lat * 1e-7 + north / metres
        longitude = home.lon * 1e-7 + east / (metres * math.cos(math.radians(home.lat * 1e-7)))
        loader.add(ml.MAVLink_mission_item_int_message(
            link.target_system, link.target_component, number, ml.MAV_FRAME_GLOBAL_RELATIVE_ALT_INT,
            ml.MAV_CMD_NAV_WAYPOINT, 0, 1, 0, 0, 0, 0, round(latitude * 1e7), round(longitude * 1e7), height))
    return loader


def upload(link, loader):
    link.waypoint_count_send(loader.count())
    while True:
        message = receive(link, ["MISSION_REQUEST_INT", "MISSION_ACK"])
        if message.get_type() == "MISSION_ACK":
            assert message.type == ml.MAV_MISSION_ACCEPTED, message
            return
        link.mav.send(loader.wp(message.seq))


def download(link):
    link.waypoint_request_list_send()
    items = []
    for number in range(receive(link, "MISSION_COUNT").count):
        link.mav.mission_request_int_send(link.target_system, link.target_component, number)
        items.append(receive(link, "MISSION_ITEM_INT"))
    return items


def fly(link):
    passed = set()
    while len(passed) < len(WAYPOINTS):
        place = receive(link, "LOCAL_POSITION_NED")
        for number, (east, north, height) in enumerate(WAYPOINTS):
            if math.dist((place.y, place.x, -place.z), (east, north, height)) < 1.2:
                passed.add(number)
        assert place.time_boot_ms < 120_000, f"only {passed}"
    print("passed", sorted(passed))


def wait_armed(link, is_armed):
    armed = ml.MAV_MODE_FLAG_SAFETY_ARMED
    while bool(receive(link, "HEARTBEAT").base_mode & armed) != is_armed:
        pass


def main():
    link = mavutil.mavlink_connection(f"udpin:{sys.argv[1]}")
    beat = link.wait_heartbeat(timeout=PATIENCE)
    assert beat is not None and beat.type == ml.MAV_TYPE_QUADROTOR
    # In flight time, two seconds to know the gyroscopes.
    while receive(link, "ATTITUDE").time_boot_ms < 2000:
        pass
    check_parameters(link)
    home = receive(link, "GLOBAL_POSITION_INT")
    assert order(link, ml.MAV_CMD_MISSION_START) == ml.MAV_RESULT_TEMPORARILY_REJECTED
    loader = mission(link, home)
    upload(link, loader)
    for sent, kept in zip(loader.wpoints, download(link), strict=True):
        assert (sent.x, sent.y, sent.z, sent.seq) == (kept.x, kept.y, kept.z, kept.seq)
    assert order(link, ml.MAV_CMD_COMPONENT_ARM_DISARM, 1) == ml.MAV_RESULT_ACCEPTED
    wait_armed(link, True)
    assert order(link, ml.MAV_CMD_NAV_TAKEOFF, 0, 0, 0, 0, 0, 0, 3) == ml.MAV_RESULT_ACCEPTED
    assert order(link, ml.MAV_CMD_MISSION_START) == ml.MAV_RESULT_ACCEPTED
    fly(link)
    assert order(link, ml.MAV_CMD_NAV_LAND) == ml.MAV_RESULT_ACCEPTED
    wait_armed(link, False)
    print("landed")


main()
