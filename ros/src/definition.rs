//! Definitions of messages in ROS's own notation, and the shapes that they describe.
//!
//! A definition is what a file `NAME.msg` has: a line for each field. Shapes are what the bytes of a message follow.

use std::collections::BTreeMap;

/// Depth of messages within messages. Lower: odometry does not pass (5). Higher: a definition that contains itself
/// takes longer to be refused.
const DEPTH_MAX: usize = 16;
/// Elements of an array in a definition. Lower: covariances do not pass (36). Higher: mistakes take memory.
const ARRAY_MAX: usize = 65_536;
/// Message whose fields are a time; a field of that type may be mapped to one number of a port.
pub(crate) const TIME: &str = "builtin_interfaces/msg/Time";

/// Definitions that need not be declared.
const KNOWN: [(&str, &str); 31] = [
    (TIME, "int32 sec\nuint32 nanosec"),
    (
        "builtin_interfaces/msg/Duration",
        "int32 sec\nuint32 nanosec",
    ),
    ("std_msgs/msg/Empty", ""),
    ("std_msgs/msg/Bool", "bool data"),
    ("std_msgs/msg/Byte", "byte data"),
    ("std_msgs/msg/Int8", "int8 data"),
    ("std_msgs/msg/UInt8", "uint8 data"),
    ("std_msgs/msg/Int16", "int16 data"),
    ("std_msgs/msg/UInt16", "uint16 data"),
    ("std_msgs/msg/Int32", "int32 data"),
    ("std_msgs/msg/UInt32", "uint32 data"),
    ("std_msgs/msg/Int64", "int64 data"),
    ("std_msgs/msg/UInt64", "uint64 data"),
    ("std_msgs/msg/Float32", "float32 data"),
    ("std_msgs/msg/Float64", "float64 data"),
    ("std_msgs/msg/String", "string data"),
    (
        "std_msgs/msg/Header",
        "builtin_interfaces/Time stamp\nstring frame_id",
    ),
    (
        "std_msgs/msg/MultiArrayDimension",
        "string label\nuint32 size\nuint32 stride",
    ),
    (
        "std_msgs/msg/MultiArrayLayout",
        "MultiArrayDimension[] dim\nuint32 data_offset",
    ),
    (
        "std_msgs/msg/Float64MultiArray",
        "MultiArrayLayout layout\nfloat64[] data",
    ),
    (
        "std_msgs/msg/Float32MultiArray",
        "MultiArrayLayout layout\nfloat32[] data",
    ),
    (
        "std_msgs/msg/Int32MultiArray",
        "MultiArrayLayout layout\nint32[] data",
    ),
    (
        "geometry_msgs/msg/Vector3",
        "float64 x\nfloat64 y\nfloat64 z",
    ),
    ("geometry_msgs/msg/Point", "float64 x\nfloat64 y\nfloat64 z"),
    (
        "geometry_msgs/msg/Quaternion",
        "float64 x\nfloat64 y\nfloat64 z\nfloat64 w",
    ),
    ("geometry_msgs/msg/Twist", "Vector3 linear\nVector3 angular"),
    (
        "geometry_msgs/msg/TwistStamped",
        "std_msgs/Header header\nTwist twist",
    ),
    (
        "geometry_msgs/msg/Pose",
        "Point position\nQuaternion orientation",
    ),
    (
        "sensor_msgs/msg/JointState",
        "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort",
    ),
    (
        "sensor_msgs/msg/Imu",
        "std_msgs/Header header\ngeometry_msgs/Quaternion orientation\nfloat64[9] orientation_covariance\n\
         geometry_msgs/Vector3 angular_velocity\nfloat64[9] angular_velocity_covariance\n\
         geometry_msgs/Vector3 linear_acceleration\nfloat64[9] linear_acceleration_covariance",
    ),
    (
        "nav_msgs/msg/Odometry",
        "std_msgs/Header header\nstring child_frame_id\ngeometry_msgs/PoseWithCovariance pose\n\
         geometry_msgs/TwistWithCovariance twist",
    ),
];

/// More of them, which messages above are made of.
const PARTS: [(&str, &str); 2] = [
    (
        "geometry_msgs/msg/PoseWithCovariance",
        "Pose pose\nfloat64[36] covariance",
    ),
    (
        "geometry_msgs/msg/TwistWithCovariance",
        "Twist twist\nfloat64[36] covariance",
    ),
];

/// A number of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

impl Kind {
    /// Kind with a name of ROS.
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "bool" => Self::Bool,
            "int8" => Self::I8,
            "byte" | "char" | "uint8" => Self::U8,
            "int16" => Self::I16,
            "uint16" => Self::U16,
            "int32" => Self::I32,
            "uint32" => Self::U32,
            "int64" => Self::I64,
            "uint64" => Self::U64,
            "float32" => Self::F32,
            "float64" => Self::F64,
            _ => return None,
        })
    }

    /// Whether it has fractions.
    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

/// Shape of a message or of a part of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    /// A number.
    Number(Kind),
    /// A text of at most so many bytes.
    Text { bytes_max: usize },
    /// A message: its name and its fields.
    Message {
        name: String,
        fields: Vec<(String, Shape)>,
    },
    /// So many of one shape.
    Array { of: Box<Shape>, count: usize },
    /// Any number of one shape, up to a limit.
    Sequence { of: Box<Shape>, count_max: usize },
}

/// Definitions by their full names.
#[derive(Clone, Debug)]
pub(crate) struct Definitions(BTreeMap<String, String>);

impl Definitions {
    /// Those that need not be declared.
    pub(crate) fn known() -> Self {
        let all = KNOWN.iter().chain(&PARTS);
        Self(
            all.map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
                .collect(),
        )
    }

    /// Adds a definition.
    ///
    /// # Errors
    /// The name is none, or there is such a message.
    pub(crate) fn declare(&mut self, name: &str, text: &str) -> Result<(), String> {
        let full = full_name(name, "")?;
        match self.0.insert(full, text.to_owned()) {
            None => Ok(()),
            Some(_) => Err(format!("message `{name}` is there already")),
        }
    }

    /// Shape of a message, and its full name.
    ///
    /// # Errors
    /// The message is not defined, or a line of a definition cannot be used; in words.
    pub(crate) fn shape(&self, name: &str) -> Result<(String, Shape), String> {
        let full = full_name(name, "")?;
        let shape = self.resolve(&full, 0)?;
        Ok((full, shape))
    }

    fn resolve(&self, full: &str, depth: usize) -> Result<Shape, String> {
        if depth > DEPTH_MAX {
            return Err(format!("message `{full}` contains itself, or is too deep"));
        }
        let text = self
            .0
            .get(full)
            .ok_or_else(|| format!("message `{full}` is not known; declare it with [[message]]"))?;
        let package = full.split('/').next().unwrap_or_default();
        let mut fields: Vec<(String, Shape)> = Vec::new();
        for line in text.lines() {
            let wrong = |what: &str| format!("message `{full}`, line `{}`: {what}", line.trim());
            let Some((type_name, field)) = field_of(line).map_err(|what| wrong(&what))? else {
                continue;
            };
            if fields.iter().any(|(other, _)| *other == field) {
                return Err(wrong("there are two fields of that name"));
            }
            let shape = self
                .field_shape(&type_name, package, depth)
                .map_err(|what| wrong(&what))?;
            fields.push((field, shape));
        }
        if fields.is_empty() {
            // ROS puts a byte into messages without fields, because IDL has none.
            let byte = Shape::Number(Kind::U8);
            fields.push(("structure_needs_at_least_one_member".to_owned(), byte));
        }
        Ok(Shape::Message {
            name: full.to_owned(),
            fields,
        })
    }

    fn field_shape(&self, text: &str, package: &str, depth: usize) -> Result<Shape, String> {
        let Some((of, count)) = text.strip_suffix(']').and_then(|text| text.split_once('[')) else {
            return self.element_shape(text, package, depth);
        };
        let of = Box::new(self.element_shape(of, package, depth)?);
        let number = |text: &str| match text.parse::<usize>() {
            Ok(count) if (1..=ARRAY_MAX).contains(&count) => Ok(count),
            _ => Err(format!("expected 1 to {ARRAY_MAX} in brackets")),
        };
        Ok(match count.strip_prefix("<=") {
            Some(count) => Shape::Sequence {
                of,
                count_max: number(count)?,
            },
            None if count.is_empty() => Shape::Sequence {
                of,
                count_max: usize::MAX,
            },
            None => Shape::Array {
                of,
                count: number(count)?,
            },
        })
    }

    fn element_shape(&self, text: &str, package: &str, depth: usize) -> Result<Shape, String> {
        if let Some(kind) = Kind::named(text) {
            return Ok(Shape::Number(kind));
        }
        if text == "string" {
            return Ok(Shape::Text {
                bytes_max: usize::MAX,
            });
        }
        if let Some(bound) = text.strip_prefix("string<=") {
            let bytes_max = bound
                .parse()
                .map_err(|_| "the bound is not a number".to_owned())?;
            return Ok(Shape::Text { bytes_max });
        }
        if text.starts_with("wstring") || text.starts_with("float128") {
            return Err(format!("`{text}` is not supported"));
        }
        self.resolve(&full_name(text, package)?, depth + 1)
    }
}

/// Type and name in a line of a definition; `None` for comments, empty lines and constants.
fn field_of(line: &str) -> Result<Option<(String, String)>, String> {
    let line = line.split('#').next().unwrap_or_default().trim();
    if line.is_empty() {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let type_name = words.next().unwrap_or_default();
    let Some(name) = words.next() else {
        return Err("expected a type and a name".to_owned());
    };
    // A constant: `uint8 MODE=1`, also with spaces around the sign. `<=` is before the name.
    if name.contains('=') || words.next().is_some_and(|word| word.starts_with('=')) {
        return Ok(None);
    }
    if !is_name(name) {
        return Err(format!("`{name}` is not a name"));
    }
    Ok(Some((type_name.to_owned(), name.to_owned())))
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text
            .chars()
            .all(|one| one.is_ascii_alphanumeric() || one == '_')
}

/// Full name, `PACKAGE/msg/NAME`, of a name that may lack the middle, or the package too.
fn full_name(name: &str, package: &str) -> Result<String, String> {
    let parts: Vec<&str> = name.split('/').collect();
    let (package, name) = match parts[..] {
        ["Header"] => ("std_msgs", "Header"),
        [short] if !package.is_empty() => (package, short),
        [package, short] | [package, "msg", short] => (package, short),
        _ => {
            return Err(format!(
                "`{name}` is not a message such as \"sensor_msgs/msg/JointState\""
            ));
        }
    };
    if !is_name(package) || !is_name(name) {
        return Err(format!(
            "`{package}/{name}` is not a message such as \"sensor_msgs/msg/JointState\""
        ));
    }
    Ok(format!("{package}/msg/{name}"))
}

/// Name of a message's type on DDS.
pub(crate) fn dds_name(full: &str) -> String {
    let (package, name) = full.split_once("/msg/").unwrap_or(("", full));
    format!("{package}::msg::dds_::{name}_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_message_has_a_shape() {
        let known = Definitions::known();
        for (name, _) in KNOWN.iter().chain(&PARTS) {
            let (full, shape) = known.shape(name).unwrap();
            assert_eq!(full, *name);
            assert!(matches!(shape, Shape::Message { fields, .. } if !fields.is_empty()));
        }
        assert_eq!(
            dds_name("sensor_msgs/msg/JointState"),
            "sensor_msgs::msg::dds_::JointState_"
        );
    }

    #[test]
    fn a_definition_of_ros_is_read() {
        let mut all = Definitions::known();
        let text = "# comment\nuint8 OFF=0\nint32 ON = 1\n\nHeader header\nfloat32[3] force  # newtons\n\
            string<=8 name\nint16[<=4] codes\nstd_msgs/String[] texts\nfloat64 gain 1.5\n";
        all.declare("my_msgs/Wrench", text).unwrap();
        let (full, shape) = all.shape("my_msgs/msg/Wrench").unwrap();
        assert_eq!(full, "my_msgs/msg/Wrench");
        let Shape::Message { fields, .. } = shape else {
            panic!("a message");
        };
        let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["header", "force", "name", "codes", "texts", "gain"]);
        assert_eq!(fields[2].1, Shape::Text { bytes_max: 8 });
        let short = Box::new(Shape::Number(Kind::I16));
        assert_eq!(
            fields[3].1,
            Shape::Sequence {
                of: short,
                count_max: 4
            }
        );
    }

    #[test]
    fn mistakes_are_told() {
        for (text, expected) in [
            ("float64", "a type and a name"),
            ("float64 1x", "is not a name"),
            ("float64 x\nfloat64 x", "two fields"),
            ("float64[0] x", "expected 1 to"),
            ("float64[70000] x", "expected 1 to"),
            ("wstring x", "is not supported"),
            ("Missing x", "`a/msg/Missing` is not known"),
            ("Loop x", "contains itself"),
            ("string<=x y", "not a number"),
        ] {
            let mut all = Definitions::known();
            all.declare("a/Loop", text).unwrap();
            let error = all.shape("a/Loop").unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let mut all = Definitions::known();
        assert!(all.declare("std_msgs/Bool", "bool data").is_err());
        assert!(all.declare("Bool", "bool data").is_err());
        assert!(all.declare("a/b/c/d", "bool data").is_err());
    }
}
