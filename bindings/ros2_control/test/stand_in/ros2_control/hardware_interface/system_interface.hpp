#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include <rclcpp/duration.hpp>
#include <rclcpp/time.hpp>
#include <rclcpp_lifecycle/node_interfaces/lifecycle_node_interface.hpp>

namespace hardware_interface {

struct InterfaceInfo {
    std::string name;
};
struct ComponentInfo {
    std::string name;
    std::vector<InterfaceInfo> command_interfaces;
    std::vector<InterfaceInfo> state_interfaces;
};
struct HardwareInfo {
    std::string name;
    std::unordered_map<std::string, std::string> hardware_parameters;
    std::vector<ComponentInfo> joints;
};

class Handle {
public:
    Handle(const std::string &prefix, const std::string &interface, double *value)
        : name_(prefix + "/" + interface), value_(value) {}
    const std::string &get_name() const { return name_; }
    double get_value() const { return *value_; }

protected:
    std::string name_;
    double *value_;
};
class StateInterface : public Handle {
public:
    using Handle::Handle;
};
class CommandInterface : public Handle {
public:
    using Handle::Handle;
    void set_value(double value) { *value_ = value; }
};

enum class return_type : unsigned char { OK = 0, ERROR = 1 };
using CallbackReturn = rclcpp_lifecycle::node_interfaces::LifecycleNodeInterface::CallbackReturn;

class SystemInterface : public rclcpp_lifecycle::node_interfaces::LifecycleNodeInterface {
public:
    virtual CallbackReturn on_init(const HardwareInfo &info) {
        info_ = info;
        return CallbackReturn::SUCCESS;
    }
    virtual std::vector<StateInterface> export_state_interfaces() = 0;
    virtual std::vector<CommandInterface> export_command_interfaces() = 0;
    virtual return_type read(const rclcpp::Time &time, const rclcpp::Duration &period) = 0;
    virtual return_type write(const rclcpp::Time &time, const rclcpp::Duration &period) = 0;

protected:
    HardwareInfo info_;
};

}  // namespace hardware_interface
