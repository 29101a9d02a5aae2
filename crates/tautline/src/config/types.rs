//! The `[[type]]` entries of a configuration, and the types that its ports name.

use std::sync::Arc;

use serde::Deserialize;
use tautline_types::Declaration;
use toml::Spanned;

use super::Wrong;
use crate::types::PortTypes;

/// Most types of a configuration. Lower: a robot's ports do not find room. Higher: a file that was made by mistake is
/// compared with itself for long, since each name is looked for among all.
const TYPES_MAX: usize = 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TypeEntry {
    name: Spanned<String>,
    fields: Spanned<Vec<Spanned<String>>>,
}

/// The type of an entry; `before` are those that stand above it.
pub(super) fn declared(
    entry: TypeEntry,
    before: &[Arc<Declaration>],
) -> Result<Arc<Declaration>, Wrong> {
    let name = entry.name.get_ref();
    if before.iter().any(|other| other.name() == name) {
        let message = format!("there is a type named `{name}` already");
        return Err((entry.name.span(), message));
    }
    if before.len() == TYPES_MAX {
        return Err((entry.name.span(), format!("more than {TYPES_MAX} types")));
    }
    Declaration::new(name, ["any: u8"]).map_err(|error| (entry.name.span(), error.to_string()))?;
    // Each field alone first: the mistake is pointed at.
    let fields = entry.fields.get_ref();
    for field in fields {
        Declaration::new(name, [field.get_ref().as_str()])
            .map_err(|error| (field.span(), error.to_string()))?;
    }
    Declaration::new(name, fields.iter().map(|field| field.get_ref().as_str()))
        .map(Arc::new)
        .map_err(|error| (entry.fields.span(), error.to_string()))
}

pub(super) fn of_port(
    received: Option<Spanned<String>>,
    sent: Option<Spanned<String>>,
    declared: &[Arc<Declaration>],
) -> Result<PortTypes, Wrong> {
    let find = |name: Spanned<String>| {
        let found = declared.iter().find(|one| one.name() == name.get_ref());
        found.map(Arc::clone).ok_or_else(|| {
            let known: Vec<&str> = declared.iter().map(|one| one.name()).collect();
            let known = match known.is_empty() {
                true => "a [[type]] declares one".to_owned(),
                false => format!("there are {}", known.join(", ")),
            };
            (
                name.span(),
                format!("no type `{}`: {known}", name.get_ref()),
            )
        })
    };
    let receives = received.map(find).transpose()?;
    Ok(PortTypes {
        sends: sent.map(find).transpose()?.or_else(|| receives.clone()),
        receives,
    })
}
