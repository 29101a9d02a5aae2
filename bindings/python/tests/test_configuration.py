"""Nodes: from a file, from a text, from arguments; wrong ones."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from conftest import next_number

import tautline

TEXT = """
link = "udp"
address = "127.0.0.1"
[[neighbour]]
name = "motor"
ip = "127.0.0.1"
[[port]]
name = "command"
number = 91
kind = "queuing"
depth = 16
[[port]]
name = "state"
number = 92
kind = "sampling"
[[port]]
name = "setpoints"
kind = "udp"
number = 15290
"""


def test_a_configuration_file_opens_ports_by_name(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(TEXT)
    for node in (tautline.Node.from_file(file), tautline.Node.from_text(TEXT)):
        with node, node.queuing("command") as command, node.sampling("state") as state:
            assert command.number == 91 and command.status()["depth"] == 16 and state.number == 92
            with node.udp("setpoints") as setpoints:
                assert setpoints.local == ("127.0.0.1", 15290)


def test_arguments_are_the_keys_of_a_file() -> None:
    with tautline.Node(
        link="udp",
        address=ipaddress.IPv4Address("127.0.0.1"),
        publish_status=False,
        neighbour=[{"name": "motor", "ip": "127.0.0.1"}],
        port=[{"name": "command", "number": 93, "kind": "queuing"}],
        send_pool={"pages_1": 2},
        gateway=None,
    ) as node:
        assert repr(node) == "<Node link udp, 127.0.0.1>"
        command = node.queuing("command")
        assert repr(command.destination("motor", 94)) == "<Destination motor port 94>"
        assert node.status()["send_pool"]["sizes"][0]["count"] == 2
    assert node.closed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('link = "xpd"', "line 1"),
        ("prot = 7", "prot"),
        ('link = "vbus"\nbus = "cell"', "node"),
    ],
)
def test_a_wrong_text_is_refused_with_its_place(text: str, expected: str) -> None:
    with pytest.raises(tautline.ConfigError, match=expected) as wrong:
        tautline.Node.from_text(text)
    assert wrong.value.remedy and isinstance(wrong.value, ValueError)


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(tautline.ConfigError, match="interfaec"):
        tautline.Node(interfaec="eth0")
    with pytest.raises(tautline.ConfigError, match="127.0.0"):
        tautline.Node(link="udp", address="127.0.0")
    with pytest.raises(tautline.OpenError, match="there is no interface `taut-none` here"):
        tautline.Node(interface="taut-none")
    with pytest.raises(tautline.ConfigError, match="cannot read"):
        tautline.Node.from_file("/proc/none.toml")


def test_wrong_ports_are_refused_with_a_remedy() -> None:
    node = tautline.Node.from_text(TEXT)
    for wrong, expected in [
        (lambda: node.queuing(0), "out of range"),
        (lambda: node.queuing("commnad"), "no port named"),
        (lambda: node.queuing("state"), "configured as sampling"),
        (lambda: node.queuing(next_number(), depth=3), "power of two"),
        (lambda: node.sampling(next_number(), sources=0), "sources are out of range"),
        (lambda: node.udp(0), "out of range"),
        (lambda: node.queuing(95).destination("nobody", 1), "no neighbour `nobody`"),
    ]:
        with pytest.raises(tautline.PortError, match=expected) as error:
            wrong()
        assert error.value.remedy and "what to do: " in str(error.value)
    with pytest.raises(tautline.PortError, match="`number`"):
        node.queuing("command", number=4000)
    with node.queuing("command", spin=0.0), node.queuing("another", number=next_number()):
        pass
    with pytest.raises(OverflowError):
        node.queuing(70_000)
    for spin in (-1.0, float("nan")):
        with pytest.raises(tautline.ArgumentError, match="is not a time"):
            node.queuing(next_number(), spin=spin)


def test_neighbours_are_entered_until_the_first_port() -> None:
    with tautline.Node(link="udp", address="127.0.0.1") as node:
        node.add_neighbour("arm", ip="127.0.0.2")
        with pytest.raises(tautline.ArgumentError, match="no IPv4 address"):
            node.add_neighbour("leg", ip="nowhere")
        port = node.queuing(next_number())
        port.destination("arm", 7)
        with pytest.raises(tautline.NeighbourError):
            node.add_neighbour("leg", ip="127.0.0.3")
