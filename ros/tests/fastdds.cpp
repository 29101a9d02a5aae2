// A participant of DDS that knows nothing of Tautline: Fast DDS 2, the default of ROS 2, by its C++ library. It hears
// joint states and writes Twist, declared as ROS 2 declares them on DDS. It writes what happens to standard output, one
// JSON object a line; each line of standard input, `[x, z]`, is written as a Twist of that linear x and angular z.
//
// Arguments: domain, topic of joint states, topic of Twist, and `reliable` or `best-effort` for both. With a further
// argument `numbers` the first topic has Float64, and its last messages from before are heard, too.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include <fastcdr/Cdr.h>
#include <fastcdr/FastBuffer.h>
#include <fastdds/dds/domain/DomainParticipant.hpp>
#include <fastdds/dds/domain/DomainParticipantFactory.hpp>
#include <fastdds/dds/publisher/DataWriter.hpp>
#include <fastdds/dds/publisher/Publisher.hpp>
#include <fastdds/dds/subscriber/DataReader.hpp>
#include <fastdds/dds/subscriber/DataReaderListener.hpp>
#include <fastdds/dds/subscriber/SampleInfo.hpp>
#include <fastdds/dds/subscriber/Subscriber.hpp>
#include <fastdds/dds/topic/TopicDataType.hpp>
#include <fastdds/dds/topic/TypeSupport.hpp>
#include <fastdds/rtps/transport/UDPv4TransportDescriptor.h>

namespace fast = eprosima::fastdds::dds;
namespace rtps = eprosima::fastrtps::rtps;
using eprosima::fastcdr::Cdr;

// Bytes of the largest message of either type here.
constexpr std::uint32_t message_bytes_max = 4096;

struct JointState {
    std::int32_t sec = 0;
    std::uint32_t nanosec = 0;
    std::string frame_id;
    std::vector<std::string> name;
    std::vector<double> position, velocity, effort;
};

struct Float64 {
    double data = 0;
};

struct Twist {
    double linear[3] = {}, angular[3] = {};
};

void put(Cdr &cdr, const JointState &it) {
    cdr << it.sec << it.nanosec << it.frame_id << it.name << it.position << it.velocity << it.effort;
}

void take(Cdr &cdr, JointState &it) {
    cdr >> it.sec >> it.nanosec >> it.frame_id >> it.name >> it.position >> it.velocity >> it.effort;
}

void put(Cdr &cdr, const Float64 &it) { cdr << it.data; }

void take(Cdr &cdr, Float64 &it) { cdr >> it.data; }

void put(Cdr &cdr, const Twist &it) {
    for (double number : it.linear)
        cdr << number;
    for (double number : it.angular)
        cdr << number;
}

void take(Cdr &cdr, Twist &it) {
    for (double &number : it.linear)
        cdr >> number;
    for (double &number : it.angular)
        cdr >> number;
}

// A type without a key, in plain CDR.
template <typename Message> class Type : public fast::TopicDataType {
public:
    explicit Type(const char *name) {
        setName(name);
        m_typeSize = message_bytes_max;
        m_isGetKeyDefined = false;
        auto_fill_type_information(false);
        auto_fill_type_object(false);
    }

    bool serialize(void *data, rtps::SerializedPayload_t *payload) override {
        eprosima::fastcdr::FastBuffer buffer(reinterpret_cast<char *>(payload->data), payload->max_size);
        Cdr cdr(buffer, Cdr::DEFAULT_ENDIAN, Cdr::DDS_CDR);
        payload->encapsulation = cdr.endianness() == Cdr::BIG_ENDIANNESS ? CDR_BE : CDR_LE;
        cdr.serialize_encapsulation();
        put(cdr, *static_cast<Message *>(data));
        payload->length = static_cast<std::uint32_t>(cdr.getSerializedDataLength());
        return true;
    }

    bool deserialize(rtps::SerializedPayload_t *payload, void *data) override {
        try {
            eprosima::fastcdr::FastBuffer buffer(reinterpret_cast<char *>(payload->data), payload->length);
            Cdr cdr(buffer, Cdr::DEFAULT_ENDIAN, Cdr::DDS_CDR);
            cdr.read_encapsulation();
            take(cdr, *static_cast<Message *>(data));
            return true;
        } catch (const eprosima::fastcdr::exception::Exception &) {
            return false;
        }
    }

    std::function<std::uint32_t()> getSerializedSizeProvider(void *) override {
        return [] { return message_bytes_max; };
    }

    void *createData() override { return new Message; }
    void deleteData(void *data) override { delete static_cast<Message *>(data); }
    bool getKey(void *, rtps::InstanceHandle_t *, bool) override { return false; }
};

std::mutex output;

void say(const std::string &line) {
    const std::lock_guard<std::mutex> held(output);
    std::cout << line << std::endl;
}

template <typename Element> std::string list(const std::vector<Element> &all) {
    std::string text;
    for (const Element &one : all) {
        text += text.empty() ? "" : ",";
        if constexpr (std::is_same_v<Element, std::string>)
            text += '"' + one + '"';
        else
            text += std::to_string(one);
    }
    return '[' + text + ']';
}

std::string shown(const JointState &it) {
    return "{\"heard\":{\"sec\":" + std::to_string(it.sec) + ",\"nanosec\":" + std::to_string(it.nanosec) +
           ",\"frame_id\":\"" + it.frame_id + "\",\"name\":" + list(it.name) + ",\"position\":" + list(it.position) +
           ",\"velocity\":" + list(it.velocity) + ",\"effort\":" + list(it.effort) + "}}";
}

std::string shown(const Float64 &it) {
    return "{\"heard\":\"number\",\"message\":{\"data\":" + std::to_string(it.data) + "}}";
}

template <typename Message> class Ear : public fast::DataReaderListener {
public:
    void on_data_available(fast::DataReader *reader) override {
        Message it;
        fast::SampleInfo info;
        while (reader->take_next_sample(&it, &info) == eprosima::fastrtps::types::ReturnCode_t::RETCODE_OK) {
            if (info.valid_data)
                say(shown(it));
        }
    }
};

int fail(const char *what) {
    std::cerr << "Fast DDS: " << what << std::endl;
    return 1;
}

int main(int count, char **words) {
    const bool has_numbers = count == 6 && std::string(words[5]) == "numbers";
    if (count != 5 && !has_numbers)
        return fail("expected a domain, two topics, a reliability, and perhaps `numbers`");
    const bool is_reliable = std::string(words[4]) == "reliable";

    // UDP alone: its shared memory stays when a process is killed.
    fast::DomainParticipantQos quality;
    quality.transport().use_builtin_transports = false;
    quality.transport().user_transports.push_back(
        std::make_shared<eprosima::fastdds::rtps::UDPv4TransportDescriptor>());
    auto *factory = fast::DomainParticipantFactory::get_instance();
    auto *participant = factory->create_participant(std::atoi(words[1]), quality);
    if (participant == nullptr)
        return fail("no participant");

    fast::TypeSupport states(new Type<JointState>("sensor_msgs::msg::dds_::JointState_"));
    if (has_numbers)
        states.reset(new Type<Float64>("std_msgs::msg::dds_::Float64_"));
    fast::TypeSupport commands(new Type<Twist>("geometry_msgs::msg::dds_::Twist_"));
    states.register_type(participant);
    commands.register_type(participant);
    auto *state_topic = participant->create_topic(words[2], states.get_type_name(), fast::TOPIC_QOS_DEFAULT);
    auto *command_topic = participant->create_topic(words[3], commands.get_type_name(), fast::TOPIC_QOS_DEFAULT);
    auto *subscriber = participant->create_subscriber(fast::SUBSCRIBER_QOS_DEFAULT);
    auto *publisher = participant->create_publisher(fast::PUBLISHER_QOS_DEFAULT);
    if (!state_topic || !command_topic || !subscriber || !publisher)
        return fail("no topics");

    const auto reliability =
        is_reliable ? fast::RELIABLE_RELIABILITY_QOS : fast::BEST_EFFORT_RELIABILITY_QOS;
    Ear<JointState> state_ear;
    Ear<Float64> number_ear;
    fast::DataReaderListener *ear = &state_ear;
    fast::DataReaderQos wanted;
    if (has_numbers) {
        ear = &number_ear;
        wanted.durability().kind = fast::TRANSIENT_LOCAL_DURABILITY_QOS;
    }
    wanted.reliability().kind = reliability;
    wanted.history().kind = fast::KEEP_LAST_HISTORY_QOS;
    wanted.history().depth = 1000;
    fast::DataWriterQos offered;
    offered.reliability().kind = reliability;
    offered.history().kind = fast::KEEP_LAST_HISTORY_QOS;
    offered.history().depth = 100;
    auto *reader = subscriber->create_datareader(state_topic, wanted, ear);
    auto *writer = publisher->create_datawriter(command_topic, offered);
    if (!reader || !writer)
        return fail("no reader or no writer");
    say("{\"opened\":true}");

    std::string line;
    while (std::getline(std::cin, line)) {
        Twist twist;
        if (std::sscanf(line.c_str(), "[%lf,%lf]", &twist.linear[0], &twist.angular[2]) != 2)
            return fail("expected [x, z]");
        say(writer->write(&twist) ? "{\"wrote\":true}" : "{\"wrote\":false}");
    }
    participant->delete_contained_entities();
    factory->delete_participant(participant);
    return 0;
}
