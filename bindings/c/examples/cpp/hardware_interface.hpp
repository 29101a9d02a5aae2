// A robot arm behind Tautline as a hardware interface of ros2_control sees it: joints with a state and a command. The
// part that needs no header of ROS; docs/how-to/ros2-control.md has the class of ros2_control around it.
//
// The controller manager calls read() and write() from its real-time loop. Both return at once: reading is a look into
// the port's memory, sending writes into that of the arm. Nothing is allocated after open().
#ifndef HARDWARE_INTERFACE_HPP
#define HARDWARE_INTERFACE_HPP

#include <array>
#include <optional>

#include <tautline.hpp>

// Joints of the arm.
constexpr std::size_t joints = 6;

// State of the arm, in the sampling port of the hardware interface. `taut types --c` prints it from a configuration.
struct joint_state {
    std::uint64_t time_ns;
    std::array<double, joints> position;
    std::array<double, joints> velocity;
};
static_assert(sizeof(joint_state) == 104);

// Command to the arm, in its sampling port.
struct joint_command {
    std::array<double, joints> position;
};
static_assert(sizeof(joint_command) == 48);

// Result of one look at the arm.
enum class look { value, stale, failed };

// The ports of the hardware interface.
class arm_ports {
public:
    // Opens the node of a configuration file with the port `state`, and finds the arm's port. Not for the real-time
    // loop. An empty text if all is well, otherwise what happened and what to do.
    std::string open(const char *configuration, const char *arm, std::uint16_t command_port, tautline::deadline until) {
        auto opened = tautline::node::open(configuration);
        if (!opened)
            return opened.error().text();
        node_ = *std::move(opened);
        auto state = node_.sampling({.name = "state"});
        if (!state)
            return state.error().text();
        state_ = *std::move(state);
        auto found = state_.to(arm, command_port, until);
        if (!found)
            return found.error().text();
        arm_ = *found;
        return {};
    }

    // The body of read(): the arm's last state. Older than its validity it is stale, and must not be acted upon.
    look read(joint_state &into) noexcept {
        const auto seen = state_.read(buffer_);
        if (!seen)
            return look::failed;
        if (!*seen || !(*seen)->valid())
            return look::stale;
        const auto state = (*seen)->as<joint_state>();
        if (!state)
            return look::failed;
        into = *state;
        return look::value;
    }

    // The body of write(): the command goes into the arm's port, and replaces the one before. False if it did not.
    bool write(const joint_command &command) noexcept {
        return arm_ && state_.send(*arm_, tautline::bytes_of(command), tautline::priority::highest).has_value();
    }

    void close() noexcept {
        arm_.reset();
        state_ = {};
        node_ = {};
    }

private:
    tautline::node node_;
    tautline::sampling_port state_;
    std::optional<tautline::destination> arm_;
    std::array<std::byte, 1484> buffer_{};
};

#endif
