#include "tautline_ros2_control/robot.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <pluginlib/class_list_macros.hpp>
#include <rclcpp/logging.hpp>

namespace tautline_ros2_control {

using namespace std::chrono_literals;

namespace {

// The robot's own time, before the values.
constexpr std::size_t head_bytes = sizeof(std::uint64_t);

rclcpp::Logger logger() { return rclcpp::get_logger("tautline_ros2_control"); }

std::string parameter(const hardware_interface::HardwareInfo &info, const char *name, const char *otherwise = "") {
    const auto found = info.hardware_parameters.find(name);
    return found == info.hardware_parameters.end() ? otherwise : found->second;
}

// A whole number, up to `max`.
std::optional<std::uint64_t> number(const std::string &text, std::uint64_t max) {
    std::uint64_t value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc{} || end != text.data() + text.size() || value > max)
        return std::nullopt;
    return value;
}

std::vector<std::string> names(const std::vector<hardware_interface::InterfaceInfo> &interfaces) {
    std::vector<std::string> all;
    for (const auto &interface : interfaces)
        all.push_back(interface.name);
    return all;
}

}  // namespace

#if __has_include(<hardware_interface/types/hardware_component_interface_params.hpp>)
CallbackReturn Robot::on_init(const hardware_interface::HardwareComponentInterfaceParams &params) {
    if (SystemInterface::on_init(params) != CallbackReturn::SUCCESS)
        return CallbackReturn::ERROR;
#else
CallbackReturn Robot::on_init(const hardware_interface::HardwareInfo &info) {
    if (SystemInterface::on_init(info) != CallbackReturn::SUCCESS)
        return CallbackReturn::ERROR;
#endif
    if (const auto wrong = describe()) {
        RCLCPP_ERROR(logger(), "%s: %s", info_.name.c_str(), wrong->c_str());
        return CallbackReturn::ERROR;
    }
    return CallbackReturn::SUCCESS;
}

std::optional<std::string> Robot::describe() {
    for (const char *name : {"node", "robot", "robot_port"})
        if (parameter(info_, name).empty())
            return std::string("the description has no <param name=\"") + name + "\">";
    const auto port = number(parameter(info_, "robot_port"), UINT16_MAX);
    if (!port)
        return "robot_port is not the number of a port";
    robot_port_ = static_cast<std::uint16_t>(*port);
    for (const auto &[name, otherwise, into] : {std::tuple{"wait_us", "2000", &wait_},
                                                {"timeout_us", "20000", &timeout_},
                                                {"start_us", "5000000", &start_}}) {
        const auto found = number(parameter(info_, name, otherwise), 3'600'000'000);
        if (!found)
            return std::string(name) + " is not a number of microseconds up to an hour";
        *into = std::chrono::microseconds(*found);
    }
    if (info_.joints.empty())
        return "the description has no joint";
    state_kinds_ = names(info_.joints[0].state_interfaces);
    command_kinds_ = names(info_.joints[0].command_interfaces);
    for (const auto &joint : info_.joints)
        if (names(joint.state_interfaces) != state_kinds_ || names(joint.command_interfaces) != command_kinds_)
            return "joint " + joint.name + " has other interfaces than the first joint, or another order of them";
    states_.assign(state_kinds_.size() * info_.joints.size(), 0.0);
    commands_.assign(command_kinds_.size() * info_.joints.size(), 0.0);
    return std::nullopt;
}

CallbackReturn Robot::on_configure(const rclcpp_lifecycle::State &) {
    const auto failed = open();
    if (!failed)
        return CallbackReturn::SUCCESS;
    RCLCPP_ERROR(logger(), "%s: %s", info_.name.c_str(), failed->c_str());
    close();
    return CallbackReturn::FAILURE;
}

std::optional<std::string> Robot::open() {
    auto node = tautline::node::open(parameter(info_, "node").c_str());
    if (!node)
        return node.error().text();
    node_ = *std::move(node);
    const std::string name = parameter(info_, "state_port", "state");
    auto port = node_.sampling({.name = name.c_str()});
    if (!port)
        return port.error().text();
    port_ = *std::move(port);
    const auto info = port_.info();
    if (!info)
        return info.error().text();
    const std::size_t state_bytes = head_bytes + states_.size() * sizeof(double);
    if (info->message_bytes_max < std::max(state_bytes, commands_.size() * sizeof(double)))
        return "the port takes " + std::to_string(info->message_bytes_max) + " bytes, fewer than a state or a command";
    buffer_.resize(info->message_bytes_max);
    const tautline::time_point until = tautline::now() + start_;
    const auto robot = port_.to(parameter(info_, "robot").c_str(), robot_port_, tautline::deadline(until));
    if (!robot)
        return robot.error().text();
    robot_ = *robot;
    heard_ = {};
    if (!take(until - tautline::now()))
        return "the state has not the size that the description says: " + std::to_string(state_bytes) + " bytes";
    if (heard_ == tautline::time_point{})
        return "the robot sends no state";
    return std::nullopt;
}

CallbackReturn Robot::on_activate(const rclcpp_lifecycle::State &) {
    const std::size_t joints = info_.joints.size();
    for (std::size_t kind = 0; kind < command_kinds_.size(); ++kind) {
        const auto same = std::find(state_kinds_.begin(), state_kinds_.end(), command_kinds_[kind]);
        const auto into = commands_.begin() + kind * joints;
        // A velocity or an effort that was measured is not to be kept up.
        if (same != state_kinds_.end() && *same == "position")
            std::copy_n(states_.begin() + (same - state_kinds_.begin()) * joints, joints, into);
        else
            std::fill_n(into, joints, 0.0);
    }
    cycles_ = cycles_without_state_ = 0;
    is_active_ = true;
    return CallbackReturn::SUCCESS;
}

CallbackReturn Robot::on_deactivate(const rclcpp_lifecycle::State &) {
    is_active_ = false;
    RCLCPP_INFO(logger(), "%s: %llu cycles, %llu without a new state", info_.name.c_str(),
                static_cast<unsigned long long>(cycles_), static_cast<unsigned long long>(cycles_without_state_));
    return CallbackReturn::SUCCESS;
}

CallbackReturn Robot::on_cleanup(const rclcpp_lifecycle::State &) {
    close();
    return CallbackReturn::SUCCESS;
}

CallbackReturn Robot::on_error(const rclcpp_lifecycle::State &) {
    close();
    return CallbackReturn::SUCCESS;
}

void Robot::close() {
    is_active_ = false;
    robot_.reset();
    port_ = {};
    node_ = {};
}

std::vector<hardware_interface::StateInterface> Robot::export_state_interfaces() {
    std::vector<hardware_interface::StateInterface> all;
    double *value = states_.data();
    for (const auto &kind : state_kinds_)
        for (const auto &joint : info_.joints)
            all.emplace_back(joint.name, kind, value++);
    return all;
}

std::vector<hardware_interface::CommandInterface> Robot::export_command_interfaces() {
    std::vector<hardware_interface::CommandInterface> all;
    double *value = commands_.data();
    for (const auto &kind : command_kinds_)
        for (const auto &joint : info_.joints)
            all.emplace_back(joint.name, kind, value++);
    return all;
}

bool Robot::take(tautline::nanoseconds wait) {
    const auto seen = port_.next(buffer_, tautline::deadline(wait));
    if (!seen)
        return false;
    ++cycles_;
    if (!*seen) {
        ++cycles_without_state_;
        return true;
    }
    const auto state = (*seen)->payload();
    if (state.size() != head_bytes + states_.size() * sizeof(double))
        return false;
    std::memcpy(states_.data(), state.data() + head_bytes, states_.size() * sizeof(double));
    heard_ = (*seen)->arrival();
    return true;
}

// A state that is late keeps the one before, for as long as that is not older than the timeout.
return_type Robot::read(const rclcpp::Time &, const rclcpp::Duration &) {
    if (!take(wait_))
        return return_type::ERROR;
    return tautline::now() - heard_ <= timeout_ ? return_type::OK : return_type::ERROR;
}

// The controller manager also calls it while the hardware is inactive: then nothing is sent.
return_type Robot::write(const rclcpp::Time &, const rclcpp::Duration &) {
    if (!is_active_)
        return return_type::OK;
    const auto command = std::as_bytes(std::span(commands_));
    return port_.send(*robot_, command, tautline::priority::highest) ? return_type::OK : return_type::ERROR;
}

}  // namespace tautline_ros2_control

PLUGINLIB_EXPORT_CLASS(tautline_ros2_control::Robot, hardware_interface::SystemInterface)
