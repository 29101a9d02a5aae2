#pragma once
#include <cstdio>
#include <string>
namespace rclcpp {
class Logger {
public:
    explicit Logger(std::string name) : name_(std::move(name)) {}
    const char *get_name() const { return name_.c_str(); }

private:
    std::string name_;
};
inline Logger get_logger(const std::string &name) { return Logger(name); }
}  // namespace rclcpp
#define STAND_IN_LOG(logger, format, ...) \
    std::fprintf(stderr, "[%s] " format "\n", (logger).get_name() __VA_OPT__(, ) __VA_ARGS__)
#define RCLCPP_INFO(logger, ...) STAND_IN_LOG(logger, __VA_ARGS__)
#define RCLCPP_ERROR(logger, ...) STAND_IN_LOG(logger, __VA_ARGS__)
