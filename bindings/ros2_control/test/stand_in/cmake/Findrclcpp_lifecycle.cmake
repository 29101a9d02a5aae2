add_library(rclcpp_lifecycle::rclcpp_lifecycle INTERFACE IMPORTED)
set(rclcpp_lifecycle_FOUND TRUE)
