// A robot behind Tautline as hardware of ros2_control: its state arrives in a sampling port, its command is sent from
// there. Joints, their interfaces and the parameters are those of the robot's description (URDF).
//
// The controller manager calls read() and write() from its real-time loop. read() sleeps until shortly before the state
// is expected, takes it as it arrives, and waits no longer than `wait_us`; write() sends and never waits. Neither
// allocates.
#ifndef TAUTLINE_ROS2_CONTROL__ROBOT_HPP_
#define TAUTLINE_ROS2_CONTROL__ROBOT_HPP_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <hardware_interface/system_interface.hpp>
#include <tautline.hpp>

namespace tautline_ros2_control {

using hardware_interface::CallbackReturn;
using hardware_interface::return_type;

class Robot : public hardware_interface::SystemInterface {
public:
    // Later releases of ros2_control pass the description in other parameters.
#if __has_include(<hardware_interface/types/hardware_component_interface_params.hpp>)
    CallbackReturn on_init(const hardware_interface::HardwareComponentInterfaceParams &params) override;
#else
    CallbackReturn on_init(const hardware_interface::HardwareInfo &info) override;
#endif
    // Opens the node and its port, and waits for the robot's first state.
    CallbackReturn on_configure(const rclcpp_lifecycle::State &previous) override;
    // The robot stays where it is: commands begin with its state.
    CallbackReturn on_activate(const rclcpp_lifecycle::State &previous) override;
    CallbackReturn on_deactivate(const rclcpp_lifecycle::State &previous) override;
    CallbackReturn on_cleanup(const rclcpp_lifecycle::State &previous) override;
    CallbackReturn on_error(const rclcpp_lifecycle::State &previous) override;

    std::vector<hardware_interface::StateInterface> export_state_interfaces() override;
    std::vector<hardware_interface::CommandInterface> export_command_interfaces() override;

    return_type read(const rclcpp::Time &time, const rclcpp::Duration &period) override;
    return_type write(const rclcpp::Time &time, const rclcpp::Duration &period) override;

private:
    // Takes the parameters and the lists of interfaces; what is wrong with them, or nothing.
    std::optional<std::string> describe();
    // Opens node and port, finds the robot; what failed, or nothing.
    std::optional<std::string> open();
    // Takes a new state within a time. False if it is not of the expected size, or the port failed.
    bool take(tautline::nanoseconds wait);
    void close();

    // Kinds of interfaces, such as `position`: the same for each joint.
    std::vector<std::string> state_kinds_;
    std::vector<std::string> command_kinds_;
    // Values of all joints for the first kind, then for the second, as in the messages.
    std::vector<double> states_;
    std::vector<double> commands_;

    std::uint16_t robot_port_ = 0;
    tautline::nanoseconds wait_{};
    tautline::nanoseconds timeout_{};
    tautline::nanoseconds start_{};

    tautline::node node_;
    tautline::sampling_port port_;
    std::optional<tautline::destination> robot_;
    std::vector<std::byte> buffer_;
    tautline::time_point heard_{};
    bool is_active_ = false;
    std::uint64_t cycles_ = 0;
    std::uint64_t cycles_without_state_ = 0;
};

}  // namespace tautline_ros2_control

#endif  // TAUTLINE_ROS2_CONTROL__ROBOT_HPP_
