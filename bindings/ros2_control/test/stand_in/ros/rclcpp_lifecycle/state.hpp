#pragma once
#include <cstdint>
#include <string>
namespace rclcpp_lifecycle {
class State {
public:
    State() = default;
    State(std::uint8_t id, const std::string &) : id_(id) {}
    std::uint8_t id() const { return id_; }

private:
    std::uint8_t id_ = 0;
};
}  // namespace rclcpp_lifecycle
