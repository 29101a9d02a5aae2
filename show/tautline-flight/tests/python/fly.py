"""Flies the commands on standard input with RotorPy, and writes the position after each.

Input, one line each: the craft's parameters as JSON; the first state as JSON; then the speeds of the rotors, each
line for HOLD seconds. Output: three numbers a line.
"""

import json
import sys

import numpy as np
from rotorpy.vehicles.hummingbird_params import quad_params
from rotorpy.vehicles.multirotor import Multirotor

HOLD = 0.02


def check(parameters):
    """Compares the parameters with RotorPy's own, which this test must not set."""
    axes = {"Ixx": ("inertia", "x"), "Iyy": ("inertia", "y"), "Izz": ("inertia", "z"),
            "c_Dx": ("frame_drag", "x"), "c_Dy": ("frame_drag", "y"), "c_Dz": ("frame_drag", "z"),
            "k_d": ("rotor_drag", "x"), "k_z": ("rotor_drag", "z")}
    plain = {"mass": "mass", "k_eta": "thrust", "k_m": "torque", "k_h": "lift", "tau_m": "motor_lag",
             "rotor_speed_max": "rotor_speed_max"}
    ours = {key: parameters[name][axis] for key, (name, axis) in axes.items()}
    ours |= {key: parameters[name] for key, name in plain.items()}
    for key, value in ours.items():
        assert quad_params[key] == value, (key, value, quad_params[key])


def vector(value):
    return np.array([value["x"], value["y"], value["z"]])


def main():
    check(json.loads(sys.stdin.readline()))
    first = json.loads(sys.stdin.readline())
    attitude = first["attitude"]
    state = {
        "x": vector(first["position"]),
        "v": vector(first["velocity"]),
        "q": np.append(vector(attitude["v"]), attitude["w"]),
        "w": vector(first["rates"]),
        "wind": vector(first["wind"]),
        "rotor_speeds": np.array(first["rotors"]),
    }
    exact = {"method": "RK45", "rtol": 1e-5, "atol": 1e-7}
    craft = Multirotor(quad_params, initial_state=state, aero=True, integrator_kwargs=exact)
    for line in sys.stdin:
        control = {"cmd_motor_speeds": np.array([float(word) for word in line.split()])}
        state = craft.step(state, control, HOLD)
        print(*state["x"], *state["v"])


main()
