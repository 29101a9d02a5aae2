"""A node of ROS 2 Jazzy that knows nothing of Tautline: rclpy over rmw_fastrtps, by their packages from PyPI. Takes
commands on standard input, one JSON array a line, and writes what happens to standard output, one JSON object a
line."""

import json
import sys
import threading

import rclpy
from geometry_msgs.msg import Twist
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64

LOCK = threading.Lock()
# ROS's default: reliable, the last so many.
DEFAULT = QoSProfile(depth=1000)
# The same, and the last messages from before.
DURABLE = QoSProfile(depth=1000, durability=DurabilityPolicy.TRANSIENT_LOCAL)
KEPT = []
PUBLISHERS = {}


def say(**what):
    with LOCK:
        print(json.dumps(what), flush=True)


def heard(topic, message):
    stamp = message.header.stamp
    say(
        heard=topic,
        sec=stamp.sec,
        nanosec=stamp.nanosec,
        frame_id=message.header.frame_id,
        name=list(message.name),
        position=list(message.position),
        velocity=list(message.velocity),
        effort=list(message.effort),
    )


def publisher(node, topic):
    if topic not in PUBLISHERS:
        PUBLISHERS[topic] = node.create_publisher(Twist, topic, DEFAULT)
    return PUBLISHERS[topic]


def obey(node, word, topic="", *rest):
    if word == "hear":
        quality = qos_profile_sensor_data if rest[0] == "sensor" else DEFAULT
        KEPT.append(node.create_subscription(JointState, topic, lambda message: heard(topic, message), quality))
    elif word == "hear number":
        hears = lambda message: say(heard=topic, message={"data": message.data})
        KEPT.append(node.create_subscription(Float64, topic, hears, DURABLE))
    elif word == "write":
        twist = Twist()
        twist.linear.x, twist.angular.z = rest
        publisher(node, topic).publish(twist)
    elif word == "graph":
        # As `ros2 node list`, `ros2 topic list -t` and `ros2 node info` show it.
        nodes = [[name, namespace] for name, namespace in node.get_node_names_and_namespaces()]
        published, subscribed = [], []
        if ["arm", "/cell"] in nodes:
            published = node.get_publisher_names_and_types_by_node("arm", "/cell")
            subscribed = node.get_subscriber_names_and_types_by_node("arm", "/cell")
        topics = node.get_topic_names_and_types()
        say(graph=True, nodes=nodes, topics=topics, published=published, subscribed=subscribed)
    say(done=word)


def main():
    # Without files of logs in the user's home.
    rclpy.init(args=["--ros-args", "--disable-external-lib-logs"], domain_id=int(sys.argv[1]))
    node = rclpy.create_node("desk")
    threading.Thread(target=rclpy.spin, args=(node,), daemon=True).start()
    say(opened=True)
    for line in sys.stdin:
        obey(node, *json.loads(line))


main()
