"""A participant of DDS that knows nothing of Tautline: Cyclone DDS, by the package `cyclonedds` from PyPI. Messages are
declared as ROS 2 declares them on DDS. Takes commands on standard input, one JSON array a line, and writes what happens
to standard output, one JSON object a line."""

import dataclasses
import json
import sys
import threading
import time
from dataclasses import dataclass

from cyclonedds.core import Policy, Qos
from cyclonedds.domain import DomainParticipant
from cyclonedds.idl import IdlStruct
from cyclonedds.idl.types import array, float64, int32, sequence, uint8, uint32
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

LOCK = threading.Lock()
HEARD = {}
WRITERS = {}
KEPT = []


@dataclass
class Time(IdlStruct, typename="builtin_interfaces::msg::dds_::Time_"):
    sec: int32
    nanosec: uint32


@dataclass
class Header(IdlStruct, typename="std_msgs::msg::dds_::Header_"):
    stamp: Time
    frame_id: str


@dataclass
class JointState(IdlStruct, typename="sensor_msgs::msg::dds_::JointState_"):
    header: Header
    name: sequence[str]
    position: sequence[float64]
    velocity: sequence[float64]
    effort: sequence[float64]


@dataclass
class Vector3(IdlStruct, typename="geometry_msgs::msg::dds_::Vector3_"):
    x: float64
    y: float64
    z: float64


@dataclass
class Point(IdlStruct, typename="geometry_msgs::msg::dds_::Point_"):
    x: float64
    y: float64
    z: float64


@dataclass
class Quaternion(IdlStruct, typename="geometry_msgs::msg::dds_::Quaternion_"):
    x: float64
    y: float64
    z: float64
    w: float64


@dataclass
class Twist(IdlStruct, typename="geometry_msgs::msg::dds_::Twist_"):
    linear: Vector3
    angular: Vector3


@dataclass
class Pose(IdlStruct, typename="geometry_msgs::msg::dds_::Pose_"):
    position: Point
    orientation: Quaternion


@dataclass
class PoseWithCovariance(IdlStruct, typename="geometry_msgs::msg::dds_::PoseWithCovariance_"):
    pose: Pose
    covariance: array[float64, 36]


@dataclass
class TwistWithCovariance(IdlStruct, typename="geometry_msgs::msg::dds_::TwistWithCovariance_"):
    twist: Twist
    covariance: array[float64, 36]


@dataclass
class Odometry(IdlStruct, typename="nav_msgs::msg::dds_::Odometry_"):
    header: Header
    child_frame_id: str
    pose: PoseWithCovariance
    twist: TwistWithCovariance


@dataclass
class Imu(IdlStruct, typename="sensor_msgs::msg::dds_::Imu_"):
    header: Header
    orientation: Quaternion
    orientation_covariance: array[float64, 9]
    angular_velocity: Vector3
    angular_velocity_covariance: array[float64, 9]
    linear_acceleration: Vector3
    linear_acceleration_covariance: array[float64, 9]


@dataclass
class Float64(IdlStruct, typename="std_msgs::msg::dds_::Float64_"):
    data: float64


@dataclass
class Int32(IdlStruct, typename="std_msgs::msg::dds_::Int32_"):
    data: int32


@dataclass
class Bool(IdlStruct, typename="std_msgs::msg::dds_::Bool_"):
    data: bool


@dataclass
class String(IdlStruct, typename="std_msgs::msg::dds_::String_"):
    data: str


@dataclass
class MultiArrayDimension(IdlStruct, typename="std_msgs::msg::dds_::MultiArrayDimension_"):
    label: str
    size: uint32
    stride: uint32


@dataclass
class MultiArrayLayout(IdlStruct, typename="std_msgs::msg::dds_::MultiArrayLayout_"):
    dim: sequence[MultiArrayDimension]
    data_offset: uint32


@dataclass
class Float64MultiArray(IdlStruct, typename="std_msgs::msg::dds_::Float64MultiArray_"):
    layout: MultiArrayLayout
    data: sequence[float64]


@dataclass
class Wrench(IdlStruct, typename="cell_msgs::msg::dds_::Wrench_"):
    """Declared in the configuration of the test, not known to the program."""

    header: Header
    force: array[float64, 3]
    contact: bool
    tool: str


@dataclass
class Impostor(IdlStruct, typename="geometry_msgs::msg::dds_::Twist_"):
    """Other contents by the name of a type: whatever bytes a test wants."""

    data: sequence[uint8]


@dataclass
class Gid(IdlStruct, typename="rmw_dds_common::msg::dds_::Gid_"):
    data: array[uint8, 16]


@dataclass
class NodeEntitiesInfo(IdlStruct, typename="rmw_dds_common::msg::dds_::NodeEntitiesInfo_"):
    node_namespace: str
    node_name: str
    reader_gid_seq: sequence[Gid]
    writer_gid_seq: sequence[Gid]


@dataclass
class ParticipantEntitiesInfo(IdlStruct, typename="rmw_dds_common::msg::dds_::ParticipantEntitiesInfo_"):
    gid: Gid
    node_entities_info_seq: sequence[NodeEntitiesInfo]


def say(**what):
    with LOCK:
        # Octets come as bytes.
        print(json.dumps(what, default=list), flush=True)


def built(kind, value):
    """A message, or a part of one, from lists in the order of its fields."""
    if not dataclasses.is_dataclass(kind):
        of = getattr(kind, "__args__", None) or getattr(kind, "subtype", None)
        inner = of if dataclasses.is_dataclass(of) else None
        if inner and isinstance(value, list):
            return [built(inner, one) for one in value]
        # JSON has no word for it.
        return float("nan") if value == "nan" else value
    hints = [field.type for field in dataclasses.fields(kind)]
    return kind(*[built(hint, one) for hint, one in zip(hints, value)])


def quality(reliable, durable, depth):
    return Qos(
        Policy.Reliability.Reliable(duration(seconds=1)) if reliable else Policy.Reliability.BestEffort,
        Policy.Durability.TransientLocal if durable else Policy.Durability.Volatile,
        Policy.History.KeepLast(depth),
    )


class Ear(threading.Thread):
    """Counts the messages of a topic, says those that differ from the one before if wanted, and keeps delays by their
    header's time, which is of the same machine."""

    def __init__(self, participant, topic, kind, reliable, durable, verbose):
        super().__init__(daemon=True)
        wanted = quality(reliable, durable, 1000)
        self.reader = DataReader(participant, Topic(participant, topic, kind, qos=wanted), qos=wanted)
        self.topic, self.verbose = topic, verbose
        self.count, self.last, self.delays_us, self.numbers = 0, None, [], []

    def run(self):
        while True:
            for sample in self.reader.take_iter(timeout=duration(seconds=1)):
                # A writer that goes away leaves a notice without a message.
                if not dataclasses.is_dataclass(sample):
                    continue
                now_ns = time.time_ns()
                self.count += 1
                self.last = sample
                if self.verbose:
                    say(heard=self.topic, message=dataclasses.asdict(sample))
                header = getattr(sample, "header", None)
                if header is not None:
                    then_ns = header.stamp.sec * 1_000_000_000 + header.stamp.nanosec
                    self.delays_us.append((now_ns - then_ns) / 1e3)
                if isinstance(sample, JointState):
                    self.numbers.append(sample.position[0])

    def told(self):
        delays_us = sorted(self.delays_us)
        at = lambda share: delays_us[min(int(len(delays_us) * share), len(delays_us) - 1)] if delays_us else None
        span = self.numbers[-1] - self.numbers[0] + 1 if self.numbers else 0
        told = {"count": self.count, "p50_us": at(0.5), "p99_us": at(0.99), "missing": span - len(self.numbers)}
        self.delays_us, self.numbers, self.count = [], [], 0
        return told


def write(participant, topic, name, values, options):
    """Writes each message, so many times, at a rate."""
    key = (topic, name, json.dumps(options, sort_keys=True))
    kind = globals()[name]
    if key not in WRITERS:
        wanted = quality(options.get("reliable", False), options.get("durable", False), options.get("depth", 100))
        if options.get("apart", False):
            # A participant of its own: within one, a topic has one type.
            participant = DomainParticipant(int(sys.argv[1]))
            KEPT.append(participant)
        WRITERS[key] = DataWriter(participant, Topic(participant, topic, kind, qos=wanted), qos=wanted)
    writer = WRITERS[key]
    count, rate = options.get("count", 1), options.get("rate", 100)
    began = time.monotonic()
    for number in range(count):
        while (time.monotonic() - began) * rate < number:
            time.sleep(0.0003)
        for value in values:
            writer.write(built(kind, value))
    say(wrote=count * len(values), topic=topic, seconds=time.monotonic() - began)


def stream(participant, topic, count, rate):
    """Joint states with this machine's time, as a plain participant would publish them."""
    wanted = quality(False, False, 1)
    writer = DataWriter(participant, Topic(participant, topic, JointState, qos=wanted), qos=wanted)
    time.sleep(1)
    began = time.monotonic()
    names = [f"joint{number}" for number in range(6)]
    for number in range(count):
        while (time.monotonic() - began) * rate < number:
            time.sleep(0.0002)
        now_ns = time.time_ns()
        stamp = Time(now_ns // 1_000_000_000, now_ns % 1_000_000_000)
        numbers = [float(number)] + [0.5] * 5
        writer.write(JointState(Header(stamp, "base"), names, numbers, numbers, []))
    say(streamed=count, seconds=time.monotonic() - began)


def obey(participant, word, *rest):
    if word == "hear":
        topic, name, options = rest
        ear = Ear(
            participant,
            topic,
            globals()[name],
            options.get("reliable", False),
            options.get("durable", False),
            options.get("verbose", True),
        )
        HEARD[topic] = ear
        ear.start()
    elif word == "count":
        say(counted=rest[0], **HEARD[rest[0]].told())
    elif word == "write":
        write(participant, *rest)
    elif word == "stream":
        stream(participant, *rest)
    say(done=word)


def main():
    participant = DomainParticipant(int(sys.argv[1]))
    say(opened=True)
    for line in sys.stdin:
        obey(participant, *json.loads(line))


main()
