-- SPDX-License-Identifier: Apache-2.0 OR MIT
--
-- Tautline for Wireshark and tshark: the header in both forms, fragments, bundles, loss, grants and reports, and the
-- messages of a bus as `taut capture` writes them. docs/reference/wire.md defines the format, docs/reference/capture.md the head of a message
-- of a bus.
--
-- Install: copy this file into the directory of personal Lua plugins (Help, About, Folders), or name it:
--   tshark -X lua_script:contrib/wireshark/tautline.lua -r FILE
--
-- Only arithmetic is used on numbers, because versions of Wireshark have different libraries for bits.

local VERSION = 1
local HEADER_BYTES = 16
local PORT_MAX = 4095
local FRAGMENT_BYTES = 1408
local FRAGMENT_COUNT_MAX = 47
local MESSAGE_BYTES_MAX = 65536
local WHOLE_BYTES_MAX = 1484
local UDP_PORT_BASE = 21569
local ETHERTYPE_DEFAULT = 0x88b5
local SMOOTHER_PORT = 4030
local SEQUENCES = 2 ^ 32
local LOSS_WINDOW = 64
local RESTART_BEHIND = 1024
local BUS_HEAD_BYTES = 14
local TRAILER_BYTES = 36

local tautline = Proto("tautline", "Tautline")
local bus = Proto("tautline_bus", "Tautline V-Bus")

tautline.prefs.ethertype = Pref.uint("EtherType", ETHERTYPE_DEFAULT, "EtherType of the Ethernet form")

local yes_no = { "yes", "no" }
local f = {
    destination = ProtoField.uint16("tautline.destination", "Destination port"),
    length = ProtoField.uint16("tautline.length", "Length"),
    priority = ProtoField.uint8("tautline.priority", "Priority"),
    flags = ProtoField.uint8("tautline.flags", "Flags", base.HEX),
    bundle = ProtoField.bool("tautline.flags.bundle", "Bundle", 8, yes_no, 0x01),
    authenticated = ProtoField.bool("tautline.flags.authenticated", "Authenticated", 8, yes_no, 0x02),
    critical = ProtoField.uint8("tautline.flags.critical", "Unknown critical flags", base.HEX, nil, 0x0c),
    advisory = ProtoField.uint8("tautline.flags.advisory", "Advisory flags", base.HEX, nil, 0xf0),
    version = ProtoField.uint8("tautline.version", "Version"),
    fragment_index = ProtoField.uint8("tautline.fragment_index", "Fragment index"),
    source = ProtoField.uint16("tautline.source", "Source port"),
    fragment_count = ProtoField.uint8("tautline.fragment_count", "Fragment count"),
    type_byte = ProtoField.uint8("tautline.type_byte", "Type byte"),
    sequence = ProtoField.uint32("tautline.sequence", "Sequence"),
    payload = ProtoField.bytes("tautline.payload", "Payload"),
    padding = ProtoField.bytes("tautline.padding", "Padding"),
    port = ProtoField.uint16("tautline.port", "Source or destination port"),
    -- Trailer of an authenticated frame. Its tag is not checked: that needs the nodes' keys.
    encrypted = ProtoField.bool("tautline.authentication.encrypted", "Encrypted", 8, yes_no, 0x01),
    key_epoch = ProtoField.uint16("tautline.authentication.epoch", "Epoch of the key"),
    sender_run = ProtoField.bytes("tautline.authentication.run", "Run of the sender"),
    time = ProtoField.absolute_time("tautline.authentication.time", "Time of the sender", base.UTC),
    tag = ProtoField.bytes("tautline.authentication.tag", "Tag (not checked)"),
    hidden = ProtoField.bytes("tautline.authentication.hidden", "Encrypted payload"),
    -- Fragments.
    message = ProtoField.uint32("tautline.message", "Message"),
    offset = ProtoField.uint32("tautline.offset", "Offset in the message"),
    whole_in = ProtoField.framenum("tautline.whole_in", "Message is whole in frame"),
    fragment_frame = ProtoField.framenum("tautline.fragment_frame", "Fragment in frame"),
    whole_length = ProtoField.uint32("tautline.whole_length", "Length of the message"),
    whole_payload = ProtoField.bytes("tautline.whole_payload", "Message"),
    -- Bundles.
    bundle_count = ProtoField.uint16("tautline.bundle.count", "Messages in the bundle"),
    bundle_length = ProtoField.uint16("tautline.bundle.length", "Length of the message"),
    bundle_message = ProtoField.bytes("tautline.bundle.message", "Message of the bundle"),
    -- Loss.
    case = ProtoField.string("tautline.loss.case", "Case"),
    expected = ProtoField.uint32("tautline.loss.expected", "Expected so far"),
    received = ProtoField.uint32("tautline.loss.received", "Received so far"),
    lost = ProtoField.uint32("tautline.loss.lost", "Lost so far"),
    missing = ProtoField.uint32("tautline.loss.missing", "Missing before this frame"),
    duplicates = ProtoField.uint32("tautline.loss.duplicates", "Duplicates so far"),
    restarts = ProtoField.uint32("tautline.loss.restarts", "Restarts so far"),
    -- Grants and reports.
    kind = ProtoField.uint8("tautline.smoother.kind", "Kind", base.DEC, { [1] = "grant", [2] = "report" }),
    smoother_version = ProtoField.uint8("tautline.smoother.version", "Version"),
    burst = ProtoField.uint16("tautline.smoother.burst", "Bytes that may leave at once"),
    epoch = ProtoField.uint32("tautline.smoother.epoch", "Epoch"),
    number = ProtoField.uint32("tautline.smoother.number", "Number"),
    rate = ProtoField.uint64("tautline.smoother.rate", "Rate of other traffic (bit/s)"),
    run = ProtoField.uint32("tautline.smoother.run", "Run of the sender"),
    backlog = ProtoField.uint32("tautline.smoother.backlog", "Bytes that wait"),
    held = ProtoField.uint64("tautline.smoother.held", "Time from grant to report (ns)"),
    other_bytes = ProtoField.uint64("tautline.smoother.other_bytes", "Bytes of other traffic"),
    real_time_bytes = ProtoField.uint64("tautline.smoother.real_time_bytes", "Bytes of real-time traffic"),
}
local fields = {}
for _, field in pairs(f) do
    fields[#fields + 1] = field
end
tautline.fields = fields

local b = {
    version = ProtoField.uint8("tautline_bus.version", "Version"),
    kind = ProtoField.uint8("tautline_bus.kind", "Port", base.DEC, { [1] = "queuing", [2] = "sampling" }),
    priority = ProtoField.uint8("tautline_bus.priority", "Priority"),
    destination = ProtoField.uint16("tautline_bus.destination", "Destination port"),
    source = ProtoField.uint16("tautline_bus.source", "Source port"),
    sequence = ProtoField.uint32("tautline_bus.sequence", "Sequence"),
    from = ProtoField.string("tautline_bus.from", "Sending node"),
    to = ProtoField.string("tautline_bus.to", "Receiving node"),
    payload = ProtoField.bytes("tautline_bus.payload", "Payload"),
}
bus.fields = { b.version, b.kind, b.priority, b.destination, b.source, b.sequence, b.from, b.to, b.payload }

local malformed = ProtoExpert.new("tautline.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR)
local loss = ProtoExpert.new("tautline.loss", "Loss", expert.group.SEQUENCE, expert.severity.WARN)
tautline.experts = { malformed, loss }

-- Flows and messages of the file, and the figures of each frame: a frame is looked at again whenever it is shown, and
-- must say the same.
local flows, figures, messages, wholes

function tautline.init()
    flows, figures, messages, wholes = {}, {}, {}, {}
end

local function is_authenticated(h)
    return h.flags % 4 >= 2
end

-- First rule of docs/reference/wire.md that a header breaks; nothing for a good one.
local function broken_rule(h, available, udp_destination)
    if h.version ~= VERSION then return "unknown_version" end
    if h.flags % 16 >= 4 then return "unknown_flags" end
    if h.destination == 0 or h.destination > PORT_MAX or h.source == 0 or h.source > PORT_MAX then
        return "invalid_port"
    end
    if h.priority > 7 then return "invalid_priority" end
    if h.length > available then return "length_beyond_frame" end
    if h.count == 0 or h.count > FRAGMENT_COUNT_MAX or h.index >= h.count then return "invalid_fragment" end
    local length = h.length
    if is_authenticated(h) then
        -- The trailer comes on top of a fragment.
        length = length - TRAILER_BYTES
    end
    if h.count == 1 then
        if h.length > WHOLE_BYTES_MAX then return "invalid_fragment" end
    elseif h.flags % 2 == 1 then
        return "invalid_fragment"
    elseif h.index + 1 < h.count then
        if length ~= FRAGMENT_BYTES then return "invalid_fragment" end
    elseif length <= 0 or length > FRAGMENT_BYTES
        or h.index * FRAGMENT_BYTES + length > MESSAGE_BYTES_MAX then
        return "invalid_fragment"
    end
    if udp_destination and udp_destination - UDP_PORT_BASE ~= h.destination then return "port_mismatch" end
    return nil
end

local function begin_run(flow, sequence)
    flow.highest, flow.span, flow.seen = sequence, 1, { [sequence] = true }
    flow.expected, flow.received = flow.expected + 1, flow.received + 1
end

-- Counts a frame in its flow, as the table in docs/reference/wire.md says.
local function count(flow, sequence)
    local before = flow.expected - flow.received
    local case, missing = "duplicate", 0
    local ahead = (sequence - (flow.highest or 0)) % SEQUENCES
    local behind = ((flow.highest or 0) - sequence) % SEQUENCES
    if not flow.highest then
        case = "first"
        begin_run(flow, sequence)
    elseif ahead >= 1 and ahead < SEQUENCES / 2 then
        case = "advance"
        missing = ahead - 1
        if ahead >= LOSS_WINDOW then
            flow.seen = {}
        else
            for step = 1, ahead do
                flow.seen[(flow.highest + step - LOSS_WINDOW) % SEQUENCES] = nil
            end
        end
        flow.seen[sequence] = true
        flow.highest = sequence
        flow.span = math.min(LOSS_WINDOW, flow.span + ahead)
        flow.expected, flow.received = flow.expected + ahead, flow.received + 1
    elseif behind < LOSS_WINDOW and not flow.seen[sequence] then
        case = "reordered"
        flow.seen[sequence] = true
        flow.received = flow.received + 1
        if behind >= flow.span then
            flow.expected = flow.expected + behind + 1 - flow.span
            flow.span = behind + 1
        end
    elseif sequence == 0 or behind > RESTART_BEHIND then
        case = "restart"
        flow.restarts = flow.restarts + 1
        begin_run(flow, sequence)
    else
        flow.duplicates = flow.duplicates + 1
    end
    return {
        case = case,
        missing = missing,
        expected = flow.expected,
        received = flow.received,
        lost = math.max(0, flow.expected - flow.received),
        grew = flow.expected - flow.received > before,
        duplicates = flow.duplicates,
        restarts = flow.restarts,
    }
end

local function flow_key(pinfo, h)
    return string.format("%s|%d|%s|%d", pinfo.src, h.source, pinfo.dst, h.destination)
end

-- One capture of both ends of a cable has each frame twice; each interface counts for itself.
local interface_id = Field.new("frame.interface_id")

local function show_loss(pinfo, tree, h)
    local found = figures[pinfo.number]
    if not found then
        local interface = interface_id()
        local key = flow_key(pinfo, h) .. "|" .. tostring(interface and interface.value or 0)
        flows[key] = flows[key] or { expected = 0, received = 0, duplicates = 0, restarts = 0 }
        found = count(flows[key], h.sequence)
        figures[pinfo.number] = found
    end
    local branch = tree:add(tautline, "Loss of the flow up to here")
    branch:set_generated()
    branch:add(f.case, found.case)
    branch:add(f.expected, found.expected)
    branch:add(f.received, found.received)
    branch:add(f.lost, found.lost)
    if found.missing > 0 then
        branch:add(f.missing, found.missing)
    end
    branch:add(f.duplicates, found.duplicates)
    branch:add(f.restarts, found.restarts)
    branch:append_text(string.format(": %d lost, %s", found.lost, found.case))
    if found.case ~= "first" and (found.missing > 0 or found.case ~= "advance") then
        local what = found.case
        if found.missing > 0 then
            what = string.format("%d frames missing before this one", found.missing)
        end
        tree:add_proto_expert_info(loss, what)
    end
end

-- A fragment: where it belongs, and the whole message in the frame that completes it.
local function show_fragment(pinfo, tree, h, payload)
    local identity = (h.sequence - h.index) % SEQUENCES
    tree:add(f.message, identity):set_generated()
    tree:add(f.offset, h.index * FRAGMENT_BYTES):set_generated()
    local interface = interface_id()
    local key = string.format("%s|%d|%d|%s", flow_key(pinfo, h), h.priority, identity,
        tostring(interface and interface.value or 0))
    local message = messages[key]
    if not pinfo.visited then
        -- A sender that begins again uses the same numbers for another message.
        if not message or message.count ~= h.count or message.whole then
            if not (message and message.whole and message.parts[h.index]) then
                message = { count = h.count, parts = {}, frames = {}, have = 0 }
                messages[key] = message
            end
        end
        if not message.parts[h.index] then
            message.parts[h.index] = payload:bytes()
            message.frames[h.index] = pinfo.number
            message.have = message.have + 1
            if message.have == message.count then
                message.whole = pinfo.number
            end
            wholes[pinfo.number] = message
        end
    end
    message = wholes[pinfo.number] or message
    if not message or not message.whole then
        return nil
    end
    if message.whole ~= pinfo.number then
        tree:add(f.whole_in, message.whole):set_generated()
        return nil
    end
    local bytes = ByteArray.new()
    for index = 0, message.count - 1 do
        bytes:append(message.parts[index])
    end
    local whole = bytes:tvb("Tautline message")
    local branch = tree:add(tautline, whole(), string.format("Message of %d bytes in %d fragments", whole:len(),
        message.count))
    branch:add(f.whole_length, whole:len()):set_generated()
    for index = 0, message.count - 1 do
        branch:add(f.fragment_frame, message.frames[index]):set_generated()
    end
    branch:add(f.whole_payload, whole())
    return whole
end

local function show_bundle(tree, payload)
    local at, number = 0, 0
    local branch = tree:add(tautline, payload(), "Bundle")
    while at + 2 <= payload:len() do
        local length = payload(at, 2):uint()
        if at + 2 + length > payload:len() then
            break
        end
        number = number + 1
        branch:add(f.bundle_length, payload(at, 2))
        if length > 0 then
            branch:add(f.bundle_message, payload(at + 2, length))
        end
        at = at + 2 + length
    end
    branch:add(f.bundle_count, number):set_generated()
    branch:append_text(string.format(" of %d messages", number))
    if number == 0 or at ~= payload:len() then
        branch:add_proto_expert_info(malformed, "bad_bundles")
    end
    return number
end

local function show_grant(branch, payload)
    branch:add(f.burst, payload(2, 2))
    branch:add(f.epoch, payload(4, 4))
    branch:add(f.number, payload(8, 4))
    branch:add(f.rate, payload(16, 8))
    return "grant " .. tostring(payload(16, 8):uint64()) .. " bit/s"
end

local function show_report(branch, payload)
    branch:add(f.epoch, payload(4, 4))
    branch:add(f.number, payload(8, 4))
    branch:add(f.run, payload(12, 4))
    branch:add(f.backlog, payload(16, 4))
    branch:add(f.held, payload(24, 8))
    branch:add(f.other_bytes, payload(32, 8))
    branch:add(f.real_time_bytes, payload(40, 8))
    return "report, " .. payload(16, 4):uint() .. " B wait"
end

-- Message of the smoother, and what to say of it in the list.
local function show_smoother(tree, payload)
    local branch = tree:add(tautline, payload(), "Smoother")
    local wrong
    if payload:len() < 2 then
        wrong = "truncated"
    else
        branch:add(f.kind, payload(0, 1))
        branch:add(f.smoother_version, payload(1, 1))
        local kind = payload(0, 1):uint()
        if payload(1, 1):uint() ~= 1 then
            wrong = "unknown_version"
        elseif kind ~= 1 and kind ~= 2 then
            wrong = "unknown_kind"
        elseif payload:len() < (kind == 1 and 24 or 48) then
            wrong = "truncated"
        else
            return kind == 1 and show_grant(branch, payload) or show_report(branch, payload)
        end
    end
    branch:add_proto_expert_info(malformed, wrong)
    return wrong
end

local function read_header(tvb)
    return {
        destination = tvb(0, 2):uint(),
        length = tvb(2, 2):uint(),
        priority = tvb(4, 1):uint(),
        flags = tvb(5, 1):uint(),
        version = tvb(6, 1):uint(),
        index = tvb(7, 1):uint(),
        source = tvb(8, 2):uint(),
        count = tvb(10, 1):uint(),
        sequence = tvb(12, 4):uint(),
    }
end

local function show_header(tree, tvb)
    tree:add(f.destination, tvb(0, 2))
    tree:add(f.length, tvb(2, 2))
    tree:add(f.priority, tvb(4, 1))
    local flags = tree:add(f.flags, tvb(5, 1))
    flags:add(f.bundle, tvb(5, 1))
    flags:add(f.authenticated, tvb(5, 1))
    flags:add(f.critical, tvb(5, 1))
    flags:add(f.advisory, tvb(5, 1))
    tree:add(f.version, tvb(6, 1))
    tree:add(f.fragment_index, tvb(7, 1))
    tree:add(f.source, tvb(8, 2))
    tree:add(f.fragment_count, tvb(10, 1))
    tree:add(f.type_byte, tvb(11, 1))
    tree:add(f.sequence, tvb(12, 4))
    for _, at in ipairs({ 0, 8 }) do
        local either = tree:add(f.port, tvb(at, 2))
        either:set_hidden()
    end
end

-- The payload without protection, by its kind, and a few words on it for the list.
local function show_message(pinfo, tree, h, payload)
    if h.flags % 2 == 1 then
        return string.format(" bundle of %d", show_bundle(tree, payload))
    end
    if payload:len() > 0 then
        tree:add(f.payload, payload())
    end
    if h.count > 1 then
        local whole = show_fragment(pinfo, tree, h, payload)
        local text = string.format(" fragment %d of %d", h.index + 1, h.count)
        return whole and text .. string.format(", message of %d B is whole", whole:len()) or text
    end
    if h.destination == SMOOTHER_PORT and h.source == SMOOTHER_PORT and h.priority == 7 then
        return " " .. show_smoother(tree, payload)
    end
    return ""
end

-- The payload, and a few words on it for the list. Of an encrypted one nothing can be said.
local function show_payload(pinfo, tree, h, payload)
    if not is_authenticated(h) then
        return show_message(pinfo, tree, h, payload)
    end
    local at = payload:len() - TRAILER_BYTES
    if at < 0 then
        tree:add_proto_expert_info(malformed, "cut")
        return " authenticated, cut"
    end
    local branch = tree:add(tautline, payload(at, TRAILER_BYTES), "Authentication")
    branch:add(f.encrypted, payload(at, 1))
    branch:add(f.key_epoch, payload(at + 2, 2))
    branch:add(f.sender_run, payload(at + 4, 8))
    local time = payload(at + 12, 8):uint64()
    branch:add(f.time, payload(at + 12, 8), NSTime((time / 1000000000):tonumber(), (time % 1000000000):tonumber()))
    branch:add(f.tag, payload(at + 20, 16))
    if payload(at, 1):uint() % 2 == 0 then
        local rest = at > 0 and show_message(pinfo, tree, h, payload(0, at):tvb()) or ""
        return " authenticated" .. rest
    end
    if at > 0 then
        tree:add(f.hidden, payload(0, at))
    end
    local part = h.count > 1 and string.format(" fragment %d of %d", h.index + 1, h.count) or ""
    return " encrypted" .. part
end

-- Shows the header of a frame, and reads it; nothing if it breaks a rule, which is then shown.
local function begin_frame(tvb, pinfo, root, udp_destination)
    pinfo.cols.protocol = "Tautline"
    local tree = root:add(tautline, tvb(), "Tautline")
    local h, wrong = nil, "truncated"
    if tvb:len() >= HEADER_BYTES then
        h = read_header(tvb)
        show_header(tree, tvb)
        wrong = broken_rule(h, tvb:reported_len() - HEADER_BYTES, udp_destination)
    end
    if not wrong then return tree, h end
    pinfo.cols.info = "malformed: " .. wrong
    tree:add_proto_expert_info(malformed, wrong)
end

local function dissect(tvb, pinfo, root, udp_destination)
    local tree, h = begin_frame(tvb, pinfo, root, udp_destination)
    if not tree then return tvb:len() end
    local info = string.format("%d > %d priority %d sequence %d %d B", h.source, h.destination, h.priority, h.sequence,
        h.length)
    show_loss(pinfo, tree, h)
    -- A capture may have cut the frame.
    local kept = math.min(h.length, tvb:len() - HEADER_BYTES)
    if kept == h.length and h.length > 0 then
        info = info .. show_payload(pinfo, tree, h, tvb(HEADER_BYTES, h.length):tvb())
    elseif kept > 0 then
        tree:add(f.payload, tvb(HEADER_BYTES, kept))
    end
    if tvb:len() > HEADER_BYTES + h.length then
        tree:add(f.padding, tvb(HEADER_BYTES + h.length))
    end
    tree:append_text(string.format(", port %d to port %d", h.source, h.destination))
    pinfo.cols.info = info
    return tvb:len()
end

function tautline.dissector(tvb, pinfo, root)
    local is_udp = pinfo.port_type == 3 and pinfo.dst_port ~= 0
    if is_udp and (pinfo.dst_port <= UDP_PORT_BASE or pinfo.dst_port > UDP_PORT_BASE + PORT_MAX) then
        -- From one of our UDP ports to another program's.
        return 0
    end
    return dissect(tvb, pinfo, root, is_udp and pinfo.dst_port or nil)
end

function bus.dissector(tvb, pinfo, root)
    pinfo.cols.protocol = "V-Bus"
    local tree = root:add(bus, tvb())
    if tvb:len() < BUS_HEAD_BYTES or tvb(0, 1):uint() ~= 1 then
        pinfo.cols.info = "not a message of this version"
        return tvb:len()
    end
    local first, second = tvb(12, 1):uint(), tvb(13, 1):uint()
    local payload = BUS_HEAD_BYTES + first + second
    if payload > tvb:len() then
        pinfo.cols.info = "names beyond the end"
        return tvb:len()
    end
    tree:add(b.version, tvb(0, 1))
    tree:add(b.kind, tvb(1, 1))
    tree:add(b.priority, tvb(2, 1))
    tree:add(b.destination, tvb(4, 2))
    tree:add(b.source, tvb(6, 2))
    tree:add(b.sequence, tvb(8, 4))
    tree:add(b.from, tvb(BUS_HEAD_BYTES, first))
    tree:add(b.to, tvb(BUS_HEAD_BYTES + first, second))
    if payload < tvb:len() then
        tree:add(b.payload, tvb(payload))
    end
    local from = tvb(BUS_HEAD_BYTES, first):string() .. "." .. tvb(6, 2):uint()
    local to = tvb(BUS_HEAD_BYTES + first, second):string() .. "." .. tvb(4, 2):uint()
    pinfo.cols.src = from
    pinfo.cols.dst = to
    local priority, sequence = tvb(2, 1):uint(), tvb(8, 4):uint()
    pinfo.cols.info = string.format("%s > %s priority %d sequence %d %d B", from, to, priority, sequence,
        tvb:len() - payload)
    return tvb:len()
end

DissectorTable.get("wtap_encap"):add(wtap.USER0, bus)
DissectorTable.get("udp.port"):add(string.format("%d-%d", UDP_PORT_BASE + 1, UDP_PORT_BASE + PORT_MAX), tautline)

local ethertypes = DissectorTable.get("ethertype")
local registered = ETHERTYPE_DEFAULT
ethertypes:add(registered, tautline)

function tautline.prefs_changed()
    if tautline.prefs.ethertype ~= registered then
        ethertypes:remove(registered, tautline)
        registered = tautline.prefs.ethertype
        ethertypes:add(registered, tautline)
    end
end
