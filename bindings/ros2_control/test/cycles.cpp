// A controller manager and a robot on one bus: the plugin is loaded, configured and activated, reads a new state in
// each cycle and sends a command, until the robot falls silent.
//
//   cycles LIBRARY BUS
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <thread>

#include <dlfcn.h>

#include <hardware_interface/system_interface.hpp>
#include <tautline.hpp>

using namespace std::chrono_literals;
using hardware_interface::CallbackReturn;
using hardware_interface::return_type;

constexpr std::size_t joints = 2;
constexpr int cycles = 1000;
constexpr std::uint16_t robot_port = 9;
constexpr std::uint16_t state_port = 8;

struct robot_state {
    std::uint64_t time_ns;
    double position[joints];
    double velocity[joints]; // the first: number of the state
};
struct robot_command {
    double position[joints];
};

static void expect(bool is_so, const char *words) {
    if (is_so)
        return;
    std::fprintf(stderr, "cycles: not so: %s\n", words);
    std::exit(EXIT_FAILURE);
}

static std::string configuration(const char *node, const char *peer, const std::string &bus) {
    return std::string("link = 'vbus'\nbus = '") + bus + "'\nnode = '" + node + "'\n[[neighbour]]\nname = '" + peer +
           "'\n";
}

// Goes where it is told, at once, and sends its state each millisecond.
class robot {
public:
    explicit robot(const std::string &bus)
        : node_(must(tautline::node::open_text(configuration("robot", "controller", bus).c_str()))),
          port_(must(node_.sampling({.number = robot_port}))) {}
    ~robot() { stop(); }

    void start() {
        thread_ = std::thread([this] { run(); });
    }
    void stop() {
        ends_ = true;
        if (thread_.joinable())
            thread_.join();
    }
    int commands() const { return commands_; }

private:
    template <class T>
    static T must(tautline::result<T> found) {
        expect(found.has_value(), found ? "" : found.error().text());
        return *std::move(found);
    }

    void run() {
        const auto controller = must(port_.to("controller", state_port, 20s));
        std::byte buffer[1484];
        robot_state state{0, {10, 20}, {}};
        while (!ends_) {
            std::this_thread::sleep_for(1ms);
            const auto command = must(port_.read(buffer));
            if (command && command->fresh()) {
                const auto wanted = command->as<robot_command>();
                expect(wanted.has_value(), "a command has the size of two joints");
                std::copy_n(wanted->position, joints, state.position);
                ++commands_;
            }
            state.velocity[0] += 1;
            must(port_.send(controller, tautline::bytes_of(state), tautline::priority::highest));
        }
    }

    tautline::node node_;
    tautline::sampling_port port_;
    std::thread thread_;
    std::atomic<bool> ends_ = false;
    std::atomic<int> commands_ = 0;
};

static hardware_interface::HardwareInfo description(const std::string &node) {
    hardware_interface::HardwareInfo info;
    info.name = "arm";
    // Far longer than a machine that tests stands still.
    info.hardware_parameters = {{"node", node},         {"robot", "robot"},        {"robot_port", "9"},
                                {"wait_us", "5000000"}, {"timeout_us", "5000000"},  {"start_us", "20000000"}};
    for (const char *name : {"a1", "a2"})
        info.joints.push_back({name, {{"position"}}, {{"position"}, {"velocity"}}});
    return info;
}

int main(int count, char **arguments) {
    expect(count == 3, "it has two arguments");
    const std::string bus = arguments[2];
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    expect(library != nullptr, "the plugin can be loaded");
    const auto make = reinterpret_cast<hardware_interface::SystemInterface *(*)()>(dlsym(library, "stand_in_make"));
    expect(make != nullptr, "it has the class");

    robot peer(bus); // makes the bus, in whose directory the configuration then lies
    const std::string file = bus + "/controller.toml";
    std::ofstream(file) << configuration("controller", "robot", bus)
                        << "[[port]]\nname = 'state'\nnumber = 8\nkind = 'sampling'\n";
    const rclcpp_lifecycle::State none;
    const rclcpp::Time time;
    const rclcpp::Duration period;

    for (const auto &[name, value] : {std::pair{"robot_port", "nine"}, {"wait_us", "-1"}, {"node", ""}}) {
        auto wrong = description(file);
        wrong.hardware_parameters[name] = value;
        expect(std::unique_ptr<hardware_interface::SystemInterface>(make())->on_init(wrong) == CallbackReturn::ERROR,
               "a wrong parameter is refused");
    }
    auto odd = description(file);
    odd.joints[1].state_interfaces.pop_back();
    const std::unique_ptr<hardware_interface::SystemInterface> arm(make());
    expect(arm->on_init(odd) == CallbackReturn::ERROR, "joints of two kinds are refused");

    auto silent = description(file);
    silent.hardware_parameters["start_us"] = "50000";
    expect(arm->on_init(silent) == CallbackReturn::SUCCESS, "the description is taken");
    expect(arm->on_configure(none) == CallbackReturn::FAILURE, "without a state it is not configured");

    peer.start();
    expect(arm->on_init(description(file)) == CallbackReturn::SUCCESS, "the description is taken again");
    const auto states = arm->export_state_interfaces();
    auto commands = arm->export_command_interfaces();
    expect(states.size() == 4 && states[1].get_name() == "a2/position" && states[2].get_name() == "a1/velocity",
           "states are exported by kind");
    expect(commands.size() == 2 && commands[1].get_name() == "a2/position", "commands are exported");
    expect(arm->on_configure(none) == CallbackReturn::SUCCESS, "it is configured");
    expect(arm->read(time, period) == return_type::OK, "it reads while inactive");
    expect(arm->write(time, period) == return_type::OK && peer.commands() == 0, "it sends nothing while inactive");
    expect(arm->on_activate(none) == CallbackReturn::SUCCESS, "it is activated");
    expect(commands[0].get_value() == 10 && commands[1].get_value() == 20, "commands begin where the robot is");

    double number = states[2].get_value();
    for (int cycle = 0; cycle < cycles; ++cycle) {
        expect(arm->read(time, period) == return_type::OK, "a cycle reads");
        expect(states[2].get_value() > number, "each cycle has a new state");
        number = states[2].get_value();
        commands[0].set_value(100 + cycle);
        expect(arm->write(time, period) == return_type::OK, "a cycle writes");
    }
    while (states[0].get_value() != 100 + cycles - 1)
        expect(arm->read(time, period) == return_type::OK, "the robot comes to its last command");
    expect(states[1].get_value() == 20, "the other joint stays");
    expect(arm->on_deactivate(none) == CallbackReturn::SUCCESS, "it is deactivated");
    peer.stop();
    const auto silence = tautline::now();
    while (arm->read(time, period) == return_type::OK)
        expect(tautline::now() - silence < 20s, "a silent robot is an error");
    expect(arm->on_error(none) == CallbackReturn::SUCCESS, "the error is handled");
    std::printf("%d cycles, each with a new state; a silent robot is an error\n", cycles);
    return EXIT_SUCCESS;
}
