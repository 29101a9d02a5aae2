#pragma once
namespace rclcpp {
class Time {};
}  // namespace rclcpp
