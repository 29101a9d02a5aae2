//! The craft in MAVLink's words: messages in, messages out, no network and no clock.

use mavlink::dialects::common::*;
use mavlink::types::CharArray;
use tautline_flight::control::Tuning;
use tautline_flight::flight::Flight;
use tautline_flight::message::{Mission, Order, Phase, Reply, WAYPOINTS_MAX};
use tautline_flight::vector::{Vector, vector};
use tautline_flight::world::{STEP_SECONDS, Scene};

/// Number of this vehicle, and of its flight controller.
pub(super) const SYSTEM: u8 = 1;
pub(super) const COMPONENT: u8 = 1;
/// Place of the start, in degrees: a meadow; any would do.
const HOME_LATITUDE: f64 = 47.4;
const HOME_LONGITUDE: f64 = 8.5;
/// Metres for a degree of latitude.
const DEGREE_METRES: f64 = 111_319.49;
/// MAVLink's unit of latitude and longitude.
const DEGREE_PARTS: f64 = 1e7;
/// Steps of the world between two messages of each kind: once a second, ten and twenty times.
const SLOW_STEPS: u64 = 4_000;
const POSITION_STEPS: u64 = 400;
const ATTITUDE_STEPS: u64 = 200;
/// Steps in which the navigator has certainly seen an order.
const ORDER_STEPS: u64 = 80;
/// Lowest and highest take-off, and slowest and fastest flight, that a ground station may ask for.
const HEIGHTS: (f32, f32) = (1.0, 30.0);
const SPEEDS: (f32, f32) = (0.5, 8.0);

/// A parameter: its name, its limits, and its place.
struct Parameter {
    name: &'static str,
    limits: (f32, f32),
    place: fn(&mut Tuning) -> &mut f64,
}

const PARAMETERS: [Parameter; 2] = [
    Parameter {
        name: "TKOFF_ALT",
        limits: HEIGHTS,
        place: |tuning| &mut tuning.take_off_height,
    },
    Parameter {
        name: "CRUISE_SPD",
        limits: SPEEDS,
        place: |tuning| &mut tuning.cruise,
    },
];

/// A mission on its way here.
struct Upload {
    count: u16,
    items: Vec<MISSION_ITEM_INT_DATA>,
}

/// A craft that speaks MAVLink.
pub(super) struct Vehicle {
    pub(super) flight: Flight,
    items: Vec<MISSION_ITEM_INT_DATA>,
    upload: Option<Upload>,
    /// Ground station that answers are addressed to.
    station: (u8, u8),
    /// Step up to which everything periodic has been told.
    told: u64,
}

impl Vehicle {
    /// A craft on the ground, without a mission.
    pub(super) fn new(seed: u64) -> Vehicle {
        let scene = Scene {
            seed,
            ..Scene::default()
        };
        Vehicle {
            flight: Flight::new(scene, Mission::default()),
            items: Vec::new(),
            upload: None,
            station: (0, 0),
            told: 0,
        }
    }

    /// Replies to a message from a station.
    pub(super) fn hear(&mut self, station: (u8, u8), message: &MavMessage) -> Vec<MavMessage> {
        self.station = station;
        match message {
            MavMessage::COMMAND_LONG(command) if is_mine(command.target_system) => {
                let result = self.command(command);
                vec![MavMessage::COMMAND_ACK(COMMAND_ACK_DATA {
                    command: command.command,
                    result,
                })]
            }
            MavMessage::MISSION_COUNT(count) if is_mine(count.target_system) => {
                self.begin_upload(count.count)
            }
            MavMessage::MISSION_ITEM_INT(item) if is_mine(item.target_system) => {
                self.take_item(item)
            }
            MavMessage::MISSION_CLEAR_ALL(clear) if is_mine(clear.target_system) => {
                self.begin_upload(0)
            }
            MavMessage::MISSION_REQUEST_LIST(list) if is_mine(list.target_system) => {
                vec![MavMessage::MISSION_COUNT(MISSION_COUNT_DATA {
                    count: self.items.len() as u16,
                    target_system: self.station.0,
                    target_component: self.station.1,
                })]
            }
            MavMessage::MISSION_REQUEST_INT(request) if is_mine(request.target_system) => {
                let item = self.items.get(usize::from(request.seq));
                item.map_or_else(
                    || vec![self.mission_ack(MavMissionResult::MAV_MISSION_INVALID_SEQUENCE)],
                    |item| vec![MavMessage::MISSION_ITEM_INT(item.clone())],
                )
            }
            MavMessage::PARAM_REQUEST_LIST(list) if is_mine(list.target_system) => (0..PARAMETERS
                .len())
                .map(|index| self.parameter(index))
                .collect(),
            MavMessage::PARAM_REQUEST_READ(read) if is_mine(read.target_system) => {
                let named = || index_of(&read.param_id);
                let index = usize::try_from(read.param_index).ok().or_else(named);
                let index = index.filter(|index| *index < PARAMETERS.len());
                index
                    .map(|index| self.parameter(index))
                    .into_iter()
                    .collect()
            }
            MavMessage::PARAM_SET(set) if is_mine(set.target_system) => self.set_parameter(set),
            _ => Vec::new(),
        }
    }

    fn command(&mut self, command: &COMMAND_LONG_DATA) -> MavResult {
        let order = match command.command {
            MavCmd::MAV_CMD_COMPONENT_ARM_DISARM if command.param1 > 0.5 => Order::Arm,
            MavCmd::MAV_CMD_COMPONENT_ARM_DISARM => Order::Disarm,
            MavCmd::MAV_CMD_NAV_TAKEOFF => {
                let (least, most) = HEIGHTS;
                if !(least..=most).contains(&command.param7) {
                    return MavResult::MAV_RESULT_DENIED;
                }
                self.flight.tuning.take_off_height = f64::from(command.param7);
                Order::TakeOff
            }
            MavCmd::MAV_CMD_NAV_LAND => Order::Land,
            MavCmd::MAV_CMD_MISSION_START => Order::Mission,
            MavCmd::MAV_CMD_NAV_LOITER_UNLIM => Order::Hold,
            _ => return MavResult::MAV_RESULT_UNSUPPORTED,
        };
        match self.order(order) {
            true => MavResult::MAV_RESULT_ACCEPTED,
            false => MavResult::MAV_RESULT_TEMPORARILY_REJECTED,
        }
    }

    /// Gives the navigator an order, and lets it answer.
    fn order(&mut self, order: Order) -> bool {
        let companion = &mut self.flight.companion;
        companion.order_count = companion.order_count.wrapping_add(1);
        companion.order = order;
        let accepted = Reply {
            order_count: companion.order_count,
            is_accepted: true,
        };
        (0..ORDER_STEPS).for_each(|_| self.flight.step());
        self.flight.status.reply == accepted
    }

    fn begin_upload(&mut self, count: u16) -> Vec<MavMessage> {
        if usize::from(count) > WAYPOINTS_MAX {
            return vec![self.mission_ack(MavMissionResult::MAV_MISSION_NO_SPACE)];
        }
        let items = Vec::with_capacity(usize::from(count));
        self.upload = Some(Upload { count, items });
        self.continue_upload()
    }

    /// Asks for the next item, or takes the mission if there is none.
    fn continue_upload(&mut self) -> Vec<MavMessage> {
        match self.upload.take() {
            None => Vec::new(),
            Some(upload) if upload.items.len() < usize::from(upload.count) => {
                let seq = upload.items.len() as u16;
                self.upload = Some(upload);
                vec![MavMessage::MISSION_REQUEST_INT(MISSION_REQUEST_INT_DATA {
                    seq,
                    target_system: self.station.0,
                    target_component: self.station.1,
                })]
            }
            Some(upload) => {
                let points: Vec<Vector> = upload.items.iter().map(place).collect();
                self.items = upload.items;
                self.flight.mission = Mission {
                    count: self.flight.mission.count.wrapping_add(1),
                    ..Mission::new(&points)
                };
                vec![self.mission_ack(MavMissionResult::MAV_MISSION_ACCEPTED)]
            }
        }
    }

    fn take_item(&mut self, item: &MISSION_ITEM_INT_DATA) -> Vec<MavMessage> {
        let Some(upload) = &mut self.upload else {
            return vec![self.mission_ack(MavMissionResult::MAV_MISSION_ERROR)];
        };
        // One that was asked for twice.
        if usize::from(item.seq) != upload.items.len() {
            return self.continue_upload();
        }
        let refused = if item.command != MavCmd::MAV_CMD_NAV_WAYPOINT {
            Some(MavMissionResult::MAV_MISSION_UNSUPPORTED)
        } else if !is_known(item.frame) {
            Some(MavMissionResult::MAV_MISSION_UNSUPPORTED_FRAME)
        } else if !place(item).is_finite() {
            Some(MavMissionResult::MAV_MISSION_INVALID)
        } else {
            None
        };
        if let Some(reason) = refused {
            self.upload = None;
            return vec![self.mission_ack(reason)];
        }
        upload.items.push(MISSION_ITEM_INT_DATA {
            target_system: self.station.0,
            target_component: self.station.1,
            ..item.clone()
        });
        self.continue_upload()
    }

    fn mission_ack(&self, result: MavMissionResult) -> MavMessage {
        MavMessage::MISSION_ACK(MISSION_ACK_DATA {
            target_system: self.station.0,
            target_component: self.station.1,
            mavtype: result,
        })
    }

    fn parameter(&mut self, index: usize) -> MavMessage {
        let parameter = &PARAMETERS[index];
        MavMessage::PARAM_VALUE(PARAM_VALUE_DATA {
            param_value: *(parameter.place)(&mut self.flight.tuning) as f32,
            param_count: PARAMETERS.len() as u16,
            param_index: index as u16,
            param_id: parameter.name.into(),
            param_type: MavParamType::MAV_PARAM_TYPE_REAL32,
        })
    }

    /// Sets a parameter within its limits; the reply has the value that it has now.
    fn set_parameter(&mut self, set: &PARAM_SET_DATA) -> Vec<MavMessage> {
        let Some(index) = index_of(&set.param_id) else {
            return Vec::new();
        };
        let Parameter { limits, place, .. } = &PARAMETERS[index];
        if (limits.0..=limits.1).contains(&set.param_value) {
            *place(&mut self.flight.tuning) = f64::from(set.param_value);
        }
        vec![self.parameter(index)]
    }

    /// Messages that have become due.
    pub(super) fn tell(&mut self) -> Vec<MavMessage> {
        let (now, told) = (self.flight.world.steps(), self.told);
        let is_due = |steps: u64| now / steps != told / steps;
        let mut messages = Vec::new();
        if is_due(SLOW_STEPS) {
            messages.extend([self.heartbeat(), self.battery(), self.current()]);
            // A request or its item may have been lost.
            messages.extend(self.continue_upload());
        }
        if is_due(POSITION_STEPS) {
            messages.extend([self.global_position(), self.local_position()]);
        }
        if is_due(ATTITUDE_STEPS) {
            messages.push(self.attitude());
        }
        self.told = now;
        messages
    }

    fn time_ms(&self) -> u32 {
        (self.flight.world.steps() as f64 * STEP_SECONDS * 1e3) as u32
    }

    fn heartbeat(&self) -> MavMessage {
        let status = &self.flight.status;
        let mut base_mode = MavModeFlag::MAV_MODE_FLAG_STABILIZE_ENABLED;
        if status.phase != Phase::Disarmed {
            base_mode |= MavModeFlag::MAV_MODE_FLAG_SAFETY_ARMED;
        }
        if status.phase == Phase::Mission {
            base_mode |= MavModeFlag::MAV_MODE_FLAG_AUTO_ENABLED;
        }
        let system_status = match status.phase {
            _ if status.alarms.names().next().is_some() => MavState::MAV_STATE_CRITICAL,
            Phase::Disarmed => MavState::MAV_STATE_STANDBY,
            _ => MavState::MAV_STATE_ACTIVE,
        };
        MavMessage::HEARTBEAT(HEARTBEAT_DATA {
            custom_mode: 0,
            mavtype: MavType::MAV_TYPE_QUADROTOR,
            autopilot: MavAutopilot::MAV_AUTOPILOT_GENERIC,
            base_mode,
            system_status,
            mavlink_version: 3,
        })
    }

    fn battery(&self) -> MavMessage {
        MavMessage::SYS_STATUS(SYS_STATUS_DATA {
            voltage_battery: (self.flight.status.battery_volts * 1e3) as u16,
            current_battery: -1,
            battery_remaining: -1,
            ..SYS_STATUS_DATA::default()
        })
    }

    fn current(&self) -> MavMessage {
        MavMessage::MISSION_CURRENT(MISSION_CURRENT_DATA {
            seq: self.flight.status.waypoint as u16,
        })
    }

    /// Estimate of the position, as navigators on earth say it.
    fn global_position(&self) -> MavMessage {
        let status = &self.flight.status;
        let (lat, lon) = globe(status.position);
        let heading = -status.attitude.euler().2.to_degrees() + 90.0;
        let cm = |speed: f64| (speed * 100.0) as i16;
        MavMessage::GLOBAL_POSITION_INT(GLOBAL_POSITION_INT_DATA {
            time_boot_ms: self.time_ms(),
            lat,
            lon,
            alt: (status.position.z * 1e3) as i32,
            relative_alt: (status.position.z * 1e3) as i32,
            vx: cm(status.velocity.y),
            vy: cm(status.velocity.x),
            vz: cm(-status.velocity.z),
            hdg: (heading.rem_euclid(360.0) * 100.0) as u16,
        })
    }

    /// The same in metres north, east, down.
    fn local_position(&self) -> MavMessage {
        let (place, speed) = (self.flight.status.position, self.flight.status.velocity);
        MavMessage::LOCAL_POSITION_NED(LOCAL_POSITION_NED_DATA {
            time_boot_ms: self.time_ms(),
            x: place.y as f32,
            y: place.x as f32,
            z: -place.z as f32,
            vx: speed.y as f32,
            vy: speed.x as f32,
            vz: -speed.z as f32,
        })
    }

    fn attitude(&self) -> MavMessage {
        let (roll, pitch, yaw) = self.flight.status.attitude.euler();
        let heading = std::f64::consts::FRAC_PI_2 - yaw;
        MavMessage::ATTITUDE(ATTITUDE_DATA {
            time_boot_ms: self.time_ms(),
            roll: roll as f32,
            pitch: pitch as f32,
            yaw: heading.sin().atan2(heading.cos()) as f32,
            ..ATTITUDE_DATA::default()
        })
    }
}

/// Whether heights are counted from the start, and places by latitude and longitude.
#[allow(deprecated)] // the second name is what stations send that are older than 2024
fn is_known(frame: MavFrame) -> bool {
    matches!(
        frame,
        MavFrame::MAV_FRAME_GLOBAL_RELATIVE_ALT | MavFrame::MAV_FRAME_GLOBAL_RELATIVE_ALT_INT
    )
}

/// Whether a message is for this vehicle, or for all.
fn is_mine(target: u8) -> bool {
    target == SYSTEM || target == 0
}

fn index_of(name: &CharArray<16>) -> Option<usize> {
    let name = name.to_str().ok()?;
    PARAMETERS
        .iter()
        .position(|one| one.name == name.trim_end_matches('\0'))
}

/// Metres for a degree of longitude at the start.
fn longitude_metres() -> f64 {
    DEGREE_METRES * HOME_LATITUDE.to_radians().cos()
}

/// Place of an item, in metres from the start.
fn place(item: &MISSION_ITEM_INT_DATA) -> Vector {
    let east = f64::from(item.y) / DEGREE_PARTS - HOME_LONGITUDE;
    let north = f64::from(item.x) / DEGREE_PARTS - HOME_LATITUDE;
    vector(
        east * longitude_metres(),
        north * DEGREE_METRES,
        f64::from(item.z),
    )
}

/// Latitude and longitude of a place.
fn globe(place: Vector) -> (i32, i32) {
    let latitude = HOME_LATITUDE + place.y / DEGREE_METRES;
    let longitude = HOME_LONGITUDE + place.x / longitude_metres();
    (
        (latitude * DEGREE_PARTS) as i32,
        (longitude * DEGREE_PARTS) as i32,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATION: (u8, u8) = (255, 190);

    fn vehicle() -> Vehicle {
        let mut vehicle = Vehicle::new(1);
        vehicle.flight.run_until(1.0);
        vehicle
    }

    fn item(seq: u16, place: Vector) -> MISSION_ITEM_INT_DATA {
        let (x, y) = globe(place);
        MISSION_ITEM_INT_DATA {
            seq,
            x,
            y,
            z: place.z as f32,
            command: MavCmd::MAV_CMD_NAV_WAYPOINT,
            frame: MavFrame::MAV_FRAME_GLOBAL_RELATIVE_ALT,
            target_system: SYSTEM,
            ..MISSION_ITEM_INT_DATA::default()
        }
    }

    fn count(count: u16) -> MavMessage {
        MavMessage::MISSION_COUNT(MISSION_COUNT_DATA {
            count,
            target_system: SYSTEM,
            target_component: COMPONENT,
        })
    }

    fn ack(replies: &[MavMessage]) -> Option<MavMissionResult> {
        match replies {
            [MavMessage::MISSION_ACK(ack)] => Some(ack.mavtype),
            _ => None,
        }
    }

    #[test]
    fn places_survive_the_globe_to_a_few_centimetres() {
        let here = vector(123.4, -56.7, 8.0);
        assert!((place(&item(0, here)) - here).length() < 0.03);
    }

    #[test]
    fn a_mission_is_asked_for_item_by_item_and_again_where_one_is_lost() {
        let mut vehicle = vehicle();
        let asked = |replies: &[MavMessage]| match replies {
            [MavMessage::MISSION_REQUEST_INT(request)] => request.seq,
            other => panic!("{other:?}"),
        };
        assert_eq!(asked(&vehicle.hear(STATION, &count(2))), 0);
        let first = MavMessage::MISSION_ITEM_INT(item(0, vector(1.0, 2.0, 3.0)));
        assert_eq!(asked(&vehicle.hear(STATION, &first)), 1);
        assert_eq!(asked(&vehicle.hear(STATION, &first)), 1, "twice the same");
        let second = MavMessage::MISSION_ITEM_INT(item(1, vector(2.0, 2.0, 3.0)));
        let replies = vehicle.hear(STATION, &second);
        assert_eq!(ack(&replies), Some(MavMissionResult::MAV_MISSION_ACCEPTED));
        assert_eq!(vehicle.flight.mission.points().len(), 2);
    }

    #[test]
    fn missions_that_cannot_be_flown_are_refused_and_the_old_one_stays() {
        let mut vehicle = vehicle();
        let too_many = vehicle.hear(STATION, &count(WAYPOINTS_MAX as u16 + 1));
        assert_eq!(ack(&too_many), Some(MavMissionResult::MAV_MISSION_NO_SPACE));
        let here = vector(1.0, 1.0, 2.0);
        for (item, reason) in [
            (
                MISSION_ITEM_INT_DATA {
                    command: MavCmd::MAV_CMD_NAV_LAND,
                    ..item(0, here)
                },
                MavMissionResult::MAV_MISSION_UNSUPPORTED,
            ),
            (
                MISSION_ITEM_INT_DATA {
                    frame: MavFrame::MAV_FRAME_MISSION,
                    ..item(0, here)
                },
                MavMissionResult::MAV_MISSION_UNSUPPORTED_FRAME,
            ),
            (
                MISSION_ITEM_INT_DATA {
                    z: f32::NAN,
                    ..item(0, here)
                },
                MavMissionResult::MAV_MISSION_INVALID,
            ),
        ] {
            vehicle.hear(STATION, &count(1));
            let replies = vehicle.hear(STATION, &MavMessage::MISSION_ITEM_INT(item));
            assert_eq!(ack(&replies), Some(reason));
        }
        assert!(vehicle.flight.mission.points().is_empty());
    }

    #[test]
    fn commands_are_answered_by_what_the_craft_can_do() {
        let mut vehicle = vehicle();
        let mut answer = |command: MavCmd, param1: f32, param7: f32| {
            let command = MavMessage::COMMAND_LONG(COMMAND_LONG_DATA {
                command,
                param1,
                param7,
                target_system: SYSTEM,
                ..COMMAND_LONG_DATA::default()
            });
            match vehicle.hear(STATION, &command).as_slice() {
                [MavMessage::COMMAND_ACK(ack)] => ack.result,
                other => panic!("{other:?}"),
            }
        };
        let rejected = MavResult::MAV_RESULT_TEMPORARILY_REJECTED;
        assert_eq!(answer(MavCmd::MAV_CMD_MISSION_START, 0.0, 0.0), rejected);
        assert_eq!(
            answer(MavCmd::MAV_CMD_DO_JUMP, 0.0, 0.0),
            MavResult::MAV_RESULT_UNSUPPORTED
        );
        assert_eq!(
            answer(MavCmd::MAV_CMD_COMPONENT_ARM_DISARM, 1.0, 0.0),
            MavResult::MAV_RESULT_ACCEPTED
        );
        assert_eq!(
            answer(MavCmd::MAV_CMD_NAV_TAKEOFF, 0.0, f32::NAN),
            MavResult::MAV_RESULT_DENIED
        );
        assert_eq!(
            answer(MavCmd::MAV_CMD_NAV_TAKEOFF, 0.0, 3.0),
            MavResult::MAV_RESULT_ACCEPTED
        );
        vehicle.flight.run_until(6.0);
        assert!((vehicle.flight.world.body().position.z - 3.0).abs() < 0.6);
    }

    #[test]
    fn a_parameter_stays_within_its_limits() {
        let mut vehicle = vehicle();
        let mut set = |value: f32| {
            let set = MavMessage::PARAM_SET(PARAM_SET_DATA {
                param_value: value,
                target_system: SYSTEM,
                param_id: "CRUISE_SPD".into(),
                ..PARAM_SET_DATA::default()
            });
            match vehicle.hear(STATION, &set).as_slice() {
                [MavMessage::PARAM_VALUE(value)] => value.param_value,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(set(4.0), 4.0);
        assert_eq!(set(1e9), 4.0);
        assert_eq!(set(f32::NAN), 4.0);
    }

    #[test]
    fn messages_for_others_are_not_answered() {
        let mut vehicle = vehicle();
        let other = MavMessage::MISSION_COUNT(MISSION_COUNT_DATA {
            count: 1,
            target_system: 7,
            target_component: 1,
        });
        assert!(vehicle.hear(STATION, &other).is_empty());
    }
}
