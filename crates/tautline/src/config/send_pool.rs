//! The `[send_pool]` section of a configuration: how many send buffers the node has.

use serde::Deserialize;
use toml::Spanned;

use super::Wrong;
use crate::send_pool::{BUFFERS_MAX, SendPoolConfig};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SendPoolSection {
    pages_1: Option<Spanned<u32>>,
    pages_4: Option<Spanned<u32>>,
    pages_8: Option<Spanned<u32>>,
    pages_16: Option<Spanned<u32>>,
}

pub(super) fn send_pool(section: SendPoolSection) -> Result<SendPoolConfig, Wrong> {
    let mut config = SendPoolConfig::default();
    for (given, count) in [
        (section.pages_1, &mut config.pages_1),
        (section.pages_4, &mut config.pages_4),
        (section.pages_8, &mut config.pages_8),
        (section.pages_16, &mut config.pages_16),
    ] {
        let Some(given) = given else { continue };
        if *given.get_ref() > BUFFERS_MAX {
            let message = format!(
                "{} buffers of a size are too many, expected 0 to {BUFFERS_MAX}",
                given.get_ref()
            );
            return Err((given.span(), message));
        }
        *count = given.into_inner();
    }
    Ok(config)
}
