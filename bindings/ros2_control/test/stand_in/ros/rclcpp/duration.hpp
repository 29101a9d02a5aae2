#pragma once
namespace rclcpp {
class Duration {};
}  // namespace rclcpp
