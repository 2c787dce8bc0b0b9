//! `[update]` of a profile: which updates of nodlet the board accepts.

use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

/// Which updates are accepted, for the profile and for `board.json`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
#[serde(rename_all(deserialize = "kebab-case"))]
pub struct Update {
    /// Public keys of minisign, one of which must have signed an update.
    pub keys: Vec<String>,
    /// Whether updates without a signature are accepted.
    pub allow_unsigned: bool,
    /// How long an updated nodlet must be healthy to be kept, for example `60s` or `5m`.
    #[serde(serialize_with = "seconds")]
    pub healthy_after: String,
}

impl Default for Update {
    fn default() -> Self {
        Update { keys: Vec::new(), allow_unsigned: false, healthy_after: "60s".into() }
    }
}

fn seconds<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    let time = duration(text).ok_or_else(|| serde::ser::Error::custom("no duration"))?;
    serializer.serialize_u64(time.as_secs())
}

/// Parses whole seconds or minutes.
fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = match text.strip_suffix('s') {
        Some(number) => (number, 1),
        None => (text.strip_suffix('m')?, 60),
    };
    number.parse::<u32>().ok().map(|number| Duration::from_secs(u64::from(number) * unit))
}

impl Update {
    /// Checks the rules.
    pub(super) fn check(&self) -> Result<(), String> {
        // A key is 42 bytes in base64, of which the first two are `Ed`.
        let is_key = |key: &&String| {
            key.len() == 56
                && key.starts_with("RW")
                && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '/'))
        };
        if let Some(key) = self.keys.iter().find(|key| !is_key(key)) {
            return Err(format!(
                "keys has {key:?}, which is not a public key of minisign: it must be the second line of the file \
                 that `minisign -G` writes, as \"RW...\" with 56 characters"
            ));
        }
        match duration(&self.healthy_after) {
            Some(time) if (10..=3600).contains(&time.as_secs()) => Ok(()),
            Some(_) | None => {
                Err(format!("healthy-after is {:?}: it must be from \"10s\" to \"60m\"", self.healthy_after))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "RWSdvysHnYyxThlfiyOofiBndfqdYRp0X3OmlKZDgj1zD7Yfmc0B3KfJ";

    fn check(text: &str) -> Result<String, String> {
        let update: Update = toml::from_str(text).map_err(|error| error.to_string())?;
        update.check()?;
        serde_json::to_string(&update).map_err(|error| error.to_string())
    }

    #[test]
    fn the_update_configuration_of_a_board_is_generated_from_its_profile() {
        let none = r#"{"keys":[],"allow_unsigned":false,"healthy_after":60}"#;
        assert_eq!(check("").as_deref(), Ok(none));
        let text = format!("keys = [\"{KEY}\"]\nallow-unsigned = true\nhealthy-after = \"5m\"");
        let some = format!(r#"{{"keys":["{KEY}"],"allow_unsigned":true,"healthy_after":300}}"#);
        assert_eq!(check(&text), Ok(some));
    }

    #[test]
    fn invalid_update_keys_of_a_profile_are_rejected_with_accepted_values() {
        for (text, words) in [
            ("key = []".to_owned(), "expected one of `keys`, `allow-unsigned`, `healthy-after`"),
            ("keys = [\"RWabc\"]".to_owned(), "not a public key of minisign"),
            (format!("keys = [\"{}\"]", KEY.replace("RW", "RX")), "not a public key of minisign"),
            (format!("keys = [\"{}\"]", KEY.replace('O', "!")), "not a public key of minisign"),
            ("healthy-after = \"5s\"".to_owned(), "from \"10s\" to \"60m\""),
            ("healthy-after = \"long\"".to_owned(), "from \"10s\" to \"60m\""),
            ("healthy-after = 60".to_owned(), "invalid type"),
        ] {
            let why = check(&text).expect_err(words);
            assert!(why.contains(words), "{text}: {why}");
        }
    }
}
